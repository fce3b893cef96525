"""A job on a Ray cluster of this machine, and the ways in which its parts die."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import ranks

from ops import processes
from ops.local_cluster import LocalCluster, Node, local_cluster
from ops.slot import own_slot
from ops.submitted_job import TOKEN_VARIABLE

# Ray's own defaults notice a dead node after half a minute, and a death after two seconds.
QUICK = {
    "RAY_health_check_initial_delay_ms": "500", "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000", "RAY_health_check_failure_threshold": "4",
    "RAY_AUTH_MODE": "token",
}
DRIVER = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5", "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "0.5",
    "RAY_DEDUP_LOGS": "0", "RAY_COLOR_PREFIX": "0", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
}
_SECONDS = 240


def worker(number, drain_seconds=0):
    """A node for one rank."""
    return Node(f"worker-{number}", {"num-cpus": "1", "num-gpus": "0"}, QUICK, drain_seconds=drain_seconds)


class Training:
    """A job's driver, started on the cluster as often as wanted; `run` is the folder of the run."""

    def __init__(self, cluster: LocalCluster, folder: Path, job: dict, start_timeout=120) -> None:
        folder.mkdir(exist_ok=True, parents=True)
        self.cluster, self.folder, self.job, self.start_timeout = cluster, folder, job, start_timeout
        self.run = Path(job["placement"]["storage"], job["name"])
        (folder / "train.json").write_text(json.dumps(job))
        self.driver: subprocess.Popen | None = None

    def start(self, **environment):
        with (self.folder / "log").open("ab") as log:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "training.train", "train.json"], cwd=self.folder, stdout=log, stderr=log,
                start_new_session=True, env={
                    **{k: v for k, v in os.environ.items() if not k.startswith("RAY_")}, **DRIVER,
                    "PYTHONPATH": str(Path(__file__).parents[2]), "RAY_ADDRESS": self.cluster.address,
                    "RAY_AUTH_MODE": "token", TOKEN_VARIABLE: self.cluster.token,
                    processes.MARKER: self.cluster.marker,
                    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(self.start_timeout), **environment})
        return self

    @property
    def log(self):
        return (self.folder / "log").read_text(errors="replace")

    def steps(self):
        """Steps whose numbers are written."""
        try:
            return len((self.run / "metrics.jsonl").read_text().splitlines())
        except OSError:
            return 0

    def wait_for(self, what, condition, seconds=_SECONDS):
        """Until `condition()`; its value. Fails where the driver ends first."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert self.driver is not None
            assert self.driver.poll() is None, f"the driver ended before {what}:\n{self.log[-4000:]}"
            assert time.monotonic() < deadline, f"no {what} in {seconds} s:\n{self.log[-4000:]}"
            time.sleep(0.1)
        return found

    def wait_for_step(self, step):
        self.wait_for(f"step {step}", lambda: self.steps() >= step)

    def wait(self, seconds=_SECONDS):
        """The driver's exit code."""
        assert self.driver is not None
        return self.driver.wait(seconds)

    def last_line(self):
        return self.log.strip().splitlines()[-1]

    def summary(self):
        return json.loads((self.run / "summary.json").read_text())

    def losses(self):
        return ranks.losses(self.run)

    def ranks_pids(self):
        """Process ids of the workers that train now."""
        sessions = {process.pid for process in self.cluster.nodes.values()}
        return sorted(pid for pid in processes.find(sessions, self.cluster.marker) if _trains(pid))

    def kill_rank(self, which=0, how=signal.SIGKILL):
        pids = self.wait_for("training processes", self.ranks_pids)
        os.kill(pids[which % len(pids)], how)

    def kill_driver(self):
        """The driver with -9, as when the head's pod is gone; Ray ends its workers."""
        assert self.driver is not None
        self.driver.kill()
        self.driver.wait()


def kill_node(cluster, name, how=signal.SIGKILL):
    """A whole node: with SIGKILL every process of it; with SIGTERM its `ray start`, as a pod's."""
    process = cluster.nodes[name]
    if how == signal.SIGTERM:
        process.terminate()
        return
    processes.kill_all({process.pid}, "no marker: this node alone")
    process.wait()
    del cluster.nodes[name]


@contextmanager
def cluster_of(workers, drain_seconds=0):
    """A head and nodes for one rank each."""
    with own_slot() as slot, local_cluster(slot) as cluster:
        head = Node("head", {"num-cpus": "0", "num-gpus": "0", "dashboard-host": "127.0.0.1"}, QUICK)
        cluster.start(head, [worker(n, drain_seconds) for n in range(1, workers + 1)])
        cluster.wait_until_ready(120, lambda: None)
        yield cluster


def job(folder, *, steps=40, **training):
    """Two nodes of one rank each; a step takes about a tenth of a second, a checkpoint comes every fifth."""
    training = {"steps": steps, "sequence_length": 64, "micro_batch": 4, "accumulation": 8,
                "checkpoint": {"every_steps": 5, "keep": 3}, "fabric": {"seconds": 0}, **training}
    found = ranks.job(folder, **training)
    found["placement"].update(nodes=2, workers_per_node=1)
    return found


def _trains(pid):
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"RayTrainWorker" in title
