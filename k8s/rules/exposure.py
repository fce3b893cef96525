"""Who can reach what: Ray runs the code of whoever reaches its dashboard, and a pod may take over its node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from k8s.rules.rule import KUBERNETES, NOBODY, Fault, Manifest, rule
from k8s.rules.world import Cluster, Pod, World, below

# Dashboard and jobs, Ray client, GCS, dashboard agent: each of them runs code or tells what to run.
_PORTS = {8265: "dashboard", 10001: "client", 6379: "gcs-server", 52365: "dashboard-agent"}
_NAMES = {"dashboard", "client", "gcs", "gcs-server", "dashboard-agent", "ray-dashboard"}
_OUTSIDE = ("LoadBalancer", "NodePort")
_SECURITY = "Ray documentation, security; advisories on the job API"


@rule(
    "dashboard-open",
    reason="whoever reaches the port runs code on the cluster",
    unseen=NOBODY,
    source=_SECURITY,
)
def dashboard(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        yield from _head(cluster)
    for manifest in world.of("Service"):
        yield from _service(manifest, manifest.body.get("spec") or {}, "spec")
    for manifest in world.manifests:
        if manifest.kind in ("Ingress", "HTTPRoute", "TCPRoute", "GRPCRoute", "VirtualService", "IngressRoute"):
            for field in _backends(manifest.body.get("spec"), "spec"):
                yield manifest.fault(
                    field,
                    "leads from outside to Ray's dashboard or another of its ports",
                    "remove it, and use kubectl port-forward",
                )
    for pod in world.pods:
        for path, container in pod.containers:
            for i, port in enumerate(container.get("ports") or []):
                if port.get("containerPort") in _PORTS and port.get("hostPort"):
                    yield pod.manifest.fault(
                        f"{path}.ports[{i}].hostPort", "opens the port on the node", "leave it out"
                    )


def _head(cluster: Cluster) -> Iterator[Fault]:
    head, manifest = cluster.head, cluster.manifest
    if (kind := head.spec.get("serviceType", "ClusterIP")) not in ("ClusterIP", "", "Headless"):
        what = "publishes the dashboard" if kind in _OUTSIDE else "is no type of Service"
        yield manifest.fault(f"{head.path}.serviceType", f"{kind} {what}", "use ClusterIP")
    if head.spec.get("enableIngress"):
        yield manifest.fault(
            f"{head.path}.enableIngress",
            "publishes the dashboard",
            "leave it out, and use kubectl port-forward",
        )
    if service := head.spec.get("headService"):
        # KubeRay adds the dashboard's port to those that are named here.
        kind = (service.get("spec") or {}).get("type")
        if kind in _OUTSIDE:
            yield manifest.fault(
                f"{head.path}.headService.spec.type", f"{kind} publishes the dashboard", "use ClusterIP"
            )
    if head.pod.spec.get("hostNetwork"):
        yield manifest.fault(f"{head.pod.path}.hostNetwork", "opens Ray's ports on the node", "leave it out")


def _service(manifest: Manifest, spec: Mapping[str, Any], path: str) -> Iterator[Fault]:
    if spec.get("type") not in _OUTSIDE and not spec.get("externalIPs"):
        return
    for i, port in enumerate(spec.get("ports") or []):
        if {port.get("port"), port.get("targetPort")} & set(_PORTS) or port.get("targetPort") in _NAMES:
            if port.get("port") == 6379 and "redis" in str(spec.get("selector")):
                continue
            yield manifest.fault(
                f"{path}.ports[{i}]",
                f"{spec.get('type') or 'externalIPs'} publishes a port that runs code",
                "use ClusterIP, and kubectl port-forward",
            )


def _backends(value: Any, path: str) -> Iterator[str]:
    """Fields of an ingress or route of any kind that lead to one of Ray's ports."""
    if isinstance(value, dict):
        port = value.get("port")
        port = (port.get("number") or port.get("name")) if isinstance(port, dict) else port
        leads = "name" in value or "host" in value or "service" in value
        if leads and isinstance(port, int | str) and (port in _PORTS or port in _NAMES):
            yield f"{path}.port"
        for key, inner in value.items():
            yield from _backends(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _backends(inner, f"{path}[{i}]")


@rule(
    "pod-security",
    reason="a namespace that enforces Pod Security refuses the pod",
    unseen="an event; no pod is made",
    source="Kubernetes, Pod Security Standards",
)
def pod_security(world: World) -> Iterator[Fault]:
    levels = {
        m.name: (m.metadata.get("labels") or {}).get("pod-security.kubernetes.io/enforce", "privileged")
        for m in world.of("Namespace")
    }
    for manifest in world.of("Namespace"):
        if levels[manifest.name] not in ("privileged", "baseline", "restricted"):
            yield manifest.fault(
                "metadata.labels.pod-security.kubernetes.io/enforce",
                f"is {levels[manifest.name]!r}",
                "use privileged, baseline or restricted",
            )
    for pod in world.pods:
        if levels.get(pod.manifest.namespace) in ("baseline", "restricted"):
            for field, what in _powers(pod):
                yield pod.manifest.fault(
                    field, f"{what}, which namespace {pod.manifest.namespace} forbids", "leave it out"
                )


def _powers(pod: Pod) -> Iterator[tuple[str, str]]:
    """What the baseline level forbids."""
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.spec.get(name):
            yield f"{pod.path}.{name}", "shares the node's network or processes"
    for i, volume in enumerate(pod.spec.get("volumes") or []):
        if "hostPath" in volume:
            yield f"{pod.path}.volumes[{i}].hostPath", "mounts the node's files"
    for path, container in pod.containers:
        context = container.get("securityContext") or {}
        if context.get("privileged"):
            yield f"{path}.securityContext.privileged", "is privileged"
        added = set((context.get("capabilities") or {}).get("add") or []) - _HARMLESS
        if added:
            yield f"{path}.securityContext.capabilities.add", f"adds {', '.join(sorted(map(str, added)))}"
        for i, port in enumerate(container.get("ports") or []):
            if port.get("hostPort"):
                yield f"{path}.ports[{i}].hostPort", "opens a port of the node"


_HARMLESS = {
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
}


@rule(
    "ray-power",
    reason="training runs code of others: it gets neither a way onto the node nor to the Kubernetes API",
    unseen=NOBODY,
    source="Kubernetes, Pod Security Standards",
)
def power(world: World) -> Iterator[Fault]:
    pods = [group.pod for cluster in world.efa_clusters for group in cluster.groups]
    pods += [pod for job in world.efa_jobs if (pod := job.submitter)]
    accounts = {
        (m.namespace, m.name): m.body.get("automountServiceAccountToken") for m in world.of("ServiceAccount")
    }
    for pod in pods:
        for field, what in _powers(pod):
            yield pod.manifest.fault(field, what, "leave it out: EFA needs no privilege")
        account = accounts.get((pod.manifest.namespace, pod.spec.get("serviceAccountName", "default")))
        autoscaler = pod.role == "head" and any(
            c.autoscaling for c in world.efa_clusters if c.manifest is pod.manifest
        )
        mounts = pod.spec.get("automountServiceAccountToken", account)
        if mounts is not False:
            yield pod.manifest.fault(
                f"{pod.path}.automountServiceAccountToken",
                "a token for the Kubernetes API lies in the pod",
                "set it to false"
                + (" and mount a projected one into the autoscaler alone" if autoscaler else ""),
            )
        for path, container in pod.containers:
            if (container.get("securityContext") or {}).get("allowPrivilegeEscalation") is not False:
                yield pod.manifest.fault(
                    f"{path}.securityContext.allowPrivilegeEscalation", "is not forbidden", "set it to false"
                )


@rule(
    "immutable-code",
    reason="code that changes under a running job differs from what was submitted",
    unseen=NOBODY,
    source=KUBERNETES,
)
def immutable(world: World) -> Iterator[Fault]:
    for job in world.efa_jobs:
        pod = job.submitter
        for volume in pod.spec.get("volumes") or [] if pod else []:
            sources = [volume, *((volume.get("projected") or {}).get("sources") or [])]
            names = {(source.get("configMap") or {}).get("name") for source in sources} - {None}
            for config in world.of("ConfigMap"):
                ours = config.namespace == job.manifest.namespace and config.name in names
                if ours and not config.body.get("immutable"):
                    yield config.fault(
                        "immutable", "is not set, and the job's code comes from here", "set it to true"
                    )


@rule("network-policy", reason="a policy that selects no pod protects none", unseen=NOBODY, source=KUBERNETES)
def policies(world: World) -> Iterator[Fault]:
    for manifest in world.of("NetworkPolicy"):
        wanted = below(manifest.body, "spec.podSelector.matchLabels") or {}
        ours = {key: value for key, value in wanted.items() if key.startswith("ray.io/")}
        names = {c.manifest.name for c in world.clusters if c.manifest.kind == "RayCluster"}
        if names and ours.get("ray.io/cluster", next(iter(names))) not in names:
            yield manifest.fault(
                "spec.podSelector.matchLabels.ray.io/cluster",
                f"{ours['ray.io/cluster']} is no Ray cluster here",
                f"use {' or '.join(sorted(names))}",
            )
        if ours.get("ray.io/node-type", "head") not in ("head", "worker", "redis-cleanup"):
            yield manifest.fault(
                "spec.podSelector.matchLabels.ray.io/node-type",
                f"is {ours['ray.io/node-type']!r}",
                "use head or worker",
            )
