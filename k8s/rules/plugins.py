"""The device plugins, without which no pod can ask for a GPU or an EFA interface."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.rules.rule import NOBODY, PENDING, Fault, rule
from k8s.rules.scheduling import is_device_plugin
from k8s.rules.world import EFA, GPU, Pod, World, variables

_SOCKETS = "/var/lib/kubelet/device-plugins"
_INFINIBAND = "/dev/infiniband"
_PLUGINS = {GPU: "nvidia/k8s-device-plugin", EFA: "aws-efa-k8s-device-plugin"}


def _plugins(world: World) -> list[Pod]:
    return [pod for pod in world.pods if pod.role == "DaemonSet" and is_device_plugin(pod)]


@rule(
    "plugin-missing",
    reason="a resource that no plugin offers is never given",
    unseen=PENDING,
    source="EKS user guide, device management: the GPU image has drivers, but no plugins",
)
def missing(world: World) -> Iterator[Fault]:
    images = [pod.first.get("image", "") for pod in _plugins(world)]
    for cluster in world.clusters if world.around.complete else []:
        for group in cluster.workers:
            for name, image in _PLUGINS.items():
                if name in group.pod.asks and not any(image in other for other in images):
                    yield group.manifest.fault(
                        f"{group.pod.path}.containers[0].resources.limits.{name}",
                        "no device plugin among the manifests offers it",
                        f"add a DaemonSet of {image}",
                    )


@rule(
    "plugin-access",
    reason="a plugin talks to the kubelet through a socket of the node, and opens its devices",
    unseen=NOBODY,
    source="NVIDIA/k8s-device-plugin and aws/eks-charts, the plugins' manifests",
)
def access(world: World) -> Iterator[Fault]:
    for pod in _plugins(world):
        efa = _PLUGINS[EFA] in pod.first.get("image", "")
        for folder in [_SOCKETS, _INFINIBAND] if efa else [_SOCKETS]:
            if not _reaches(pod, folder):
                yield pod.manifest.fault(
                    f"{pod.path}.volumes",
                    f"the node's {folder} is not mounted at {folder}",
                    "a hostPath volume and its mount",
                )
        context = pod.first.get("securityContext") or {}
        if efa and (
            not context.get("privileged") or context.get("runAsUser", 0) != 0 or context.get("runAsNonRoot")
        ):
            yield pod.manifest.fault(
                f"{pod.path}.containers[0].securityContext",
                "cannot open the node's devices",
                "privileged: true, and root",
            )
        if not efa and variables(pod.first).get("NVIDIA_VISIBLE_DEVICES", "all") != "all":
            yield pod.manifest.fault(
                f"{pod.path}.containers[0].env.NVIDIA_VISIBLE_DEVICES",
                "hides the GPUs from the plugin",
                "use all",
            )


def _reaches(pod: Pod, folder: str) -> bool:
    """Whether a folder of the node is in the pod at the same place, and writable."""
    names = [
        volume.get("name")
        for volume in pod.spec.get("volumes") or []
        if str((volume.get("hostPath") or {}).get("path", "")).rstrip("/") == folder
    ]
    return any(
        mount.get("name") in names
        and str(mount.get("mountPath", "")).rstrip("/") == folder
        and not mount.get("readOnly")
        for mount in pod.first.get("volumeMounts") or []
    )


@rule(
    "plugin-priority",
    reason="under memory pressure the kubelet evicts a plugin before training, and the node's devices are gone",
    unseen=NOBODY,
    source="Kubernetes, pod priority",
)
def priority(world: World) -> Iterator[Fault]:
    for pod in _plugins(world):
        if pod.spec.get("priorityClassName") not in ("system-node-critical", "system-cluster-critical"):
            yield pod.manifest.fault(
                f"{pod.path}.priorityClassName",
                f"is {pod.spec.get('priorityClassName', 'not set')}",
                "use system-node-critical",
            )


@rule(
    "plugin-nodes",
    reason="on a node without devices a plugin fails, again and again",
    unseen=NOBODY,
    source="NVIDIA/k8s-device-plugin and aws/eks-charts, the plugins' node affinity",
)
def nodes(world: World) -> Iterator[Fault]:
    without = any(not node.gpus for node in world.around.nodes)
    for pod in _plugins(world) if without else []:
        if not pod.spec.get("nodeSelector") and not pod.spec.get("affinity"):
            yield pod.manifest.fault(
                f"{pod.path}.nodeSelector", "is not set, and there are nodes without GPUs", "select the GPU nodes"
            )
