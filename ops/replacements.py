"""What a laptop cannot have is replaced; and every difference that this makes is found, not remembered.

A rehearsed job has the same type as the submitted one. The list on screen is the difference between the
two, leaf by leaf, so nothing can change without being listed; each entry must find its reason below.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import Any

from pydantic import ValidationError

from ops.errors import CommandError
from ops.submitted_job import TOKEN_VARIABLE, PodShape, SubmittedJob
from training.config import TrainJob

MOST_NODES, MOST_WORKERS_PER_NODE = 2, 2


@dataclass(frozen=True)
class LaptopPlaces:
    """Folders that stand in for the job's: the submitter's code, text, tokenizer, and the bucket."""

    working_dir: str
    text: str
    tokenizer: str
    storage: str


@dataclass(frozen=True)
class Replacement:
    """One setting of the submitted job, what it is in the rehearsal, and why. None: not set."""

    setting: str
    before: Any
    after: Any
    why: str


# Of the pods' and the job's environment: only a GPU node or the image gives these a meaning.
_DROPPED = ("NCCL_*", "GLOO_*", "TORCH_NCCL_*", "FI_*", "OFI_*", "RDMAV_*", "NVIDIA_*", "CUDA_*", "PYTORCH_CUDA_*",
            "PYTORCH_ALLOC_*", "TORCH_FR_*", "PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
_OWN_EACH_NODE = ("*port", "*memory", "node-ip-address", "address", "temp-dir", "block", "plasma-directory")
_START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"

# First match wins. Patterns are shell patterns over the name of a setting.
_REASONS = (
    ("train.json training.data*", "text that every Python has, with a tokenizer made for it: the loss can fall"),
    ("train.json training.model*", "a model that two CPU cores can train (config/local.yaml)"),
    ("train.json training.precision", "CPUs have no fp8 units"),
    ("train.json training.steps", "a run of seconds (config/local.yaml or --steps)"),
    ("train.json training.tokens", "a run of seconds, in steps (config/local.yaml or --steps)"),
    ("train.json training.transport*", "gloo moves bytes over TCP only"),
    ("train.json training*", "sized for two CPU cores (config/local.yaml)"),
    ("train.json placement.storage", "a folder in place of the bucket"),
    ("train.json placement.device", "no GPU"),
    ("train.json placement.backend", "NCCL needs GPUs"),
    ("train.json placement.efa_per_node", "no EFA"),
    ("train.json placement.rented", "nothing here is rented, so the rehearsal has no cost"),
    ("train.json placement.link_mbps", "nothing is known of how fast processes of one machine talk"),
    ("train.json placement*", "what fits on two CPU cores"),
    ("runtime_env working_dir", "the same files, in a folder that looks like the submitter's volume"),
    ("deadline seconds", "a rehearsal that hangs must not hang for hours"),
    ("* image", "this Python environment in place of the container"),
    ("* count", "what fits on two CPU cores"),
    ("* ray start.num-gpus", "no GPU"),
    ("* ray start.num-cpus", "one CPU a worker"),
    ("* ray start.dashboard-host", "nothing but this machine may reach it"),
    ("* ray start.*", "all nodes share one machine, so each gets ports and memory of its own"),
    (f"* env*.{_START_TIMEOUT}", "nodes are here at once"),
    ("* env*.GLOO_SOCKET_IFNAME", "gloo in place of NCCL, and only over the loopback interface"),
    ("* env*.HF_HUB_OFFLINE", "nothing is downloaded"),
    (f"* env*.{TOKEN_VARIABLE}", "as random as KubeRay's, and known to this cluster only"),
    *((f"* env*.{name}", "means nothing without GPU, EFA or the image") for name in _DROPPED),
    ("* env*", "a path inside the image, or a value that only Kubernetes knows"),
)


def for_laptop(job: SubmittedJob, training: Mapping[str, Any], places: LaptopPlaces, seconds: int,
               steps: int | None = None) -> SubmittedJob:
    """The job as this machine can run it.

    Args:
        training: laid over the job's training (the `training:` part of config/local.yaml).
        seconds: after which the rehearsal is stopped.
        steps: optimizer steps, in place of what `training` says.

    Raises:
        CommandError: if the result is not a valid job; names config/local.yaml.
    """
    rehearsed = _train_job(job.job, training, places, steps)
    environment = _environment(job.runtime_env.get("env_vars") or {}) | _ADDED
    text = json.dumps(rehearsed.model_dump(mode="json"), indent=2).encode()
    return replace(
        job, deadline_seconds=seconds, job=rehearsed, files={**job.files, job.job_file: text},
        runtime_env={**job.runtime_env, "working_dir": places.working_dir, "env_vars": environment},
        head=replace(_pod(job.head), ray_start=_ray_start(job.head, 0, {"dashboard-host": "127.0.0.1"})),
        workers=replace(_pod(job.workers), count=rehearsed.placement.nodes,
                        ray_start=_ray_start(job.workers, rehearsed.placement.workers_per_node, {})))


_ADDED = {"GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1"}


def replacements(submitted: SubmittedJob, rehearsed: SubmittedJob) -> list[Replacement]:
    """Every difference between the two jobs.

    Raises:
        CommandError: for a difference that has no reason: then the rehearsal changed more than it may.
    """
    return [Replacement(name, before, after, _reason(name))
            for name, before, after in _differences((), describe(submitted), describe(rehearsed))]


def describe(job: SubmittedJob) -> dict[str, Any]:
    """All that decides what the job does, as nested dicts; other files than train.json by their hash."""
    other = {path: text for path, text in job.files.items() if path != job.job_file}
    return {
        "entrypoint": {"command": job.entrypoint, "cpus": job.entrypoint_cpus},
        "deadline": {"seconds": job.deadline_seconds},
        "runtime_env": dict(job.runtime_env),
        "train.json": job.job.model_dump(mode="json"),
        "file": {path: hashlib.sha256(text).hexdigest() for path, text in other.items()},
        "head": _describe_pod(job.head),
        "workers": _describe_pod(job.workers),
    }


def _describe_pod(pod: PodShape) -> dict[str, Any]:
    return {"count": pod.count, "image": pod.image, "ray start": dict(pod.ray_start),
            "env": {**pod.environment, **pod.unresolved}}


def _differences(path: tuple[str, ...], before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(k for k in after if k not in before)]:
            yield from _differences((*path, key), before.get(key), after.get(key))
    elif before != after:
        yield f"{path[0]} {'.'.join(path[1:])}".strip(), before, after


def _reason(setting: str) -> str:
    for pattern, why in _REASONS:
        if fnmatchcase(setting, pattern):
            return why
    raise CommandError(f"the rehearsal would change '{setting}' without a reason; this is a mistake of the "
                       "rehearse command")


def _train_job(job: TrainJob, training: Mapping[str, Any], places: LaptopPlaces, steps: int | None) -> TrainJob:
    changed = _laid_over(job.training.model_dump(mode="json"), training)
    if changed["transport"]["require"] == "efa":
        changed["transport"]["require"] = "auto"
    changed["data"] = {"kind": "text", "path": places.text, "tokenizer": places.tokenizer}
    if steps is not None:
        changed["steps"] = steps
    if steps is not None or "steps" in training:
        changed["tokens"] = None
    nodes = min(job.placement.nodes, MOST_NODES)
    placement = job.placement.model_dump() | {
        "nodes": nodes, "min_nodes": job.placement.min_nodes if job.placement.fewest_nodes < nodes else None,
        "workers_per_node": min(job.placement.workers_per_node, MOST_WORKERS_PER_NODE),
        "device": "cpu", "backend": "gloo", "storage": places.storage, "link_mbps": None, "efa_per_node": 0,
        "rented": None}
    try:
        return TrainJob.model_validate({"name": job.name, "training": changed, "placement": placement})
    except ValidationError as error:
        first = error.errors()[0]
        raise CommandError(f"config/local.yaml laid over the job: {'.'.join(map(str, first['loc']))}: "
                           f"{first['msg'].removeprefix('Value error, ')}") from None


def _laid_over(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, Mapping):
        return below | {key: _laid_over(below.get(key), value) for key, value in above.items()}
    return above


def _pod(pod: PodShape) -> PodShape:
    here = f"Python {platform.python_version()}, ray {version('ray')}, torch {version('torch')}"
    token = {name: "made by the local cluster" for name in pod.unresolved if name == TOKEN_VARIABLE}
    return replace(pod, image=here, environment=_environment(pod.environment), unresolved=token)


def _environment(env: Mapping[str, Any]) -> dict[str, str]:
    kept = {name: str(value) for name, value in env.items()
            if not any(fnmatchcase(name, pattern) for pattern in _DROPPED)
            and not str(value).startswith("/") and "$(" not in str(value)}
    return kept | ({_START_TIMEOUT: "120"} if _START_TIMEOUT in kept else {})


def _ray_start(pod: PodShape, cpus: int, also: Mapping[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in pod.ray_start.items()
            if not any(fnmatchcase(key, pattern) for pattern in _OWN_EACH_NODE)}
    return {**kept, "num-cpus": str(cpus), "num-gpus": "0", **also}
