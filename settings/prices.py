"""What AWS charges by the hour, from the dated prices.json or from answers of the Price List API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from settings.figure import Figure

PRICE_FILE = Path(__file__).parent / "prices.json"
HOURLY = "$/h"

Service = Literal["eks_standard", "eks_extended", "nat_gateway"]


@dataclass(frozen=True)
class Price:
    """US dollars an hour, who said so, and when (a date, or the year where the source has no date)."""

    dollars: float
    source: str
    as_of: str


@dataclass(frozen=True)
class Prices:
    """The price file; `live` prices, by region and instance type or service, win over it."""

    data: Mapping[str, Any]
    live: Mapping[tuple[str, str], Price] = field(default_factory=dict)

    def instance(self, region: str, instance_type: str) -> Figure:
        """The on-demand price of a Linux instance; unknown where no source has one."""
        if price := self.live.get((region, instance_type)):
            return _published(price)
        if why := self.data["not_on_demand"].get(instance_type):
            return Figure.unknown(HOURLY, why)
        return self._of_the_file("instances", region, instance_type)

    def service(self, region: str, service: Service) -> Figure:
        """The price of what else runs by the hour."""
        if price := self.live.get((region, service)):
            return _published(price)
        return self._of_the_file("services", region, service)

    def _of_the_file(self, kind: Literal["instances", "services"], region: str, name: str) -> Figure:
        row = self.data[kind].get(region, {}).get(name)
        if row is None:
            regions = ", ".join(self.data[kind])
            return Figure.unknown(HOURLY, f"no known price in {region}; --live asks AWS, and the price file has "
                                  f"most types in {regions}")
        source = self.data["sources"][row[1]]
        return _published(Price(row[0], source["where"], source["as_of"]))


def _published(price: Price) -> Figure:
    return Figure(price.dollars, HOURLY, "published", f"{price.as_of}: {price.source}")


def read_prices(path: Path = PRICE_FILE) -> Prices:
    """The price file."""
    return Prices(json.loads(path.read_text()))


def as_text(data: Mapping[str, Any]) -> str:
    """The price file's text, one price on each line."""
    parts = [f"  {json.dumps(key)}: {_value(value, 1)}" for key, value in data.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _value(value: Any, depth: int) -> str:
    if not isinstance(value, dict) or set(value) == {"where", "as_of"}:
        return json.dumps(value)
    inner = "  " * (depth + 1)
    lines = [f"{inner}{json.dumps(key)}: {_value(below, depth + 1)}" for key, below in value.items()]
    return "{\n" + ",\n".join(lines) + "\n" + "  " * depth + "}"
