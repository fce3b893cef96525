"""The network of a training cluster: VPC, EFA security group, placement group."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_logs as logs
from constructs import Construct

from eagleray.log_retention import keep_days


class TrainingVpc(Construct):
    """A VPC with a public and a private subnet in each of two zones, or more.

    All nodes live in the training zone; the second zone exists because the EKS control plane needs two.
    The one NAT gateway stands in the training zone, so that the nodes' traffic never pays for crossing
    zones. The other zones' private subnets route through it too: the Lambda that runs kubectl may be
    placed there and must reach AWS's APIs, and a second NAT gateway for that trickle would only cost.

    Subnets and their address ranges follow the names of the zones, not what each is for. So the nodes can
    move to another of these zones: only the NAT gateway moves with them. A control plane stays in the zones
    that it was made in (EKS allows no others later), hence always the first two by name.

    Attributes:
        vpc: the VPC.
        training_subnet: the private subnet of the training zone, the only one with nodes.
        control_plane_subnets: one private subnet in each of two zones.
    """

    def __init__(self, scope: Construct, construct_id: str, *, zone: str, second_zone: str, cidr: str,
                 flow_log_days: int, spare_zones: Sequence[str] = ()) -> None:
        """`cidr` is a /16 to /22, shared out evenly; flow logs are kept for at least `flow_log_days` days.
        `spare_zones` get subnets too, which cost nothing while they are empty.

        All zones must be among the stack's own `availability_zones`; a stack that does not override that
        property asks AWS for them at synthesis.
        """
        super().__init__(scope, construct_id)
        zones = sorted({zone, second_zone, *spare_zones})
        self.vpc = ec2.Vpc(
            self, "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(cidr),
            availability_zones=zones,
            nat_gateways=1,
            nat_gateway_subnets=ec2.SubnetSelection(
                subnet_type=ec2.SubnetType.PUBLIC, availability_zones=[zone]),
            subnet_configuration=[
                ec2.SubnetConfiguration(name="public", subnet_type=ec2.SubnetType.PUBLIC),
                ec2.SubnetConfiguration(name="private", subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS),
            ],
        )
        self.training_subnet = self._private_subnets([zone])[0]
        self.control_plane_subnets = self._private_subnets(zones[:2])
        # Checkpoints and data sets go to S3: through this gateway for nothing, through the NAT for money.
        self.vpc.add_gateway_endpoint("S3", service=ec2.GatewayVpcEndpointAwsService.S3)
        group = logs.LogGroup(self, "FlowLogs", retention=keep_days(flow_log_days),
                              removal_policy=RemovalPolicy.DESTROY)
        self.vpc.add_flow_log("FlowLog", destination=ec2.FlowLogDestination.to_cloud_watch_logs(group))

    def _private_subnets(self, zones: list[str]) -> list[ec2.ISubnet]:
        return self.vpc.select_subnets(
            subnet_type=ec2.SubnetType.PRIVATE_WITH_EGRESS, availability_zones=zones).subnets


class EfaSecurityGroup(Construct):
    """The security group of the EFA interfaces: everything to and from itself, and out to anywhere.

    EFA needs the rule to itself in both directions: egress to 0.0.0.0/0 does not cover EFA's own protocol,
    and without egress to itself the first collective between nodes fails with libfabric error 4126.
    Source: EKS user guide, sec-group-reqs; github.com/awslabs/awsome-distributed-ai/issues/546.

    Attributes:
        security_group: the group.
    """

    def __init__(self, scope: Construct, construct_id: str, *, vpc: ec2.IVpc) -> None:
        super().__init__(scope, construct_id)
        self.security_group = ec2.SecurityGroup(
            self, "SecurityGroup", vpc=vpc, allow_all_outbound=True,
            description="EFA: all traffic among the GPU nodes")
        group_id = self.security_group.security_group_id
        # Both rules as plain resources: with allow_all_outbound, add_egress_rule() does nothing but warn.
        ec2.CfnSecurityGroupIngress(
            self, "FromItself", group_id=group_id, ip_protocol="-1", source_security_group_id=group_id,
            description="EFA from the same group")
        ec2.CfnSecurityGroupEgress(
            self, "ToItself", group_id=group_id, ip_protocol="-1", destination_security_group_id=group_id,
            description="EFA to the same group")
