"""Workers that come for a job: what their autoscaler needs, or the job waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k8s.rules.quantity import amount
from k8s.rules.rule import NOBODY, POD_EVENT, Fault, rule
from k8s.rules.world import Cluster, World

_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


@rule(
    "autoscaler-access",
    reason="Ray's autoscaler asks Kubernetes for workers, with the token of its pod",
    unseen="nobody; workers never come",
    source="Ray 2.58.0, autoscaler/_private/kuberay/node_provider.py",
)
def access(world: World) -> Iterator[Fault]:
    accounts = {
        (m.namespace, m.name): m.body.get("automountServiceAccountToken") for m in world.of("ServiceAccount")
    }
    for cluster in world.clusters:
        pod = cluster.head.pod
        account = accounts.get((cluster.manifest.namespace, pod.spec.get("serviceAccountName", "default")))
        if not cluster.autoscaling or pod.spec.get("automountServiceAccountToken", account) is not False:
            continue
        options = f"{cluster.path}.autoscalerOptions"
        mounts = (cluster.spec.get("autoscalerOptions") or {}).get("volumeMounts") or []
        named = [m.get("name") for m in mounts if str(m.get("mountPath", "")).rstrip("/") == _TOKEN_PATH]
        volumes = {v.get("name"): v for v in pod.spec.get("volumes") or []}
        if not named or not {"token", "ca.crt"} <= _files(volumes.get(named[0]) or {}):
            yield cluster.manifest.fault(
                f"{options}.volumeMounts",
                f"no token and CA certificate at {_TOKEN_PATH}, and none is mounted by itself",
                "mount a projected volume with both there",
            )


def _files(volume: dict[str, Any]) -> set[str]:
    """File names of a projected volume that come from a service account's token and from a ConfigMap."""
    sources = (volume.get("projected") or {}).get("sources") or []
    tokens = {s["serviceAccountToken"].get("path", "") for s in sources if "serviceAccountToken" in s}
    items = {i.get("path", "") for s in sources for i in (s.get("configMap") or {}).get("items") or []}
    return tokens | items


@rule(
    "autoscaler-gang",
    reason="training starts with all its workers or not at all; a worker that came alone has to wait",
    unseen=NOBODY,
    source="Ray 2.58.0, autoscaler/v2/scheduler.py: only v2 keeps an idle worker that a waiting job needs",
)
def gang(world: World) -> Iterator[Fault]:
    for cluster in world.efa_clusters:
        if not cluster.autoscaling:
            yield from _standing(cluster)
        elif not cluster.autoscaler_v2:
            yield cluster.manifest.fault(
                f"{cluster.path}.autoscalerOptions.version", "is not v2", "set it to v2"
            )


def _standing(cluster: Cluster) -> Iterator[Fault]:
    for group in cluster.workers:
        if group.spec.get("maxReplicas", 0) and not group.pod.count:
            yield group.manifest.fault(
                f"{group.path}.replicas",
                "is 0, and nothing raises it",
                "set it, or enableInTreeAutoscaling",
            )


@rule(
    "autoscaler-number",
    reason="the number of workers is the autoscaler's: applying another one takes workers from a job",
    unseen=NOBODY,
    source="KubeRay documentation, autoscaling",
)
def number(world: World) -> Iterator[Fault]:
    for cluster in world.efa_clusters:
        for group in cluster.workers if cluster.autoscaling else []:
            if "replicas" in group.spec:
                yield group.manifest.fault(f"{group.path}.replicas", "is set", "leave it out")


@rule(
    "autoscaler-idle",
    reason="between two attempts of a job its workers are idle for a moment",
    unseen=NOBODY,
    source="Ray 2.58.0, autoscaler/v2/scheduler.py",
)
def idle(world: World) -> Iterator[Fault]:
    for cluster in world.efa_clusters:
        seconds = (cluster.spec.get("autoscalerOptions") or {}).get("idleTimeoutSeconds", 60)
        if cluster.autoscaling and 0 <= seconds < 60:
            yield cluster.manifest.fault(
                f"{cluster.path}.autoscalerOptions.idleTimeoutSeconds", f"is {seconds}", "use 60 or more"
            )


@rule(
    "autoscaler-container",
    reason="the head's pod is made with this container in it, and training runs beside it",
    unseen=POD_EVENT,
    source="KubeRay 1.7.0, ray-operator/controllers/ray/common/pod.go",
)
def container(world: World) -> Iterator[Fault]:
    for cluster in world.efa_clusters:
        options = cluster.spec.get("autoscalerOptions") or {}
        field = f"{cluster.path}.autoscalerOptions"
        resources = options.get("resources") or {}
        asked, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for kind, amounts in (("requests", asked), ("limits", limits)):
            for name, value in amounts.items():
                place = f"{field}.resources.{kind}.{name}"
                if amount(value) is None:
                    yield cluster.manifest.fault(place, f"{value!r} is no quantity", "use for example 500m or 1Gi")
                elif kind == "requests" and (amount(limits.get(name, value)) or 0) < (amount(value) or 0):
                    most = limits[name]
                    yield cluster.manifest.fault(place, f"{value} is above the limit", f"use {most} or less")
        allowed = (options.get("securityContext") or {}).get("allowPrivilegeEscalation")
        if cluster.autoscaling and allowed is not False:
            yield cluster.manifest.fault(
                f"{field}.securityContext.allowPrivilegeEscalation", "is not forbidden", "set it to false"
            )
