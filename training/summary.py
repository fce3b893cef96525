"""summary.json: how a run ended, from what it left in storage."""

from __future__ import annotations

import statistics
import time
from typing import Any

from training import checkpoint, node_hours, watchdog, wire
from training.config import TrainJob
from training.metrics import percentiles, read_metrics
from training.storage import RunFolder

_UNREAD = {"code": "not_looked_at", "detail": "the job ended before it looked at its wire",
           "mend": "see the run's reason", "ranks": []}
_HIGHEST = ("memory_gib", "memory_reserved_gib", "alloc_retries")


def summarise(job: TrainJob, folder: RunFolder, failure: str | None,
              exported: dict[str, str | None] | None = None) -> dict[str, Any]:
    """The summary of a run that has ended.

    Args:
        job: what was to run.
        folder: of the run.
        failure: the reason in one line; None for a run that succeeded.
        exported: what became of the model at the end (final_export.py); None where none was to be written.

    Returns:
        `tokens_per_second` and `mfu` are medians over steps, `step_seconds` their percentiles; a start's first
        step, which compiles, does not count. `restarts` counts the times that the workers were started again,
        in this call or an earlier one; `startup` has the seconds of each start until its first step, by phase, and
        its ranks; `world_size` and `nodes` are of the last start (an elastic run may have had more).
        `rented` is what billed by the hour, None on a laptop; `hours` that the run had nodes, over all jobs that
        trained it, and `node_hours` of all nodes together.
        `hangs` are the reasons for which the watchdog ended the workers.
        `memory_gib`, `memory_reserved_gib` and `alloc_retries` are of rank 0.
    """
    records = read_metrics(folder)
    run = folder.read_json("run.json") or {}
    startup = run.get("startup", [])
    warm = _without_first_steps(records, startup)
    losses = _known(records, "loss")
    newest = checkpoint.newest(folder)
    world = len(run.get("ranks", [])) or job.placement.world_size
    hours, of_nodes = node_hours.hours(run.get("held", []), time.time())
    return {
        "status": "succeeded" if failure is None else "failed",
        "reason": failure,
        "name": job.name,
        "steps": records[-1]["step"] if records else 0,
        "skipped_steps": sum(record.get("skipped", False) for record in records),
        "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        "tokens_per_second": _median(warm, "tokens_per_second"),
        "mfu": _median(warm, "mfu"),
        "step_seconds": percentiles(_known(warm, "step_seconds")),
        **{key: max(_known(records, key), default=None) for key in _HIGHEST},
        "world_size": world,
        "nodes": world // job.placement.workers_per_node,
        "transport": _transport(folder, run.get("ranks", [])),
        "restarts": max(0, run.get("starts", 0) - 1),
        "startup": startup,
        "rented": run.get("rented"),
        "hours": hours,
        "node_hours": of_nodes,
        "hangs": watchdog.hangs(folder),
        "checkpoint": None if newest is None else f"{folder.uri}/{checkpoint.checkpoint_path(newest)}",
        "model": exported,
        "versions": run.get("versions", {}),
        "config_hash": job.config_hash(),
    }


def _transport(folder: RunFolder, started: list[dict[str, Any]]) -> dict[str, Any]:
    """What the ranks found of their wire, with the device of each rank that came to train."""
    found = folder.read_json(wire.FILE) or {"verdict": "unproven", "reasons": [_UNREAD], "ranks": []}
    known = {record["rank"]: record for record in started}
    ranks = [known.get(record["rank"], {}) | record for record in found["ranks"]]
    return {**found, "ranks": ranks or started}


def _without_first_steps(records: list[dict[str, Any]], startup: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first = {start["resumed_at"] + 1 for start in startup}
    return [record for record in records if record["step"] not in first] or records


def _median(records: list[dict[str, Any]], key: str) -> float | None:
    values = _known(records, key)
    return statistics.median(values) if values else None


def _known(records: list[dict[str, Any]], key: str) -> list[float]:
    return [record[key] for record in records if record.get(key) is not None]
