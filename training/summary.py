"""summary.json: how a run ended, from what it left in storage."""

from __future__ import annotations

import statistics
from typing import Any

from training import checkpoint, wire
from training.config import TrainJob
from training.metrics import read_metrics
from training.storage import RunFolder

_UNREAD = {"code": "not_looked_at", "detail": "the job ended before it looked at its wire",
           "mend": "see the run's reason", "ranks": []}


def summarise(job: TrainJob, folder: RunFolder, failure: str | None) -> dict[str, Any]:
    """The summary of a run that has ended.

    Args:
        job: what was to run.
        folder: of the run.
        failure: the reason in one line; None for a run that succeeded.

    Returns:
        `tokens_per_second` and `mfu` are medians over steps; `restarts` counts the times that the workers
        were started again, in this call or an earlier one.
    """
    records = read_metrics(folder)
    run = folder.read_json("run.json") or {}
    newest = checkpoint.newest(folder)
    return {
        "status": "succeeded" if failure is None else "failed",
        "reason": failure,
        "name": job.name,
        "steps": records[-1]["step"] if records else 0,
        "first_loss": records[0]["loss"] if records else None,
        "last_loss": records[-1]["loss"] if records else None,
        "tokens_per_second": _median(records, "tokens_per_second"),
        "mfu": _median(records, "mfu"),
        "world_size": job.placement.world_size,
        "nodes": job.placement.nodes,
        "transport": _transport(folder, run.get("ranks", [])),
        "restarts": max(0, run.get("starts", 0) - 1),
        "checkpoint": None if newest is None else f"{folder.uri}/{checkpoint.checkpoint_path(newest)}",
        "versions": run.get("versions", {}),
        "config_hash": job.config_hash(),
    }


def _transport(folder: RunFolder, started: list[dict[str, Any]]) -> dict[str, Any]:
    """What the ranks found of their wire, with the device of each rank that came to train."""
    found = folder.read_json(wire.FILE) or {"verdict": "unproven", "reasons": [_UNREAD], "ranks": []}
    known = {record["rank"]: record for record in started}
    ranks = [known.get(record["rank"], {}) | record for record in found["ranks"]]
    return {**found, "ranks": ranks or started}


def _median(records: list[dict[str, Any]], key: str) -> float | None:
    # the first step compiles and allocates
    values = [record[key] for record in records[1:] or records if record[key] is not None]
    return statistics.median(values) if values else None
