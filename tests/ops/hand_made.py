"""A small cdk.out written by hand, in the shape that synth writes: for tests that need no synth."""

from pathlib import Path
from typing import Any

import yaml

from settings.model import Settings

CODE = "/home/ray/job"


def objects(files: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """RayJob, RayCluster and ConfigMap by kind; `files` are the code by path. "Settings" is the ConfigMap of
    train.json."""
    job = Settings().train_job("s3://<checkpoint-bucket>/runs")
    files = files or {"training/__init__.py": "", "training/train.py": "print('hello')\n"}
    keys = {path: path.replace("/", "__") for path in files}
    return {
        "Settings": _config_map("settings-1a2b", {"train.json": job.model_dump_json(indent=2)}),
        "ConfigMap": _config_map("code-1a2b", {keys[path]: text for path, text in files.items()}),
        "RayCluster": _cluster(), "RayJob": _job(job.name, keys)}


def _config_map(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "ray"},
            "immutable": True, "data": data}


def write(folder: Path, found: dict[str, dict[str, Any]]) -> Path:
    """Write the objects as synth does; returns the cdk.out."""
    manifests = folder / "cdk.out" / "manifests"
    manifests.mkdir(parents=True)
    for number, item in enumerate(found.values()):
        path = manifests / f"{number:02d}-{item['kind'].lower()}-{item['metadata']['name']}.yaml"
        path.write_text(yaml.safe_dump(item))
    return manifests.parent


def _job(name: str, keys: dict[str, str]) -> dict[str, Any]:
    runtime_env = {"working_dir": CODE, "excludes": ["..*"],
                   "env_vars": {"NCCL_NET": "Libfabric", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "2400",
                                "RAY_DEDUP_LOGS": "0", "HF_HOME": "/tmp/hf"}}
    submitter = {"spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "submitter", "image": "image:1",
                        "volumeMounts": [{"name": "code", "mountPath": CODE, "readOnly": True}]}],
        "volumes": [{"name": "code", "projected": {"sources": [
            {"configMap": {"name": "settings-1a2b", "items": [{"key": "train.json", "path": "train.json"}]}},
            {"configMap": {"name": "code-1a2b", "items": [
                {"key": key, "path": path} for path, key in keys.items()]}}]}}]}}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": name, "namespace": "ray"},
            "spec": {"clusterSelector": {"ray.io/cluster": "eagleray"}, "activeDeadlineSeconds": 88800,
                     "entrypoint": "python -m training.train train.json",
                     "runtimeEnvYAML": yaml.safe_dump(runtime_env), "submitterPodTemplate": submitter}}


def _cluster() -> dict[str, Any]:
    worker_env = [{"name": "FI_PROVIDER", "value": "efa"}, {"name": "NCCL_DEBUG", "value": "INFO"},
                  {"name": "RAY_SCHEDULER_EVENTS", "value": "0"},
                  {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    limits = {"cpu": "40", "memory": "160Gi", "nvidia.com/gpu": 4, "vpc.amazonaws.com/efa": 1}
    head_env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "eagleray", "namespace": "ray"},
            "spec": {"rayVersion": "2.58.0",
                     "headGroupSpec": {"rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
                                       "template": _template(head_env, {"cpu": "3", "memory": "12Gi"})},
                     "workerGroupSpecs": [{"groupName": "gpu", "replicas": 2, "minReplicas": 2, "maxReplicas": 2,
                                           "rayStartParams": {}, "template": _template(worker_env, limits)}]}}


def _template(env: list[dict[str, Any]], limits: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "ray", "image": "image:1", "env": env,
                                     "resources": {"limits": limits, "requests": limits}}]}}
