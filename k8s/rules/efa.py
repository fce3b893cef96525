"""Training over EFA: what makes it fall back to TCP, wait for ever, or run where it must not.

Held against Ray clusters whose workers ask for vpc.amazonaws.com/efa, and against their jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from k8s.rules.rule import NOBODY, PENDING, Fault, rule
from k8s.rules.world import EFA, GPU, Job, Pod, World, variables

_NCCL = "NCCL and aws-ofi-nccl documentation"
_EFA_NETWORKS = ("libfabric", "aws libfabric")
_PLUGINS = ("ofi", "aws-ofi")
_SUBSYSTEMS = {"INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "CALL", "PROXY", "NVLS",
               "BOOTSTRAP", "REG", "PROFILE", "RAS", "ALL"}


def _workers(world: World) -> list[Pod]:
    return [group.pod for cluster in world.efa_clusters for group in cluster.workers if GPU in group.pod.asks]


def _doors(env: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Variables by which TCP gets in: name, what is wrong, what would work."""
    if "FI_PROVIDER" in env and env["FI_PROVIDER"] != "efa":
        yield "FI_PROVIDER", f"{env['FI_PROVIDER']} is not EFA", "use efa"
    if "NCCL_NET" in env and str(env["NCCL_NET"]).lower() not in _EFA_NETWORKS:
        yield "NCCL_NET", f"{env['NCCL_NET']} is not EFA", "use Libfabric"
    plugin = str(env.get("NCCL_NET_PLUGIN", "ofi"))
    if plugin not in _PLUGINS and not plugin.endswith(".so"):
        yield "NCCL_NET_PLUGIN", f"{plugin or 'nothing'} is not the plugin for EFA", "use ofi"
    if str(env.get("RDMAV_FORK_SAFE", "0")) not in ("0", ""):
        yield "RDMAV_FORK_SAFE", "slows or breaks EFA on today's kernels", "leave it out"


@rule(
    "tcp-door",
    reason="these variables let NCCL use TCP, far slower, without an error",
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
        for name, problem, mend in _doors(runtime_env(job).get("env_vars") or {}):
            yield job.manifest.fault(f"{job.path}.runtimeEnvYAML: env_vars.{name}", problem, mend)


@rule(
    "socket-interface",
    reason="NCCL would also try the link-local interface of Pod Identity, and gloo another than its peers",
    unseen="the job: connection refused",
    source="awslabs/awsome-distributed-ai, EFA cheatsheet",
)
def interfaces(world: World) -> Iterator[Fault]:
    for pod in _workers(world) if not any(p.spec.get("hostNetwork") for p in _workers(world)) else []:
        env = variables(pod.first)
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            value = env.get(name, "")
            written = {e.get("name") for e in pod.first.get("env") or []}
            if name not in written and pod.first.get("envFrom"):
                continue
            if value not in ("eth0", "=eth0", "eth") and not (value.startswith("^") and "pod-id-link" in value):
                yield pod.manifest.fault(
                    f"{pod.path}.containers[0].env.{name}",
                    f"{value} is not the pod's interface" if value else "is not set",
                    "set it to eth0",
                )


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
        # What NCCL itself takes where nothing is set leaves NET out.
        subsystems = set(env.get("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV").upper().split(","))
        if (not {"INIT", "NET"} <= subsystems and "ALL" not in subsystems) or subsystems - _SUBSYSTEMS:
            yield pod.manifest.fault(
                f"{field}.NCCL_DEBUG_SUBSYS",
                f"{','.join(sorted(subsystems))} leaves out INIT or NET, or has a word that NCCL does not know",
                "use INIT,BOOTSTRAP,NET,ENV",
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


def runtime_env(job: Job) -> dict[str, Any]:
    """The job's runtime_env, or nothing where it is no mapping (which another rule says)."""
    try:
        value = yaml.safe_load(job.spec.get("runtimeEnvYAML", ""))
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    value = value if isinstance(value, dict) else {}
    return value if isinstance(value.get("env_vars") or {}, dict) else {}


@rule(
    "aws-region",
    reason="the node's metadata service, where AWS libraries would ask, is closed to pods",
    unseen="the job: no region",
    source="launch templates of this app: IMDSv2 with one hop",
)
def region(world: World) -> Iterator[Fault]:
    for cluster in world.efa_clusters if world.around.complete else []:
        for group in cluster.groups:
            value = variables(group.pod.first).get("AWS_REGION", "")
            if value.count("-") < 2 or not value[-1].isdigit():
                yield group.manifest.fault(
                    f"{group.pod.path}.containers[0].env.AWS_REGION",
                    f"is {value or 'not set'}",
                    "set it to the region, such as us-east-2",
                )
