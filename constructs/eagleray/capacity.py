"""How the GPU instances are obtained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks

Kind = Literal["on-demand", "spot", "reservation", "reserve", "capacity-block"]


@dataclass(frozen=True)
class Capacity:
    """Where instances come from, and the placement group that they may be launched in.

    Make one with `Capacity.on_demand()`, `.spot()`, `.reservation(id)`, `.reserve(hours)` or
    `.capacity_block(id)`; hand it to a `CapacityGate`, and the gate's `granted` to a `GpuNodegroup`.
    """

    kind: Kind
    placement_group: str | None = None
    reservation_id: str | None = None
    starts: datetime | None = None
    hours: int = 0
    round: int = 1
    probes: bool = False

    @classmethod
    def on_demand(cls, placement_group: str | None = None) -> Capacity:
        """On-demand instances, launched in the placement group of that name if one is given."""
        return cls("on-demand", placement_group)

    @classmethod
    def probed_on_demand(cls, placement_group: str | None = None) -> Capacity:
        """On-demand instances of which the gate makes sure that the zone has them when it is deployed."""
        return cls("on-demand", placement_group, probes=True)

    @classmethod
    def spot(cls, placement_group: str | None = None) -> Capacity:
        """Spot instances: cheaper, and taken away with two minutes' notice."""
        return cls("spot", placement_group)

    @classmethod
    def reservation(cls, reservation_id: str, placement_group: str | None = None) -> Capacity:
        """An existing On-Demand Capacity Reservation, `cr-…`.

        `placement_group` is the group that the reservation was made in, None when it was made in none: in
        any other group EC2 answers InsufficientInstanceCapacity although the reservation is free.
        Source: github.com/terraform-aws-modules/terraform-aws-eks/pull/3730.
        """
        return cls("reservation", placement_group, reservation_id)

    @classmethod
    def reserve(cls, hours: int, round: int = 1, placement_group: str | None = None) -> Capacity:
        """An On-Demand Capacity Reservation that the gate makes, and that ends by itself `hours` later.

        It is not a CfnCapacityReservation: that wants the date of its end at synthesis, so that either every
        synthesis differs or a forgotten date lies in the past. Other `hours` move the end of one that
        stands; another `round` makes a new one once the old one has ended.
        """
        return cls("reserve", placement_group, hours=hours, round=round)

    @classmethod
    def capacity_block(cls, reservation_id: str, starts: datetime | None = None) -> Capacity:
        """A Capacity Block for ML, `cr-…`, that has started, or that starts at `starts`: nodes come then.

        No placement group: EC2 itself places a block's instances close together.
        """
        return cls("capacity-block", reservation_id=reservation_id, starts=starts)

    def granted(self, reservation_id: str) -> Capacity:
        """The same with the reservation that was made for it."""
        return replace(self, reservation_id=reservation_id)

    @property
    def nodegroup_type(self) -> eks.CapacityType:
        """The nodegroup's CapacityType."""
        return {"spot": eks.CapacityType.SPOT, "capacity-block": eks.CapacityType.CAPACITY_BLOCK}.get(
            self.kind, eks.CapacityType.ON_DEMAND)

    @property
    def placement(self) -> ec2.CfnLaunchTemplate.PlacementProperty | None:
        """The launch template's Placement."""
        if self.placement_group is None:
            return None
        return ec2.CfnLaunchTemplate.PlacementProperty(group_name=self.placement_group)

    @property
    def market(self) -> ec2.CfnLaunchTemplate.InstanceMarketOptionsProperty | None:
        """The launch template's InstanceMarketOptions: EKS wants them for a Capacity Block, and for it alone."""
        if self.kind != "capacity-block":
            return None
        return ec2.CfnLaunchTemplate.InstanceMarketOptionsProperty(market_type="capacity-block")

    @property
    def reservation_target(self) -> ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty | None:
        """The launch template's CapacityReservationSpecification.

        Raises:
            ValueError: for a reservation that is not made yet.
        """
        if self.kind in ("on-demand", "spot"):
            return None
        if self.reservation_id is None:
            raise ValueError("Capacity.reserve() has no reservation yet; use what a CapacityGate granted for it")
        target = ec2.CfnLaunchTemplate.CapacityReservationTargetProperty(
            capacity_reservation_id=self.reservation_id)
        return ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty(
            capacity_reservation_target=target)

    def version_description(self, instance_type: str) -> str | None:
        """The launch template's VersionDescription: changes when another reservation is made.

        Its id alone would not do: a stack whose template is the same as before is not deployed.
        """
        return f"reserved {instance_type}, round {self.round}" if self.kind == "reserve" else None

    @property
    def starts_at(self) -> str | None:
        """`2026-12-10T11:30:00`, in UTC; None for instances that are to be had now."""
        return self.starts and self.starts.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
