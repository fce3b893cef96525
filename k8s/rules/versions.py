"""Ray versions, as far as rules compare them."""

from __future__ import annotations

import re


def version(text: str | None) -> tuple[int, ...] | None:
    """(2, 58, 0) of `2.58.0`, `2.58.0-py311` or `nightly` (None)."""
    found = re.match(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", text or "")
    return tuple(int(part or 0) for part in found.groups()) if found else None


def older(text: str | None, least: str) -> bool:
    """Whether a version is known and below another."""
    known, wanted = version(text), version(least)
    return known is not None and wanted is not None and known < wanted
