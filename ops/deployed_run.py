"""A RayJob on the cluster, and the run that it trains: which folder in which storage."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.errors import NothingToDoError
from ops.kube import Namespace
from ops.submitted_job import config_map_sources

ENDED = ("Complete", "Failed", "ValidationFailed")
"""Values of a RayJob's jobDeploymentStatus that are final."""
_SETTINGS = "train.json"


@dataclass(frozen=True)
class DeployedRun:
    """Where a RayJob's run leaves its results: folder `name` of `storage`, after `steps` (None: not said).

    `workers`: nodes, and ranks on each.
    """

    name: str
    storage: str
    steps: int | None
    workers: tuple[int, int] | None = None

    @property
    def uri(self) -> str:
        """`s3://bucket/runs/name`."""
        return f"{self.storage.rstrip('/')}/{self.name}"


def run_of(ray_job: Mapping[str, Any], config_maps: Iterable[Mapping[str, Any]]) -> DeployedRun | None:
    """The run of a RayJob, out of the train.json that its submitter mounts; None where that is gone."""
    mounted = set(_mounted(ray_job))
    for config_map in config_maps:
        if config_map["metadata"]["name"] not in mounted:
            continue
        for key, text in (config_map.get("data") or {}).items():
            if key == _SETTINGS and (found := _run(text)):
                return found
    return None


def standing_cluster(namespace: Namespace, name: str) -> dict[str, Any]:
    """The RayCluster `name`.

    Raises:
        NothingToDoError: if it is not there.
    """
    found = namespace.get("RayCluster", name)
    if found is None:
        raise NothingToDoError(f"namespace {namespace.name} of context {namespace.context} has no RayCluster "
                               f"{name}; deploy first (cdk deploy --all), or choose the context of the cluster "
                               "that has it")
    return found


def is_over(ray_job: Mapping[str, Any]) -> bool:
    """Whether its end is final."""
    return (ray_job.get("status") or {}).get("jobDeploymentStatus") in ENDED


def of_cluster(ray_jobs: Iterable[dict[str, Any]], cluster: str) -> list[dict[str, Any]]:
    """The RayJobs for RayCluster `cluster`, newest first."""
    ours = [job for job in ray_jobs
            if (job["spec"].get("clusterSelector") or {}).get("ray.io/cluster") in (cluster, None)]
    return sorted(ours, key=lambda job: job["metadata"].get("creationTimestamp") or "", reverse=True)


def chosen(ray_jobs: Sequence[dict[str, Any]], name: str | None) -> dict[str, Any] | None:
    """The RayJob of that name; without one, the newest that trains, else that waits, else that ended.

    Raises:
        NothingToDoError: if there is none of that name; says which there are.
    """
    if name is not None:
        found = next((job for job in ray_jobs if job["metadata"]["name"] == name), None)
        if found is None:
            raise NothingToDoError(no_such_job(name, ray_jobs))
        return found
    waiting = [job for job in ray_jobs if not is_over(job)]
    running = [job for job in waiting if (job.get("status") or {}).get("jobStatus") == "RUNNING"]
    return next(iter([*running, *waiting, *ray_jobs]), None)


def no_such_job(name: str, ray_jobs: Sequence[dict[str, Any]]) -> str:
    """The line for a job that never existed."""
    there = ", ".join(job["metadata"]["name"] for job in ray_jobs)
    return f"there is no RayJob {name}; there {'are ' + there if there else 'is none at all: cdk deploy makes one'}"


def _mounted(ray_job: Mapping[str, Any]) -> Iterator[str]:
    """Names of the ConfigMaps that the submitter mounts, alone or in a projected volume."""
    pod = (ray_job["spec"].get("submitterPodTemplate") or {}).get("spec") or {}
    return (source["name"] for volume in pod.get("volumes") or [] for source in config_map_sources(volume))


def _run(text: str) -> DeployedRun | None:
    try:
        told = json.loads(text)
        place = told["placement"]
        return DeployedRun(told["name"], place["storage"], told["training"].get("steps"),
                           (place["nodes"], place["workers_per_node"]))
    except (ValueError, KeyError, TypeError):
        return None
