"""Dollars so far: hours of what stands, times list prices. Predicted: the bill is AWS's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from settings.cost import NOT_INCLUDED
from settings.figure import Figure
from settings.prices import Prices

_GONE = f"without {NOT_INCLUDED}, and without what is already gone"


@dataclass(frozen=True)
class Spent:
    """`dollars` in all; `an_hour` while it stands like this; `lines` say for what."""

    dollars: Figure
    an_hour: Figure
    lines: tuple[str, ...]


def spent(nodes: Iterable[Mapping[str, Any]], services: Mapping[str, datetime], region: str, prices: Prices,
          now: datetime) -> Spent:
    """What nodes and services have cost since each was made.

    Args:
        nodes: of the cluster, as the API server writes them.
        services: by their name in the price file, since when they stand.
    """
    groups: dict[tuple[str, str], list[float]] = {}
    for node in nodes:
        labels = node["metadata"].get("labels") or {}
        kind = (labels.get("node.kubernetes.io/instance-type", "unknown type"),
                labels.get("eks.amazonaws.com/capacityType", "ON_DEMAND"))
        groups.setdefault(kind, []).append(_hours(node["metadata"].get("creationTimestamp"), now))
    items = [(kind, _price(kind, market, region, prices), hours)
             for (kind, market), hours in sorted(groups.items())]
    for service, since in services.items():
        price = prices.service(region, service)  # pyright: ignore[reportArgumentType]
        items.append((_SERVICE_NAMES[service], price, [(now - since).total_seconds() / 3600]))
    return _add(items)


_SERVICE_NAMES = {"eks_standard": "EKS", "eks_extended": "EKS, extended support", "nat_gateway": "NAT gateway"}


def _price(kind: str, market: str, region: str, prices: Prices) -> Figure:
    if market == "ON_DEMAND":
        return prices.instance(region, kind)
    return Figure.unknown("$/h", f"{market.lower().replace('_', ' ')}: no list price")


def _add(items: list[tuple[str, Figure, list[float]]]) -> Spent:
    total, hourly, lines, unknown = 0.0, 0.0, [], []
    for what, price, hours in items:
        if price.value is None:
            unknown.append(f"{what} ({price.note})")
            continue
        total += price.value * sum(hours)
        hourly += price.value * len(hours)
        lines.append(f"{len(hours)} x {what}, {sum(hours):.1f} h at ${price.value:.2f}: "
                     f"${price.value * sum(hours):,.2f}")
    if unknown:
        why = f"no price of {', '.join(unknown)}"
        return Spent(Figure.unknown("$", why), Figure.unknown("$/h", why), tuple(lines))
    return Spent(Figure.predicted(total, "$", _GONE), Figure.predicted(hourly, "$/h"), tuple(lines))


def _hours(created: str | None, now: datetime) -> float:
    if not created:
        return 0.0
    return max(0.0, (now - datetime.fromisoformat(created)).total_seconds() / 3600)
