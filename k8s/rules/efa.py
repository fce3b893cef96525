"""Training over EFA: what makes it fall back to TCP, wait for ever, or run where it must not.

Held against Ray clusters whose workers ask for vpc.amazonaws.com/efa, and against their jobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from k8s.rules.rule import NOBODY, PENDING, Fault, rule
from k8s.rules.world import EFA, GPU, Job, Pod, World, variables

_NCCL = "NCCL and aws-ofi-nccl documentation"
_EFA_NETWORKS = ("libfabric", "aws libfabric")
# Packages that bring their own NCCL or libfabric in place of the image's.
_OWN_NCCL = re.compile(r"(torch|nvidia-nccl.*|ray)\b", re.IGNORECASE)


def _workers(world: World) -> list[Pod]:
    return [group.pod for cluster in world.efa_clusters for group in cluster.workers if GPU in group.pod.asks]


def _doors(env: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Variables by which TCP gets in: name, what is wrong, what would work."""
    if "FI_PROVIDER" in env and env["FI_PROVIDER"] != "efa":
        yield "FI_PROVIDER", f"{env['FI_PROVIDER']} is not EFA", "use efa"
    if "NCCL_NET" in env and str(env["NCCL_NET"]).lower() not in _EFA_NETWORKS:
        yield "NCCL_NET", f"{env['NCCL_NET']} is not EFA", "use Libfabric"
    if env.get("NCCL_NET_PLUGIN") in ("none", ""):
        yield "NCCL_NET_PLUGIN", "without a plugin NCCL knows only TCP and InfiniBand", "use ofi"
    if str(env.get("RDMAV_FORK_SAFE", "0")) not in ("0", ""):
        yield "RDMAV_FORK_SAFE", "slows or breaks EFA on today's kernels", "leave it out"
    interface = str(env.get("NCCL_SOCKET_IFNAME", "eth0"))
    if interface.startswith("^") and "pod-id-link" not in interface:
        yield (
            "NCCL_SOCKET_IFNAME",
            f"{interface} lets in pod-id-link0, the interface of Pod Identity",
            "use eth0",
        )


@rule(
    "tcp-door",
    reason="these variables let NCCL use TCP, ten times slower, without an error",
    unseen=NOBODY,
    source=_NCCL,
)
def tcp_doors(world: World) -> Iterator[Fault]:
    for pod in _workers(world):
        env = variables(pod.first)
        for name, problem, mend in _doors(env):
            yield pod.manifest.fault(f"{pod.path}.containers[0].env.{name}", problem, mend)
        written = {e.get("name") for e in pod.first.get("env") or []}
        for name, value in (("FI_PROVIDER", "efa"), ("NCCL_NET", "Libfabric"), ("NCCL_NET_PLUGIN", "ofi")):
            if name not in written and not pod.first.get("envFrom"):
                yield pod.manifest.fault(
                    f"{pod.path}.containers[0].env.{name}",
                    "is not set, so that NCCL falls back to TCP in silence",
                    f"set it to {value}",
                )
    for job in world.efa_jobs:
        for name, problem, mend in _doors(_runtime_env(job).get("env_vars") or {}):
            yield job.manifest.fault(f"{job.path}.runtimeEnvYAML: env_vars.{name}", problem, mend)


@rule(
    "socket-interface",
    reason="NCCL would also try the link-local interface of Pod Identity, and gloo another than its peers",
    unseen="the job: connection refused",
    source="awslabs/awsome-distributed-ai, EFA cheatsheet",
)
def interfaces(world: World) -> Iterator[Fault]:
    for pod in _workers(world):
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            if name not in {e.get("name") for e in pod.first.get("env") or []} and not pod.first.get("envFrom"):
                yield pod.manifest.fault(f"{pod.path}.containers[0].env.{name}", "is not set", "set it to eth0")


@rule(
    "wire-proof",
    reason="without NCCL's log a run cannot prove its wire",
    unseen=NOBODY,
    source="eagleray transport",
)
def proof(world: World) -> Iterator[Fault]:
    for pod in _workers(world):
        env, field = variables(pod.first), f"{pod.path}.containers[0].env"
        if pod.first.get("envFrom"):
            continue
        if env.get("NCCL_DEBUG", "").upper() not in ("INFO", "TRACE"):
            yield pod.manifest.fault(
                f"{field}.NCCL_DEBUG", f"is {env.get('NCCL_DEBUG', 'not set')}", "use INFO"
            )
        subsystems = env.get("NCCL_DEBUG_SUBSYS", "INIT,NET").upper().split(",")
        if not {"INIT", "NET"} <= set(subsystems) and "ALL" not in subsystems:
            yield pod.manifest.fault(
                f"{field}.NCCL_DEBUG_SUBSYS", "leaves out INIT or NET", "use INIT,BOOTSTRAP,NET,ENV"
            )
        file = env.get("NCCL_DEBUG_FILE", "")
        if "%h" not in file or "%p" not in file:
            yield pod.manifest.fault(
                f"{field}.NCCL_DEBUG_FILE",
                "has no place for host and process: ranks overwrite each other's" if file else "is not set",
                "use /tmp/nccl.%h.%p.log",
            )


@rule(
    "efa-device",
    reason="a process that must use EFA needs an interface in its pod",
    unseen="the job: no provider",
    source=_NCCL,
)
def devices(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        for group in cluster.workers:
            env = variables(group.pod.first)
            if EFA not in group.pod.asks and (
                env.get("FI_PROVIDER") == "efa" or env.get("NCCL_NET", "").lower() in _EFA_NETWORKS
            ):
                yield group.manifest.fault(
                    f"{group.pod.path}.containers[0].resources.limits.{EFA}",
                    "is missing, but the environment insists on EFA",
                    "ask for the interfaces of the node",
                )


@rule(
    "huge-pages",
    reason="GPU nodes of EKS reserve no huge pages, and EFA needs none there",
    unseen=PENDING,
    source="awslabs/awsome-distributed-ai issue 1230",
)
def huge_pages(world: World) -> Iterator[Fault]:
    for pod in _workers(world):
        for name in (name for name in pod.asks if name.startswith("hugepages-")):
            yield pod.manifest.fault(
                f"{pod.path}.containers[0].resources.limits.{name}", "no node offers it", "leave it out"
            )


@rule(
    "shared-memory",
    reason="ranks of a node exchange data in /dev/shm; a container has 64 MiB, unless KubeRay mounts its own",
    unseen="the job: bus error",
    source="NVIDIA/nccl issue 525",
)
def shared_memory(world: World) -> Iterator[Fault]:
    for pod in _workers(world):
        volumes = {volume.get("name"): volume for volume in pod.spec.get("volumes") or []}
        for i, mount in enumerate(pod.first.get("volumeMounts") or []):
            directory = volumes.get(mount.get("name"), {}).get("emptyDir")
            if mount.get("mountPath") == "/dev/shm" and (
                directory is None or directory.get("medium") != "Memory"
            ):
                yield pod.manifest.fault(
                    f"{pod.path}.containers[0].volumeMounts[{i}]",
                    "/dev/shm is not in memory",
                    "leave the mount out: KubeRay makes one",
                )


@rule(
    "head-work",
    reason="a task that kills the head kills every job, and a CUDA image asks for GPUs that the head's "
    "node has not",
    unseen=NOBODY,
    source="ray-project/kuberay issues 4287 and 528; NVIDIA/k8s-device-plugin issue 303",
)
def head(world: World) -> Iterator[Fault]:
    submitters = [pod for job in world.efa_jobs if (pod := job.submitter)]
    heads = [cluster.head for cluster in world.efa_clusters]
    for group in heads:
        if group.params.get("num-cpus") != "0" and (group.spec.get("resources") or {}).get("CPU") != "0":
            yield group.manifest.fault(
                f"{group.path}.rayStartParams.num-cpus",
                f"is {group.params.get('num-cpus', 'not set')}: the head would run tasks",
                'use "0"',
            )
    for pod in [group.pod for group in heads] + submitters:
        if GPU not in pod.asks and variables(pod.first).get("NVIDIA_VISIBLE_DEVICES") not in ("void", "none"):
            yield pod.manifest.fault(
                f"{pod.path}.containers[0].env.NVIDIA_VISIBLE_DEVICES",
                "the image asks for all GPUs, and the pod has none",
                "set it to void",
            )


@rule(
    "job-end",
    reason="GPU nodes are billed while a job waits or hangs",
    unseen=NOBODY,
    source="ray-project/kuberay issues 2528 and 2519",
)
def deadlines(world: World) -> Iterator[Fault]:
    for job in world.efa_jobs:
        for field, what in (
            ("preRunningDeadlineSeconds", "waits for ever for nodes that do not come"),
            ("activeDeadlineSeconds", "may run for ever"),
        ):
            if field not in job.spec:
                yield job.manifest.fault(
                    f"{job.path}.{field}", f"is not set: the job {what}", "set it, in seconds"
                )
        pod = job.submitter
        limit, own = (
            job.spec.get("activeDeadlineSeconds"),
            pod.spec.get("activeDeadlineSeconds") if pod else None,
        )
        if pod and job.spec.get("clusterSelector") and limit and own != limit:
            yield job.manifest.fault(
                f"{pod.path}.activeDeadlineSeconds",
                f"is {own or 'not set'}, the job's is {limit}: at "
                "its deadline KubeRay leaves the Ray job running",
                f"use {limit}",
            )
        hook = ((pod.first.get("lifecycle") or {}).get("preStop") or {}).get("exec") if pod else None
        stops = "job stop" in " ".join((hook or {}).get("command") or [])
        if pod and job.spec.get("clusterSelector") and not stops:
            yield job.manifest.fault(
                f"{pod.path}.containers[0].lifecycle",
                "nothing stops the Ray job when its submitter has to go",
                "a preStop with ray job stop",
            )


@rule(
    "job-once",
    reason="a second submitter or cluster starts the same training again, while the first still holds the GPUs",
    unseen=NOBODY,
    source="ray-project/kuberay issues 2376 and 4971",
)
def once(world: World) -> Iterator[Fault]:
    for job in world.efa_jobs:
        if job.mode == "K8sJobMode" and (job.spec.get("submitterConfig") or {}).get("backoffLimit", 2) != 0:
            yield job.manifest.fault(
                f"{job.path}.submitterConfig.backoffLimit", "a failed submitter is replaced twice", "use 0"
            )
        if job.spec.get("backoffLimit", 0) > 0:
            yield job.manifest.fault(
                f"{job.path}.backoffLimit",
                "each retry makes a new cluster beside the old one",
                "use 0: the trainer recovers by itself",
            )
        if (policy := (job.submitter.spec if job.submitter else {}).get("restartPolicy", "Never")) != "Never":
            yield job.manifest.fault(
                f"{job.path}.submitterPodTemplate.spec.restartPolicy", f"{policy} submits again", "use Never"
            )


@rule(
    "job-driver",
    reason="the driver runs on the head, which has no CPUs to hand out",
    unseen="the job waits for ever",
    source="Ray documentation, entrypoint resources",
)
def driver(world: World) -> Iterator[Fault]:
    for job in world.efa_jobs:
        for field in ("entrypointNumCpus", "entrypointNumGpus"):
            if job.spec.get(field, 0) > 0:
                yield job.manifest.fault(
                    f"{job.path}.{field}", f"is {job.spec[field]:g}, and the head has none", "use 0"
                )


@rule(
    "working-dir",
    reason="a local working_dir is read from the submitter's own files",
    unseen="the job: no such file",
    source="seen with KubeRay 1.7.0: ray job submit runs in the submitter",
)
def working_dir(world: World) -> Iterator[Fault]:
    for job in world.efa_jobs:
        folder = _runtime_env(job).get("working_dir")
        mounts = (
            [mount.get("mountPath") for mount in job.submitter.first.get("volumeMounts") or []]
            if (job.submitter)
            else []
        )
        if (
            isinstance(folder, str)
            and folder.startswith("/")
            and mounts
            and not any(
                isinstance(mount, str) and f"{folder}/".startswith(f"{mount.rstrip('/')}/") for mount in mounts
            )
        ):
            yield job.manifest.fault(
                f"{job.path}.runtimeEnvYAML: working_dir",
                f"{folder} is not among the submitter's mounts {', '.join(map(str, mounts))}",
                "use one of them",
            )


@rule(
    "own-nccl",
    reason="another NCCL or libfabric than the image's does not know its EFA plugin",
    unseen=NOBODY,
    source="AWS Deep Learning Containers, EFA",
)
def packages(world: World) -> Iterator[Fault]:
    for job in world.efa_jobs:
        wanted = _runtime_env(job).get("pip") or _runtime_env(job).get("uv") or []
        wanted = wanted.get("packages") or [] if isinstance(wanted, dict) else wanted
        for name in wanted if isinstance(wanted, list) else []:
            if isinstance(name, str) and _OWN_NCCL.match(name):
                yield job.manifest.fault(
                    f"{job.path}.runtimeEnvYAML: pip",
                    f"{name} brings its own NCCL or Ray",
                    "leave it out, or build an image",
                )


def _runtime_env(job: Job) -> dict[str, Any]:
    """The job's runtime_env, or nothing where it is no mapping (which another rule says)."""
    try:
        value = yaml.safe_load(job.spec.get("runtimeEnvYAML", ""))
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    value = value if isinstance(value, dict) else {}
    return value if isinstance(value.get("env_vars") or {}, dict) else {}
