"""Nodes that come and go with the pods that need them: what the Cluster Autoscaler must know and may do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aws_cdk import ArnFormat, RemovalPolicy, Stack
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import custom_resources as cr
from constructs import Construct

from eagleray.catalog import InstanceType
from eagleray.log_retention import keep_days

_TEMPLATE = "k8s.io/cluster-autoscaler/node-template"


def node_template_tags(instance: InstanceType, labels: Mapping[str, str], taints: Mapping[str, str]
                       ) -> dict[str, str]:
    """Tags of an Auto Scaling group from which the autoscaler knows the nodes of a group that has none.

    Without them a pod that asks for EFA fits no node that it can imagine, and waits for ever. `taints` are
    values and effects by key, such as `{"nvidia.com/gpu": "true:NoSchedule"}`.
    Source: kubernetes/autoscaler, cluster-autoscaler/cloudprovider/aws/README.md.
    """
    resources = {"nvidia.com/gpu": instance.gpus, "vpc.amazonaws.com/efa": instance.efa}
    return {
        **{f"{_TEMPLATE}/resources/{name}": str(count) for name, count in resources.items()},
        **{f"{_TEMPLATE}/label/{name}": value for name, value in labels.items()},
        **{f"{_TEMPLATE}/taint/{name}": value for name, value in taints.items()},
    }


def autoscaling_permissions(scope: Construct, cluster_name: str) -> list[iam.PolicyStatement]:
    """What the Cluster Autoscaler may do: look, and change the size of that cluster's groups alone.

    EKS puts the tag of the condition on the Auto Scaling group of every managed nodegroup.
    """
    owned = {f"aws:ResourceTag/k8s.io/cluster-autoscaler/{cluster_name}": "owned"}
    return [
        iam.PolicyStatement(resources=["*"], actions=[  # AWS limits none of these to single resources
            "autoscaling:DescribeAutoScalingGroups", "autoscaling:DescribeAutoScalingInstances",
            "autoscaling:DescribeLaunchConfigurations", "autoscaling:DescribeScalingActivities",
            "ec2:DescribeImages", "ec2:DescribeInstanceTypes", "ec2:DescribeLaunchTemplateVersions",
            "ec2:GetInstanceTypesFromInstanceRequirements",
        ]),
        iam.PolicyStatement(
            actions=["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"],
            resources=["*"], conditions={"StringEquals": owned}),
        iam.PolicyStatement(actions=["eks:DescribeNodegroup"], resources=[_nodegroups(scope, cluster_name)]),
    ]


class NodegroupScalingGroup(Construct):
    """The Auto Scaling group that EKS makes for a managed nodegroup, with tags of its own.

    EKS hands on none of a nodegroup's tags and CloudFormation does not know the group, so two calls of the
    AWS API find it and tag it. Source: github.com/aws/containers-roadmap/issues/724.

    Attributes:
        name: its name.
    """

    def __init__(self, scope: Construct, construct_id: str, *, cluster_name: str, nodegroup: eks.CfnNodegroup,
                 tags: Mapping[str, str], log_days: int) -> None:
        """The log of the Lambda that makes the calls is kept for at least `log_days` days."""
        super().__init__(scope, construct_id)
        log_group = logs.LogGroup(self, "Log", retention=keep_days(log_days), removal_policy=RemovalPolicy.DESTROY)
        path = "nodegroup.resources.autoScalingGroups.0.name"
        # Neither permission names the nodegroup: so both are there long before it, and known everywhere by then.
        found = _calls(self, "Found", log_group, cr.AwsSdkCall(
            service="EKS", action="describeNodegroup",
            parameters={"clusterName": cluster_name, "nodegroupName": nodegroup.attr_nodegroup_name},
            physical_resource_id=cr.PhysicalResourceId.from_response(path), output_paths=[path],
        ), iam.PolicyStatement(actions=["eks:DescribeNodegroup"], resources=[_nodegroups(self, cluster_name)]))
        self.name = found.get_response_field(path)
        groups = Stack.of(self).format_arn(
            service="autoscaling", resource="autoScalingGroup", arn_format=ArnFormat.COLON_RESOURCE_NAME,
            resource_name="*:autoScalingGroupName/eks-*")
        written: list[dict[str, Any]] = [
            {"ResourceId": self.name, "ResourceType": "auto-scaling-group", "Key": key, "Value": value,
             "PropagateAtLaunch": False} for key, value in tags.items()]
        _calls(self, "Tags", log_group, cr.AwsSdkCall(
            service="AutoScaling", action="createOrUpdateTags", parameters={"Tags": written},
            physical_resource_id=cr.PhysicalResourceId.of(f"{construct_id}-tags"),
        ), iam.PolicyStatement(
            actions=["autoscaling:CreateOrUpdateTags"], resources=[groups],
            conditions={"StringEquals": {"aws:ResourceTag/eks:cluster-name": cluster_name}}))


def _nodegroups(scope: Construct, cluster_name: str) -> str:
    return Stack.of(scope).format_arn(service="eks", resource="nodegroup", resource_name=f"{cluster_name}/*/*")


def _calls(scope: Construct, construct_id: str, log_group: logs.LogGroup, call: cr.AwsSdkCall,
           allowed: iam.PolicyStatement) -> cr.AwsCustomResource:
    """One call of the AWS API, made again when its parameters change; the SDK is Lambda's own."""
    return cr.AwsCustomResource(
        scope, construct_id, on_update=call, install_latest_aws_sdk=False, log_group=log_group,
        policy=cr.AwsCustomResourcePolicy.from_statements([allowed]))
