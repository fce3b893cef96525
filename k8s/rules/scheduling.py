"""Pods that no node can take: too large, not tolerated, not selected, or more than there are devices for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from k8s.rules.quantity import in_words
from k8s.rules.rule import PENDING, Fault, rule
from k8s.rules.world import EFA, GPU, INSTANCE_TYPE, Node, Pod, World, variables

_KARPENTER = "Karpenter's instance-type reference (allocatable)"
_RESOURCES = ("cpu", "memory", GPU, EFA)


@rule(
    "node-fit",
    reason="what a node can give is less than its instance type has",
    unseen=PENDING,
    source=_KARPENTER,
)
def fits(world: World) -> Iterator[Fault]:
    for pod in world.pods:
        nodes = _candidates(pod, world)
        if not nodes or any(not _lacking(pod, node) for node in nodes):
            continue
        # The node that comes nearest says most.
        best = min(nodes, key=lambda node: (len(_lacking(pod, node)), -node.gpus, node.cpu_m))
        for name in _lacking(pod, best):
            have = in_words(name, best.gives[name])
            yield pod.manifest.fault(
                f"{pod.path}.containers[0].resources.requests.{name}",
                f"asks for {in_words(name, pod.asks[name])}, and a {best.type} gives {have}",
                f"use {have} or less, or another instance type",
            )


def _lacking(pod: Pod, node: Node) -> list[str]:
    return [name for name in _RESOURCES if pod.asks.get(name, 0) > node.gives[name]]


def _candidates(pod: Pod, world: World) -> Sequence[Node]:
    """Nodes that a pod is meant for as far as labels and taints say; none where that cannot be known."""
    if world.around.nodes:
        selected = [node for node in world.around.nodes if _selected(pod, node)]
        # A pod that asks for devices is meant for their nodes, though it may fail to tolerate them.
        devices = [node for node in selected if node.gpus] if {GPU, EFA} & set(pod.asks) else []
        return devices or [node for node in selected if not _repelled(pod, node)]
    named = (pod.spec.get("nodeSelector") or {}).get(INSTANCE_TYPE)
    if named:
        return [world.around.catalog[named]] if named in world.around.catalog else []
    return list(world.around.catalog.values()) if EFA in pod.asks else []


def _selected(pod: Pod, node: Node) -> bool:
    """Whether a node has the labels that a pod asks for; those that Kubernetes or AWS set are taken as there."""
    labels = {INSTANCE_TYPE: node.type, **(node.labels or {})}
    return all(
        labels.get(key) == value
        for key, value in (pod.spec.get("nodeSelector") or {}).items()
        if key in labels or not _set_by_others(key)
    )


def _set_by_others(key: str) -> bool:
    domain = key.rpartition("/")[0]
    return domain.endswith(("kubernetes.io", "k8s.io", "amazonaws.com", "k8s.aws"))


def _repelled(pod: Pod, node: Node) -> list[Mapping[str, str]]:
    """Taints of a node that a pod does not tolerate."""
    return [
        taint
        for taint in node.taints or []
        if taint.get("effect") != "PreferNoSchedule"
        and not any(tolerates(one, taint) for one in pod.spec.get("tolerations") or [])
    ]


def tolerates(toleration: Mapping[str, str], taint: Mapping[str, str]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    return toleration.get("operator") == "Exists" or (
        bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")
    )


@rule(
    "node-match",
    reason="a DaemonSet whose nodes do not exist wants 0 pods, and a pod waits for ever",
    unseen=PENDING,
    source="NVIDIA/k8s-device-plugin issues 708 and 607",
)
def matches(world: World) -> Iterator[Fault]:
    for pod in world.pods if world.around.nodes else []:
        selected = [node for node in world.around.nodes if _selected(pod, node)]
        if not selected:
            yield pod.manifest.fault(
                f"{pod.path}.nodeSelector",
                f"no node has {_pairs(pod.spec['nodeSelector'])}",
                "use the labels of a nodegroup, or add them to one",
            )
        elif all(_repelled(pod, node) for node in _candidates(pod, world) or selected):
            yield _untolerated(pod, _repelled(pod, (_candidates(pod, world) or selected)[0])[0])
        elif (
            pod.role == "DaemonSet"
            and (repelled := [t for node in selected for t in _repelled(pod, node)])
            and (pod.spec.get("nodeSelector"))
        ):
            yield _untolerated(pod, repelled[0])


def _untolerated(pod: Pod, taint: Mapping[str, str]) -> Fault:
    word = ":".join(part for part in (taint.get("key"), taint.get("effect")) if part)
    return pod.manifest.fault(
        f"{pod.path}.tolerations",
        f"does not tolerate the nodes' taint {word}",
        f"add {{key: {taint.get('key')}, operator: Exists, effect: {taint.get('effect')}}}",
    )


def _pairs(selector: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in selector.items())


@rule(
    "plugin-toleration",
    reason="where workers tolerate a taint, the device plugins have to as well, or the nodes have "
    "no devices to ask for",
    unseen=PENDING,
    source="aws/eks-charts, aws-efa-k8s-device-plugin (tolerations)",
)
def plugin_tolerations(world: World) -> Iterator[Fault]:
    tainted = [
        one
        for cluster in world.clusters
        for group in cluster.workers
        if GPU in group.pod.asks
        for one in group.pod.spec.get("tolerations") or []
        if one.get("key") == GPU
    ]
    for pod in world.pods:
        if pod.role == "DaemonSet" and is_device_plugin(pod):
            for one in tainted[:1]:
                taint = {"key": GPU, "value": one.get("value", ""), "effect": one.get("effect") or "NoSchedule"}
                if not any(tolerates(other, taint) for other in pod.spec.get("tolerations") or []):
                    yield _untolerated(pod, taint)


def is_device_plugin(pod: Pod) -> bool:
    return "k8s-device-plugin" in pod.first.get("image", "")


@rule(
    "node-room",
    reason="each worker takes devices of one node; the next one finds none left",
    unseen=PENDING,
    source="seen with KubeRay 1.7.0 on two nodes with one EFA interface each",
)
def room(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        for group in cluster.workers:
            pod = group.pod
            nodes = [node for node in _candidates(pod, world) if not _lacking(pod, node)]
            for name in (GPU, EFA):
                each = pod.asks.get(name, 0)
                if not each or not nodes:
                    continue
                if all(node.count is not None for node in nodes):
                    places = sum(int(node.gives[name] // each) * (node.count or 0) for node in nodes)
                    if pod.count > places:
                        yield group.manifest.fault(
                            f"{group.path}.replicas",
                            f"{pod.count} pods ask for {each:g} {name} "
                            f"each, and the nodes have room for {places}",
                            f"use {places}, or more nodes",
                        )
                        break


@rule(
    "efa-share",
    reason="an EFA interface belongs to one pod: two workers on a node with one would wait for each other, "
    "and one that leaves interfaces unused is slow",
    unseen=PENDING,
    source="EKS user guide, EFA; KubeRay on two nodes",
)
def shares(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        for group in cluster.workers:
            pod = group.pod
            nodes = [node for node in _candidates(pod, world) if not _lacking(pod, node) and node.gpus]
            gpus, efa = pod.asks.get(GPU, 0), pod.asks.get(EFA, 0)
            if not gpus or not efa or not nodes:
                continue
            # With the node unknown, the type whose GPUs the pod takes most of is the one that is meant.
            node = min(nodes, key=lambda node: (node.gpus / gpus, node.efa / efa))
            if node.gpus // gpus > node.efa // efa:
                yield group.manifest.fault(
                    f"{pod.path}.containers[0].resources.limits.{GPU}",
                    f"{node.gpus // gpus:g} such pods share a {node.type} by their GPUs, but its "
                    f"{node.efa} EFA are enough for {node.efa // efa:g}",
                    f"one pod a node, with {node.gpus} GPUs",
                )
            elif world.around.nodes and efa * (node.gpus // gpus) < node.efa:
                yield group.manifest.fault(
                    f"{pod.path}.containers[0].resources.limits.{EFA}",
                    f"takes {efa:g} of the {node.efa} EFA interfaces of a {node.type}",
                    f"use {node.efa // (node.gpus // gpus):g}",
                )


@rule(
    "gpu-visible",
    reason="the variable hides the GPUs that the pod was given",
    unseen="nobody; Ray finds no GPU",
    source="ray-project/kuberay issue 2519",
)
def visible(world: World) -> Iterator[Fault]:
    for pod in world.pods:
        value = variables(pod.first).get("NVIDIA_VISIBLE_DEVICES")
        if GPU in pod.asks and value is not None and value != "all":
            yield pod.manifest.fault(
                f"{pod.path}.containers[0].env",
                f"NVIDIA_VISIBLE_DEVICES={value} overrides which GPUs the pod gets",
                "leave it out: the device plugin sets it",
            )
