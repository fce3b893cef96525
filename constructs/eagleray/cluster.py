"""The EKS control plane of a training cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from aws_cdk import RemovalPolicy
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct, IDependable

from eagleray.log_retention import keep_days
from eagleray.network import TrainingVpc


class TrainingCluster(Construct):
    """An EKS cluster without nodes: API endpoint, control-plane logs, admins and the node add-ons.

    Kubernetes secrets carry no key of our own: since 1.28 EKS encrypts all API data with a KMS key that AWS
    owns (EKS user guide, envelope-encryption), and the credentials of the pods come from Pod Identity, not
    from secrets. A customer key would add a monthly price and outlive the stack by its deletion window.

    Attributes:
        cluster: the cluster.
        name: its name.
        before_nodes: what nodegroups must depend on, so that a node finds its network when it boots.
    """

    def __init__(self, scope: Construct, construct_id: str, *, name: str, version: str,
                 kubectl_layer: lambda_.ILayerVersion, network: TrainingVpc, api_cidrs: Sequence[str],
                 admin_arns: Sequence[str], log_days: int) -> None:
        """`version` like "1.36", and the kubectl layer of that version; `api_cidrs` may reach the API from
        the internet, none of them makes it private; each IAM role or user of `admin_arns` becomes cluster-admin."""
        super().__init__(scope, construct_id)
        self.name = name
        # EKS creates this group itself when it is missing: without retention, and left behind on delete.
        log_group = logs.LogGroup(
            self, "ControlPlaneLogs", log_group_name=f"/aws/eks/{name}/cluster",
            retention=keep_days(log_days), removal_policy=RemovalPolicy.DESTROY)
        # In a group of its own, not in EKS's: the interfaces of a Lambda live on for minutes after it, and EKS
        # leaves its group, and with it the VPC, undeletable if one is still there.
        kubectl_group = ec2.SecurityGroup(self, "KubectlSecurityGroup", vpc=network.vpc,
                                          description="The Lambda that runs kubectl and helm")
        self.cluster = eks.Cluster(
            self, "Cluster",
            cluster_name=name,
            version=eks.KubernetesVersion.of(version),
            vpc=network.vpc,
            vpc_subnets=[ec2.SubnetSelection(subnets=network.control_plane_subnets)],
            endpoint_access=_endpoint(api_cidrs),
            cluster_logging=list(eks.ClusterLoggingTypes),
            kubectl_provider_options=eks.KubectlProviderOptions(
                kubectl_layer=kubectl_layer, security_groups=[kubectl_group]),
            # No nodes and no add-ons of the CDK's or EKS's own choice: both are declared, below and by the
            # nodegroups, so that they are there once and go in the right order.
            default_capacity_type=eks.DefaultCapacityType.NODEGROUP,
            default_capacity=0,
            bootstrap_self_managed_addons=False,
        )
        self.cluster.node.add_dependency(log_group)
        self.cluster.connections.allow_default_port_from(kubectl_group, "kubectl and helm")
        for arn in dict.fromkeys(admin_arns):
            # Named by the role, not by its place in the list: another order must change nothing.
            self.cluster.grant_cluster_admin("Admin " + arn.replace("/", " "), arn)
        self.before_nodes = self._node_addons()

    def _node_addons(self) -> list[IDependable]:
        """The add-ons that run as a DaemonSet: ready without nodes, and needed by the first one."""
        # Without its network policy agent, NetworkPolicy objects are accepted and mean nothing. The value is a text
        # (EKS user guide, cni-network-policy-configure).
        network_addons = [self._addon("vpc-cni", enableNetworkPolicy="true"), self._addon("kube-proxy")]
        # Not _addon(): the CDK adds this one by itself as soon as anything uses Pod Identity.
        return [*network_addons, cast(IDependable, self.cluster.eks_pod_identity_agent)]

    def add_dns(self, nodes: IDependable) -> None:
        """Add coredns. A Deployment: its add-on is only ready once `nodes` run its pods."""
        self._addon("coredns").node.add_dependency(nodes)

    def _addon(self, name: str, **configuration: str) -> eks.Addon:
        return eks.Addon(self, name, addon_name=name, cluster=cast(eks.ICluster, self.cluster),
                         configuration_values=configuration or None, preserve_on_delete=False)


def _endpoint(api_cidrs: Sequence[str]) -> eks.EndpointAccess:
    if not api_cidrs:
        return eks.EndpointAccess.PRIVATE
    return eks.EndpointAccess.PUBLIC_AND_PRIVATE.only_from(*api_cidrs)
