"""Ray's own autoscaler: worker pods for a job that asks for GPUs, and none once they are idle."""

from __future__ import annotations

from typing import Any

_API_ACCESS = "kubernetes-api"
_API_ACCESS_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
# Ray's default: below it, a pod that waits for its node would be given up and asked for anew.
_SHORTEST_PATIENCE = 3600


def autoscaler_options(idle_seconds: int, start_seconds: int) -> dict[str, Any]:
    """A RayCluster's `autoscalerOptions`: a container beside the head, which KubeRay adds.

    Ray reserves the GPUs of all ranks at once or none, so the pods of all nodes are asked for together; a pod
    that came alone stays while the job still waits for the others (v2 only), and goes with the job.

    Args:
        idle_seconds: that a worker pod stays without work.
        start_seconds: that a worker pod may take until it runs.
    """
    patience = max(start_seconds, _SHORTEST_PATIENCE)
    return {
        "version": "v2",
        "idleTimeoutSeconds": idle_seconds,
        "env": [{"name": "RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S", "value": str(patience)}],
        "resources": {
            "requests": {"cpu": "200m", "memory": "512Mi"},
            "limits": {"cpu": "500m", "memory": "1Gi"},
        },
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": [{"name": _API_ACCESS, "mountPath": _API_ACCESS_PATH, "readOnly": True}],
    }


def api_access() -> dict[str, Any]:
    """The volume with what the autoscaler needs to talk to Kubernetes, as an automounted token would bring it.

    Mounted into that container alone: the training in the container beside it must not be able to change
    pods. KubeRay lets the head's service account read and patch pods and RayClusters of its namespace.
    """
    return {"name": _API_ACCESS, "projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]}}
