"""The network that the cluster stands in."""

from __future__ import annotations

from typing import Any

from aws_cdk import Stack
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from eagleray.network import EfaSecurityGroup, TrainingVpc
from settings.model import OnDemand, Settings


class NetworkStack(Stack):
    """VPC, EFA security group and, unless a reservation brings its own, the cluster placement group."""

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
        self.efa_security_group = EfaSecurityGroup(self, "Efa", vpc=self.network.vpc).security_group
        self.placement_group: ec2.CfnPlacementGroup | None = None
        # A reservation is only usable in the placement group that it was made in, or in none. To change a
        # standing cluster to one, deploy ClusterStack first (cdk deploy --exclusively ClusterStack): while its
        # nodes are in this group, CloudFormation rightly refuses to take the group away.
        if isinstance(settings.gpu.capacity, OnDemand):
            self.placement_group = ec2.CfnPlacementGroup(self, "PlacementGroup", strategy="cluster")

    @property
    def availability_zones(self) -> list[str]:
        """The zones of the settings; asking AWS for them would need credentials at synthesis."""
        return self._zones
