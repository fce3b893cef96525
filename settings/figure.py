"""A number that says where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Basis = Literal["measured", "published", "predicted", "unknown"]


@dataclass(frozen=True)
class Figure:
    """One figure of a plan. `note` is its source, or why it is not known."""

    value: float | None
    unit: str
    basis: Basis
    note: str = ""

    @classmethod
    def predicted(cls, value: float, unit: str, note: str = "") -> Figure:
        """A figure of the prediction."""
        return cls(value, unit, "predicted", note)

    @classmethod
    def unknown(cls, unit: str, why: str) -> Figure:
        """A figure that nobody here knows."""
        return cls(None, unit, "unknown", why)

    def times(self, factor: float, unit: str | None = None) -> Figure:
        """The figure `factor` times; unknown stays unknown."""
        value = None if self.value is None else self.value * factor
        return Figure(value, unit or self.unit, self.basis, self.note)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {"value": self.value, "unit": self.unit, "basis": self.basis, "note": self.note}
