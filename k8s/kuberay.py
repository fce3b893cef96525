"""The KubeRay operator, which turns RayCluster and RayJob objects into pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from k8s.releases import pinned, release

OPERATOR_NAMESPACE = "kuberay-operator"
OPERATOR_PODS = {"app.kubernetes.io/name": "kuberay-operator"}
"""A label that the chart puts on the operator's pod."""


@dataclass(frozen=True)
class HelmRelease:
    """One `helm upgrade --install`: which chart, under which name and namespace, with which values.

    `wait_minutes`: how long helm waits for the pods; twice that (an undo waits again) must stay below the 15
    minutes that a Lambda has.
    """

    name: str
    namespace: str
    repository: str
    chart: str
    version: str
    values: dict[str, Any]
    wait_minutes: int


def kuberay_operator(watch_namespace: str, digest: str | None = None) -> HelmRelease:
    """The operator for the Ray objects of one namespace, which must exist before it; its image by `digest`, if any.

    singleNamespaceInstall makes its permissions a Role in that namespace. With watchNamespace alone the
    chart still gives it a ClusterRole, secrets of every namespace included.
    """
    source = release("kuberay_operator")
    repository, _, tag = source["image"].rpartition(":")
    return HelmRelease(
        name="kuberay-operator",
        namespace=OPERATOR_NAMESPACE,
        repository=source["repository"],
        chart=source["chart"],
        version=source["version"],
        values={
            # The chart writes repository:tag, so that a digest comes after the tag.
            "image": {"repository": repository, "tag": pinned(tag, digest)},
            "singleNamespaceInstall": True,
            "watchNamespace": [watch_namespace],
            # It shares a small node with the Ray head. The chart's CPU limit of 100m would throttle it.
            "resources": {
                "requests": {"cpu": "100m", "memory": "512Mi"},
                "limits": {"cpu": "500m", "memory": "512Mi"},
            },
        },
        wait_minutes=5,
    )
