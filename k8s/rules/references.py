"""Names that lead nowhere: ConfigMaps and their keys, Secrets, accounts, namespaces, Ray clusters."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from k8s.rules.rule import KUBERAY_RUN, KUBERNETES, NOBODY, POD_EVENT, Fault, Manifest, rule
from k8s.rules.world import Pod, World

# What every cluster has.
_NAMESPACES = {"default", "kube-system", "kube-public", "kube-node-lease"}
_GIVEN = {"ConfigMap": {"kube-root-ca.crt"}, "ServiceAccount": {"default"}, "Secret": set()}
_CLUSTER_WIDE = {
    "Namespace",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "StorageClass",
    "PersistentVolume",
    "PriorityClass",
    "IngressClass",
    "RuntimeClass",
    "List",
}


def _references(pod: Pod) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Kind, name and field of each ConfigMap and Secret that a pod needs, and where keys are named."""
    for i, volume in enumerate(pod.spec.get("volumes") or []):
        field = f"{pod.path}.volumes[{i}]"
        found = [("ConfigMap", "configMap", "name", volume), ("Secret", "secret", "secretName", volume)]
        for source in (volume.get("projected") or {}).get("sources") or []:
            found += [("ConfigMap", "configMap", "name", source), ("Secret", "secret", "name", source)]
        for kind, key, name, holder in found:
            if (one := holder.get(key)) and one.get(name) and not one.get("optional"):
                yield kind, one[name], f"{field}.{key}", one
    for path, container in pod.containers:
        for i, source in enumerate(container.get("envFrom") or []):
            for kind, key in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
                if (one := source.get(key)) and one.get("name") and not one.get("optional"):
                    yield kind, one["name"], f"{path}.envFrom[{i}].{key}", {}
        for i, variable in enumerate(container.get("env") or []):
            for kind, key in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
                if (
                    (one := (variable.get("valueFrom") or {}).get(key))
                    and one.get("name")
                    and not one.get("optional")
                ):
                    yield kind, one["name"], f"{path}.env[{i}].valueFrom.{key}", {"items": [one]}


@rule(
    "reference",
    reason="a pod waits for ever for a ConfigMap, Secret or account that is not there",
    unseen=POD_EVENT,
    source=KUBERNETES,
)
def references(world: World) -> Iterator[Fault]:
    used = {(kind, pod.manifest.namespace, name) for pod in world.pods for kind, name, _, _ in _references(pod)}
    used |= {
        ("ServiceAccount", pod.manifest.namespace, name)
        for pod in world.pods
        if (name := pod.spec.get("serviceAccountName"))
    }
    for pod in world.pods:
        for kind, name, field, _ in _references(pod):
            yield from _missing(world, pod.manifest, used, kind, name, f"{field}.name")
        for i, volume in enumerate(pod.spec.get("volumes") or []):
            if "configMap" in volume and not volume["configMap"].get("name"):
                yield pod.manifest.fault(
                    f"{pod.path}.volumes[{i}].configMap.name", "is missing", "name a ConfigMap"
                )
        if name := pod.spec.get("serviceAccountName"):
            yield from _missing(
                world, pod.manifest, used, "ServiceAccount", name, f"{pod.path}.serviceAccountName"
            )


def _missing(
    world: World, manifest: Manifest, used: set[tuple[str, str, str]], kind: str, name: str, field: str
) -> Iterator[Fault]:
    """Whether a name leads nowhere.

    Among manifests that are all there is, it does if it is not one of them. Otherwise it may be in the cluster
    already, unless an object of that kind lies here which nothing else refers to: then the names were meant to
    be the same. Secrets are rightly kept out of manifests, so only the second way holds for them.
    """
    known = [other.name for other in world.of(kind) if other.namespace == manifest.namespace]
    if name in known or name in _GIVEN[kind]:
        return
    idle = [other for other in known if (kind, manifest.namespace, other) not in used]
    if idle or (world.around.complete and kind != "Secret"):
        near = get_close_matches(name, idle or known, n=1, cutoff=0.3) or idle[:1]
        yield manifest.fault(
            field,
            f"there is no {kind} {name} in namespace {manifest.namespace}",
            f"meant is perhaps {near[0]}" if near else f"add it, or correct the name to a {kind} that exists",
        )


@rule(
    "reference-key",
    reason="a key that a ConfigMap does not have keeps the pod from starting",
    unseen=POD_EVENT,
    source=KUBERNETES,
)
def keys(world: World) -> Iterator[Fault]:
    for pod in world.pods:
        for kind, name, field, holder in _references(pod):
            for other in world.of(kind):
                if other.name != name or other.namespace != pod.manifest.namespace:
                    continue
                has = {
                    key for part in ("data", "binaryData", "stringData") for key in other.body.get(part) or {}
                }
                for item in holder.get("items") or []:
                    if item.get("key") not in has and not item.get("optional"):
                        yield pod.manifest.fault(
                            f"{field}: key {item.get('key')}",
                            f"{kind} {name} has no such key",
                            _near(str(item.get("key")), tuple(sorted(has))),
                        )
                paths = [item.get("path") for item in holder.get("items") or [] if item.get("path")]
                if len(set(paths)) < len(paths):
                    yield pod.manifest.fault(f"{field}.items", "two keys have the same path", "one path each")


@lru_cache(maxsize=16)
def _near(name: str, names: tuple[str, ...]) -> str:
    near = get_close_matches(name, names[:1000], n=1)
    return f"meant is perhaps {near[0]}" if near else "use a key of its data"


@rule(
    "namespace",
    reason="an object in a namespace that is not there is refused",
    unseen="the API server refuses it",
    source=KUBERNETES,
)
def namespaces(world: World) -> Iterator[Fault]:
    there = {manifest.name for manifest in world.of("Namespace")}
    inside = [m for m in world.manifests if m.kind not in _CLUSTER_WIDE]
    idle = there - {m.namespace for m in inside}
    for manifest in inside:
        if manifest.namespace in there | _NAMESPACES:
            continue
        if idle or (world.around.complete and there):
            near = get_close_matches(manifest.namespace, sorted(idle or there), n=1, cutoff=0.3)
            yield manifest.fault(
                "metadata.namespace",
                f"there is no namespace {manifest.namespace}",
                f"meant is perhaps {near[0]}" if near else f"use {', '.join(sorted(there))}",
            )


@rule(
    "selected-cluster", reason="a job that selects no cluster waits for ever", unseen=NOBODY, source=KUBERAY_RUN
)
def selected(world: World) -> Iterator[Fault]:
    clusters = list(world.of("RayCluster"))
    for job in world.jobs:
        name = (job.spec.get("clusterSelector") or {}).get("ray.io/cluster")
        if not name or not (clusters or world.around.complete) or world.cluster_of(job):
            continue
        elsewhere = [m for m in clusters if m.name == name]
        known = sorted(m.name for m in clusters if m.namespace == job.manifest.namespace)
        yield job.manifest.fault(
            f"{job.path}.clusterSelector.ray.io/cluster",
            f"there is no RayCluster {name} in namespace {job.manifest.namespace}",
            f"it is in {elsewhere[0].namespace}"
            if elsewhere
            else f"use {' or '.join(known)}"
            if known
            else "add it",
        )


@rule(
    "watched",
    reason="the operator leaves Ray objects of other namespaces alone, without a word",
    unseen=NOBODY,
    source=KUBERAY_RUN,
)
def together(world: World) -> Iterator[Fault]:
    """All Ray objects of a complete set lie in one namespace, the one that the operator watches."""
    found = (
        {m.namespace for m in world.of("RayCluster", "RayJob", "RayService")}
        if world.around.complete
        else set()
    )
    homes = {m.namespace for m in world.of("RayCluster")}
    for manifest in world.of("RayJob") if len(found) > 1 and len(homes) == 1 else []:
        if manifest.namespace not in homes:
            yield manifest.fault(
                "metadata.namespace",
                f"{manifest.namespace} is not the Ray cluster's {', '.join(homes)}",
                "use one namespace",
            )
