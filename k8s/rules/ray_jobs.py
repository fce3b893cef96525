"""RayJobs (and the jobs of RayCronJobs) that KubeRay refuses, or accepts and then does nothing with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import yaml

from k8s.rules.names import dns_label_fault
from k8s.rules.rule import EVENT, KUBERAY, KUBERAY_CRD, KUBERAY_RUN, NOBODY, VALIDATION_FAILED, Fault, rule
from k8s.rules.versions import older
from k8s.rules.world import World

MODES = ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")
_MANAGERS = ("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue")
_MOST = {"RayJob": 47, "RayCluster": 53, "RayService": 47, "RayCronJob": 36}


@rule(
    "ray-name",
    reason="KubeRay derives names of pods and services from it",
    unseen=VALIDATION_FAILED,
    source=KUBERAY,
)
def names(world: World) -> Iterator[Fault]:
    for manifest in world.of(*_MOST):
        if manifest.metadata.get("name"):
            yield from dns_label_fault(manifest, "metadata.name", manifest.name, _MOST[manifest.kind])


@rule(
    "submission-mode",
    reason="no schema lists the modes: with another word the cluster comes up and the job is never submitted",
    unseen=NOBODY,
    source=KUBERAY_RUN,
)
def submission_mode(world: World) -> Iterator[Fault]:
    for job in world.jobs:
        if job.mode not in MODES:
            yield job.manifest.fault(
                f"{job.path}.submissionMode",
                f"{job.mode!r} is no mode; KubeRay shows such a job as Running and never submits it",
                f"use {', '.join(MODES)}",
            )


@rule("job-cluster", reason="a job needs a cluster to run on", unseen=VALIDATION_FAILED, source=KUBERAY)
def cluster(world: World) -> Iterator[Fault]:
    for job in world.jobs:
        if "rayClusterSpec" not in job.spec and not job.spec.get("clusterSelector"):
            yield job.manifest.fault(
                job.path, "has neither rayClusterSpec nor clusterSelector", "set one of them"
            )


@rule(
    "cluster-selector",
    reason="a job on a standing cluster cannot do what would need a cluster of its own",
    unseen=VALIDATION_FAILED,
    source=KUBERAY,
)
def cluster_selector(world: World) -> Iterator[Fault]:
    for job in world.jobs:
        selector = job.spec.get("clusterSelector")
        if not selector:
            continue
        if not selector.get("ray.io/cluster"):
            yield job.manifest.fault(
                f"{job.path}.clusterSelector", "names no cluster", "set ray.io/cluster to the RayCluster's name"
            )
        unfit = {
            "suspend": job.spec.get("suspend"),
            "submissionMode": job.mode == "SidecarMode",
            "backoffLimit": job.spec.get("backoffLimit", 0) > 0,
        }
        for field in (field for field, is_set in unfit.items() if is_set):
            yield job.manifest.fault(
                f"{job.path}.{field}",
                f"{job.spec[field]} does not go with clusterSelector",
                f"leave {field} out, or give the job a rayClusterSpec",
            )


@rule("job-suspend", reason="suspending deletes the cluster", unseen=VALIDATION_FAILED, source=KUBERAY)
def suspend(world: World) -> Iterator[Fault]:
    for job in world.jobs:
        if job.spec.get("suspend") and not job.spec.get("shutdownAfterJobFinishes"):
            yield job.manifest.fault(
                f"{job.path}.suspend",
                "needs shutdownAfterJobFinishes",
                "set shutdownAfterJobFinishes: true, or leave suspend out",
            )


@rule(
    "job-ttl", reason="the time runs until the cluster is shut down", unseen=VALIDATION_FAILED, source=KUBERAY
)
def ttl(world: World) -> Iterator[Fault]:
    for job in world.jobs:
        seconds = job.spec.get("ttlSecondsAfterFinished", 0)
        if seconds < 0:
            yield job.manifest.fault(f"{job.path}.ttlSecondsAfterFinished", f"is {seconds}", "use 0 or more")
        elif seconds and not job.spec.get("shutdownAfterJobFinishes"):
            yield job.manifest.fault(
                f"{job.path}.ttlSecondsAfterFinished",
                "needs shutdownAfterJobFinishes",
                "set shutdownAfterJobFinishes: true, or leave the seconds out",
            )


@rule(
    "backoff-limit",
    reason="an interactive job is submitted by a person, once",
    unseen=VALIDATION_FAILED,
    source=KUBERAY,
)
def backoff_limit(world: World) -> Iterator[Fault]:
    for job in world.jobs:
        limit = job.spec.get("backoffLimit", 0)
        if limit < 0 or (limit and job.mode == "InteractiveMode"):
            yield job.manifest.fault(
                f"{job.path}.backoffLimit",
                f"is {limit}",
                "use 0" if job.mode == "InteractiveMode" else "use 0 or more",
            )
        submitter = (job.spec.get("submitterConfig") or {}).get("backoffLimit", 0)
        if submitter < 0:
            yield job.manifest.fault(
                f"{job.path}.submitterConfig.backoffLimit", f"is {submitter}", "use 0 or more"
            )


@rule(
    "sidecar-mode",
    reason="the submitter is then a container of the head pod",
    unseen=VALIDATION_FAILED,
    source=KUBERAY,
)
def sidecar_mode(world: World) -> Iterator[Fault]:
    for job in world.jobs:
        if job.mode != "SidecarMode":
            continue
        for field in ("submitterPodTemplate", "submitterConfig"):
            if field in job.spec:
                yield job.manifest.fault(f"{job.path}.{field}", "does not go with SidecarMode", "leave it out")
        own = world.cluster_of(job)
        policy = own.head.pod.spec.get("restartPolicy", "Never") if own else "Never"
        if own and policy != "Never":
            yield job.manifest.fault(
                f"{own.head.pod.path}.restartPolicy", f"{policy} does not go with SidecarMode", "use Never"
            )


@rule(
    "deadline",
    reason="a deadline in the past or after the other can never be met",
    unseen=VALIDATION_FAILED,
    source=KUBERAY,
)
def deadline(world: World) -> Iterator[Fault]:
    for job in world.jobs:
        fields = ("preRunningDeadlineSeconds", "activeDeadlineSeconds")
        for field in fields:
            if job.spec.get(field, 1) <= 0:
                yield job.manifest.fault(f"{job.path}.{field}", f"is {job.spec[field]}", "use 1 or more")
        start, end = (job.spec.get(field) for field in fields)
        if start and end and start >= end > 0:
            yield job.manifest.fault(
                f"{job.path}.{fields[0]}", f"{start} is not below {fields[1]} {end}", f"use less than {end}"
            )


@rule(
    "entrypoint",
    reason="the operator pastes the entrypoint unquoted into bash: what follows && runs in the "
    "submitter, not on the cluster",
    unseen=NOBODY,
    source=KUBERAY_RUN,
)
def entrypoint(world: World) -> Iterator[Fault]:
    for job in world.jobs:
        text = job.spec.get("entrypoint", "")
        field = f"{job.path}.entrypoint"
        if not text.strip():
            # A submitter may have a command of its own.
            own = job.submitter and {"command", "args"} & set(job.submitter.first)
            if job.mode != "InteractiveMode" and not own:
                yield job.manifest.fault(field, "is empty", "name the command to run on the cluster")
            continue
        lexer = shlex.shlex(text.strip(), posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        try:
            operators = [token for token in lexer if re.fullmatch(r"[;&|]+", token)]
        except ValueError:
            yield job.manifest.fault(field, "has a quote that nothing closes", "close it")
            continue
        if operators and job.mode in ("K8sJobMode", "SidecarMode"):
            yield job.manifest.fault(
                field,
                f"what follows {operators[0]} runs in the submitter, not on the cluster",
                "wrap it: bash -c '…'",
            )


@rule(
    "runtime-env",
    reason="the operator reads it as YAML and pastes it into bash between double quotes",
    unseen=VALIDATION_FAILED,
    source=f"{KUBERAY}; {KUBERAY_RUN}",
)
def runtime_env(world: World) -> Iterator[Fault]:
    for job in world.jobs:
        text, field = job.spec.get("runtimeEnvYAML", ""), f"{job.path}.runtimeEnvYAML"
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            line = getattr(getattr(error, "problem_mark", None), "line", 0) + 1
            yield job.manifest.fault(
                field, f"is no YAML (line {line})", "a mapping such as env_vars: {NAME: value}"
            )
            continue
        if value is not None and not isinstance(value, dict):
            yield job.manifest.fault(field, "is no mapping", "a mapping such as env_vars: {NAME: value}")
        elif job.mode == "K8sJobMode" and (found := re.search(r"[$`]", text)):
            yield job.manifest.fault(
                field,
                f"bash in the submitter would expand the {found[0]}",
                "set the value in the pods' env instead",
            )
        else:
            variables = (value or {}).get("env_vars")
            for name, text in variables.items() if isinstance(variables, dict) else ():
                if isinstance(text, str):
                    continue
                yield job.manifest.fault(
                    f"{field}: env_vars.{name}", "is no text, and Ray takes only that", "put it in quotes"
                )


@rule(
    "job-k8s-token", reason="not supported in jobs and services yet", unseen=VALIDATION_FAILED, source=KUBERAY
)
def k8s_token(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        if cluster.manifest.kind != "RayCluster" and (cluster.spec.get("authOptions") or {}).get(
            "enableK8sTokenAuth"
        ):
            yield cluster.manifest.fault(
                f"{cluster.path}.authOptions.enableK8sTokenAuth",
                f"does not work in a {cluster.manifest.kind}",
                "leave it out",
            )


@rule(
    "managed-by",
    reason="another controller would have to take it up",
    unseen="the API server refuses it",
    source=KUBERAY_CRD,
)
def managed_by(world: World) -> Iterator[Fault]:
    for manifest in world.of("RayJob", "RayCluster", "RayService"):
        value = (manifest.body.get("spec") or {}).get("managedBy")
        if value is not None and value not in _MANAGERS:
            yield manifest.fault("spec.managedBy", f"is {value!r}", f"use {' or '.join(_MANAGERS)}")


@rule(
    "job-status",
    reason="the operator writes the status; a copied one confuses it",
    unseen=VALIDATION_FAILED,
    source=KUBERAY,
)
def status(world: World) -> Iterator[Fault]:
    for job in world.jobs:
        phase = (job.manifest.body.get("status") or {}).get("jobDeploymentStatus")
        if phase == "Waiting" and job.mode != "InteractiveMode":
            yield job.manifest.fault(
                "status.jobDeploymentStatus", "Waiting only happens in InteractiveMode", "remove status"
            )


@rule(
    "job-metadata",
    reason="ray job submit has --metadata-json since 2.6",
    unseen="the operator, again and again",
    source=KUBERAY,
)
def metadata(world: World) -> Iterator[Fault]:
    for job in world.jobs:
        version = (job.spec.get("rayClusterSpec") or {}).get("rayVersion")
        if job.spec.get("metadata") and older(version, "2.6.0"):
            yield job.manifest.fault(
                f"{job.path}.metadata",
                f"needs Ray 2.6.0 or newer, not {version}",
                "leave metadata out, or raise rayVersion",
            )


@rule("upgrade-strategy", reason="only a standing RayCluster is upgraded", unseen=EVENT, source=KUBERAY)
def upgrade_strategy(world: World) -> Iterator[Fault]:
    for cluster in world.clusters:
        if cluster.manifest.kind != "RayCluster" and "upgradeStrategy" in cluster.spec:
            yield cluster.manifest.fault(
                f"{cluster.path}.upgradeStrategy",
                f"must not be set in a {cluster.manifest.kind}; it would stay Initializing",
                "leave it out",
            )
