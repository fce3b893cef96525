"""What a schema cannot see in a pod, and the API server says only when the pod is made."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from k8s.rules.quantity import amount
from k8s.rules.rule import API_SERVER, KUBERNETES, NOBODY, POD_EVENT, Fault, rule
from k8s.rules.world import World, below

_SELECTING = ("Deployment", "DaemonSet", "StatefulSet", "ReplicaSet")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_WORDS = {
    "imagePullPolicy": ("IfNotPresent", "Always", "Never"),
    "terminationMessagePolicy": ("File", "FallbackToLogsOnError"),
}
_HOST_PATHS = ("", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice")
_OPERATORS = ("Exists", "Equal", "Lt", "Gt")


@rule(
    "quantity",
    reason="16GiB is no quantity, and 512m of memory is half a byte",
    unseen=POD_EVENT,
    source=KUBERNETES,
)
def quantities(world: World) -> Iterator[Fault]:
    for pod in world.pods:
        for path, container in pod.containers:
            resources = container.get("resources") or {}
            for kind in ("requests", "limits"):
                for name, value in (resources.get(kind) or {}).items():
                    field = f"{path}.resources.{kind}.{name}"
                    if (number := amount(value)) is None:
                        yield pod.manifest.fault(field, f"{value!r} is no quantity", "such as 500m, 4 or 16Gi")
                    elif number < 0:
                        yield pod.manifest.fault(field, f"{value} is negative", "use 0 or more")
                    elif name == "memory" and 0 < number < 4 * 2**20:
                        yield pod.manifest.fault(
                            field,
                            f"{value} is {number:g} bytes",
                            f"meant is perhaps {str(value).rstrip('mkK')}Mi",
                        )


@rule("request-limit", reason="more cannot be promised than is allowed", unseen=POD_EVENT, source=KUBERNETES)
def requests(world: World) -> Iterator[Fault]:
    for pod in world.pods:
        for path, container in pod.containers:
            resources = container.get("resources") or {}
            limits, wanted = resources.get("limits") or {}, resources.get("requests") or {}
            for name in sorted(set(limits) | set(wanted)):
                limit, request = amount(limits.get(name)), amount(wanted.get(name))
                field = f"{path}.resources"
                whole = _extended(name)
                if whole and name not in limits:
                    yield pod.manifest.fault(
                        f"{field}.limits.{name}", "is missing, but requested", f"set it to {wanted[name]}"
                    )
                elif (
                    limit is not None
                    and request is not None
                    and (request > limit or (whole and request != limit))
                ):
                    yield pod.manifest.fault(
                        f"{field}.requests.{name}",
                        f"{wanted[name]} is not the limit {limits[name]}"
                        if whole
                        else f"{wanted[name]} is above the limit {limits[name]}",
                        f"use {limits[name]}",
                    )
                elif whole and limit is not None and limit % 1:
                    yield pod.manifest.fault(
                        f"{field}.limits.{name}",
                        f"{limits[name]} is no whole number",
                        "devices cannot be divided",
                    )


def _extended(name: str) -> bool:
    """Whether a resource comes in whole devices: `nvidia.com/gpu`, `hugepages-2Mi`."""
    return ("/" in name and not name.startswith("kubernetes.io/")) or name.startswith("hugepages-")


@rule("volume-mount", reason="a mount names a volume of its pod", unseen=POD_EVENT, source=KUBERNETES)
def mounts(world: World) -> Iterator[Fault]:
    for pod in world.pods:
        volumes = [volume.get("name") for volume in pod.spec.get("volumes") or []]
        for name, times in Counter(volumes).items():
            if times > 1:
                yield pod.manifest.fault(
                    f"{pod.path}.volumes", f"{name} is there {times} times", "one name each"
                )
        if pod.manifest.kind == "StatefulSet":
            volumes += [
                (claim.get("metadata") or {}).get("name")
                for claim in below(pod.manifest.body, "spec.volumeClaimTemplates") or []
            ]
        for path, container in pod.containers:
            paths = Counter(mount.get("mountPath") for mount in container.get("volumeMounts") or [])
            for i, mount in enumerate(container.get("volumeMounts") or []):
                field = f"{path}.volumeMounts[{i}]"
                if mount.get("name") not in volumes:
                    yield pod.manifest.fault(
                        f"{field}.name",
                        f"the pod has no volume {mount.get('name')}",
                        f"add it to {pod.path}.volumes, or use one of {', '.join(map(str, volumes)) or 'them'}",
                    )
                if paths[mount.get("mountPath")] > 1:
                    yield pod.manifest.fault(
                        f"{field}.mountPath",
                        f"{mount.get('mountPath')} is taken twice",
                        "mount one volume there",
                    )


@rule(
    "env-duplicate",
    reason="of two variables of one name the last wins, silently",
    unseen=NOBODY,
    source=KUBERNETES,
)
def duplicates(world: World) -> Iterator[Fault]:
    for pod in world.pods:
        for path, container in pod.containers:
            names = Counter(e.get("name") for e in container.get("env") or [])
            for name in (name for name, times in names.items() if times > 1):
                yield pod.manifest.fault(f"{path}.env", f"{name} is there {names[name]} times", "keep one")


@rule(
    "container-name",
    reason="names of containers and ports are DNS labels, each once",
    unseen=POD_EVENT,
    source=KUBERNETES,
)
def container_names(world: World) -> Iterator[Fault]:
    for pod in world.pods:
        names = Counter(container.get("name") for _, container in pod.containers)
        for path, container in pod.containers:
            name = container.get("name", "")
            if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name):
                yield pod.manifest.fault(
                    f"{path}.name", f"{name!r} is no DNS label", "lower-case letters, digits and hyphens"
                )
            elif names[name] > 1:
                yield pod.manifest.fault(f"{path}.name", f"{name} is there twice", "one name each")
            for i, port in enumerate(container.get("ports") or []):
                if len(port.get("name", "")) > 15 or not 0 < port.get("containerPort", 1) < 65536:
                    yield pod.manifest.fault(
                        f"{path}.ports[{i}]",
                        "a port has a number below 65536 and at most 15 characters of name",
                        "shorten or correct it",
                    )


@rule("selector", reason="a controller finds its pods by their labels", unseen=API_SERVER, source=KUBERNETES)
def selectors(world: World) -> Iterator[Fault]:
    for pod in world.pods:
        if pod.role not in _SELECTING:
            continue
        selector = below(pod.manifest.body, "spec.selector.matchLabels") or {}
        if not selector and not below(pod.manifest.body, "spec.selector.matchExpressions"):
            yield pod.manifest.fault("spec.selector", "selects nothing", "use the labels of the pods")
        for key, value in selector.items():
            if pod.labels.get(key) != value:
                yield pod.manifest.fault(
                    f"spec.selector.matchLabels.{key}",
                    f"{value} is not the pods' {pod.labels.get(key, 'label (they have none)')}",
                    "use the same in both",
                )


@rule(
    "toleration", reason="a misspelt effect or operator tolerates nothing", unseen=POD_EVENT, source=KUBERNETES
)
def tolerations(world: World) -> Iterator[Fault]:
    for pod in world.pods:
        for i, one in enumerate(pod.spec.get("tolerations") or []):
            field, operator = f"{pod.path}.tolerations[{i}]", one.get("operator", "Equal")
            if one.get("effect", "NoSchedule") not in (*_EFFECTS, ""):
                yield pod.manifest.fault(
                    f"{field}.effect", f"is {one['effect']!r}", f"use {', '.join(_EFFECTS)}"
                )
            if operator not in (*_OPERATORS, ""):
                yield pod.manifest.fault(f"{field}.operator", f"is {operator!r}", "use Exists or Equal")
            elif operator == "Exists" and one.get("value"):
                yield pod.manifest.fault(f"{field}.value", "does not go with operator Exists", "leave it out")
            elif operator != "Exists" and not one.get("key"):
                yield pod.manifest.fault(f"{field}.key", "is missing", "set it, or operator: Exists")


@rule(
    "word",
    reason="words that Kubernetes reads by their exact spelling",
    unseen=POD_EVENT,
    source=KUBERNETES,
)
def words(world: World) -> Iterator[Fault]:
    for pod in world.pods:
        policy = pod.spec.get("restartPolicy", "Always")
        if policy not in ("Always", "OnFailure", "Never"):
            yield pod.manifest.fault(
                f"{pod.path}.restartPolicy", f"is {policy!r}", "use Always, OnFailure or Never"
            )
        elif (
            policy == "Always"
            and pod.role in ("submitter", "Job", "CronJob")
            and (pod.role != "submitter" or "restartPolicy" in pod.spec)
        ):
            yield pod.manifest.fault(f"{pod.path}.restartPolicy", "the pod of a Job must end", "use Never")
        for i, volume in enumerate(pod.spec.get("volumes") or []):
            kind = (volume.get("hostPath") or {}).get("type", "")
            if kind not in _HOST_PATHS:
                yield pod.manifest.fault(f"{pod.path}.volumes[{i}].hostPath.type", f"is {kind!r}", "leave it out")
        for path, container in pod.containers:
            for name, choices in _WORDS.items():
                if container.get(name, choices[0]) not in choices:
                    yield pod.manifest.fault(
                        f"{path}.{name}", f"is {container[name]!r}", f"use {' or '.join(choices)}"
                    )
            if not container.get("image"):
                yield pod.manifest.fault(f"{path}.image", "is missing", "name one")
    for manifest in world.of("DaemonSet"):
        kind = below(manifest.body, "spec.updateStrategy.type") or "RollingUpdate"
        if kind not in ("RollingUpdate", "OnDelete"):
            yield manifest.fault("spec.updateStrategy.type", f"is {kind!r}", "use RollingUpdate or OnDelete")
