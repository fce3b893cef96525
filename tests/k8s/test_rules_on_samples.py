"""Manifests of the kinds that KubeRay's users write: the rules find nothing in what works."""

import copy

import pytest
import yaml
from rule_bases import config_map, deployment, ray_cluster, ray_job, ray_service, service, with_code

from k8s.rules import Manifest, check
from k8s.rules.nodes import around_files
from tests.breaking import put

_HEAD = "spec.headGroupSpec"
_GROUP = "spec.workerGroupSpecs[0]"
_CONTAINER = "template.spec.containers[0]"


def several(manifest, changes):
    for path, value in changes.items():
        manifest = put(manifest, path, value)
    return manifest


def autoscaling():
    return several(ray_cluster(), {"spec.enableInTreeAutoscaling": True,
                                   "spec.autoscalerOptions": {"idleTimeoutSeconds": 60}})


def autoscaling_version_2():
    return several(autoscaling(), {
        "spec.autoscalerOptions": {"version": "v2", "upscalingMode": "Default", "idleTimeoutSeconds": 60,
                                   "imagePullPolicy": "IfNotPresent", "securityContext": {},
                                   "env": [{"name": "A", "value": "b"}],
                                   "resources": {"limits": {"cpu": "500m", "memory": "512Mi"}}},
        f"{_GROUP}.idleTimeoutSeconds": 30,
        f"{_GROUP}.template.spec.restartPolicy": "Never"})


def redis_fault_tolerance():
    password = {"valueFrom": {"secretKeyRef": {"name": "redis-password", "key": "password"}}}
    return [
        several(ray_cluster(), {"spec.gcsFaultToleranceOptions": {
            "redisAddress": "redis:6379", "redisPassword": password, "externalStorageNamespace": "mine"}}),
        deployment(), service("ClusterIP", 6379),
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "redis-password"},
         "stringData": {"password": "x"}},
    ]


def annotated_fault_tolerance():
    return [several(ray_cluster(annotations={"ray.io/ft-enabled": "true"}), {
        f"{_HEAD}.{_CONTAINER}.env": [
            {"name": "RAY_REDIS_ADDRESS", "value": "redis:6379"},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        f"{_HEAD}.rayStartParams": {"redis-password": "$REDIS_PASSWORD", "num-cpus": "0"}})]


def volumes():
    """Every kind of volume that a training mounts."""
    pod = f"{_GROUP}.template.spec"
    names = ["data", "keys", "shm", "code", "all"]
    return [several(ray_cluster(), {
        f"{pod}.volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "keys", "secret": {"secretName": "keys", "defaultMode": 256}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
            {"name": "code", "configMap": {"name": "code", "optional": True}},
            {"name": "all", "projected": {"sources": [{"configMap": {"name": "elsewhere"}}]}}],
        f"{pod}.containers[0].volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in names],
        f"{pod}.initContainers": [{"name": "fetch", "image": "busybox:1.36", "command": ["true"], "volumeMounts": [
            {"name": "data", "mountPath": "/data"}]}]})]


def selecting():
    job = put(ray_job(clusterSelector={"ray.io/cluster": "elsewhere"}), "spec.rayClusterSpec", None)
    return [job]


def gpus_on_another_cloud():
    return [several(ray_cluster(), {
        f"{_GROUP}.{_CONTAINER}.resources": {"requests": {"cpu": "54", "memory": "54Gi", "nvidia.com/gpu": "4"},
                                             "limits": {"cpu": "54", "memory": "54Gi", "nvidia.com/gpu": "4"}},
        f"{_GROUP}.{_CONTAINER}.image": "rayproject/ray:2.58.0-gpu",
        f"{_GROUP}.template.spec.nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-l4"},
        f"{_GROUP}.template.spec.tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "team", "value": "ml", "effect": "NoExecute", "tolerationSeconds": 60}]})]


def tpus():
    tpu = {"cpu": "100", "memory": "200G", "google.com/tpu": "4"}
    return [several(ray_cluster(), {f"{_GROUP}.numOfHosts": 2,
                                    f"{_GROUP}.{_CONTAINER}.resources": {"limits": tpu, "requests": tpu}})]


def deletion_rules():
    ends = [("DeleteWorkers", 10), ("DeleteCluster", 20), ("DeleteSelf", 30)]
    return [ray_job(deletionStrategy={"deletionRules": [
        {"policy": policy, "condition": {"jobStatus": status, "ttlSeconds": seconds}}
        for status in ("SUCCEEDED", "FAILED") for policy, seconds in ends]})]


def queued():
    """Labels of schedulers, and kinds that only their own CRDs know."""
    job = ray_job(suspend=True, shutdownAfterJobFinishes=True, ttlSecondsAfterFinished=60)
    labels = {"kueue.x-k8s.io/queue-name": "user-queue", "ray.io/scheduler-name": "volcano"}
    return [put(job, "metadata.labels", labels),
            {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": {"name": "user-queue"},
             "spec": {"clusterQueue": "cluster-queue"}},
            {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "q"}, "spec": {}}]


SAMPLES = {
    "a job": [ray_job()],
    "a job with everything": [with_code(ray_job(
        submissionMode="K8sJobMode", backoffLimit=2,
        runtimeEnvYAML="pip: [requests==2.32.0]\nenv_vars: {counter: c}\n",
        entrypoint="python /code/main.py --text 'a && b'", shutdownAfterJobFinishes=True, metadata={"team": "ml"},
        ttlSecondsAfterFinished=10, activeDeadlineSeconds=3600, submitterConfig={"backoffLimit": 3},
        entrypointNumCpus=0.5, entrypointResources='{"Custom": 1}')), config_map()],
    "a job of several lines": [ray_job(entrypoint="python main.py \\\n  --steps 5\n")],
    "over HTTP": [ray_job(submissionMode="HTTPMode", entrypoint="sh -c 'a; b'", jobId="mine-1")],
    "by hand": [put(ray_job(submissionMode="InteractiveMode"), "spec.entrypoint", None)],
    "from a sidecar": [put(ray_job(submissionMode="SidecarMode"),
                           "spec.rayClusterSpec.headGroupSpec.template.spec.restartPolicy", "Never")],
    "on a cluster that is there": selecting(),
    "suspended by a queue": queued(),
    "deletion by rules": deletion_rules(),
    "the old deletion": [ray_job(deletionStrategy={"onSuccess": {"policy": "DeleteCluster"},
                                                   "onFailure": {"policy": "DeleteNone"}})],
    "every night": [{"apiVersion": "ray.io/v1", "kind": "RayCronJob", "metadata": {"name": "nightly"},
                     "spec": {"schedule": "0 3 * * *", "jobTemplate": ray_job()["spec"]}}],
    "autoscaling": [autoscaling()],
    "autoscaling, version 2": [autoscaling_version_2()],
    "fault tolerance with Redis": redis_fault_tolerance(),
    "fault tolerance by annotation": annotated_fault_tolerance(),
    "volumes of all kinds": volumes(),
    "tokens": [put(ray_cluster(), "spec.authOptions", {"mode": "token"})],
    "an upgrade of a cluster": [put(ray_cluster(), "spec.upgradeStrategy", {"type": "Recreate"})],
    "resources of a group": [several(ray_cluster(), {f"{_GROUP}.resources": {"CPU": "4", "GPU": "1"},
                                                     f"{_GROUP}.labels": {"ray.io/zone": "us-west-2a"}})],
    "a service": [ray_service()],
    "a service and its ingress": [ray_service(), {
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "serve"}, "spec": {
            "rules": [{"http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": {
                "service": {"name": "serve-serve-svc", "port": {"number": 8000}}}}]}}]}}],
    "GPUs of another cloud": gpus_on_another_cloud(),
    "TPUs on several hosts": tpus(),
    "no workers": [put(ray_cluster(), "spec.workerGroupSpecs", None)],
    "its own image": [several(ray_cluster(), {
        f"{_HEAD}.{_CONTAINER}.image": f"registry.local:5000/me/ray@sha256:{'0' * 64}",
        f"{_GROUP}.{_CONTAINER}.image": "registry.local:5000/me/ray-gpu"})],
    "an operator's RBAC": [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "operator", "namespace": "kuberay"}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "system:me"},
         "rules": [{"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["get"]}]}],
}


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_works_is_left_alone(sample):
    # As it comes from a file.
    objects = yaml.safe_load(yaml.safe_dump(copy.deepcopy(SAMPLES[sample])))
    assert [str(found) for found in check([Manifest(body) for body in objects], around_files())] == []
