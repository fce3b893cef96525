"""cdk8s objects of any kind, written as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cdk8s
from constructs import Construct


class KubernetesObject(cdk8s.ApiObject):
    """An object of any kind: `KubernetesObject(self, "Job", api_version="ray.io/v1", kind="RayJob", spec={…})`.

    For kinds that cdk8s-plus does not know (Ray's) or cannot express (privileged DaemonSets).
    """

    def __init__(self, scope: Construct, construct_id: str, *, api_version: str, kind: str, name: str,
                 namespace: str | None = None, annotations: Mapping[str, str] | None = None,
                 **fields: Any) -> None:
        """`fields` are the top-level fields beside metadata, as they stand in YAML: `spec`, `data` …"""
        super().__init__(scope, construct_id, api_version=api_version, kind=kind,
                         metadata=cdk8s.ApiObjectMetadata(name=name, namespace=namespace, annotations=annotations))
        for field, value in fields.items():
            self.add_json_patch(cdk8s.JsonPatch.add(f"/{field}", value))


CONFINED_POD = {"seccompProfile": {"type": "RuntimeDefault"}}
"""A pod's `securityContext`, and so that of containers which an operator adds: the container runtime's own filter
of system calls, as Docker has it for everything. Not tried by us on a node with GPUs."""
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""A container's `securityContext`: no way to more rights, and none of root's, as which the training image runs. EFA
needs none: how much memory may be pinned is a limit of the node (ulimit -l). Ray and the trainer need none either
(rehearsed as root with an empty set)."""


def env(variables: Mapping[str, str]) -> list[dict[str, str]]:
    """A container's `env` list."""
    return [{"name": name, "value": value} for name, value in variables.items()]
