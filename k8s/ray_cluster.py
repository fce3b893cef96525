"""The standing Ray cluster: a head without GPU, and for a job one worker pod on every GPU node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from constructs import Construct

from k8s.gpu_nodes import GPU_TOLERATION
from k8s.kubernetes_object import CONFINED, CONFINED_POD, KubernetesObject, env
from k8s.ray_autoscaler import api_access, autoscaler_options

# The CUDA image asks for all GPUs, and the container hook fails where there is none.
NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "void"}

# What a worker's process can find again when it is started anew, and need not make or download a second time:
# compiled kernels, and the model. It lies on the node: kernels fit the GPU and the versions they were made with.
_CACHE = "/cache"
_CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": f"{_CACHE}/torchinductor",  # graphs; AOTAutograd's cache lies below it
    "TRITON_CACHE_DIR": f"{_CACHE}/triton",  # training/kernels.py as well, which torch.compile does not see
    "HF_HOME": f"{_CACHE}/huggingface",
}


# Seconds from a pod's SIGTERM to its SIGKILL, the notice that EC2 gives of a spot node's end; and how many of them
# Ray leaves the training to save and go (training/preemption.py), before it ends its processes itself.
_GRACE, _DRAIN = 120, 100
_DRAINS = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(_DRAIN)}


@dataclass(frozen=True)
class RayPods:
    """What head and workers have in common: image, Ray version inside it, service account, AWS region."""

    image: str
    ray_version: str
    service_account: str
    region: str


@dataclass(frozen=True)
class WorkerGroup:
    """One pod a GPU node: up to `nodes` of them, each with all `gpus` and `efa` interfaces of its node.

    `cpu` in cores, `memory_gib` in GiB; `environment` is what the hardware demands (k8s/worker_env.py). A pod
    may take `start_seconds` until it runs, and goes after `idle_seconds` without a job. `hf_token_secret`: name of
    a Secret whose key `token` is a Hugging Face token.
    """

    nodes: int
    gpus: int
    efa: int
    cpu: int
    memory_gib: int
    environment: Mapping[str, str]
    start_seconds: int
    idle_seconds: int
    hf_token_secret: str | None = None


class RayCluster(KubernetesObject):
    """A RayCluster; see `ray_cluster_spec`."""

    def __init__(self, scope: Construct, construct_id: str, *, name: str, namespace: str, pods: RayPods,
                 workers: WorkerGroup) -> None:
        super().__init__(scope, construct_id, api_version="ray.io/v1", kind="RayCluster",
                         name=name, namespace=namespace, spec=ray_cluster_spec(pods, workers))


def ray_cluster_spec(pods: RayPods, workers: WorkerGroup) -> dict[str, Any]:
    """The `spec` of a RayCluster whose worker pods come and go with jobs.

    KubeRay ignores a changed pod template unless upgradeStrategy is Recreate. It adds /dev/shm in memory, as
    large as the memory limit, by itself.
    """
    return {
        "rayVersion": pods.ray_version,
        "upgradeStrategy": {"type": "Recreate"},
        # KubeRay makes a random token, keeps it in a Secret named like this cluster and hands it to head, workers
        # and submitters by secretKeyRef (KubeRay 1.7.0, raycluster_controller.go, pod.go): it is written nowhere.
        "authOptions": {"mode": "token"},
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": autoscaler_options(workers.idle_seconds, workers.start_seconds),
        "headGroupSpec": _head(pods),
        "workerGroupSpecs": [_workers(pods, workers)],
    }


def _head(pods: RayPods) -> dict[str, Any]:
    container = _ray_container("ray-head", pods, NO_GPU, resources={
        # An m7i.xlarge has 3.9 CPU and 13.8 GiB to give, and the operator and the submitter want some.
        "requests": {"cpu": "2", "memory": "8Gi"},
        "limits": {"cpu": "3", "memory": "12Gi"},
    })
    container["ports"] = [
        {"name": "gcs-server", "containerPort": 6379},
        {"name": "dashboard", "containerPort": 8265},
    ]
    pod = _ray_pod(pods, container)
    return {
        # Whoever reaches the dashboard can run code: it gets no address outside of the cluster.
        "serviceType": "ClusterIP",
        # No tasks on the head: its death would be the death of every job.
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
        "template": {"spec": {**pod, "volumes": [*pod["volumes"], api_access()]}},
    }


def _workers(pods: RayPods, workers: WorkerGroup) -> dict[str, Any]:
    # Requests equal to limits: extended resources must be, and CPU and memory so nobody else gets them.
    amounts = {
        "cpu": str(workers.cpu),
        "memory": f"{workers.memory_gib}Gi",
        "nvidia.com/gpu": str(workers.gpus),
        "vpc.amazonaws.com/efa": str(workers.efa),
    }
    container = _ray_container("ray-worker", pods, {**_CACHES, **_DRAINS, **workers.environment},
                               resources={"requests": amounts, "limits": dict(amounts)})
    container["volumeMounts"].append({"name": "cache", "mountPath": _CACHE})
    if workers.hf_token_secret is not None:
        container["env"].append(_hf_token(workers.hf_token_secret))
    pod = _ray_pod(pods, container)
    pod["volumes"].append({"name": "cache", "emptyDir": {}})  # outlives a training process, not the pod
    return {
        "groupName": "gpu",
        # No `replicas`: the autoscaler's number is in the cluster, and applying this leaves it alone.
        "minReplicas": 0,
        "maxReplicas": workers.nodes,
        "rayStartParams": {"num-gpus": amounts["nvidia.com/gpu"]},
        "template": {"spec": {**pod, "tolerations": [GPU_TOLERATION], "terminationGracePeriodSeconds": _GRACE}},
    }


def _hf_token(secret: str) -> dict[str, Any]:
    """The token by reference. Only workers download; the head's driver reads nothing of the Hub.

    Optional: without the Secret, pods on GPU nodes would wait for it and say nothing. The job asks for what is
    gated in its first minute, and says then what is missing.
    """
    return {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret, "key": "token", "optional": True}}}


def _ray_container(name: str, pods: RayPods, environment: Mapping[str, str],
                   resources: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "image": pods.image,
        "imagePullPolicy": "IfNotPresent",
        # The node's metadata service, where the AWS libraries would ask for the region, is closed to pods.
        # Nor does Ray tell its makers what runs here.
        "env": env({"AWS_REGION": pods.region, "RAY_USAGE_STATS_ENABLED": "0", **environment}),
        "resources": resources,
        "securityContext": CONFINED,
        "volumeMounts": [{"name": "ray-logs", "mountPath": "/tmp/ray"}],
    }


def _ray_pod(pods: RayPods, container: dict[str, Any]) -> dict[str, Any]:
    return {
        "serviceAccountName": pods.service_account,
        # AWS credentials come by Pod Identity; of the Kubernetes API a Ray pod wants nothing.
        "automountServiceAccountToken": False,
        "securityContext": CONFINED_POD,
        "containers": [container],
        "volumes": [{"name": "ray-logs", "emptyDir": {}}],
    }
