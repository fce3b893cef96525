"""The pods of a deployment by what they are for: namespace and labels of each part."""

from __future__ import annotations

from dataclasses import dataclass

from k8s.kuberay import OPERATOR_NAMESPACE, OPERATOR_PODS

SYSTEM_NAMESPACE = "kube-system"
PLUGINS = ("nvidia-device-plugin", "efa-device-plugin")
"""`app.kubernetes.io/name` of the device plugins' pods (k8s/device_plugins.py, which would start a Node)."""


@dataclass(frozen=True)
class Part:
    """Pods that belong together. `namespace` None: the one of the Ray cluster."""

    namespace: str | None
    labels: str


def head(cluster: str) -> Part:
    """The Ray head."""
    return Part(None, f"ray.io/cluster={cluster},ray.io/node-type=head")


def submitter(ray_job: str) -> Part:
    """The pod that submits a job and follows its driver."""
    return Part(None, f"job-name={ray_job}")


OPERATOR = Part(OPERATOR_NAMESPACE, ",".join(f"{key}={value}" for key, value in OPERATOR_PODS.items()))
DEVICE_PLUGINS = Part(SYSTEM_NAMESPACE, f"app.kubernetes.io/name in ({','.join(PLUGINS)})")
