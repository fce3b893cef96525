"""The numbers of a run while it trains, on Ray's metrics port in Prometheus' format (training/metric_names.py).

Rank 0 tells them; Ray's agent on its node serves them, with the run's name as the label `run`:

    ray_eagleray_loss{run="eagleray-0123456789ab",…} 2.71
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from ray.util.metrics import Gauge

from training.config import TrainJob
from training.metric_names import GAUGES

_EVERY_SECONDS = 5.0
"""Ray tells a value that was set once only once, and forgets it after 20 s; it collects every 10 s (Ray 2.58,
open_telemetry_metric_recorder.py)."""
_OF_A_RECORD = {
    "eagleray_step": "step", "eagleray_loss": "loss", "eagleray_gradient_norm": "grad_norm",
    "eagleray_tokens_per_second": "tokens_per_second", "eagleray_mfu_ratio": "mfu",
    "eagleray_step_seconds": "step_seconds", "eagleray_data_wait_seconds": "data_seconds",
    "eagleray_checkpoint_seconds": "checkpoint_seconds",
}
"""Metric by the key in a record of metrics.jsonl."""


class JudgedWire(Protocol):
    """A wire that was looked at (training/wire.py)."""

    @property
    def carries_efa(self) -> bool | None:
        """None: there is nothing to tell."""


class LiveMetrics:
    """Those of one start of a run, told again and again by a thread while `with` lasts. For rank 0.

    Args:
        job: what runs.
        wire: asked at each telling, for it is looked at again.
        resumed_at: optimizer steps done.
        starts_before: times that the workers of this run were started before.
    """

    def __init__(self, job: TrainJob, wire: JudgedWire, *, resumed_at: int, starts_before: int) -> None:
        self._tags, self._wire, self._on_gpu = {"run": job.name}, wire, job.placement.device == "cuda"
        self._values: dict[str, float] = {
            "eagleray_step": resumed_at, "eagleray_restarts": starts_before, "eagleray_skipped_steps": 0}
        self._last_step = time.monotonic()
        self._last_checkpoint: float | None = None
        self._gauges = {name: Gauge(name, description=text, tag_keys=("run",)) for name, text in GAUGES.items()}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tell_on, name="eagleray-metrics", daemon=True)

    def note(self, record: Mapping[str, Any]) -> None:
        """Take over the record of a step, with what was noted of checkpoints; a value that is None stays as it was.

        A skipped step is no progress, and its age goes on.
        """
        now = time.monotonic()
        found = {name: record.get(key) for name, key in _OF_A_RECORD.items()}
        if self._on_gpu:
            found["eagleray_gpu_memory_bytes"] = record["memory_gib"] * 2**30
        skipped = self._values["eagleray_skipped_steps"] + bool(record.get("skipped"))
        known = {name: value for name, value in found.items() if value is not None}
        self._values = {**self._values, **known, "eagleray_skipped_steps": skipped}
        if not record.get("skipped"):
            self._last_step = now
        if record.get("checkpoint_seconds") is not None:
            self._last_checkpoint = now

    def values(self) -> dict[str, float]:
        """All that is known now, by name."""
        now = time.monotonic()
        found = {**self._values, "eagleray_step_age_seconds": now - self._last_step}
        if self._last_checkpoint is not None:
            found["eagleray_checkpoint_age_seconds"] = now - self._last_checkpoint
        carries_efa = self._wire.carries_efa
        if carries_efa is not None:
            found["eagleray_transport_efa"] = float(carries_efa)
        return found

    def __enter__(self) -> LiveMetrics:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        self._tell()

    def _tell_on(self) -> None:
        self._tell()
        while not self._ended.wait(_EVERY_SECONDS):
            self._tell()

    def _tell(self) -> None:
        for name, value in self.values().items():
            self._gauges[name].set(value, self._tags)
