"""The job that a synthesized app would submit, read out of cdk.out/manifests as KubeRay would read it."""

from __future__ import annotations

import base64
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from pydantic import ValidationError

from ops.errors import NothingToDoError
from training.config import TrainJob

TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
"""Where Ray looks for the token that its every port wants once RAY_AUTH_MODE is token."""


@dataclass(frozen=True)
class PodShape:
    """A group of Ray pods: how many, their image, flags of `ray start` (without dashes) and environment.

    `unresolved` are environment variables that only a cluster can fill in, with what they refer to.
    """

    count: int
    image: str
    ray_start: Mapping[str, str]
    environment: Mapping[str, str]
    unresolved: Mapping[str, str]


@dataclass(frozen=True)
class SubmittedJob:
    """A RayJob with everything that it refers to.

    `files` are the submitter's mounted files by absolute path; `job` is what `job_file` (train.json) says.
    """

    name: str
    namespace: str
    entrypoint: str
    entrypoint_cpus: float | None
    runtime_env: Mapping[str, Any]
    deadline_seconds: int | None
    files: Mapping[str, bytes]
    mounts: tuple[str, ...]
    job_file: str
    job: TrainJob
    cluster: str
    head: PodShape
    workers: PodShape

    @property
    def working_dir(self) -> str:
        """Folder in the submitter that Ray uploads to every node."""
        return self.runtime_env["working_dir"]


def read_submitted_job(cdk_out: Path) -> SubmittedJob:
    """The one RayJob of a synthesized app.

    Raises:
        NothingToDoError: if cdk.out is missing, holds no or several RayJobs, or the job refers to
            something that is not there; the message says what to do.
    """
    return submitted_job(read_objects(cdk_out), cdk_out)


def submitted_job(objects: list[dict[str, Any]], cdk_out: Path) -> SubmittedJob:
    """The one RayJob among `objects`, which were read from `cdk_out`. Raises as `read_submitted_job`."""
    job = _only_ray_job(objects, cdk_out)
    name, spec = job["metadata"]["name"], job["spec"]
    cluster = _selected_cluster(objects, name, spec)
    files, mounts = _mounted_files(objects, name, spec)
    runtime_env = _runtime_env(name, spec)
    working_dir = runtime_env["working_dir"]
    if not any(path.startswith(f"{working_dir.rstrip('/')}/") for path in files):
        raise NothingToDoError(f"RayJob {name}: runtimeEnvYAML's working_dir {working_dir} holds no mounted file "
                               "of the submitter")
    entrypoint = spec.get("entrypoint", "")
    job_file = _job_file(name, entrypoint, working_dir, files)
    return SubmittedJob(
        name=name, namespace=job["metadata"].get("namespace", "default"), entrypoint=entrypoint,
        entrypoint_cpus=spec.get("entrypointNumCpus"), runtime_env=runtime_env,
        deadline_seconds=spec.get("activeDeadlineSeconds"), files=files, mounts=mounts, job_file=job_file,
        job=_train_job(name, job_file, files[job_file]), cluster=cluster["metadata"]["name"],
        head=_pod_shape(1, cluster["spec"]["headGroupSpec"], cluster),
        workers=_only_worker_group(cluster))


def read_objects(cdk_out: Path) -> list[dict[str, Any]]:
    """The Kubernetes objects that synth wrote.

    Raises:
        NothingToDoError: if there are none, or a file holds something else.
    """
    folder = cdk_out / "manifests"
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise NothingToDoError(f"{folder} holds no manifests; run make synth first (or name the folder: --cdk-out)")
    objects = []
    for path in paths:
        try:
            found = [doc for doc in yaml.safe_load_all(path.read_text()) if doc is not None]
        except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
            raise NothingToDoError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
        if not all(isinstance(doc, dict) and isinstance(doc.get("metadata"), dict) for doc in found):
            raise NothingToDoError(f"{path}: not a Kubernetes object; run make synth again")
        objects += found
    return objects


def _only_ray_job(objects: list[dict[str, Any]], cdk_out: Path) -> dict[str, Any]:
    jobs = [o for o in objects if o.get("kind") == "RayJob"]
    if not jobs:
        raise NothingToDoError(f"{cdk_out / 'manifests'} holds no RayJob; run make synth again")
    if len(jobs) > 1:
        names = ", ".join(o["metadata"].get("name", "?") for o in jobs)
        raise NothingToDoError(f"{cdk_out / 'manifests'} holds {len(jobs)} RayJobs ({names}), and only one can be "
                               f"rehearsed; remove {cdk_out} and run make synth")
    return jobs[0]


def _named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any] | None:
    return next((o for o in objects if o.get("kind") == kind and o["metadata"].get("name") == name), None)


def _selected_cluster(objects: list[dict[str, Any]], job: str, spec: dict[str, Any]) -> dict[str, Any]:
    name = spec.get("clusterSelector", {}).get("ray.io/cluster")
    if not name:
        raise NothingToDoError(f"RayJob {job}: clusterSelector names no ray.io/cluster")
    cluster = _named(objects, "RayCluster", name)
    if cluster is None:
        there = ", ".join(o["metadata"]["name"] for o in objects if o.get("kind") == "RayCluster") or "none"
        raise NothingToDoError(f"RayJob {job}: clusterSelector names RayCluster {name}, which is not among the "
                               f"manifests (RayClusters there: {there}); run make synth again")
    return cluster


def _runtime_env(job: str, spec: dict[str, Any]) -> dict[str, Any]:
    try:
        env = yaml.safe_load(spec.get("runtimeEnvYAML") or "")
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise NothingToDoError(f"RayJob {job}: runtimeEnvYAML is not YAML: {problem}") from None
    if not isinstance(env, dict) or not env.get("working_dir"):
        raise NothingToDoError(f"RayJob {job}: runtimeEnvYAML has no working_dir, so the code would reach no node")
    return env


def _mounted_files(objects: list[dict[str, Any]], job: str, spec: dict[str, Any],
                   ) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """The submitter's files from ConfigMaps by absolute path, and the folders they are mounted at."""
    pod = spec.get("submitterPodTemplate", {}).get("spec", {})
    volumes = {v["name"]: config_map_sources(v) for v in pod.get("volumes", [])}
    files: dict[str, bytes] = {}
    mounts = []
    for mount in pod["containers"][0].get("volumeMounts", []) if pod.get("containers") else []:
        for source in volumes.get(mount["name"], []):
            below = PurePosixPath(mount["mountPath"])
            contents = _config_map_files(objects, job, source)
            files |= {str(below / path): data for path, data in contents.items()}
        if volumes.get(mount["name"]):
            mounts.append(mount["mountPath"])
    return files, tuple(mounts)


def config_map_sources(volume: dict[str, Any]) -> list[dict[str, Any]]:
    """What a volume takes from ConfigMaps: a ConfigMap's own volume, or some of the sources of a projected one."""
    sources = [volume, *volume.get("projected", {}).get("sources", [])]
    return [source["configMap"] for source in sources if "configMap" in source]


def _config_map_files(objects: list[dict[str, Any]], job: str, volume: dict[str, Any]) -> dict[str, bytes]:
    config_map = _named(objects, "ConfigMap", volume["name"])
    if config_map is None:
        raise NothingToDoError(f"RayJob {job}: the submitter mounts ConfigMap {volume['name']}, which is not among "
                               "the manifests; run make synth again")
    contents = {key: text.encode() for key, text in (config_map.get("data") or {}).items()}
    contents |= {key: base64.b64decode(text) for key, text in (config_map.get("binaryData") or {}).items()}
    items = volume.get("items") or [{"key": key, "path": key} for key in contents]
    missing = [item["key"] for item in items if item["key"] not in contents]
    if missing:
        raise NothingToDoError(f"RayJob {job}: ConfigMap {volume['name']} lacks {', '.join(missing)}, so the "
                               "submitter's volume would not mount")
    return {item["path"]: contents[item["key"]] for item in items}


def _job_file(job: str, entrypoint: str, working_dir: str, files: Mapping[str, bytes]) -> str:
    """The entrypoint's one argument that is a .json file of the working_dir."""
    named = [str(PurePosixPath(working_dir) / word) for word in shlex.split(entrypoint) if word.endswith(".json")]
    if len(named) != 1 or named[0] not in files:
        raise NothingToDoError(f"RayJob {job}: entrypoint '{entrypoint}' names no settings file of {working_dir}; "
                               "it should look like python -m training.train train.json")
    return named[0]


def _train_job(job: str, path: str, text: bytes) -> TrainJob:
    try:
        return TrainJob.model_validate(json.loads(text))
    except (ValidationError, ValueError) as error:
        raise NothingToDoError(f"RayJob {job}: {path} is not a training job of this version: {error}; "
                               "run make synth again") from None


def _only_worker_group(cluster: dict[str, Any]) -> PodShape:
    groups = cluster["spec"].get("workerGroupSpecs") or []
    if len(groups) != 1:
        raise NothingToDoError(f"RayCluster {cluster['metadata']['name']} has {len(groups)} worker groups; "
                               "a rehearsal needs exactly one")
    # With autoscaling a job gets as many as it asks for: all.
    count = groups[0].get("maxReplicas" if cluster["spec"].get("enableInTreeAutoscaling") else "replicas", 1)
    return _pod_shape(count, groups[0], cluster)


def _pod_shape(count: int, group: dict[str, Any], cluster: dict[str, Any]) -> PodShape:
    container = group["template"]["spec"]["containers"][0]  # KubeRay: container 0 is Ray
    entries = container.get("env") or []
    names = {entry["name"] for entry in entries}
    entries = entries + [entry for entry in _token(cluster) if entry["name"] not in names]
    return PodShape(
        count=count, image=container.get("image", ""), ray_start=_ray_start(group, container),
        environment={e["name"]: str(e.get("value", "")) for e in entries if "valueFrom" not in e},
        unresolved={e["name"]: json.dumps(e["valueFrom"]) for e in entries if "valueFrom" in e})


def _token(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    """The variables by which KubeRay hands the cluster's token to a pod of its, where authOptions ask for one."""
    options = cluster["spec"].get("authOptions") or {}
    if options.get("mode") != "token":
        return []
    secret = {"name": options.get("secretName") or cluster["metadata"]["name"], "key": "auth_token"}
    return [{"name": "RAY_AUTH_MODE", "value": "token"},
            {"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": secret}}]


def _ray_start(group: dict[str, Any], container: dict[str, Any]) -> dict[str, str]:
    """rayStartParams; what they leave out KubeRay takes from the container's limits."""
    limits = container.get("resources", {}).get("limits", {})
    derived = {"num-cpus": "cpu", "num-gpus": "nvidia.com/gpu", "memory": "memory"}
    flags = {flag: str(limits[limit]) for flag, limit in derived.items() if limit in limits}
    return flags | {key: str(value) for key, value in (group.get("rayStartParams") or {}).items()}
