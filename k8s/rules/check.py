"""Manifests in, findings out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Each import adds its rules to RULES.
from k8s.rules import (  # noqa: F401
    confinement,
    deletion,
    efa,
    efa_jobs,
    exposure,
    names,
    network,
    plugins,
    pods,
    ray_autoscaling,
    ray_clusters,
    ray_images,
    ray_jobs,
    ray_token,
    references,
    scheduling,
    schemas,
)
from k8s.rules.rule import API_SERVER, KUBERNETES, RULES, Fault, Finding, Manifest, rule
from k8s.rules.world import Surroundings, World

# Found while the objects are read (below and in schemas.py), not by a function over all of them.
_WHILE_READING = [
    ("core-schema", "an unknown or mistyped field is refused, or dropped where validation is off", KUBERNETES),
    (
        "ray-schema",
        "the same of Ray's objects, and of the pods inside them",
        "KubeRay 1.7.0, CRDs (ray_fields.json)",
    ),
    ("object-kind", "an object has apiVersion, kind and metadata", KUBERNETES),
    ("repeated-key", "of two keys of one mapping the last counts, silently where validation is off", KUBERNETES),
]
for _id, _reason, _source in _WHILE_READING:
    rule(_id, reason=_reason, unseen=API_SERVER, source=_source)(lambda world: [])


def check(manifests: Sequence[Manifest], around: Surroundings) -> list[Finding]:
    """Everything that is wrong with the manifests, in their order."""
    found: list[tuple[str, Fault]] = []
    readable = []
    for manifest in manifests:
        body = plain(manifest.body)
        if unfit := _unfit(Manifest(body, manifest.file)):
            found.append(("object-kind", unfit))
            continue
        faults, body = schemas.faults(Manifest(body, manifest.file), around.kubernetes)
        found += faults
        readable.append(Manifest(body, manifest.file))
    world = World(readable, around)
    for one in list(RULES.values()):
        found += [(one.id, fault) for fault in one.faults(world)]
    findings = [
        Finding(id, fault.manifest.file, str(fault.manifest), fault.field, fault.problem, fault.mend)
        for id, fault in found
    ]
    return list(dict.fromkeys(findings))


def plain(value: Any) -> Any:
    """A value as the API server reads it: texts as keys, and no field whose value is null."""
    if isinstance(value, dict):
        return {str(key): plain(below) for key, below in value.items() if below is not None}
    return [plain(below) for below in value] if isinstance(value, list) else value


def _unfit(manifest: Manifest) -> Fault | None:
    """Why an object cannot be looked at at all."""
    for field, kind in (("apiVersion", str), ("kind", str), ("metadata", dict), ("spec", dict)):
        value = manifest.body.get(field)
        if value is None and field == "spec":
            continue
        if not isinstance(value, kind):
            return manifest.fault(
                field, "is missing" if value is None else f"is no {_WORDS[kind]}", f"set it to a {_WORDS[kind]}"
            )
    return None


_WORDS = {str: "text", dict: "mapping"}
