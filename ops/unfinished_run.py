"""A run that has no summary.json: it still trains, or was ended from outside; what its other files tell of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ops.run_cost import so_far

STATUS = "unfinished"
REASON = ("there is no summary.json: it still trains, or was ended from outside (its deadline, a deleted job, a "
          "lost head)")


def unfinished(run: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """In place of a summary, with its keys as far as they are known.

    Args:
        run: run.json.
        rows: of metrics.jsonl, at least one.
    """
    ranks, starts = run.get("ranks"), run.get("starts")
    losses = _known(rows, "loss")
    return {
        "status": STATUS, "reason": REASON,
        "steps": rows[-1]["step"], "first_loss": losses[0] if losses else None,
        "last_loss": losses[-1] if losses else None,
        **{key: _median(rows, key) for key in ("tokens_per_second", "mfu")},
        "world_size": len(ranks) if isinstance(ranks, list) else None,
        "restarts": starts - 1 if isinstance(starts, int) else None,
        **{key: run.get(key) for key in ("startup", "versions", "config_hash")},
        **so_far(run, rows[-1].get("time") or 0.0),
    }


def _known(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [row[key] for row in rows if row.get(key) is not None]


def _median(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = _known(rows, key)
    return statistics.median(values) if values else None
