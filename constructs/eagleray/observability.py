"""What runs on a cluster's nodes and sends their metrics and logs to CloudWatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from aws_cdk import RemovalPolicy
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from eagleray.identity import PodIdentityRole
from eagleray.log_retention import keep_days


class ClusterObservability(Construct):
    """The EKS add-on amazon-cloudwatch-observability, with its permissions and its log groups.

    The log groups are older than the agents, which would make them without retention and for good, and go with the
    stack. An agent that still runs while its group is deleted makes it anew: look for what is left afterwards.
    """

    def __init__(self, scope: Construct, construct_id: str, *, cluster: eks.Cluster, cluster_name: str,
                 namespace: str, service_account: str, addon_version: str, configuration: Mapping[str, Any],
                 log_groups: Sequence[str], log_days: int) -> None:
        """`addon_version` like "v6.4.0-eksbuild.1", one for the cluster's Kubernetes; its agents run in `namespace`
        as `service_account`. `log_groups` below /aws/containerinsights/<cluster>/ are kept for `log_days` days."""
        super().__init__(scope, construct_id)
        groups = [logs.LogGroup(self, f"{group.capitalize()}Log", retention=keep_days(log_days),
                                log_group_name=f"/aws/containerinsights/{cluster_name}/{group}",
                                removal_policy=RemovalPolicy.DESTROY) for group in log_groups]
        identity = PodIdentityRole(self, "Identity", cluster_name=cluster_name, namespace=namespace,
                                   service_account=service_account)
        identity.role.add_managed_policy(
            iam.ManagedPolicy.from_aws_managed_policy_name("CloudWatchAgentServerPolicy"))
        addon = eks.Addon(self, "Addon", cluster=cast(eks.ICluster, cluster),
                          addon_name="amazon-cloudwatch-observability", addon_version=addon_version,
                          configuration_values=configuration, preserve_on_delete=False)
        addon.node.add_dependency(identity, *groups)  # only pods that start after the association get credentials
