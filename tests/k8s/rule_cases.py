"""For each rule at least one manifest that breaks it: (rule, objects). In paths | stands for a dot in a name."""

from rule_bases import (
    config_map,
    deployment,
    ray_cluster,
    ray_cluster_spec,
    ray_job,
    ray_service,
    service,
    with_code,
)

from tests.breaking import put

_HEAD = "spec.rayClusterSpec.headGroupSpec"
_GROUP = "spec.rayClusterSpec.workerGroupSpecs[0]"
_WORKER = f"{_GROUP}.template.spec"
_RAY = f"{_WORKER}.containers[0]"
_SUCCEEDED = {"condition": {"jobStatus": "SUCCEEDED"}}


def _job(path, value, **spec):
    return [put(ray_job(**spec), path, value)]


def _rules(*rules, **spec):
    return [ray_job(deletionStrategy={"deletionRules": list(rules)}, **spec)]


def _rule(policy, seconds=0, **condition):
    return {"policy": policy, "condition": {**(condition or {"jobStatus": "SUCCEEDED"}), "ttlSeconds": seconds}}


def _selecting(**spec):
    job = ray_job(clusterSelector={"ray.io/cluster": "standing"}, **spec)
    del job["spec"]["rayClusterSpec"]
    return [ray_cluster(), job]


def _autoscaled(path, value, version="v2"):
    job = ray_job()
    job["spec"]["rayClusterSpec"] |= {"enableInTreeAutoscaling": True, "autoscalerOptions": {"version": version}}
    return [put(job, path, value)]


def _namespace(level="baseline", name="ray"):
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": name, "labels": {"pod-security.kubernetes.io/enforce": level}}}


_OLD_PAIR = {"onSuccess": {"policy": "DeleteSelf"}, "onFailure": {"policy": "DeleteNone"}}
_ENV = f"{_HEAD}.template.spec.containers[0].env"
_REDIS = {"redisAddress": "redis:6379"}

# The 47 rules that KubeRay and the API server have for RayJobs and RayClusters.
KUBERAY = {
    "1 a job's name is too long": ("ray-name", _job("metadata.name", "j" * 48)),
    "2 a job's name has a dot": ("ray-name", _job("metadata.name", "my.job")),
    "2 a job's name begins with a digit": ("ray-name", _job("metadata.name", "1job")),
    "3 a cluster's name is too long": ("ray-name", [ray_cluster("c" * 54)]),
    "3 a service's name is too long": ("ray-name", [put(ray_service(), "metadata.name", "s" * 48)]),
    "4 suspended without shutdown": ("job-suspend", [ray_job(suspend=True)]),
    "5 a negative time to live": ("job-ttl", [ray_job(ttlSecondsAfterFinished=-1)]),
    "6 a time to live without shutdown": ("job-ttl", [ray_job(ttlSecondsAfterFinished=60)]),
    "8 old and new deletion": ("deletion-strategy", [
        ray_job(deletionStrategy={**_OLD_PAIR, "deletionRules": [_rule("DeleteSelf")]})]),
    "9 half of the old deletion": ("deletion-strategy", [
        ray_job(deletionStrategy={"onSuccess": {"policy": "DeleteSelf"}})]),
    "9 an empty deletion": ("deletion-strategy", [ray_job(deletionStrategy={})]),
    "10 rules and shutdown": ("deletion-strategy", _rules(_rule("DeleteSelf"), shutdownAfterJobFinishes=True)),
    "11 no rules": ("ray-schema", _rules()),
    "11 another policy": ("ray-schema", _rules(_rule("DeleteAll"))),
    "11 another status": ("ray-schema", _rules(_rule("DeleteSelf", jobStatus="DONE"))),
    "11 seconds below zero": ("ray-schema", _rules(_rule("DeleteSelf", -1))),
    "12 two conditions": ("deletion-condition", _rules(
        _rule("DeleteSelf", jobStatus="FAILED", jobDeploymentStatus="Failed"))),
    "12 no condition": ("deletion-condition", _rules({"policy": "DeleteSelf", "condition": {"ttlSeconds": 3}})),
    "13 the same twice": ("deletion-condition", _rules(_rule("DeleteSelf"), _rule("DeleteSelf", 9))),
    "14 workers after the cluster": (
        "deletion-order", _rules(_rule("DeleteWorkers", 9), _rule("DeleteCluster", 1))),
    "15 workers of an autoscaler": ("deletion-scope", _autoscaled("spec.deletionStrategy", {
        "deletionRules": [_rule("DeleteWorkers")]})),
    "16 a selected cluster": ("deletion-scope", _selecting(deletionStrategy={
        "deletionRules": [_rule("DeleteCluster")]})),
    "17 nothing deleted, but shutdown": ("deletion-scope", [
        ray_job(deletionStrategy=_OLD_PAIR, shutdownAfterJobFinishes=True)]),
    "17 no policy": ("deletion-strategy", [ray_job(deletionStrategy={**_OLD_PAIR, "onSuccess": {}})]),
    "18 no cluster": ("job-cluster", _job("spec.rayClusterSpec", None)),
    "19 an empty selector": ("cluster-selector", [ray_job(clusterSelector={"ray.io/cluster": ""})]),
    "19 selector and suspend": ("cluster-selector", _selecting(suspend=True)),
    "19 selector and sidecar": ("cluster-selector", _selecting(submissionMode="SidecarMode")),
    "19 selector and retries": ("cluster-selector", _selecting(backoffLimit=1)),
    "20 another mode": ("submission-mode", [ray_job(submissionMode="K8sJob")]),
    "21 retries below zero": ("backoff-limit", [ray_job(backoffLimit=-1)]),
    "21 an interactive job that retries": (
        "backoff-limit", [ray_job(submissionMode="InteractiveMode", backoffLimit=1)]),
    "22 a sidecar and a submitter": ("sidecar-mode", [with_code(ray_job(submissionMode="SidecarMode"))]),
    "22 a sidecar's restarts": ("sidecar-mode", _job(
        f"{_HEAD}.template.spec.restartPolicy", "Always", submissionMode="SidecarMode")),
    "23 a deadline of zero": ("deadline", [ray_job(activeDeadlineSeconds=0)]),
    "23 the start after the end": ("deadline", [ray_job(activeDeadlineSeconds=60, preRunningDeadlineSeconds=60)]),
    "24 a start of zero": ("ray-schema", [ray_job(preRunningDeadlineSeconds=0)]),
    "25 no YAML": ("runtime-env", [ray_job(runtimeEnvYAML="a: [")]),
    "25 no mapping": ("runtime-env", [ray_job(runtimeEnvYAML="- pip")]),
    "25 a number for a text": ("runtime-env", [ray_job(runtimeEnvYAML="env_vars: {A: 1}")]),
    "26 tokens of Kubernetes": ("job-k8s-token", _job("spec.rayClusterSpec.authOptions", {
        "mode": "token", "enableK8sTokenAuth": True})),
    "27 another controller": ("managed-by", [ray_job(managedBy="me")]),
    "28 a copied status": ("job-status", _job("status", {"jobDeploymentStatus": "Waiting"})),
    "29 metadata for an old Ray": ("job-metadata", _job(
        "spec.rayClusterSpec.rayVersion", "2.5.0", metadata={"team": "a"})),
    "30 an upgrade within a job": (
        "upgrade-strategy", _job("spec.rayClusterSpec.upgradeStrategy", {"type": "None"})),
    "31 a head without container": ("ray-container", _job(f"{_HEAD}.template.spec.containers", [])),
    "32 workers without container": ("ray-container", _job(f"{_WORKER}.containers", [])),
    "33 least above most": ("replicas", _job(f"{_GROUP}.minReplicas", 6)),
    "33 below zero": ("replicas", _job(f"{_GROUP}.minReplicas", -1)),
    "33 clamped": ("replicas", _job(f"{_GROUP}.replicas", 9)),
    "34 resources twice": ("group-resources", _job(f"{_GROUP}", {
        **ray_cluster_spec()["workerGroupSpecs"][0],
        "resources": {"CPU": "1"}, "rayStartParams": {"num-cpus": "1"}})),
    "35 labels as a parameter": ("ray-start-labels", _job(f"{_GROUP}.rayStartParams.labels", "a=b")),
    "35 a label that is none": ("label", _job(f"{_GROUP}.labels", {"a b": "c"})),
    "36 a number as parameter": ("ray-schema", _job(f"{_HEAD}.rayStartParams.num-cpus", 0)),
    "37 idle workers without autoscaler": ("autoscaler-only", _job(f"{_GROUP}.idleTimeoutSeconds", 60)),
    "38 priority without autoscaler": ("autoscaler-only", _job(f"{_GROUP}.priority", 1)),
    "39 a suspended group": ("autoscaler-only", _autoscaled(f"{_GROUP}.suspend", True)),
    "40 v2 without autoscaling": ("autoscaler", _job(_ENV, [{"name": "RAY_enable_autoscaler_v2", "value": "1"}])),
    "40 v2 twice": ("autoscaler", _autoscaled(_ENV, [{"name": "RAY_enable_autoscaler_v2", "value": "1"}])),
    "41 restarts under v2": ("autoscaler", _autoscaled(f"{_WORKER}.restartPolicy", "Always")),
    "42 idle below zero": (
        "autoscaler", _autoscaled("spec.rayClusterSpec.autoscalerOptions.idleTimeoutSeconds", -1)),
    "42 the operator's variable": ("autoscaler", _autoscaled("spec.rayClusterSpec.autoscalerOptions.env", [
        {"name": "KUBERAY_GEN_AUTOSCALER_START_CMD", "value": "x"}])),
    "42 another version": ("ray-schema", _autoscaled("spec.rayClusterSpec.autoscalerOptions.version", "v3")),
    "43 two ways of fault tolerance": ("gcs-fault-tolerance", [put(
        ray_cluster(annotations={"ray.io/ft-enabled": "true"}), "spec.gcsFaultToleranceOptions", _REDIS)]),
    "43 Redis without options": (
        "gcs-fault-tolerance", _job(_ENV, [{"name": "RAY_REDIS_ADDRESS", "value": "r:6379"}])),
    "43 a user of Redis": ("gcs-fault-tolerance", _job(_ENV, [{"name": "REDIS_USERNAME", "value": "r"}])),
    "43 rocksdb": (
        "gcs-fault-tolerance", _job("spec.rayClusterSpec.gcsFaultToleranceOptions", {"backend": "rocksdb"})),
    "44 tokens for an old Ray": ("auth", [put(put(ray_cluster(), "spec.authOptions", {"mode": "token"}),
                                              "spec.rayVersion", "2.51.0")]),
    "44 tokens for no Ray": ("auth", [put(put(ray_cluster(), "spec.authOptions", {"mode": "token"}),
                                          "spec.rayVersion", None)]),
    "44 Kubernetes' tokens without mode": ("auth", [put(ray_cluster(), "spec.authOptions",
                                                        {"enableK8sTokenAuth": True})]),
    "45 a policy behind a gate": ("feature-gate", _job("spec.rayClusterSpec.networkPolicy", {"mode": "DenyAll"})),
    "45 TLS behind a gate": ("feature-gate", _job("spec.rayClusterSpec.tlsOptions", {"enabled": True})),
    "46 an unknown field": ("ray-schema", _job("spec.submissionmode", "K8sJobMode")),
    "46 an unknown field of a pod": ("ray-schema", _job(f"{_WORKER}.toleration", [])),
    "47 a GPU requested only": ("request-limit", _job(f"{_RAY}.resources.requests.nvidia|com/gpu", 1)),
    "47 a GPU requested otherwise": ("request-limit", _job(f"{_RAY}.resources", {
        "requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}})),
    "47 a mount without volume": ("volume-mount", _job(f"{_WORKER}.volumes", [])),
    "47 no quantity": ("quantity", _job(f"{_RAY}.resources.limits.memory", "16GiB")),
}

OTHERS = {
    "memory in thousandths": ("quantity", _job(f"{_RAY}.resources.requests.memory", "512m")),
    "more requested than allowed": ("request-limit", _job(f"{_RAY}.resources.requests.cpu", "2")),
    "half a GPU": ("request-limit", _job(f"{_RAY}.resources.limits.nvidia|com/gpu", "500m")),
    "a mount's path twice": ("volume-mount", _job(f"{_RAY}.volumeMounts[1]",
                                                  {"name": "scratch", "mountPath": "/scratch"})),
    "a volume twice": ("volume-mount", _job(f"{_WORKER}.volumes[1]", {"name": "scratch", "emptyDir": {}})),
    "a variable twice": ("env-duplicate", _job(f"{_RAY}.env[1]", {"name": "A", "value": "2"})),
    "a container's name": ("container-name", _job(f"{_RAY}.name", "Ray_Worker")),
    "a selector that selects nothing": ("selector", [put(deployment(), "spec.selector.matchLabels.app", "radis")]),
    "an effect": ("toleration", _job(f"{_WORKER}.tolerations", [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoScheduling"}])),
    "Exists with a value": ("toleration", _job(f"{_WORKER}.tolerations", [
        {"key": "nvidia.com/gpu", "operator": "Exists", "value": "true"}])),
    "a pull policy": ("word", _job(f"{_RAY}.imagePullPolicy", "IfNotpresent")),
    "no image": ("word", _job(f"{_RAY}.image", None)),
    "num-gpus above the limit": ("ray-gpus", _job(f"{_GROUP}.rayStartParams.num-gpus", "8")),
    "two commands": ("entrypoint", [ray_job(entrypoint="pip install x && python main.py")]),
    "an open quote": ("entrypoint", [ray_job(entrypoint="python -c 'print(1)")]),
    "no command": ("entrypoint", _job("spec.entrypoint", None)),
    "a variable of bash": ("runtime-env", [ray_job(runtimeEnvYAML="env_vars: {A: '$HOME'}")]),
    "another Ray in the image": ("ray-version", _job("spec.rayClusterSpec.rayVersion", "2.50.0")),
    "another image for workers": ("ray-image", _job(f"{_RAY}.image", "rayproject/ray:2.57.0-gpu")),
    "a dashboard that hears nobody": (
        "dashboard-host", _job(f"{_HEAD}.rayStartParams.dashboard-host", "127.0.0.1")),
    "an upgrade without its options": ("service-upgrade", [
        put(ray_service(), "spec.upgradeStrategy", {"type": "NewClusterWithIncrementalUpgrade"})]),
    "a ConfigMap by another name": ("reference", [with_code(ray_job()), config_map("codes")]),
    "an account by another name": ("reference", [
        *_job(f"{_WORKER}.serviceAccountName", "training"),
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "trainer"}}]),
    "a key by another name": ("reference-key", [with_code(ray_job()), put(config_map(), "data", {"train.py": ""})]),
    "a namespace by another name": ("namespace", [_namespace(), put(ray_job(), "metadata.namespace", "rya")]),
    "a cluster by another name": ("selected-cluster", [ray_cluster("standin"), _selecting()[1]]),
    "a cluster of another namespace": ("selected-cluster", [ray_cluster(namespace="ray"), _selecting()[1]]),
    "a published dashboard": ("dashboard-open", [service()]),
    "a dashboard on every node": ("dashboard-open", [service("NodePort")]),
    "a published client port": ("dashboard-open", [service(port=10001)]),
    "a head service for the world": ("dashboard-open", _job(f"{_HEAD}.serviceType", "LoadBalancer")),
    "an ingress of KubeRay": ("dashboard-open", _job(f"{_HEAD}.enableIngress", True)),
    "a head on the node's network": ("dashboard-open", _job(f"{_HEAD}.template.spec.hostNetwork", True)),
    "a port of the node": ("dashboard-open", _job(f"{_HEAD}.template.spec.containers[0].ports", [
        {"containerPort": 8265, "hostPort": 8265}])),
    "an ingress": ("dashboard-open", [{
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "ray"}, "spec": {"rules": [{
            "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": {"service": {
                "name": "head", "port": {"number": 8265}}}}]}}]}}]),
    "a gateway's route": ("dashboard-open", [{
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"name": "ray"},
        "spec": {"rules": [{"backendRefs": [{"name": "head", "port": 8265}]}]}}]),
    "a privileged pod where none may be": ("pod-security", [_namespace(), put(put(
        ray_job(), "metadata.namespace", "ray"), f"{_RAY}.securityContext", {"privileged": True})]),
    "a level of security": ("pod-security", [_namespace("base")]),
    "a token in a worker's environment": ("ray-token", _job(f"{_RAY}.env", [
        {"name": "RAY_AUTH_TOKEN", "value": "abc"}])),
    "a token in a job's environment": ("ray-token", [ray_job(
        runtimeEnvYAML="env_vars: {RAY_AUTH_TOKEN: abc}")]),
    "a head that takes no token": ("ray-token", _job(_ENV, [{"name": "RAY_AUTH_MODE", "value": "disabled"}])),
    "a range of addresses that is none": ("network-block", [{
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p"},
        "spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0"}}]}]}}]),
    "an exception outside of its range": ("network-block", [{
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p"},
        "spec": {"podSelector": {}, "egress": [{"to": [{"ipBlock": {
            "cidr": "10.0.0.0/16", "except": ["10.1.0.0/24"]}}]}]}}]),
    "a policy for another cluster": ("network-policy", [ray_cluster(), {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "ray"},
        "spec": {"podSelector": {"matchLabels": {"ray.io/cluster": "other"}}}}]),
    "an object without a kind": ("object-kind", [{"apiVersion": "v1", "metadata": {"name": "x"}}]),
    "an object without a name": ("object-name", [put(config_map(), "metadata.name", None)]),
    "two objects of one name": ("twice", [config_map(), config_map()]),
    "a number for a text": ("core-schema", [put(deployment(), "spec.replicas", "one")]),
    "a kind of no such version": ("core-schema", [put(deployment(), "apiVersion", "apps/v1beta1")]),
    "a kind of Ray's that is none": ("ray-schema", [put(ray_job(), "kind", "RayJobs")]),
    "a EFA environment without EFA": ("efa-device", _job(f"{_RAY}.env", [
        {"name": "FI_PROVIDER", "value": "efa"}])),
    "a hidden GPU": ("gpu-visible", [put(put(ray_job(), f"{_RAY}.resources.limits.nvidia|com/gpu", 1),
                                         f"{_RAY}.env", [
                                             {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}])]),
}
