"""A deployment as it stands on a fake cluster: nodes, pods and jobs, well unless a test says otherwise."""

import json
from datetime import UTC, datetime, timedelta

from tests.ops import hand_made
from tests.ops.fake_kubernetes import RUNNING

ROWS = [{"step": n, "loss": 8.0 - n / 10, "grad_norm": 1.0, "learning_rate": 1e-3, "tokens_per_second": 37000.0,
         "step_seconds": 3.5, "mfu": 0.382, "memory_gib": 18.9, "time": 1.7e9 + 3.5 * n} for n in range(1, 31)]
DRIVER = """\
(TrainController pid=812) Started training worker group of size 4:
(TrainController pid=812) - (ip=10.0.0.11, pid=301) world_rank=0, local_rank=0, node_rank=0
(TrainController pid=812) - (ip=10.0.0.11, pid=302) world_rank=1, local_rank=1, node_rank=0
(TrainController pid=812) - (ip=10.0.0.12, pid=301) world_rank=2, local_rank=0, node_rank=1
(TrainController pid=812) - (ip=10.0.0.12, pid=302) world_rank=3, local_rank=1, node_rank=1
(RayTrainWorker pid=301, ip=10.0.0.11) step  40/200  loss 4.1000  grad 1.00  lr 2.0e-05  37,123 tokens/s  3.50 s  \
MFU 38.4 %  18.9 GiB
(RayTrainWorker pid=302, ip=10.0.0.12) rank three says hello
"""


def ago(**span):
    """A moment, as the API server writes it."""
    return (datetime.now(UTC) - timedelta(**span)).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(name, instance_type="g6.12xlarge", gpus=4, efa=1, ready=True, hours=2.0):
    conditions = [{"type": "Ready", "status": "True" if ready else "False", "message": "kubelet is starting"}]
    return {"apiVersion": "v1", "kind": "Node", "spec": {}, "metadata": {
        "name": name, "creationTimestamp": ago(hours=hours),
        "labels": {"node.kubernetes.io/instance-type": instance_type}},
        "status": {"conditions": conditions,
                   "allocatable": {"cpu": "47", "nvidia.com/gpu": str(gpus), "vpc.amazonaws.com/efa": str(efa)}}}


def pod(name, namespace="ray", labels=None, phase="Running", **status):
    ready = [{"name": "main", "image": "i", "imageID": "i", "ready": True, "restartCount": 0,
              "state": {"running": {}}}]
    return {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "main"}]},
            "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
            "status": {"phase": phase, "containerStatuses": ready, **status}}


class Standing:
    """The default deployment, training. `storage` is a folder in place of the bucket."""

    def __init__(self, folder, server):
        self.server, self.storage = server, folder / "bucket"
        objects = hand_made.objects()
        server.add(objects["RayCluster"], state="ready")
        settings = objects["Settings"]
        text = settings["data"]["train.json"].replace("s3://<checkpoint-bucket>/runs", str(self.storage))
        server.add({**settings, "data": {**settings["data"], "train.json": text}})
        self.run = json.loads(text)["name"]
        self.job = objects["RayJob"]
        self.name = self.job["metadata"]["name"]
        self.set_job(**RUNNING)
        server.add(node("ip-10-0-0-11"))
        server.add(node("ip-10-0-0-12"))
        server.add(node("ip-10-0-0-5", "m7i.xlarge", 0, 0, hours=3.0))
        cluster = {"ray.io/cluster": "eagleray"}
        server.add(pod("eagleray-head-x1", labels={**cluster, "ray.io/node-type": "head"}))
        server.add(pod("eagleray-gpu-worker-a", labels={**cluster, "ray.io/node-type": "worker"}))
        server.add(pod("eagleray-gpu-worker-b", labels={**cluster, "ray.io/node-type": "worker"}))
        server.add(pod(f"{self.name}-s7k2q", labels={"job-name": self.name}))
        server.add(pod("kuberay-operator-1", "kuberay-operator", {"app.kubernetes.io/name": "kuberay-operator"}))
        for plugin in ("nvidia", "efa"):
            server.add(pod(f"{plugin}-device-plugin-1", "kube-system",
                           {"app.kubernetes.io/name": f"{plugin}-device-plugin"}))
        server.logs[f"{self.name}-s7k2q"] = DRIVER

    def set_job(self, name=None, created=None, **status):
        """The job, or one of another `name`, in that status."""
        metadata = {**self.job["metadata"], "name": name or self.name, "creationTimestamp": created or ago(hours=1)}
        self.server.add({**self.job, "metadata": metadata}, startTime=ago(minutes=50), **status)

    def leave(self, rows=None, **files):
        """What the run has left so far: metrics, and files by name without .json."""
        folder = self.storage / self.run
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows or ROWS))
        for name, content in files.items():
            (folder / f"{name}.json").write_text(json.dumps(content))
        return folder
