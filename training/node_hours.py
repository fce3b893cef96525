"""For how long a run has had how many nodes: `held` in run.json, from which its cost is worked out.

An entry for every job that trained the run, and for every number of nodes that it had:
`{"job": …, "nodes": 2, "began": …, "until": …}`, in seconds since 1970. `until` is missing while the job runs, and
of a job that vanished. Between two starts of workers a job keeps its nodes, and so the entry goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.storage import RunFolder

Held = list[dict[str, Any]]


def with_start(held: Held, job: str | None, nodes: int, began: float, last_step: float | None) -> Held:
    """The entries once workers have started.

    Args:
        job: what tells one job from another (`job_of`).
        began: when their processes started.
        last_step: when the last step before was done, if there was one: what is known last of a job that vanished.
    """
    if not held:
        return [{"job": job, "nodes": nodes, "began": began}]
    *earlier, last = held
    goes_on = "until" not in last
    if goes_on and last["job"] == job:
        if last["nodes"] == nodes:
            return held
        last = {**last, "until": began}
    elif goes_on:
        last = {**last, "until": max(last["began"], min(last_step or 0.0, began))}
    return [*earlier, last, {"job": job, "nodes": nodes, "began": began}]


def note_end(folder: RunFolder, clock: Callable[[], float] = time.time) -> None:
    """Note in run.json that this job is over; nothing where it never started workers."""
    run = folder.read_json("run.json") or {}
    held = run.get("held")
    if held and "until" not in held[-1] and held[-1]["job"] == job_of(folder):
        folder.write_json("run.json", {**run, "held": [*held[:-1], {**held[-1], "until": clock()}]})


def hours(held: Held, now: float) -> tuple[float, float]:
    """Hours that the run has had nodes, and hours of nodes: twice as many where it had two."""
    spans = [(entry["nodes"], max(0.0, entry.get("until", now) - entry["began"]) / 3600) for entry in held]
    return sum(span for _, span in spans), sum(nodes * span for nodes, span in spans)


def job_of(folder: RunFolder) -> str | None:
    """The job that holds the run's folder now: its lease says."""
    from training import lease  # storage, and torch with it: who only adds up hours for a report waits for neither

    return (folder.read_json(lease.FILE) or {}).get("id")
