"""The network that the cluster stands in."""

from __future__ import annotations

from typing import Any

from aws_cdk import CfnOutput, Stack
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from eagleray.capacity import Capacity
from eagleray.capacity_gate import CapacityGate
from eagleray.network import EfaSecurityGroup, TrainingVpc
from settings.capacity import CapacityBlock, OnDemand, Reservation, Reserve, Spot
from settings.model import Settings


class NetworkStack(Stack):
    """Capacity gate, VPC, EFA security group and, unless a reservation brings its own, the placement group.

    Attributes:
        capacity: how the GPU nodes are obtained, as the gate let it pass.
    """

    def __init__(self, scope: Construct, construct_id: str, *, settings: Settings, **kwargs: Any) -> None:
        network = settings.network
        self._zones = [network.zone, network.second_zone, *network.spare_zones]
        super().__init__(scope, construct_id, **kwargs)
        self.network = TrainingVpc(
            self, "Network",
            zone=settings.network.zone,
            second_zone=settings.network.second_zone,
            cidr=settings.network.cidr,
            flow_log_days=settings.network.flow_log_days,
            spare_zones=settings.network.spare_zones,
        )
        # All of them, so that nodes which move leave no export that the cluster still imports, and find theirs.
        for subnet in self.network.vpc.private_subnets:
            self.export_value(subnet.subnet_id)
        self.efa_security_group = EfaSecurityGroup(self, "Efa", vpc=self.network.vpc).security_group
        gate = CapacityGate(
            self, "Gate",
            capacity=self._capacity(settings),
            cluster_name=settings.name,
            instance_type=settings.gpu.instance_type,
            nodes=settings.gpu.nodes,
            zone=settings.network.zone,
            log_days=settings.cluster.log_days,
        )
        # The NAT gateway is the first thing that costs.
        self.network.node.add_dependency(gate.passed)
        self.capacity = gate.granted
        CfnOutput(self, "Capacity", description="What the capacity gate found", value=gate.summary)

    def _capacity(self, settings: Settings) -> Capacity:
        chosen = settings.gpu.capacity
        if isinstance(chosen, Reservation):
            return Capacity.reservation(chosen.id, placement_group=chosen.placement_group)
        if isinstance(chosen, CapacityBlock):
            return Capacity.capacity_block(chosen.id, starts=chosen.starts)
        # An existing reservation is only usable in the placement group that it was made in, or in none. To change
        # a standing cluster to one, deploy ClusterStack first (cdk deploy --exclusively ClusterStack): while its
        # nodes are in this group, CloudFormation rightly refuses to take the group away.
        group = ec2.CfnPlacementGroup(self, "PlacementGroup", strategy="cluster").ref
        match chosen:
            case Reserve():
                return Capacity.reserve(chosen.hours, round=chosen.round, placement_group=group)
            case Spot():
                return Capacity.spot(placement_group=group)
            case OnDemand(probe=True):
                return Capacity.probed_on_demand(placement_group=group)
            case OnDemand():
                return Capacity.on_demand(placement_group=group)

    @property
    def availability_zones(self) -> list[str]:
        """The zones of the settings; asking AWS for them would need credentials at synthesis."""
        return self._zones
