"""NetworkPolicies around a Ray cluster: closed to others, open to what the job needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from k8s.kuberay import OPERATOR_NAMESPACE, OPERATOR_PODS
from k8s.rules.reach import End, address_range, inside, lets_in, lets_out, may_reach
from k8s.rules.rule import API_SERVER, KUBERNETES, NOBODY, Fault, rule
from k8s.rules.world import Cluster, Pod, World

_GCS, _DASHBOARD, _CLIENT, _ANY = 6379, 8265, 10001, 30123  # the last: what Ray, gloo and NCCL pick
_POD_IDENTITY = End("169.254.170.23")
_S3 = End("52.219.0.1")  # an address outside
_DNS = End("10.0.0.53", "kube-system", {"k8s-app": "kube-dns"})
_OPERATOR = End("10.0.0.3", OPERATOR_NAMESPACE, OPERATOR_PODS)
# The service of the Kubernetes API is at one of these, what stands behind it in the VPC, like nodes and other pods;
# and nobody has business with a node's metadata or a provider's networks.
_API = (End("10.100.0.1"), End("172.20.0.1"))
_INSIDE = (End("10.0.0.200"), End("172.16.0.200"), End("192.168.0.200"))
_NOBODYS = (End("169.254.169.254"), End("100.64.0.1"))

Way = tuple[str, str, End, End, int, str]
"""Name of the source, of the target, both, port and protocol."""


@rule(
    "network-reach",
    reason="Ray runs the code of whoever reaches its ports; and a policy that forgets a way the job needs hangs it",
    unseen=NOBODY,
    source="Kubernetes, network policies; KubeRay 1.7.0, networkpolicy_controller.go",
)
def reach(world: World) -> Iterator[Fault]:
    policies = [manifest.body for manifest in world.of("NetworkPolicy")]
    homes = {manifest.namespace for manifest in world.of("NetworkPolicy")}
    for cluster in world.efa_clusters:
        if cluster.manifest.kind != "RayCluster" or not (
            world.around.complete or cluster.manifest.namespace in homes
        ):
            continue
        shut = [way for way in _needed(world, cluster) if not may_reach(policies, *way[2:])]
        if shut:
            yield cluster.manifest.fault(
                "metadata.namespace",
                f"no NetworkPolicy lets the {_first_of(shut)}",
                "allow it, at both ends where both are selected",
            )
        # Each end must be closed by itself: the other may get policies of its own.
        ajar = [way for way in _uninvited(world, cluster) if lets_in(policies, *way[2:])]
        if world.around.complete:
            ajar += [way for way in _outbound(world, cluster) if lets_out(policies, *way[2:])]
        if ajar:
            yield cluster.manifest.fault(
                "metadata.namespace",
                f"NetworkPolicies let {_first_of(ajar)}",
                f"deny by default in namespace {cluster.manifest.namespace}, and name who may",
            )


def _first_of(ways: Sequence[Way]) -> str:
    a, b, _, _, port, protocol = ways[0]
    more = f" (and {len(ways) - 1} more such ways)" if len(ways) > 1 else ""
    return f"{a} reach {b} at {protocol} port {port}{more}"


def _needed(world: World, cluster: Cluster) -> Iterator[Way]:
    ends = _ends(cluster)
    for a, source in ends.items():
        for b, target in ends.items():
            yield a, f"the {b}", source, target, _GCS, "TCP"
            yield a, f"the {b}", source, target, _ANY, "TCP"
        yield a, "Pod Identity's agent", source, _POD_IDENTITY, 80, "TCP"
        yield a, "S3", source, _S3, 443, "TCP"
    for api in _API if cluster.autoscaling else ():
        yield "head", "the Kubernetes API", ends["head"], api, 443, "TCP"
    submitters = _submitters(world, cluster)
    for submitter in submitters:
        yield "submitter", "the head", submitter, ends["head"], _DASHBOARD, "TCP"
    if any(manifest.name == OPERATOR_NAMESPACE for manifest in world.of("Namespace")):
        yield "operator", "the head", _OPERATOR, ends["head"], _DASHBOARD, "TCP"
    for name, source in [*ends.items(), *(("submitter", one) for one in submitters)]:
        yield name, "DNS", source, _DNS, 53, "UDP"
        yield name, "DNS", source, _DNS, 53, "TCP"


def _uninvited(world: World, cluster: Cluster) -> Iterator[Way]:
    """Who must not come in, also in the clothes of one who may."""
    home = cluster.manifest.namespace
    inside_, elsewhere = End("10.0.0.66", home), End("10.0.0.67", "elsewhere")
    ends = _ends(cluster)
    for name, target in ends.items():
        for port in (_DASHBOARD, _GCS, _CLIENT, _ANY):
            yield "another pod of the namespace", f"the {name}", inside_, target, port, "TCP"
            yield "a pod of another namespace", f"the {name}", elsewhere, target, port, "TCP"
            yield "the internet", f"the {name}", _S3, target, port, "TCP"
    if not world.around.complete:
        return
    head = ends["head"]
    yield "an operator elsewhere", "the head", replace(_OPERATOR, namespace="elsewhere"), head, _DASHBOARD, "TCP"
    yield "the operator's neighbour", "the head", replace(_OPERATOR, labels={}), head, _DASHBOARD, "TCP"
    another = replace(head, labels={**head.labels, "ray.io/cluster": "another"})
    for name, source in [("the operator", _OPERATOR), *(("a submitter", s) for s in _submitters(world, cluster))]:
        yield name, "the head", source, head, _GCS, "TCP"
        yield name, "another cluster's head", source, another, _DASHBOARD, "TCP"
        for title, target in ends.items():
            if title != "head":
                yield name, f"the {title}", source, target, _DASHBOARD, "TCP"
    yield "a pod of another namespace", "any pod of the namespace", elsewhere, inside_, _ANY, "TCP"


def _outbound(world: World, cluster: Cluster) -> Iterator[Way]:
    """Where pods of the namespace must not go."""
    other = End("10.0.0.66", cluster.manifest.namespace)
    ends = {f"the {name}": end for name, end in _ends(cluster).items()}
    submitters = [("a submitter", end) for end in _submitters(world, cluster)]
    for name, source in [*ends.items(), *submitters, ("another pod of the namespace", other)]:
        for target in _NOBODYS if cluster.autoscaling and name == "the head" else (*_NOBODYS, *_API, *_INSIDE):
            yield name, f"the private address {target.address}", source, target, 443, "TCP"
        yield name, "a web server", source, _S3, 80, "TCP"
        yield name, "Pod Identity's agent", source, _POD_IDENTITY, 443, "TCP"
        yield name, "a DNS elsewhere", source, replace(_DNS, namespace="elsewhere"), 53, "UDP"
        yield name, "DNS's neighbour", source, replace(_DNS, labels={}), 53, "UDP"
        yield name, "DNS", source, _DNS, 9153, "UDP"
        yield name, "DNS", source, _DNS, 9153, "TCP"
        yield name, "another pod of the namespace", source, other, _ANY, "TCP"
    for name, source in [*submitters, ("another pod of the namespace", other)]:
        yield name, "S3", source, _S3, 443, "TCP"
        for title, target in ends.items():
            yield name, title, source, target, _GCS, "TCP"
            if title != "the head":
                yield name, title, source, target, _DASHBOARD, "TCP"
        for target in ends.values():
            another = replace(target, labels={**target.labels, "ray.io/cluster": "another"})
            yield name, "another cluster", source, another, _DASHBOARD, "TCP"
    yield "another pod of the namespace", "DNS", other, _DNS, 53, "UDP"


def _submitters(world: World, cluster: Cluster) -> list[End]:
    return [
        End("10.0.0.9", cluster.manifest.namespace, pod.labels)
        for job in world.jobs
        if world.cluster_of(job) is cluster and (pod := job.submitter)
    ]


def _ends(cluster: Cluster) -> dict[str, End]:
    """Head and workers with the labels that KubeRay gives their pods."""
    found = {"head": _end(cluster, cluster.head.pod, "10.0.0.1", "head")}
    for group in cluster.workers:
        found[f"worker ({group.name})"] = _end(cluster, group.pod, "10.0.0.2", "worker")
    return found


def _end(cluster: Cluster, pod: Pod, address: str, role: str) -> End:
    labels = {**pod.labels, "ray.io/cluster": cluster.manifest.name, "ray.io/node-type": role}
    ports = {port.get("name", ""): port.get("containerPort", 0) for port in pod.first.get("ports") or []}
    return End(address, cluster.manifest.namespace, labels, ports)


@rule(
    "network-block",
    reason="what is no range of addresses, or no part of the one around it, is refused",
    unseen=API_SERVER,
    source=KUBERNETES,
)
def blocks(world: World) -> Iterator[Fault]:
    for manifest in world.of("NetworkPolicy"):
        for field, block in _blocks(manifest.body.get("spec") or {}):
            whole = address_range(block.get("cidr"))
            if whole is None:
                what = f"{block.get('cidr')} is no range of addresses"
                yield manifest.fault(f"{field}.cidr", what, "write it as 10.0.0.0/16")
            for hole in block.get("except") or []:
                part = address_range(hole)
                if part is None or (whole and not inside(part, whole)):
                    yield manifest.fault(
                        f"{field}.except", f"{hole} is no part of {block.get('cidr')}", "use a smaller range inside"
                    )


def _blocks(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for direction, peers in (("ingress", "from"), ("egress", "to")):
        for i, one in enumerate(spec.get(direction) or []):
            for j, peer in enumerate((one or {}).get(peers) or []):
                if "ipBlock" in peer:
                    yield f"spec.{direction}[{i}].{peers}[{j}].ipBlock", peer["ipBlock"] or {}
