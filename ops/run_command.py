"""`eagleray run`: a further RayJob on the standing cluster, from the renderer of the deployed one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import training
from k8s.bundle import CodeBundle, job_bundle
from k8s.deadlines import Deadlines
from k8s.further_job import further_job_objects
from k8s.ray_job import JobSpec, job_spec
from ops.context import Context
from ops.deployed_run import DeployedRun, is_over, of_cluster, run_of, standing_cluster
from ops.errors import NothingToDoError
from ops.kube import Namespace, connect
from settings import Settings, SettingsError
from settings.loading import overridden
from training.config import digest

_OF_A_JOB = (("training",), ("ray", "run_hours"), ("ray", "max_dollars"), ("ray", "start_minutes"))
"""Settings that a job may have of its own; all others are the cluster's."""
_LONGEST_NAME = 34
"""Of --name: KubeRay takes 47 characters, and `-` and 12 of the hash come behind it."""


@dataclass(frozen=True)
class Wanted:
    """What was asked for: overrides as `path=value`, a name in place of the deployment's, hours to wait in line."""

    context: Context
    overrides: Sequence[str] = ()
    name: str | None = None
    queue_hours: int | None = None


def run(wanted: Wanted, say: Callable[[str], None], cluster: Callable[[str], Namespace] = connect) -> str:
    """Submit the job; its name.

    Raises:
        NothingToDoError: for settings that are not a job's, a cluster that is not there or is made otherwise, GPUs
            that another job has (without `queue_hours`), or the same job once more.
    """
    settings = _settings(wanted)
    name = _checked_name(wanted.name or settings.name)
    namespace = cluster(settings.ray.namespace)
    standing = standing_cluster(namespace, settings.name)
    jobs = of_cluster(namespace.list("RayJob"), settings.name)
    config_maps = namespace.config_maps()
    storage = _storage(settings, jobs, namespace, config_maps)
    train_job = settings.train_job(storage)
    train_job = train_job.model_copy(update={"name": f"{name}-{train_job.config_hash()}"})
    bundle = job_bundle(name, Path(training.__path__[0]), train_job)
    job = _job(settings, name, bundle, standing, wanted.queue_hours)
    if _is_there_already(job.name, jobs):
        say(f"RayJob {job.name} is there already, and not done: nothing was submitted")
        return job.name
    _refuse_to_disturb(jobs, wanted)
    objects = further_job_objects(namespace=namespace.name, bundle=bundle, job=job)
    for manifest in objects:
        namespace.create(manifest)
    _hand_over(objects[:-1], job.name, namespace, config_maps)
    say(f"RayJob {job.name} created in namespace {namespace.name} of context {namespace.context}")
    return job.name


def _settings(wanted: Wanted) -> Settings:
    """The deployment's settings with what the job has of its own."""
    context = wanted.context
    for override in wanted.overrides:
        try:
            paths = list(overridden(override))
        except SettingsError as error:
            raise NothingToDoError(f"--{error}") from None
        for path in paths:
            if not any(path[: len(of_job)] == of_job for of_job in _OF_A_JOB):
                stack = "TrainingStack" if path[0] == "ray" else "--all"
                raise NothingToDoError(f"--set {'.'.join(path)} changes the cluster, not the job: that needs "
                                       f"cdk deploy {stack} -c set={'.'.join(path)}=…")
        context = context.with_override(override)
    return context.settings()


def _checked_name(name: str) -> str:
    if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) or len(name) > _LONGEST_NAME:
        raise NothingToDoError(f"--name {name}: must be lower case letters, digits and -, begin with a letter, and "
                               f"have at most {_LONGEST_NAME} characters, for example lr-3e5")
    return name


def _hand_over(code: Sequence[dict[str, Any]], ray_job: str, namespace: Namespace,
               before: Sequence[dict[str, Any]]) -> None:
    """Let the ConfigMaps go when the RayJob does.

    Their names are hashes of what they hold, so jobs share them. Those that nobody owned `before` are the
    deployment's, and stay; those of another such job get one owner more, and go with the last.
    """
    deployed = {found["metadata"]["name"] for found in before if not found["metadata"].get("ownerReferences")}
    owner = namespace.get("RayJob", ray_job)
    if owner is None:
        return  # deleted meanwhile
    for manifest in code:
        if (name := manifest["metadata"]["name"]) not in deployed:
            namespace.own_config_map(name, owner)


def _storage(settings: Settings, jobs: Sequence[dict[str, Any]], namespace: Namespace,
             config_maps: Sequence[dict[str, Any]]) -> str:
    """Where the deployed job leaves its results, if it runs on the machines that the settings say."""
    found = next((run for job in jobs if (run := run_of(job, config_maps))), None)
    if found is None:
        raise NothingToDoError(f"namespace {namespace.name} of context {namespace.context} has no job whose "
                               "settings name the bucket: cdk deploy TrainingStack first")
    _refuse_other_machines(settings, found)
    return found.storage


def _refuse_other_machines(settings: Settings, found: DeployedRun) -> None:
    wanted = settings.placement(found.storage)
    if found.workers is not None and found.workers != (wanted.nodes, wanted.workers_per_node):
        nodes, each = found.workers
        raise NothingToDoError(f"the cluster was deployed for {nodes} nodes of {each} GPUs, and these settings "
                               f"have {wanted.nodes} of {wanted.workers_per_node}: use the -c of the deployment, "
                               "or cdk deploy --all")


def _job(settings: Settings, name: str, bundle: CodeBundle, standing: dict[str, Any],
         queue_hours: int | None) -> JobSpec:
    """The job. In line it waits with its driver running, which asks for no GPU before it is its turn."""
    limit = settings.run_limit
    deadlines = Deadlines(start=settings.ray.start_minutes * 60, run=limit.seconds, why=limit.why,
                          in_line=(queue_hours or 0) * 3600)
    return job_spec(prefix=name, cluster=settings.name, cluster_hash=digest(standing["metadata"].get("uid")),
                    image=settings.ray.image, bundle=bundle, deadlines=deadlines)


def _is_there_already(name: str, jobs: Sequence[dict[str, Any]]) -> bool:
    there = next((job for job in jobs if job["metadata"]["name"] == name), None)
    if there is not None and is_over(there):
        raise NothingToDoError(f"RayJob {name} is this very job, and has ended; KubeRay runs none twice: "
                               "change a setting, give it another --name, or delete it first (kubectl -n "
                               f"{there['metadata']['namespace']} delete rayjob {name})")
    return there is not None


def _refuse_to_disturb(jobs: Sequence[dict[str, Any]], wanted: Wanted) -> None:
    busy = [job["metadata"]["name"] for job in jobs if not is_over(job)]
    if busy and wanted.queue_hours is None:
        raise NothingToDoError(f"{', '.join(busy)} {'has' if len(busy) == 1 else 'have'} the GPUs, or waits for "
                               "them; --queue 12 submits behind, and waits up to 12 hours")
