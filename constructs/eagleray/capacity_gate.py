"""The capacity gate: a deployment that cannot get its GPUs fails in its first minute, not after half an hour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aws_cdk import (
    Aws,
    CrossStackReferences,
    CustomResource,
    Duration,
    IgnoreMode,
    ReferenceStrength,
    RemovalPolicy,
    Stack,
)
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct, IDependable

from eagleray.capacity import Capacity
from eagleray.catalog import instance_type as catalog_entry
from eagleray.catalog import quota
from eagleray.log_retention import keep_days

_SOURCES = Path(__file__).resolve().parent.parent
# The gate's package and the one that it lies in, as Lambda imports them; no cached bytecode.
_ONLY_THE_GATE = ["*", "!eagleray", "eagleray/*", "!eagleray/__init__.py", "!eagleray/gate", "eagleray/gate/*",
                  "!eagleray/gate/*.py"]


class CapacityGate(Construct):
    """A custom resource that checks quota, offering and capacity, and reserves where that is asked for.

    Let whatever costs money depend on `passed`. It fails with the reason and the fix in the event that
    CloudFormation shows; what it is not allowed to ask it leaves unchecked and says so in `summary`. It asks
    nothing as long as none of its properties changes, and a stack that rolls back passes it.

    One Lambda that answers CloudFormation itself: the CDK's Provider framework would add a second one, which
    puts its own words and a stack trace around the reason.

    Attributes:
        passed: the custom resource, which is there once everything was found good.
        granted: the capacity, with the reservation that the gate made for it, for the nodegroup.
        summary: what was checked, and what could not be.
    """

    def __init__(self, scope: Construct, construct_id: str, *, capacity: Capacity, cluster_name: str,
                 instance_type: str, nodes: int, zone: str, log_days: int) -> None:
        """`nodes` instances of `instance_type` (one of the catalog) in `zone`, for the EKS cluster of that name,
        whose running nodes count as part of them; the Lambda's log is kept for at least `log_days` days."""
        super().__init__(scope, construct_id)
        function = self._function(capacity, log_days)
        resource = CustomResource(
            self, "Resource",
            resource_type="Custom::EagleRayCapacityGate",
            service_token=function.function_arn,
            # CloudFormation waits an hour by default for a Lambda that never answers.
            service_timeout=Duration.minutes(3),
            properties={
                **_shape(instance_type, nodes, zone, "spot" if capacity.kind == "spot" else "on-demand"),
                **self._wanted(capacity), "Cluster": cluster_name},
        )
        # The Lambda comes after its permissions and goes before them, so this resource does too.
        self.passed: IDependable = resource
        self.summary = resource.get_att_string("Summary")
        self.granted = capacity
        if capacity.kind == "reserve":
            # A strong reference would forbid ever to make another reservation while the other stack uses this one.
            CrossStackReferences.of(resource).produce(ReferenceStrength.WEAK)
            self.granted = capacity.granted(resource.get_att_string("ReservationId"))

    def _function(self, capacity: Capacity, log_days: int) -> lambda_.Function:
        log_group = logs.LogGroup(self, "Log", retention=keep_days(log_days), removal_policy=RemovalPolicy.DESTROY)
        service: Any = iam.ServicePrincipal("lambda.amazonaws.com")
        role: Any = iam.Role(self, "Role", assumed_by=service,
                             description="Capacity gate: asks for quota and capacity before a cluster is made")
        log_group.grant_write(role)
        for statement in (_asking(), *_reserving(self, capacity)):
            role.add_to_policy(statement)
        return lambda_.Function(
            self, "Function",
            description="Checks GPU quota and capacity before anything is paid for",
            runtime=lambda_.Runtime.PYTHON_3_13,
            handler="eagleray.gate.handler.handler",
            code=lambda_.Code.from_asset(str(_SOURCES), exclude=_ONLY_THE_GATE, ignore_mode=IgnoreMode.GIT),
            timeout=Duration.seconds(60), memory_size=256, role=role, log_group=log_group,
        )

    def _wanted(self, capacity: Capacity) -> dict[str, Any]:
        """The properties of a kind; none is written that it has no use for."""
        wanted: dict[str, Any] = {
            "Kind": capacity.kind,
            "PlacementGroup": capacity.placement_group,
            "PlacementGroupArn": capacity.placement_group and _placement_group_arn(self, capacity.placement_group),
            "ReservationId": capacity.reservation_id,
            "Starts": capacity.starts_at and f"{capacity.starts_at}Z",
        }
        if capacity.kind == "reserve":
            wanted |= {"Hours": capacity.hours, "Round": capacity.round}
        if capacity.probes:
            wanted["Probe"] = "true"
        return {name: value for name, value in wanted.items() if value is not None}


def _shape(instance_type: str, nodes: int, zone: str, market: Any) -> dict[str, Any]:
    counted = quota(instance_type, market)
    code = {"QuotaCode": counted.code} if counted.code else {}
    return {"InstanceType": instance_type, "Nodes": nodes, "Zone": zone, "Vcpu": catalog_entry(instance_type).vcpu,
            **code, "QuotaName": counted.name, "QuotaTypes": list(counted.types)}


def _placement_group_arn(scope: Construct, name: str) -> str:
    return Stack.of(scope).format_arn(service="ec2", resource="placement-group", resource_name=name)


def _asking() -> iam.PolicyStatement:
    """What only reads; AWS limits none of these to single resources."""
    return iam.PolicyStatement(resources=["*"], actions=[
        "servicequotas:GetServiceQuota",            # the vCPU quota of the account
        "servicequotas:GetAWSDefaultServiceQuota",  # where the account never had one of its own
        "ec2:DescribeInstances",                    # what is used of it, and the cluster's own nodes
        "ec2:DescribeInstanceTypes",                # vCPUs of unused reservations, which use it too
        "ec2:DescribeInstanceTypeOfferings",        # whether the zone has the type
        "ec2:DescribeCapacityReservations",         # state, place and dates of a reservation or block
    ])


def _reserving(scope: Construct, capacity: Capacity) -> list[iam.PolicyStatement]:
    """Rolling back is told by the stack's own state; reservations may be made and undone only as this stack's."""
    stack = Stack.of(scope)
    reservations = stack.format_arn(service="ec2", resource="capacity-reservation", resource_name="*")
    ours = f"{Aws.STACK_ID}/*"
    statements = [
        iam.PolicyStatement(actions=["cloudformation:DescribeStacks"], resources=[Aws.STACK_ID]),
        # Of any kind: a deployment that leaves kind `reserve` has one to give back.
        iam.PolicyStatement(
            actions=["ec2:CancelCapacityReservation"], resources=[reservations],
            conditions={"StringLike": {"aws:ResourceTag/eagleray:gate": ours}}),
    ]
    if capacity.kind != "reserve" and not capacity.probes:
        return statements
    statements += [
        iam.PolicyStatement(
            actions=["ec2:CreateCapacityReservation"], resources=[reservations],
            conditions={"StringLike": {"aws:RequestTag/eagleray:gate": ours}}),
        iam.PolicyStatement(  # the tag that makes it this stack's, when it is made and never later
            actions=["ec2:CreateTags"], resources=[reservations],
            conditions={"StringEquals": {"ec2:CreateAction": "CreateCapacityReservation"}}),
    ]
    if capacity.placement_group:
        statements.append(iam.PolicyStatement(
            actions=["ec2:CreateCapacityReservation"],
            resources=[_placement_group_arn(scope, capacity.placement_group)]))
    if capacity.kind == "reserve":
        statements.append(iam.PolicyStatement(  # another number of nodes or hours
            actions=["ec2:ModifyCapacityReservation"], resources=[reservations],
            conditions={"StringLike": {"aws:ResourceTag/eagleray:gate": ours}}))
    return statements
