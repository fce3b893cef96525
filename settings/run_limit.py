"""When a job is ended whatever it does: after ray.run_hours, or when it could have cost ray.max_dollars."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from settings.cost import dollars_an_hour, hourly_costs, rented
from settings.prices import read_prices

if TYPE_CHECKING:
    from settings.model import Settings

AFTERWARDS_MINUTES = 5
"""Beside gpu.idle_minutes, that nodes still bill once their job was ended: workers save and leave, the Cluster
Autoscaler looks for two minutes, the instance goes."""


@dataclass(frozen=True)
class RunLimit:
    """The longest that a job may take, in seconds, and the setting that says so, in words.

    `dollars`: the ceiling, where it is that.
    """

    seconds: int
    why: str
    dollars: float | None = None

    @property
    def text(self) -> str:
        """`after 1.9 hours at the latest (ray.max_dollars 20 …)`."""
        return f"after {self.seconds / 3600:.1f} hours at the latest ({self.why})"


def run_limit(settings: Settings) -> RunLimit:
    """The tighter one of both limits.

    The ceiling counts all that bills by the hour, from the job's first second (while it still waits for its nodes
    as well) until the last of its nodes is gone. So a job never costs more at these prices, and mostly less.

    Raises:
        ValueError: if a ceiling is set that cannot be held, or is too low for a job to start.
    """
    hours, ceiling = settings.ray.run_hours, settings.ray.max_dollars
    by_hours = RunLimit(hours * 3600, f"ray.run_hours {hours}")
    if ceiling is None:
        return by_hours
    hourly = _most_an_hour(settings)
    afterwards = settings.gpu.idle_minutes + AFTERWARDS_MINUTES
    least = settings.ray.start_minutes + 1 + afterwards
    seconds = int(ceiling / hourly * 3600) - afterwards * 60
    if seconds < (settings.ray.start_minutes + 1) * 60:
        smallest = math.ceil(hourly * least / 60 * 100) / 100
        raise ValueError(
            f"ray.max_dollars {ceiling:g} does not pay for the start: ray.start_minutes "
            f"{settings.ray.start_minutes}, and {afterwards} minutes until the nodes are gone (gpu.idle_minutes "
            f"{settings.gpu.idle_minutes}), at ${hourly:,.2f} an hour; use {smallest:.2f} or more, or less time")
    if seconds >= by_hours.seconds:
        return by_hours
    return RunLimit(seconds, f"ray.max_dollars {ceiling:g} at ${hourly:,.2f} an hour, with {afterwards} minutes "
                    "until the nodes are gone", ceiling)


def _most_an_hour(settings: Settings) -> float:
    """Dollars an hour that everything together costs at most: spot nodes never cost more than on-demand ones."""
    rents = rented(settings)
    kind = rents.capacity
    if kind == "capacity-block":
        raise ValueError("ray.max_dollars cannot be held with gpu.capacity.kind capacity-block: a block is paid as "
                         "a whole when it is bought, whatever the job does; leave it out, and use ray.run_hours")
    counted = rents.model_copy(update={"capacity": "on-demand"}) if kind == "spot" else rents
    prices = read_prices()
    costs = hourly_costs(counted, settings.gpu.nodes, prices)
    value = dollars_an_hour(costs).value
    if value is None:
        unknown = ", ".join(cost.what for cost in costs if cost.each.value is None)
        raise ValueError(f"ray.max_dollars cannot be held: settings/prices.json has no price of {unknown} in "
                         f"{settings.region}; eagleray catalog prices {settings.region} asks AWS for those that "
                         "there are, or leave it out, and use ray.run_hours")
    return value
