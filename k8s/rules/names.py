"""Names and labels that Kubernetes takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from k8s.rules.rule import API_SERVER, KUBERNETES, NOBODY, Fault, Manifest, rule
from k8s.rules.world import World

_DNS_1035 = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")


def dns_label_fault(manifest: Manifest, field: str, name: str, most: int) -> Iterator[Fault]:
    """What is against a name that must be a DNS-1035 label of at most so many characters."""
    if len(name) > most:
        yield manifest.fault(
            field, f"{name} has {len(name)} characters; a {manifest.kind} may have {most}", "use a shorter name"
        )
    elif not _DNS_1035.fullmatch(name):
        yield manifest.fault(
            field, f"{name} is no DNS label", "lower-case letters, digits and hyphens, a letter first"
        )


def wrong_label(key: str, value: str) -> str | None:
    """What is wrong with a label, or None."""
    prefix, slash, name = key.rpartition("/")
    if len(name) > 63 or not _LABEL_NAME.fullmatch(name) or (slash and not _SUBDOMAIN.fullmatch(prefix)):
        return f"{key!r} is no label name"
    if len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
        return f"{value!r} is no label value"
    return None


@rule("object-name", reason="Kubernetes names are DNS names", unseen=API_SERVER, source=KUBERNETES)
def object_names(world: World) -> Iterator[Fault]:
    for manifest in world.manifests:
        if not manifest.name:
            yield manifest.fault("metadata.name", "is missing", "every object needs a name")
        namespace = manifest.metadata.get("namespace", "x")
        labels = [("metadata.namespace", namespace)]
        if manifest.kind == "Namespace":
            labels.append(("metadata.name", manifest.name))
        for field, value in labels:
            if value and (len(value) > 63 or not _DNS_LABEL.fullmatch(value)):
                yield manifest.fault(
                    field, f"{value} is no DNS label", "lower-case letters, digits and hyphens"
                )
        if (
            manifest.group != "rbac.authorization.k8s.io"
            and manifest.name
            and (len(manifest.name) > 253 or not _SUBDOMAIN.fullmatch(manifest.name.rstrip("-")))
        ):
            yield manifest.fault(
                "metadata.name",
                f"{manifest.name} is no DNS name",
                "lower-case letters, digits, hyphens and dots",
            )


@rule(
    "label",
    reason="labels have a syntax, and KubeRay refuses a group whose labels break it",
    unseen=API_SERVER,
    source=KUBERNETES,
)
def labels(world: World) -> Iterator[Fault]:
    def faults(manifest: Manifest, field: str, found: Mapping[str, str]) -> Iterator[Fault]:
        for key, value in found.items():
            if wrong := wrong_label(key, str(value)):
                yield manifest.fault(f"{field}.{key}", wrong, "letters, digits, - _ . and at most 63 of them")

    for manifest in world.manifests:
        if isinstance(found := manifest.metadata.get("labels"), dict):
            yield from faults(manifest, "metadata.labels", found)
    for pod in world.pods:
        above = pod.path.rpartition(".")[0]
        if pod.role != "Pod":
            yield from faults(pod.manifest, f"{above}.metadata.labels", pod.labels)
    for cluster in world.clusters:
        for group in cluster.groups:
            yield from faults(group.manifest, f"{group.path}.labels", group.spec.get("labels") or {})


@rule(
    "twice",
    reason="of two objects of one name the second silently replaces the first",
    unseen=NOBODY,
    source=KUBERNETES,
)
def twice(world: World) -> Iterator[Fault]:
    seen = set()
    for manifest in world.manifests:
        which = (manifest.group, manifest.kind, manifest.namespace, manifest.name)
        if manifest.metadata.get("name") and which in seen:
            yield manifest.fault(
                "metadata.name", f"{manifest.name} is there twice", "give them different names"
            )
        seen.add(which)
