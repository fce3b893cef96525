"""Dollars so far of a deployment: hours of all that stands, times list prices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ops.spending import Paid, Spent, add_up
from settings.figure import Figure
from settings.prices import HOURLY, Prices

_SERVICE_NAMES = {"eks_standard": "EKS", "eks_extended": "EKS, extended support", "nat_gateway": "NAT gateway"}


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
    parts = [Paid(kind, len(hours), sum(hours), _price(kind, market, region, prices))
             for (kind, market), hours in sorted(groups.items())]
    for service, since in services.items():
        price = prices.service(region, service)  # pyright: ignore[reportArgumentType]
        parts.append(Paid(_SERVICE_NAMES[service], 1, (now - since).total_seconds() / 3600, price))
    return add_up(parts, "what is already gone")


def _price(kind: str, market: str, region: str, prices: Prices) -> Figure:
    if market == "ON_DEMAND":
        return prices.instance(region, kind)
    return Figure.unknown(HOURLY, f"{market.lower().replace('_', ' ')}: no list price")


def _hours(created: str | None, now: datetime) -> float:
    if not created:
        return 0.0
    return max(0.0, (now - datetime.fromisoformat(created)).total_seconds() / 3600)
