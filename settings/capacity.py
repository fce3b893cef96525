"""How the GPU instances are obtained: one group of settings for each kind."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BeforeValidator, Field

from settings.strict import Strict

ReservationId = Annotated[str, Field(pattern=r"^cr-[0-9a-f]{8,17}$")]


def _written_moment(value: object) -> object:
    """YAML's own timestamps and text; a number would be taken for seconds since 1970."""
    if value is not None and not isinstance(value, (str, datetime)):
        raise ValueError("must be a moment in UTC, for example 2026-12-10T11:30:00Z")
    return value


class OnDemand(Strict):
    """On-demand instances."""

    kind: Literal["on-demand"] = "on-demand"
    """On-demand instances."""
    probe: bool = True
    """Find out first whether the zone has the instances, by reserving and at once cancelling them: some seconds
    of their price."""


class Spot(Strict):
    """Spot instances."""

    kind: Literal["spot"]
    """Spot instances: cheaper, and taken away with two minutes' notice."""


class Reservation(Strict):
    """An existing On-Demand Capacity Reservation."""

    kind: Literal["reservation"]
    """An existing On-Demand Capacity Reservation."""
    id: ReservationId
    """Id of the reservation or Capacity Block, cr-…"""
    placement_group: str | None = None
    """Placement group the reservation was made in; none: nodes are placed without one."""


class Reserve(Strict):
    """An On-Demand Capacity Reservation that the deployment makes."""

    kind: Literal["reserve"]
    """A reservation that the deployment makes for these nodes: billed from then on, also while they do not run."""
    hours: int = Field(ge=1, le=720)
    """Hours until the reservation ends by itself, from the next full hour on; another number moves its end."""
    round: int = Field(default=1, ge=1)
    """Raise it to reserve again once the reservation has ended: no deployment does so by itself."""


class CapacityBlock(Strict):
    """A Capacity Block for ML that was bought before."""

    kind: Literal["capacity-block"]
    """A Capacity Block for ML that you have bought."""
    id: ReservationId
    """Id of the reservation or Capacity Block, cr-…"""
    starts: Annotated[AwareDatetime | None, BeforeValidator(_written_moment)] = None
    """When the block starts, in UTC, and its nodes come; none: it has started."""


Capacity = Annotated[OnDemand | Spot | Reservation | Reserve | CapacityBlock, Field(discriminator="kind")]
KINDS = ("on-demand", "spot", "reservation", "reserve", "capacity-block")
