"""When a job is over that does not end by itself."""

from __future__ import annotations

from dataclasses import dataclass

ENDS_BY = "eagleray-ends-by"
"""An annotation of every RayJob: the setting by which it is ended at its deadline."""


@dataclass(frozen=True)
class Deadlines:
    """Seconds from a job's turn: to `start` (nodes, image, workers), and to its end (`run`).

    `why`: the setting that says `run`, for people. `in_line`: seconds more that it may wait for its turn, besides
    `start`, since other jobs came before.
    """

    start: int
    run: int
    why: str
    in_line: int = 0
