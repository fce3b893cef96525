"""What a cluster needs before it can train: namespaces and device plugins (KubeRay: k8s/kuberay.py)."""

from __future__ import annotations

from typing import Any

import cdk8s
import cdk8s_plus_28 as kplus
from constructs import Construct

from k8s.device_plugins import EfaDevicePlugin, NvidiaDevicePlugin
from k8s.kuberay import OPERATOR_NAMESPACE


def namespaces(ray_namespace: str) -> list[dict[str, Any]]:
    """The operator's namespace and the one of Ray clusters and jobs."""
    chart = cdk8s.Chart(cdk8s.App(), "namespaces")
    # The chart's operator runs without root, capabilities or a way to them (KubeRay 1.7.0, values.yaml).
    _namespace(chart, OPERATOR_NAMESPACE, enforce="restricted")
    # Nothing of ours needs more than baseline: no host access, no privileged pods. EFA neither: its device comes
    # from the plugin, and the memory it pins is within the limit that EKS's AL2023 image sets. Of what restricted
    # asks for beyond that, Ray's pods lack one thing: the image runs as root.
    _namespace(chart, ray_namespace, enforce="baseline")
    return chart.to_json()


def device_plugins(region: str, nvidia_digest: str | None = None,
                   efa_digest: str | None = None) -> list[dict[str, Any]]:
    """The DaemonSets for GPUs and EFA interfaces, by digest where one is given; EFA's image comes from `region`."""
    chart = cdk8s.Chart(cdk8s.App(), "device-plugins")
    NvidiaDevicePlugin(chart, "nvidia", digest=nvidia_digest)
    EfaDevicePlugin(chart, "efa", region=region, digest=efa_digest)
    return chart.to_json()


def _namespace(scope: Construct, name: str, *, enforce: str) -> None:
    labels = {"pod-security.kubernetes.io/enforce": enforce}
    kplus.Namespace(scope, name, metadata=cdk8s.ApiObjectMetadata(name=name, labels=labels))
