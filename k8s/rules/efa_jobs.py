"""Jobs over EFA: what makes them wait for ever, start twice, or run where they must not."""

from __future__ import annotations

import re
from collections.abc import Iterator

from k8s.rules.efa import runtime_env
from k8s.rules.rule import NOBODY, Fault, rule
from k8s.rules.world import GPU, World, variables

# Packages that bring their own NCCL or libfabric in place of the image's.
_OWN_NCCL = re.compile(r"(torch|nvidia-nccl.*|ray)\b", re.IGNORECASE)


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
        folder = runtime_env(job).get("working_dir")
        found = job.submitter.first.get("volumeMounts") or [] if job.submitter else []
        mounts = [mount.get("mountPath", "").rstrip("/") for mount in found]
        if not mounts:
            continue
        field = f"{job.path}.runtimeEnvYAML: working_dir"
        if folder is None:
            yield job.manifest.fault(
                field,
                "is not set: what the submitter mounts never reaches the cluster",
                f"set it to {mounts[0]}",
            )
        elif str(folder).startswith("/") and not any(f"{folder}/".startswith(f"{mount}/") for mount in mounts):
            yield job.manifest.fault(
                field, f"{folder} is not among the submitter's mounts {', '.join(mounts)}", "use one of them"
            )


@rule(
    "own-nccl",
    reason="another NCCL or libfabric than the image's does not know its EFA plugin",
    unseen=NOBODY,
    source="AWS Deep Learning Containers, EFA",
)
def packages(world: World) -> Iterator[Fault]:
    for job in world.efa_jobs:
        wanted = runtime_env(job).get("pip") or runtime_env(job).get("uv") or []
        wanted = wanted.get("packages") or [] if isinstance(wanted, dict) else wanted
        for name in wanted if isinstance(wanted, list) else []:
            if isinstance(name, str) and _OWN_NCCL.match(name):
                yield job.manifest.fault(
                    f"{job.path}.runtimeEnvYAML: pip",
                    f"{name} brings its own NCCL or Ray",
                    "leave it out, or build an image",
                )


@rule(
    "ray-account",
    reason="AWS permissions come with the service account: head and workers write the same checkpoints",
    unseen="the job: access denied",
    source="EKS user guide, Pod Identity",
)
def account(world: World) -> Iterator[Fault]:
    for cluster in world.efa_clusters:
        accounts = {group.pod.spec.get("serviceAccountName", "default") for group in cluster.groups}
        for group in cluster.groups if len(accounts) > 1 else []:
            if group.pod.spec.get("serviceAccountName", "default") == "default":
                yield group.manifest.fault(
                    f"{group.pod.path}.serviceAccountName",
                    "is not set, unlike in the other pods of the cluster",
                    f"use {' or '.join(sorted(accounts - {'default'}))}",
                )


@rule(
    "memory-limit",
    reason="KubeRay takes Ray's memory, its CPUs and the size of /dev/shm from the limits",
    unseen=NOBODY,
    source="seen with KubeRay 1.7.0",
)
def memory(world: World) -> Iterator[Fault]:
    for cluster in world.efa_clusters:
        for group in cluster.groups:
            limits = (group.pod.first.get("resources") or {}).get("limits") or {}
            for name in (name for name in ("cpu", "memory") if name not in limits):
                yield group.manifest.fault(
                    f"{group.pod.path}.containers[0].resources.limits.{name}", "is not set", "set it"
                )


@rule(
    "standing-cluster",
    reason="KubeRay ignores a changed pod template of a standing cluster, unless told to make it anew",
    unseen=NOBODY,
    source="seen with KubeRay 1.7.0",
)
def standing(world: World) -> Iterator[Fault]:
    for cluster in world.efa_clusters:
        if cluster.manifest.kind != "RayCluster":
            continue
        if (cluster.spec.get("upgradeStrategy") or {}).get("type") != "Recreate":
            yield cluster.manifest.fault(
                "spec.upgradeStrategy.type",
                "is not Recreate: another image or environment would change nothing",
                "use Recreate",
            )
        if not cluster.spec.get("rayVersion"):
            yield cluster.manifest.fault(
                "spec.rayVersion",
                "is not set, and the operator chooses health checks by it",
                "set it to the version in the image",
            )
