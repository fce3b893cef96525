"""Dollars: hours times list prices. Predicted: the bill is AWS's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from settings.cost import NOT_INCLUDED
from settings.figure import Figure
from settings.prices import HOURLY


@dataclass(frozen=True)
class Paid:
    """`count` of a thing, for `hours` all together, at the price of one."""

    what: str
    count: int
    hours: float
    price: Figure

    @property
    def dollars(self) -> Figure:
        """What it comes to; unknown where the price is."""
        if self.price.value is None:
            return Figure.unknown("$", self.price.note)
        return Figure.predicted(self.price.value * self.hours, "$", self.price.note)


@dataclass(frozen=True)
class Spent:
    """`dollars` in all; `an_hour` while it stands like this; `parts`: for what."""

    dollars: Figure
    an_hour: Figure
    parts: tuple[Paid, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        """`2 x g6.12xlarge, 4.0 h at $4.60: $18.41` for each part with a price."""
        return tuple(f"{part.count} x {part.what}, {part.hours:.1f} h at ${part.price.value:.2f}: "
                     f"${part.dollars.value:,.2f}" for part in self.parts if part.price.value is not None)


def add_up(parts: Iterable[Paid], also_without: str) -> Spent:
    """The parts together; unknown where the price of one is. `also_without`: what they leave out besides disks …"""
    parts = tuple(parts)
    unknown = [f"{part.what} ({part.price.note})" for part in parts if part.price.value is None]
    if unknown:
        why = f"no price of {', '.join(unknown)}"
        return Spent(Figure.unknown("$", why), Figure.unknown(HOURLY, why), parts)
    total = sum(part.dollars.value or 0 for part in parts)
    hourly = sum(part.count * (part.price.value or 0) for part in parts)
    return Spent(Figure.predicted(total, "$", f"without {NOT_INCLUDED}, and without {also_without}"),
                 Figure.predicted(hourly, HOURLY), parts)
