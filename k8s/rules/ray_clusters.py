"""RayClusters, standing or inside a job or service, that KubeRay refuses or reads otherwise than meant."""

from __future__ import annotations

from collections.abc import Iterator

from k8s.rules.quantity import amount
from k8s.rules.rule import KUBERAY, NOBODY, VALIDATION_FAILED, Fault, rule
from k8s.rules.versions import older, version
from k8s.rules.world import GPU, Cluster, World, below, variables

_V2 = "RAY_enable_autoscaler_v2"
# Fields behind feature gates that are off by default.
_GATES = {
    "networkPolicy": "RayClusterNetworkPolicy",
    "tlsOptions": "RayClusterMTLS",
    "historyServerOptions": "RayClusterHistoryServer",
}
_RESOURCE_PARAMS = ("num-cpus", "num-gpus", "memory", "resources")


@rule("ray-container", reason="the first container runs Ray", unseen=VALIDATION_FAILED, source=KUBERAY)
def containers(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        for group in cluster.groups:
            if not group.pod.spec.get("containers"):
                yield group.manifest.fault(f"{group.pod.path}.containers", "is empty", "the first one runs Ray")


@rule(
    "replicas",
    reason="KubeRay silently clamps replicas into minReplicas and maxReplicas",
    unseen=VALIDATION_FAILED,
    source=KUBERAY,
)
def replicas(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        for group in cluster.workers:
            least, most = group.spec.get("minReplicas", 0), group.spec.get("maxReplicas", 2**31 - 1)
            wanted = group.spec.get("replicas", least)
            for field, value in (("minReplicas", least), ("maxReplicas", most)):
                if value < 0:
                    yield group.manifest.fault(f"{group.path}.{field}", f"is {value}", "use 0 or more")
            if 0 <= most < least:
                yield group.manifest.fault(
                    f"{group.path}.minReplicas", f"{least} is above maxReplicas {most}", f"use {most} or less"
                )
            elif not least <= wanted <= most and most >= 0:
                yield group.manifest.fault(
                    f"{group.path}.replicas",
                    f"{wanted} is not within minReplicas {least} and "
                    f"maxReplicas {most}; KubeRay would silently make it "
                    f"{min(max(wanted, least), most)}",
                    f"use {least} to {most}",
                )
        names = [group.name for group in cluster.workers]
        for i, name in enumerate(names):
            if name in names[:i]:
                yield cluster.manifest.fault(
                    f"{cluster.workers[i].path}.groupName",
                    f"{name} is there twice",
                    "give each group a name of its own",
                )


@rule("group-resources", reason="two ways to say the same", unseen=VALIDATION_FAILED, source=KUBERAY)
def resources(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        for group in cluster.groups:
            both = [name for name in _RESOURCE_PARAMS if group.params.get(name)]
            if group.spec.get("resources") and both:
                yield group.manifest.fault(
                    f"{group.path}.rayStartParams.{both[0]}",
                    "does not go with resources of the group",
                    "leave it out",
                )


@rule("ray-start-labels", reason="labels have a field of their own", unseen=VALIDATION_FAILED, source=KUBERAY)
def start_labels(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        for group in cluster.groups:
            if "labels" in group.params:
                yield group.manifest.fault(
                    f"{group.path}.rayStartParams.labels", "is not supported", f"use {group.path}.labels"
                )


@rule(
    "ray-gpus",
    reason="Ray schedules by num-gpus, Kubernetes by the limit: where they differ, ranks share a GPU or "
    "leave one idle",
    unseen=NOBODY,
    source="ray-project/kuberay issue 2519",
)
def gpus(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        for group in cluster.workers:
            limits = (group.pod.first.get("resources") or {}).get("limits") or {}
            has = amount(limits.get(GPU, 0)) or 0
            # A pod without GPUs may have a logical resource of that name.
            logical = (group.spec.get("resources") or {}).get("GPU") if has else None
            told_by = {"rayStartParams.num-gpus": group.params.get("num-gpus"), "resources.GPU": logical}
            for field, told in told_by.items():
                if told is not None and amount(told) != has:
                    yield group.manifest.fault(
                        f"{group.path}.{field}",
                        f"tells Ray of {told} GPUs, the pod's limit of {GPU} is {has:g}",
                        f'use "{has:g}"',
                    )


@rule(
    "autoscaler-only",
    reason="only the autoscaler, or its second version, reads the field",
    unseen=VALIDATION_FAILED,
    source=KUBERAY,
)
def autoscaler_only(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        for group in cluster.workers:
            idle, priority = group.spec.get("idleTimeoutSeconds"), group.spec.get("priority")
            if idle is not None and (idle < 0 or not cluster.autoscaler_v2):
                yield group.manifest.fault(
                    f"{group.path}.idleTimeoutSeconds",
                    f"is {idle}" if idle < 0 else "needs the autoscaler v2",
                    "use 0 or more"
                    if idle < 0
                    else "set enableInTreeAutoscaling and autoscalerOptions.version: v2",
                )
            if priority and (not cluster.autoscaler_v2 or not _at_least(cluster, "2.56.0")):
                yield group.manifest.fault(
                    f"{group.path}.priority",
                    "needs the autoscaler v2 and rayVersion 2.56.0",
                    "set both, or leave priority out",
                )
            if group.spec.get("suspend") and cluster.autoscaling:
                yield group.manifest.fault(
                    f"{group.path}.suspend", "does not go with enableInTreeAutoscaling", "leave one of them out"
                )


@rule(
    "autoscaler",
    reason="the operator sets the rest of the autoscaler by itself",
    unseen=VALIDATION_FAILED,
    source=KUBERAY,
)
def autoscaler(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        options = cluster.spec.get("autoscalerOptions") or {}
        field = f"{cluster.path}.autoscalerOptions"
        asked = variables(cluster.head.pod.first).get(_V2)
        if asked in ("1", "true") and not cluster.autoscaling:
            yield cluster.manifest.fault(
                f"{cluster.head.pod.path}.containers[0].env",
                f"{_V2} needs enableInTreeAutoscaling",
                "set it to true, or leave the variable out",
            )
        if asked is not None and cluster.autoscaling and "version" in options:
            yield cluster.manifest.fault(
                f"{field}.version", f"does not go with {_V2} of the head", "leave the latter out"
            )
        if options.get("idleTimeoutSeconds", 0) < 0:
            yield cluster.manifest.fault(
                f"{field}.idleTimeoutSeconds", f"is {options['idleTimeoutSeconds']}", "use 0 or more"
            )
        if any(e.get("name") == "KUBERAY_GEN_AUTOSCALER_START_CMD" for e in options.get("env") or []):
            yield cluster.manifest.fault(
                f"{field}.env", "KUBERAY_GEN_AUTOSCALER_START_CMD belongs to the operator", "leave it out"
            )
        for group in cluster.groups if cluster.autoscaler_v2 else []:
            if (policy := group.pod.spec.get("restartPolicy", "Never")) != "Never":
                yield cluster.manifest.fault(
                    f"{group.pod.path}.restartPolicy",
                    f"{policy} does not go with the autoscaler v2",
                    "use Never",
                )


@rule(
    "gcs-fault-tolerance",
    reason="there are two ways to turn it on, and they exclude each other",
    unseen=VALIDATION_FAILED,
    source=KUBERAY,
)
def gcs_fault_tolerance(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        options = cluster.spec.get("gcsFaultToleranceOptions")
        notes, params = cluster.manifest.metadata.get("annotations") or {}, cluster.head.params
        env = {e.get("name") for e in cluster.head.pod.first.get("env") or []}
        head, field = cluster.head.pod.path, f"{cluster.path}.gcsFaultToleranceOptions"
        enabled = notes.get("ray.io/ft-enabled")
        if options is None:
            if enabled != "true" and "RAY_REDIS_ADDRESS" in env:
                yield cluster.manifest.fault(
                    f"{head}.containers[0].env",
                    "RAY_REDIS_ADDRESS needs gcsFaultToleranceOptions",
                    "set redisAddress there",
                )
        else:
            extra = [
                ("annotation ray.io/ft-enabled", enabled),
                ("REDIS_PASSWORD", "REDIS_PASSWORD" in env),
                (
                    "annotation ray.io/external-storage-namespace",
                    notes.get("ray.io/external-storage-namespace"),
                ),
                ("RAY_REDIS_ADDRESS", "RAY_REDIS_ADDRESS" in env),
                ("redis-password", params.get("redis-password")),
            ]
            for name in (name for name, there in extra if there):
                yield cluster.manifest.fault(field, f"does not go with {name}", f"leave {name} out")
            rocksdb = options.get("backend") == "rocksdb"
            if rocksdb:
                yield cluster.manifest.fault(
                    f"{field}.backend",
                    "rocksdb needs the operator's feature gate "
                    "GCSFaultToleranceEmbeddedStorage, off by default",
                    "use redis",
                )
            elif "storage" in options:
                yield cluster.manifest.fault(f"{field}.storage", "is for rocksdb only", "leave it out")
        if "REDIS_USERNAME" in env or params.get("redis-username"):
            yield cluster.manifest.fault(
                f"{head}.containers[0].env",
                "the user of Redis belongs into gcsFaultToleranceOptions",
                "set redisUsername there",
            )


@rule("auth", reason="Ray knows tokens since 2.52", unseen=VALIDATION_FAILED, source=KUBERAY)
def auth(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        options, field = cluster.spec.get("authOptions") or {}, f"{cluster.path}.authOptions"
        of_kubernetes = options.get("enableK8sTokenAuth")
        if options.get("mode") == "token" and not _at_least(cluster, "2.52.0"):
            yield cluster.manifest.fault(
                f"{field}.mode",
                "token needs a rayVersion of 2.52.0 or newer",
                "set rayVersion to the one in the image",
            )
        if of_kubernetes and options.get("mode") != "token":
            yield cluster.manifest.fault(f"{field}.enableK8sTokenAuth", "needs mode token", "set mode: token")
        elif of_kubernetes and (options.get("secretName") or not _at_least(cluster, "2.55.0")):
            yield cluster.manifest.fault(
                f"{field}.enableK8sTokenAuth",
                "needs rayVersion 2.55.0 and no secretName",
                "leave secretName out, or raise rayVersion",
            )


@rule(
    "feature-gate",
    reason="alpha features of the operator are off by default",
    unseen=VALIDATION_FAILED,
    source=KUBERAY,
)
def feature_gates(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        for name, gate in _GATES.items():
            if name in cluster.spec:
                yield cluster.manifest.fault(
                    f"{cluster.path}.{name}",
                    f"needs the operator's feature gate {gate}",
                    "leave it out: where the gate is off, the operator refuses the whole cluster",
                )


def _at_least(cluster: Cluster, least: str) -> bool:
    told = cluster.spec.get("rayVersion")
    return version(told) is not None and not older(told, least)


@rule(
    "service-upgrade",
    reason="an upgrade by and by needs the autoscaler and its steps",
    unseen=VALIDATION_FAILED,
    source=KUBERAY,
)
def service_upgrade(world: World) -> Iterator[Fault]:
    types = ("NewClusterWithIncrementalUpgrade", "NewCluster", "None")
    for manifest in world.of("RayService"):
        strategy = below(manifest.body, "spec.upgradeStrategy") or {}
        kind = strategy.get("type", "None")
        if kind not in types:
            yield manifest.fault("spec.upgradeStrategy.type", f"is {kind!r}", f"use {', '.join(types)}")
        cluster = next((c for c in world.clusters if c.manifest is manifest), None)
        if kind == types[0] and (
            not strategy.get("clusterUpgradeOptions") or not cluster or not cluster.autoscaling
        ):
            yield manifest.fault(
                "spec.upgradeStrategy",
                f"{kind} needs clusterUpgradeOptions and enableInTreeAutoscaling",
                "set both",
            )


@rule(
    "dashboard-host",
    reason="jobs are submitted to the dashboard from another pod",
    unseen="the submitter waits for ever",
    source="Ray documentation, ray start",
)
def dashboard_host(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        host = cluster.head.params.get("dashboard-host", "0.0.0.0")
        if host not in ("0.0.0.0", "::") and not host.startswith("$"):
            yield cluster.manifest.fault(
                f"{cluster.head.path}.rayStartParams.dashboard-host", f"{host} hears no other pod", "use 0.0.0.0"
            )
