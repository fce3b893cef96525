"""What was found of a job's wire, in lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def lines_for_people(told: Mapping[str, Any]) -> list[str]:
    """`wire: tcp (…), allowed: …` and `fabric: 1.23 GB/s …` from transport.json, or a summary's `transport`."""
    allowed = "as required" if told["required"] == told["verdict"] else \
        f"allowed here (training.transport.require {told['require']})"
    lines = [f"wire: {told['verdict']}, {allowed}: {'; '.join(r['detail'] for r in told['reasons']) or 'proven'}"]
    checked = told.get("fabric")
    if checked and checked["measured"]:
        best = max(checked["measured"], key=lambda item: item["bus_gb_s"])
        expected = checked["expected"]
        of = f" of {expected['gb_s']:.2f} that {expected['what']} should give" if expected else ""
        lines.append(f"fabric: sums {checked['sums']}; {best['bus_gb_s']:.2f} GB/s bus bandwidth over "
                     f"{checked['ranks']} ranks at {best['size'] // 2**20} MiB{of}")
    return lines
