"""When a job is over that does not end by itself."""

from __future__ import annotations

from dataclasses import dataclass

ENDS_BY = "eagleray-ends-by"
"""An annotation of every RayJob: the setting by which it is ended at its deadline."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds from a job's creation: to `start` (nodes, image, workers), and to its end (`run`).

    `why`: the setting that says `run`, for people.
    """

    start: int
    run: int
    why: str
