"""What a deployment costs by the hour at list prices: the one place where its parts and their prices meet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagleray import catalog
from settings.figure import Figure
from settings.prices import HOURLY, Prices
from training.config import Rented

if TYPE_CHECKING:
    from settings.model import Settings

NOT_INCLUDED = "disks, data transfer, S3, logs"
"""What a plan's dollars leave out: small, or not known before the run."""


@dataclass(frozen=True)
class Cost:
    """Something that is paid by the hour; `each` is the price of one."""

    what: str
    count: int
    each: Figure


def rented(settings: Settings) -> Rented:
    """What these settings rent by the hour."""
    extended = catalog.eks_versions()[settings.cluster.version]["support"] == "extended"
    return Rented(
        region=settings.region, instance_type=settings.gpu.instance_type, capacity=settings.gpu.capacity.kind,
        system_type=settings.system.instance_type, system_nodes=settings.system.nodes,
        control_plane="extended" if extended else "standard")


def hourly_costs(rented: Rented, nodes: int, prices: Prices) -> tuple[Cost, ...]:
    """Everything that bills by the hour while a job has `nodes` GPU nodes; these come first."""
    region, extended = rented.region, rented.control_plane == "extended"
    return (
        Cost(rented.instance_type, nodes, gpu_price(rented, prices)),
        Cost(rented.system_type, rented.system_nodes, prices.instance(region, rented.system_type)),
        Cost(f"EKS control plane{', extended support' if extended else ''}", 1,
             prices.service(region, "eks_extended" if extended else "eks_standard")),
        Cost("NAT gateway", 1, prices.service(region, "nat_gateway")),
    )


def gpu_price(rented: Rented, prices: Prices) -> Figure:
    """The price of one GPU node, bought in that way; one that a reservation holds has the on-demand price."""
    on_demand = prices.instance(rented.region, rented.instance_type)
    if rented.capacity == "spot":
        most = "" if on_demand.value is None else f"; at most the on-demand ${on_demand.value:,.2f} an hour each"
        return Figure.unknown(HOURLY, f"spot prices change by the hour{most}")
    if rented.capacity == "capacity-block":
        return Figure.unknown(HOURLY, "a Capacity Block is paid as a whole when it is bought")
    return on_demand


def dollars_an_hour(costs: Iterable[Cost]) -> Figure:
    """All of them together; unknown where the price of one is."""
    costs = tuple(costs)
    unknown: dict[str, list[str]] = {}
    for cost in costs:
        if cost.each.value is None:
            unknown.setdefault(cost.each.note, []).append(cost.what)
    if unknown:
        return Figure.unknown(HOURLY, "; ".join(f"{', '.join(what)}: {why}" for why, what in unknown.items()))
    total = sum(cost.count * (cost.each.value or 0) for cost in costs)
    return Figure(total, HOURLY, "published", f"list prices, the oldest of {oldest(costs)}; without {NOT_INCLUDED}")


def oldest(costs: Iterable[Cost]) -> str:
    """The date of the oldest price."""
    return min(cost.each.note.split(":")[0] for cost in costs)
