"""Small valid manifests that tests break in one place."""

IMAGE = "rayproject/ray:2.58.0"


def ray_cluster_spec():
    return {
        "rayVersion": "2.58.0",
        "headGroupSpec": {"rayStartParams": {}, "template": {"spec": {"containers": [
            {"name": "ray-head", "image": IMAGE, "resources": {"limits": {"cpu": "1", "memory": "4Gi"}}}]}}},
        "workerGroupSpecs": [{
            "groupName": "small", "replicas": 1, "minReplicas": 1, "maxReplicas": 5, "rayStartParams": {},
            "template": {"spec": {
                "containers": [{"name": "ray-worker", "image": IMAGE, "env": [{"name": "A", "value": "1"}],
                                "resources": {"requests": {"cpu": "1", "memory": "2Gi"},
                                              "limits": {"cpu": "1", "memory": "2Gi"}},
                                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}],
                "volumes": [{"name": "scratch", "emptyDir": {}}]}},
        }],
    }


def ray_cluster(name="standing", **metadata):
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name, **metadata},
            "spec": ray_cluster_spec()}


def ray_job(**spec):
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "job"},
            "spec": {"entrypoint": "python main.py", "rayClusterSpec": ray_cluster_spec(), **spec}}


def ray_service():
    return {"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "serve"},
            "spec": {"serveConfigV2": "applications: []\n", "rayClusterConfig": ray_cluster_spec()}}


def deployment():
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "redis"},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "redis"}},
                     "template": {"metadata": {"labels": {"app": "redis"}}, "spec": {"containers": [
                         {"name": "redis", "image": "redis:7", "ports": [{"containerPort": 6379}]}]}}}}


def config_map(name="code"):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"main.py": "print(1)\n"}}


def service(kind="LoadBalancer", port=8265):
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "head"},
            "spec": {"type": kind, "selector": {"ray.io/node-type": "head"}, "ports": [{"port": port}]}}


def with_code(job):
    """A job whose submitter mounts a ConfigMap."""
    job["spec"]["submitterPodTemplate"] = {"spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "submitter", "image": IMAGE,
                        "volumeMounts": [{"name": "code", "mountPath": "/code"}]}],
        "volumes": [{"name": "code", "configMap": {"name": "code",
                                                   "items": [{"key": "main.py", "path": "main.py"}]}}]}}
    return job
