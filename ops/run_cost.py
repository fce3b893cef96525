"""What a run has cost: the hours that it had nodes, times list prices of all that billed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ops.spending import Paid, Spent, add_up
from settings.cost import hourly_costs
from settings.figure import Figure
from settings.prices import Prices
from training import node_hours
from training.config import Rented

_BESIDE = "the start and the idle minutes of its nodes"


@dataclass(frozen=True)
class RunCost:
    """`spent` by a run; `per_million_tokens` at its median speed, start-up and restarts not counted."""

    spent: Spent
    per_million_tokens: Figure

    def rows(self) -> Iterator[tuple[str, ...]]:
        """What, hours, dollars an hour, dollars, and the price's date and source; or why there is no price."""
        for part in self.spent.parts:
            price, dollars = part.price.value, part.dollars.value
            known = price is not None and dollars is not None
            yield (part.what, f"{part.hours:.2f}", f"{price:.4g}" if known else "unknown",
                   f"{dollars:,.2f}" if known else "unknown", part.price.note)


def run_cost(told: Mapping[str, Any], prices: Prices) -> RunCost | None:
    """The cost of a run as its summary tells it; None where nothing was rented for it, as on a laptop.

    Args:
        told: `rented`, `hours`, `node_hours`, `nodes` and `tokens_per_second` of summary.json.
    """
    try:
        rented = Rented.model_validate(told.get("rented"))
        hours, node_hours, nodes = float(told["hours"]), float(told["node_hours"]), int(told.get("nodes") or 1)
    except (ValidationError, KeyError, TypeError, ValueError):  # written by hand, or before there was a cost
        return None
    gpu, *others = hourly_costs(rented, nodes, prices)
    parts = [Paid(gpu.what, gpu.count, node_hours, gpu.each),
             *(Paid(cost.what, cost.count, cost.count * hours, cost.each) for cost in others)]
    spent = add_up(parts, _BESIDE)
    return RunCost(spent, _per_million_tokens(spent.an_hour, told.get("tokens_per_second")))


def so_far(run: Mapping[str, Any], now: float) -> dict[str, Any]:
    """What `run_cost` takes, out of the run.json of a run that has no summary yet; {} where that is damaged."""
    held = run.get("held") or []
    try:
        hours, of_nodes = node_hours.hours(held, now)
        return {"rented": run.get("rented"), "hours": hours, "node_hours": of_nodes,
                "nodes": held[-1]["nodes"] if held else None}
    except (KeyError, TypeError):
        return {}


def _per_million_tokens(an_hour: Figure, tokens_per_second: Any) -> Figure:
    unit = "$ per 10^6 tokens"
    if an_hour.value is None:
        return Figure.unknown(unit, an_hour.note)
    if not isinstance(tokens_per_second, (int, float)) or tokens_per_second <= 0:
        return Figure.unknown(unit, "no step was done")
    return Figure.predicted(an_hour.value / 3600 / tokens_per_second * 1e6, unit)
