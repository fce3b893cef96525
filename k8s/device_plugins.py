"""The DaemonSets that make GPUs and EFA interfaces known to Kubernetes as resources a pod can ask for."""

from __future__ import annotations

from typing import Any

from constructs import Construct

from k8s.gpu_nodes import GPU_NODES, GPU_TOLERATION
from k8s.kubernetes_object import KubernetesObject, env
from k8s.releases import efa_plugin_image, pinned, release

# EKS and other tools put this taint on nodes that are kept for add-ons.
_ADDON_TOLERATION = {"key": "CriticalAddonsOnly", "operator": "Exists"}
_PLUGIN_SOCKETS = {"name": "device-plugins", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}


class NvidiaDevicePlugin(KubernetesObject):
    """Offers `nvidia.com/gpu`. The GPU image of EKS has driver and container toolkit, but not this."""

    def __init__(self, scope: Construct, construct_id: str, *, digest: str | None = None) -> None:
        container = {
            "name": "nvidia-device-plugin",
            "image": pinned(release("nvidia_device_plugin")["image"], digest),
            "imagePullPolicy": "IfNotPresent",
            "env": env({"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}),
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
            "volumeMounts": [_mount(_PLUGIN_SOCKETS, "/var/lib/kubelet/device-plugins")],
        }
        super().__init__(scope, construct_id, **_daemon_set("nvidia-device-plugin", {
            "containers": [container],
            "volumes": [_PLUGIN_SOCKETS],
        }))


class EfaDevicePlugin(KubernetesObject):
    """Offers `vpc.amazonaws.com/efa`, one for each EFA interface of the node."""

    def __init__(self, scope: Construct, construct_id: str, *, region: str, digest: str | None = None) -> None:
        devices = {"name": "infiniband", "hostPath": {"path": "/dev/infiniband"}}
        # The plugin also serves Neuron instances and looks here for their tools; empty on a GPU node.
        neuron = {"name": "neuron", "hostPath": {"path": "/opt/aws/neuron", "type": "DirectoryOrCreate"}}
        container = {
            "name": "efa-device-plugin",
            "image": pinned(efa_plugin_image(region), digest),
            "imagePullPolicy": "IfNotPresent",
            # It opens the devices of the host, which no capability short of privileged allows.
            "securityContext": {"privileged": True, "allowPrivilegeEscalation": True,
                                "runAsNonRoot": False, "runAsUser": 0},
            "resources": {"requests": {"cpu": "10m", "memory": "20Mi"}},
            "volumeMounts": [
                _mount(_PLUGIN_SOCKETS, "/var/lib/kubelet/device-plugins"),
                _mount(devices, "/dev/infiniband"),
                _mount(neuron, "/opt/aws/neuron"),
            ],
        }
        super().__init__(scope, construct_id, **_daemon_set("efa-device-plugin", {
            "hostNetwork": True,
            "containers": [container],
            "volumes": [_PLUGIN_SOCKETS, devices, neuron],
        }))


def _daemon_set(name: str, pod: dict[str, Any]) -> dict[str, Any]:
    """A DaemonSet on every GPU node, which the kubelet evicts last and which talks to no API server."""
    labels = {"app.kubernetes.io/name": name}
    return {
        "api_version": "apps/v1", "kind": "DaemonSet", "name": name, "namespace": "kube-system",
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "priorityClassName": "system-node-critical",
                    "automountServiceAccountToken": False,
                    "nodeSelector": GPU_NODES,
                    "tolerations": [_ADDON_TOLERATION, GPU_TOLERATION],
                    **pod,
                },
            },
        },
    }


def _mount(volume: dict[str, Any], path: str) -> dict[str, str]:
    return {"name": volume["name"], "mountPath": path}
