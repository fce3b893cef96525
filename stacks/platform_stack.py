"""What a cluster needs before it can train: device plugins, the KubeRay operator, the Cluster Autoscaler; agents
that watch, if wanted."""

from __future__ import annotations

from typing import Any, cast

from aws_cdk import CfnOutput, Duration, Stack
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from eagleray.autoscaling import autoscaling_permissions
from eagleray.identity import PodIdentityRole
from eagleray.observability import ClusterObservability
from k8s.cloudwatch_agent import LOG_GROUPS, addon_configuration
from k8s.cloudwatch_agent import NAMESPACE as AGENT_NAMESPACE
from k8s.cloudwatch_agent import SERVICE_ACCOUNT as AGENT_ACCOUNT
from k8s.cluster_autoscaler import NAMESPACE, SERVICE_ACCOUNT, cluster_autoscaler
from k8s.kuberay import HelmRelease, kuberay_operator
from k8s.platform import device_plugins, namespaces
from k8s.releases import cloudwatch_addon_version
from settings.model import Settings
from stacks.alarms import RunAlarms
from stacks.dashboard import TrainingDashboard
from stacks.manifest import apply_manifest


class PlatformStack(Stack):
    """Namespaces, device plugins, operator, autoscaler; what watches them.

    The operator comes last and goes first: not before every Ray object is gone, since their finalizers need
    it (they are in TrainingStack, which depends on this stack), but while there are still nodes to stop it on.

    Attributes:
        manifests: the Kubernetes objects, without those of the Helm chart.
    """

    def __init__(self, scope: Construct, construct_id: str, *, settings: Settings, cluster: eks.Cluster,
                 **kwargs: Any) -> None:
        super().__init__(scope, construct_id, **kwargs)
        # The operator's Role lies in the namespace that it watches, so the namespace is older.
        digests = settings.digests
        before_operator = [
            *namespaces(settings.ray.namespace),
            *device_plugins(settings.region, digests.nvidia_device_plugin, digests.efa_device_plugin),
        ]
        self.manifests = before_operator
        operator = _helm_chart(self, "KubeRay", cluster,
                               kuberay_operator(settings.ray.namespace, digests.kuberay_operator))
        for manifest in before_operator:
            operator.node.add_dependency(apply_manifest(self, _title(manifest), cluster, manifest))
        self._autoscaler(settings, cluster)
        if settings.observability.enabled:
            self._observability(settings, cluster)

    def _autoscaler(self, settings: Settings, cluster: eks.Cluster) -> None:
        identity = PodIdentityRole(self, "AutoscalerIdentity", cluster_name=settings.name, namespace=NAMESPACE,
                                   service_account=SERVICE_ACCOUNT)
        for statement in autoscaling_permissions(self, settings.name):
            identity.role.add_to_policy(statement)
        autoscaler = _helm_chart(self, "ClusterAutoscaler", cluster, cluster_autoscaler(
            settings.name, settings.region, settings.cluster.version))
        autoscaler.node.add_dependency(identity)  # only pods that start after the association get credentials

    def _observability(self, settings: Settings, cluster: eks.Cluster) -> None:
        configuration = addon_configuration(cluster=settings.name, region=settings.region,
                                            ray_namespace=settings.ray.namespace,
                                            instance_type=settings.gpu.instance_type)
        ClusterObservability(
            self, "Observability",
            cluster=cluster, cluster_name=settings.name,
            namespace=AGENT_NAMESPACE, service_account=AGENT_ACCOUNT,
            addon_version=cloudwatch_addon_version(settings.cluster.version),
            configuration=configuration,
            log_groups=LOG_GROUPS, log_days=settings.cluster.log_days,
        )
        alarms = RunAlarms(self, "Alarms", cluster_name=settings.name,
                           minutes=settings.observability.alarm_minutes,
                           email=settings.observability.alarm_email)
        dashboard = TrainingDashboard(self, "Dashboard", cluster_name=settings.name, alarms=alarms.alarms)
        CfnOutput(self, "DashboardLink", description="What the cluster and its run do", value=dashboard.link)


def _title(manifest: dict[str, Any]) -> str:
    """`Namespace-ray`."""
    return f"{manifest['kind']}-{manifest['metadata']['name']}"


def _helm_chart(scope: Construct, construct_id: str, cluster: eks.Cluster, release: HelmRelease) -> eks.HelmChart:
    """A release that is either up or undone: a half-installed one would block the next attempt."""
    return eks.HelmChart(
        scope, construct_id, cluster=cast(eks.ICluster, cluster),
        release=release.name, namespace=release.namespace, create_namespace=False,
        repository=release.repository, chart=release.chart, version=release.version, values=release.values,
        wait=True, atomic=True, timeout=Duration.minutes(release.wait_minutes),
    )
