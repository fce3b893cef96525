"""The Kubernetes Cluster Autoscaler: GPU nodes for worker pods that find none, and none for nobody."""

from __future__ import annotations

from k8s.kuberay import HelmRelease
from k8s.releases import autoscaler_image_tag, release

SERVICE_ACCOUNT = "cluster-autoscaler"
NAMESPACE = "kube-system"

# Ray keeps its idle workers for gpu.idle_minutes, so that a next job finds them; a node without them is of no use.
NODE_UNNEEDED_MINUTES = 2


def cluster_autoscaler(cluster_name: str, region: str, kubernetes: str) -> HelmRelease:
    """The autoscaler for the Auto Scaling groups of an EKS cluster, in the version of that cluster.

    Both nodes of a job come in one step: it counts all pods that wait, and the group's desired size is set
    once. It does not touch a node while a worker pod is there.

    Raises:
        ValueError: no image is known for that Kubernetes version.
    """
    source = release("cluster_autoscaler")
    return HelmRelease(
        name="cluster-autoscaler",
        namespace=NAMESPACE,
        repository=source["repository"],
        chart=source["chart"],
        version=source["version"],
        values={
            "fullnameOverride": "cluster-autoscaler",
            "image": {"tag": autoscaler_image_tag(kubernetes)},
            "autoDiscovery": {"clusterName": cluster_name},  # EKS tags the groups of its managed nodegroups so
            # The node's metadata service, where it would ask for the region, is closed to pods.
            "awsRegion": region,
            "rbac": {"serviceAccount": {"name": SERVICE_ACCOUNT}},
            "extraArgs": {"scale-down-unneeded-time": f"{NODE_UNNEEDED_MINUTES}m"},
            "resources": {
                "requests": {"cpu": "100m", "memory": "300Mi"},
                "limits": {"cpu": "500m", "memory": "600Mi"},
            },
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "runAsGroup": 65534},
            "containerSecurityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
                                         "readOnlyRootFilesystem": True},
        },
        wait_minutes=5,
    )
