"""Kubernetes quantities: `500m`, `16Gi`, `4`."""

from __future__ import annotations

import math
import re
from typing import Any

_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?\d{1,3}))?")
_FACTORS = {
    "": 1.0,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    **{unit: 1e3**power for power, unit in enumerate("MGTPE", start=2)},
    **{f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", start=1)},
}


def amount(value: Any) -> float | None:
    """A quantity as a number (cores, bytes, devices), or None where it is none: `16GiB`, `1 Gi`, ``."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < 1e300 else math.inf
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) and len(value) < 64 else None
    if not found:
        return None
    number, unit, exponent = found.groups()
    return float(f"{number}e{exponent}") if exponent else float(number) * _FACTORS[unit or ""]


def in_words(resource: str, value: float) -> str:
    """`12Gi` for memory, `3.5` for the rest."""
    if resource in ("memory", "ephemeral-storage"):
        return f"{value / 2**30:.4g}Gi"
    return f"{value:g}"
