"""How the GPU instances are obtained."""

from __future__ import annotations

from dataclasses import dataclass

from aws_cdk import aws_ec2 as ec2


@dataclass(frozen=True)
class Capacity:
    """Where instances come from, and the placement group that they may be launched in.

    Make one with `Capacity.on_demand()` or `Capacity.reservation(id)`.
    """

    placement_group: str | None
    reservation_id: str | None = None

    @classmethod
    def on_demand(cls, placement_group: str | None = None) -> Capacity:
        """On-demand instances, launched in the placement group of that name if one is given."""
        return cls(placement_group=placement_group)

    @classmethod
    def reservation(cls, reservation_id: str, placement_group: str | None = None) -> Capacity:
        """An existing On-Demand Capacity Reservation, `cr-…`.

        `placement_group` is the group that the reservation was made in, None when it was made in none: in
        any other group EC2 answers InsufficientInstanceCapacity although the reservation is free.
        Source: github.com/terraform-aws-modules/terraform-aws-eks/pull/3730.
        """
        return cls(placement_group=placement_group, reservation_id=reservation_id)

    @property
    def placement(self) -> ec2.CfnLaunchTemplate.PlacementProperty | None:
        """The launch template's Placement."""
        if self.placement_group is None:
            return None
        return ec2.CfnLaunchTemplate.PlacementProperty(group_name=self.placement_group)

    @property
    def reservation_target(self) -> ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty | None:
        """The launch template's CapacityReservationSpecification."""
        if self.reservation_id is None:
            return None
        target = ec2.CfnLaunchTemplate.CapacityReservationTargetProperty(
            capacity_reservation_id=self.reservation_id)
        return ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty(
            capacity_reservation_target=target)
