"""The faults of a soak: each breaks a part of a training, and brings a new part where a cluster would.

A fault is felt when the run itself shows it: a start more in run.json, a hang, a warning in the log.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.local_job import QUICK, Storage, Training, cluster_of, kill_node, worker
from training import checkpoint, watchdog
from training.storage import RunFolder

NODES = 2
DRAIN_SECONDS = 100
# On a busy machine nobody may take a node for dead that only is slow.
_PATIENT = {**QUICK, "RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "5000",
            "RAY_health_check_failure_threshold": "6"}
_OUTAGE_SECONDS = (2, 15)
"""After the first save that failed."""


class Stage:
    """A cluster of two nodes, a storage that can fail, and the training on them; `with` ends it all.

    Args:
        folder: for logs and storage.
        seed: of what a fault chooses: which rank, which node, for how long.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.dice = folder, random.Random(seed)
        self.storage = Storage(folder)
        self._open = ExitStack()
        self._training: Training | None = None

    def __enter__(self) -> Stage:
        self._new_cluster()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def training(self) -> Training:
        """That of the last `begin`."""
        assert self._training is not None
        return self._training

    def begin(self, job: dict[str, Any]) -> Training:
        """Start a job, on the stage's storage."""
        job = {**job, "placement": {**job["placement"], "storage": str(self.storage.path)}}
        self._training = Training(self._cluster, self.folder / f"{job['name']}-driver", job, start_timeout=300)
        return self._training.start()

    def starts(self) -> int:
        """How often the workers of the training came to start."""
        run = self.training.run / "run.json"
        return json.loads(run.read_text())["starts"] if run.exists() else 0

    def resumed_at(self) -> int:
        """The step after which their last start went on."""
        return json.loads((self.training.run / "run.json").read_text())["resumed_at"]

    def hangs(self) -> int:
        """How often the watchdog ended the workers."""
        return len(watchdog.hangs(RunFolder(str(self.storage.path), self.training.job["name"])))

    def checkpoints(self) -> list[Path]:
        """The complete ones of the training, oldest first; others may go while this is read."""
        return sorted(mark.parent for mark in self.training.run.glob(f"checkpoints/step-*/{checkpoint.MARK}"))

    def _new_cluster(self) -> None:
        self._cluster = self._open.enter_context(cluster_of(NODES, DRAIN_SECONDS, _PATIENT))
        self._workers, self._last = [f"worker-{n}" for n in range(1, NODES + 1)], NODES

    def _replace_a_node(self, how: signal.Signals) -> None:
        name = self.dice.choice(self._workers)
        self._workers.remove(name)
        kill_node(self._cluster, name, how)
        time.sleep(self.dice.uniform(0, 5))
        self._last += 1
        self._cluster.add(worker(self._last, DRAIN_SECONDS, _PATIENT))
        self._workers.append(f"worker-{self._last}")

    def kill_a_rank(self) -> None:
        """kill -9."""
        self.training.kill_rank(self.dice.randrange(NODES))

    def stop_a_rank(self) -> None:
        """kill -STOP: it hangs."""
        self.training.kill_rank(self.dice.randrange(NODES), signal.SIGSTOP)

    def kill_a_node(self) -> None:
        """All processes of a node at once; a new one comes."""
        self._replace_a_node(signal.SIGKILL)

    def take_a_node_with_notice(self) -> None:
        """SIGTERM to a node; a new one comes while it drains."""
        self._replace_a_node(signal.SIGTERM)

    def kill_the_driver(self) -> None:
        """kill -9, and the job started again."""
        self.training.kill_driver()
        self.training.start()

    def lose_the_cluster(self) -> None:
        """Every process of head, nodes and job at once; the job starts again on a new cluster."""
        self._open.close()
        self.training.kill_driver()
        self._new_cluster()
        self.training.cluster = self._cluster
        self.training.start()

    def damage_the_newest_checkpoint(self) -> None:
        """A byte of it changes while no driver runs; there is an older one."""
        self.training.wait_for("second checkpoint", lambda: len(self.checkpoints()) > 1)
        self.training.kill_driver()
        _wait_until(lambda: not self.training.ranks_pids())  # they may be about to complete another one
        shard = self.dice.choice(sorted(self.checkpoints()[-1].glob("*.distcp")))
        data = bytearray(shard.read_bytes())
        data[self.dice.randrange(len(data))] ^= 1 << self.dice.randrange(8)
        shard.write_bytes(data)
        self.training.start()

    def let_storage_fail(self) -> None:
        """Until a save has met it, and some seconds more; then until the first checkpoint after it."""
        failed = _failed_saves(self)
        self.storage.fail()
        self.training.wait_for("save that fails", lambda: _failed_saves(self) > failed)
        time.sleep(self.dice.uniform(*_OUTAGE_SECONDS))
        self.storage.mend()
        before = self.checkpoints()[-1:]
        self.training.wait_for("checkpoint after the outage", lambda: self.checkpoints()[-1:] > before)


@dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    make: Callable[[Stage], None]
    """Returns when the part that broke has been replaced, or at least ordered."""
    felt: Callable[[Stage], int]
    """A number that the run raises when it feels the fault."""
    restarts: bool = True
    """Whether the workers start again."""


def _failed_saves(stage: Stage) -> int:
    return stage.training.log.count("; tried again in ")


def _said(words: str) -> Callable[[Stage], int]:
    return lambda stage: stage.training.log.count(words)


KINDS = {
    "rank killed": Kind(Stage.kill_a_rank, Stage.starts),
    "rank stopped": Kind(Stage.stop_a_rank, Stage.hangs),
    "node killed": Kind(Stage.kill_a_node, Stage.starts),
    "node with notice": Kind(Stage.take_a_node_with_notice, _said("a node is about to go: saved and left")),
    "driver killed": Kind(Stage.kill_the_driver, Stage.starts),
    "cluster lost": Kind(Stage.lose_the_cluster, Stage.starts),
    "checkpoint damaged": Kind(Stage.damage_the_newest_checkpoint, _said("the one before it is tried")),
    "storage fails": Kind(Stage.let_storage_fail, _failed_saves, restarts=False),
}


def _wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
