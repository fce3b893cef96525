"""A training job on a Ray cluster of this machine, whose parts can be made to die: for the soak and for tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ops import processes
from ops.local_cluster import LocalCluster, Node, local_cluster
from ops.slot import own_slot
from ops.submitted_job import TOKEN_VARIABLE

Found = TypeVar("Found")

# Ray's own defaults notice a dead node after half a minute, and a death after two seconds.
QUICK = {
    "RAY_health_check_initial_delay_ms": "500", "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000", "RAY_health_check_failure_threshold": "4",
    "RAY_AUTH_MODE": "token",
}
_DRIVER = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5", "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "0.5",
    "RAY_DEDUP_LOGS": "0", "RAY_COLOR_PREFIX": "0", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
}
_SECONDS = 240


class JobStuckError(Exception):
    """A job ended, or made no progress, where something else was waited for."""


class Storage:
    """A folder that can fail as a whole and at once, and be there again.

    It is a link: pointed at a file, every path below it fails ("Not a directory"), for whoever uses it.

    Args:
        folder: where link, folder and file lie.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self._disk, self._file = folder / "storage", folder / "disk", folder / "no-folder"
        self._disk.mkdir(parents=True)
        self._file.touch()
        self.path.symlink_to(self._disk)

    def fail(self) -> None:
        """From now on, until `mend`."""
        self._point_at(self._file)

    def mend(self) -> None:
        """All is there again."""
        self._point_at(self._disk)

    def _point_at(self, target: Path) -> None:
        link = self.path.with_name("link")
        link.symlink_to(target)
        link.replace(self.path)


class Training:
    """A job's driver, started on the cluster as often as wanted.

    Args:
        folder: for train.json and the driver's log.
        job: contents of train.json.
        start_timeout: seconds for which the job waits for nodes.
    """

    def __init__(self, cluster: LocalCluster, folder: Path, job: dict[str, Any], start_timeout: int = 120) -> None:
        folder.mkdir(exist_ok=True, parents=True)
        self.cluster, self.folder, self.job, self.start_timeout = cluster, folder, job, start_timeout
        self.run = Path(job["placement"]["storage"], job["name"])
        """The folder of the run."""
        (folder / "train.json").write_text(json.dumps(job))
        self.driver: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> Training:
        """Start the driver; `environment` on top of its own."""
        with (self.folder / "log").open("ab") as log:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "training.train", "train.json"], cwd=self.folder, stdout=log, stderr=log,
                start_new_session=True, env={
                    **{k: v for k, v in os.environ.items() if not k.startswith("RAY_")}, **_DRIVER,
                    "PYTHONPATH": str(Path(__file__).parents[1]), "RAY_ADDRESS": self.cluster.address,
                    "RAY_AUTH_MODE": "token", TOKEN_VARIABLE: self.cluster.token,
                    processes.MARKER: self.cluster.marker,
                    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(self.start_timeout), **environment})
        return self

    @property
    def log(self) -> str:
        """What all its drivers and their workers printed."""
        return (self.folder / "log").read_text(errors="replace")

    def steps(self) -> int:
        """Steps whose numbers are written."""
        try:
            return len((self.run / "metrics.jsonl").read_text().splitlines())
        except OSError:
            return 0

    def losses(self) -> list[tuple[int, float]]:
        """(step, loss) of each line of metrics.jsonl."""
        lines = (self.run / "metrics.jsonl").read_text().splitlines()
        return [(record["step"], record["loss"]) for record in map(json.loads, lines)]

    def summary(self) -> dict[str, Any]:
        """The contents of summary.json."""
        return json.loads((self.run / "summary.json").read_text())

    def last_line(self) -> str:
        """Of the log."""
        return self.log.strip().splitlines()[-1]

    def wait_for(self, what: str, condition: Callable[[], Found], seconds: float = _SECONDS) -> Found:
        """Until `condition()`; its value.

        Raises:
            JobStuckError: if the driver ends first, or `seconds` pass.
        """
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            if self.driver is None or self.driver.poll() is not None:
                raise JobStuckError(f"the driver ended before {what}:\n{self.log[-4000:]}")
            if time.monotonic() > deadline:
                raise JobStuckError(f"no {what} in {seconds:g} s:\n{self.log[-4000:]}")
            time.sleep(0.1)
        return found

    def wait_for_step(self, step: int) -> None:
        """Until the numbers of `step` are written; raises as `wait_for`."""
        self.wait_for(f"step {step}", lambda: self.steps() >= step)

    def wait(self, seconds: float = _SECONDS) -> int:
        """The driver's exit code."""
        assert self.driver is not None
        return self.driver.wait(seconds)

    def ranks_pids(self) -> list[int]:
        """Process ids of the workers that train now."""
        sessions = {process.pid for process in self.cluster.nodes.values()}
        return sorted(pid for pid in processes.find(sessions, self.cluster.marker) if _trains(pid))

    def kill_rank(self, which: int = 0, how: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the process of one rank."""
        pids = self.wait_for("training processes", self.ranks_pids)
        os.kill(pids[which % len(pids)], how)

    def kill_driver(self) -> None:
        """The driver with -9, as when the head's pod is gone; Ray ends its workers."""
        assert self.driver is not None
        self.driver.kill()
        self.driver.wait()


def worker(number: int, drain_seconds: int = 0, environment: Mapping[str, str] = QUICK) -> Node:
    """A node for one rank."""
    flags = {"num-cpus": "1", "num-gpus": "0"}
    return Node(f"worker-{number}", flags, environment, drain_seconds=drain_seconds)


@contextmanager
def cluster_of(workers: int, drain_seconds: int = 0,
               environment: Mapping[str, str] = QUICK) -> Iterator[LocalCluster]:
    """A head and the nodes worker-1, worker-2 … for one rank each, all up.

    Args:
        drain_seconds: for which a node drains after SIGTERM.
        environment: of the nodes, such as how soon Ray takes one for dead.
    """
    with own_slot() as slot, local_cluster(slot) as cluster:
        head = Node("head", {"num-cpus": "0", "num-gpus": "0", "dashboard-host": "127.0.0.1"}, environment)
        cluster.add(head)
        cluster.wait_until_ready(180, lambda: None)  # on a busy machine nodes would give up on a head so young
        cluster.add(*(worker(n, drain_seconds, environment) for n in range(1, workers + 1)))
        cluster.wait_until_ready(180, lambda: None)
        yield cluster


def kill_node(cluster: LocalCluster, name: str, how: signal.Signals = signal.SIGKILL) -> None:
    """A whole node: with SIGKILL every process of it; with SIGTERM its `ray start`, as a pod's, which drains."""
    process = cluster.nodes[name]
    if how == signal.SIGTERM:
        process.terminate()
        return
    processes.kill_all({process.pid}, "no marker: this node alone")
    process.wait()
    del cluster.nodes[name]


def _trains(pid: int) -> bool:
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"RayTrainWorker" in title
