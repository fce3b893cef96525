"""Kubernetes objects as resources of a stack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from aws_cdk import aws_eks_v2 as eks
from constructs import Construct


def apply_manifest(scope: Construct, construct_id: str, cluster: eks.Cluster, manifest: dict[str, Any],
                   values: Mapping[str, str] | None = None) -> eks.KubernetesManifest:
    """Apply one object to the cluster, with placeholders such as `<checkpoint-bucket>` replaced by `values`.

    Applied rather than created, so that a second attempt of the same Lambda call succeeds. Pruning is for
    objects that drop out of a list; here each has a resource of its own, which deletes it.
    """
    return eks.KubernetesManifest(scope, construct_id, cluster=cast(eks.ICluster, cluster), overwrite=True,
                                  prune=False, manifest=[_filled(manifest, values or {})])


def _filled(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(below, values) for key, below in value.items()}
    if isinstance(value, list):
        return [_filled(below, values) for below in value]
    if isinstance(value, str):
        for placeholder, filling in values.items():
            value = value.replace(placeholder, filling)
    return value
