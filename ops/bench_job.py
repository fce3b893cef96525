"""The two jobs of a comparison: the synthesized RayJob, twice, and nothing but the wire between them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from k8s.worker_env import OVER_EFA, OVER_TCP
from ops.errors import NothingToDoError
from ops.submitted_job import SubmittedJob, config_map_sources
from training.config import TrainJob

WireName = Literal["efa", "tcp"]
BENCH_LABEL = "eagleray-bench"
"""Label of every object that a comparison makes; its value is the comparison's id."""


@dataclass(frozen=True)
class Wire:
    """One side of the comparison: what the job's processes are told, and what its transport must turn out to be.

    `environment` goes into the job's runtime_env, which wins over the pods' own; so the standing Ray cluster is
    not touched. `require` is the job's `training.transport.require`, `verdict` the one its summary must have.
    """

    name: WireName
    title: str
    environment: Mapping[str, str]
    require: Literal["efa", "any"]
    verdict: str


Wires = tuple[Wire, Wire]
"""The wire in question, and the one that it is compared with."""
EFA_AND_TCP: Wires = (Wire("efa", "EFA", OVER_EFA, "efa", "efa"), Wire("tcp", "TCP", OVER_TCP, "any", "tcp"))


@dataclass(frozen=True)
class Shape:
    """Length of a comparison: `steps` a run, of which the first `warm_up` do not count, `repeats` runs a wire."""

    steps: int
    warm_up: int
    repeats: int
    minutes: int
    """Minutes that a run may take once it is created, without the wait for nodes."""


@dataclass(frozen=True)
class PlannedRun:
    """One run. `name` is its RayJob's, and its folder's in the storage."""

    wire: Wire
    number: int
    name: str

    @property
    def label(self) -> str:
        """`efa-1`."""
        return f"{self.wire.name}-{self.number}"


def planned_runs(job: SubmittedJob, bench_id: str, wires: Wires, repeats: int) -> list[PlannedRun]:
    """All runs in order, the wires taking turns, so that what drifts meets both.

    `<cluster>-bench-<id>-efa1`: the longest cluster name (23) and number stay below KubeRay's 47 characters.
    """
    return [PlannedRun(wire, number, f"{job.cluster}-bench-{bench_id}-{wire.name}{number}")
            for number in range(1, repeats + 1) for wire in wires]


def run_objects(objects: Sequence[Mapping[str, Any]], job: SubmittedJob, run: PlannedRun, shape: Shape,
                bench_id: str, storage: str) -> list[dict[str, Any]]:
    """ConfigMaps and RayJob of a run: copies with names of their own, as what is deployed may be other code.

    Args:
        objects: of the synthesized app.
        job: the same app's job, as `read_submitted_job` tells it.
        storage: folder or s3:// URI below which the run leaves its results.

    Raises:
        NothingToDoError: if the job cannot run over both wires, as on a single node.
    """
    ray_job = copy.deepcopy(dict(_named(objects, "RayJob", job.name)))
    copies = []
    train_json = json.dumps(_train_job(job.job, run, shape, storage), indent=2) + "\n"
    for number, (source, mount) in enumerate(_mounted(ray_job)):
        config_map = copy.deepcopy(dict(_named(objects, "ConfigMap", source["name"])))
        source["name"] = f"{run.name}-{number}"
        items = source.get("items") or [{"key": key, "path": key} for key in config_map["data"]]
        config_map["data"] |= {item["key"]: train_json for item in items
                               if str(PurePosixPath(mount) / item["path"]) == job.job_file}
        copies.append((config_map, source["name"]))
    for item, name in ((ray_job, run.name), *copies):
        labels = {**item["metadata"].get("labels", {}), BENCH_LABEL: bench_id}
        item["metadata"] = {**item["metadata"], "name": name, "labels": labels}
    spec = ray_job["spec"]
    spec["runtimeEnvYAML"] = _with_environment(spec["runtimeEnvYAML"], run.wire.environment)
    spec["activeDeadlineSeconds"] = spec.get("preRunningDeadlineSeconds", 0) + shape.minutes * 60
    submitter = spec["submitterPodTemplate"]["spec"]
    if "activeDeadlineSeconds" in submitter:
        submitter["activeDeadlineSeconds"] = spec["activeDeadlineSeconds"]
    return [*(config_map for config_map, _ in copies), ray_job]


def _named(objects: Sequence[Mapping[str, Any]], kind: str, name: str) -> Mapping[str, Any]:
    return next(o for o in objects if o.get("kind") == kind and o["metadata"]["name"] == name)


def _mounted(ray_job: Mapping[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """What the submitter takes from ConfigMaps, and where each is mounted."""
    pod = ray_job["spec"]["submitterPodTemplate"]["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    return [(source, mounts[volume["name"]]) for volume in pod["volumes"] if volume["name"] in mounts
            for source in config_map_sources(volume)]


def _train_job(job: TrainJob, run: PlannedRun, shape: Shape, storage: str) -> dict[str, Any]:
    """train.json: the same training, as long as the comparison wants it, that saves as little as it can."""
    training = job.training.model_dump(mode="json")
    training |= {"steps": shape.steps, "tokens": None}
    training["checkpoint"] |= {"every_steps": 0, "keep": 1}
    training["transport"]["require"] = run.wire.require
    # How slow a wire is, is what is asked here: no reason to refuse it.
    training["fabric"]["floor_fraction"] = 0
    changed = {"name": run.name, "training": training,
               "placement": {**job.placement.model_dump(mode="json"), "storage": storage}}
    try:
        return TrainJob.model_validate(changed).model_dump(mode="json")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise NothingToDoError(f"RayJob {job.name} cannot be compared: {where + ': ' if where else ''}"
                               f"{first['msg'].removeprefix('Value error, ')}") from None


def _with_environment(runtime_env: str, environment: Mapping[str, str]) -> str:
    found = yaml.safe_load(runtime_env)
    found["env_vars"] = {**(found.get("env_vars") or {}), **environment}
    return yaml.safe_dump(found, sort_keys=False)
