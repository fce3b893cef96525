"""The EKS cluster and its nodes."""

from __future__ import annotations

from typing import Any

from aws_cdk import Acknowledgment, CfnOutput, Stack, Validations
from aws_cdk.lambda_layer_kubectl_v36 import KubectlV36Layer
from constructs import Construct

from eagleray.cluster import TrainingCluster
from eagleray.nodegroups import GpuNodegroup, SystemNodegroup
from settings.model import Settings
from stacks.network_stack import NetworkStack

# kubectl by the name that cluster.kubectl_layer has in the settings, which checks it against the version.
_KUBECTL_LAYERS = {"v36": KubectlV36Layer}


class ClusterStack(Stack):
    """Control plane, one nodegroup for the system and one with the GPUs."""

    def __init__(self, scope: Construct, construct_id: str, *, settings: Settings, network: NetworkStack,
                 **kwargs: Any) -> None:
        super().__init__(scope, construct_id, **kwargs)
        control_plane = TrainingCluster(
            self, "ControlPlane",
            name=settings.name,
            version=settings.cluster.version,
            kubectl_layer=_KUBECTL_LAYERS[settings.cluster.kubectl_layer](self, "Kubectl"),
            network=network.network,
            api_cidrs=["0.0.0.0/0"] if settings.cluster.api_is_open else settings.cluster.api_cidrs,
            admin_arns=settings.cluster.admin_arns,
            log_days=settings.cluster.log_days,
        )
        if settings.cluster.api_is_open:
            Validations.of(control_plane).acknowledge(Acknowledgment(
                id="CloudFormation-Validate::api-endpoint", reason="cluster.api_cidrs is [open-to-the-world]"))
        self.cluster = control_plane.cluster
        self.system_nodegroup = SystemNodegroup(
            self, "System",
            control_plane=control_plane,
            subnet=network.network.training_subnet,
            instance_type=settings.system.instance_type,
            nodes=settings.system.nodes,
            volume_gib=settings.system.volume_gib,
        ).nodegroup
        control_plane.add_dns(self.system_nodegroup)
        self.gpu_nodegroup = GpuNodegroup(
            self, "Gpu",
            control_plane=control_plane,
            subnet=network.network.training_subnet,
            efa_security_group=network.efa_security_group,
            instance_type=settings.gpu.instance_type,
            nodes=settings.gpu.nodes,
            volume_gib=settings.gpu.volume_gib,
            capacity=network.capacity,
            log_days=settings.cluster.log_days,
        ).nodegroup
        CfnOutput(self, "Kubeconfig", description="Run this to let kubectl reach the cluster",
                  value=f"aws eks update-kubeconfig --name {settings.name} --region {settings.region}")
