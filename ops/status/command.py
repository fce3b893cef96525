"""`eagleray status`: one look, or one after the other until the job has ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.live import Live
from rich.markup import escape

from ops.aws import Aws
from ops.context import Context
from ops.errors import CommandError
from ops.interrupts import interrupts
from ops.kube import Namespace, connect
from ops.status.screen import as_json, job_line, screen
from ops.status.snapshot import Looker, Snapshot
from settings.prices import read_prices

_EVERY_SECONDS = 5.0
_SILENCE_SECONDS = 300.0
"""Without an answer of the cluster, while following."""


@dataclass(frozen=True)
class Wanted:
    """What was asked for. `job` None: the newest that trains."""

    context: Context
    job: str | None = None
    how: Literal["once", "follow"] = "once"
    output: Literal["screen", "json"] = "screen"


def run(wanted: Wanted, console: Console, aws: Callable[[], Aws] = Aws,
        cluster: Callable[[str], Namespace] = connect) -> int:
    """Show what is there. 0; following a job, 1 if it failed.

    Raises:
        NothingToDoError: if neither AWS nor the cluster can be asked, or there is no such job.
    """
    looker = Looker(wanted.context.settings(), wanted.job, aws, cluster, read_prices())
    if wanted.how == "once":
        found = looker.look()
        if wanted.output == "json":
            _write_json(console, found)
        else:
            console.print(screen(found), highlight=False)
        return 0
    with interrupts():
        found = _follow(looker, wanted, console)
    return 0 if found.shown is None or found.shown.succeeded else 1


def _follow(looker: Looker, wanted: Wanted, console: Console) -> Snapshot:
    """Look until the job is over; the last look."""
    if wanted.output == "json" or not console.is_terminal:
        return _follow_in_lines(looker, wanted, console)
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        return _until_over(looker, lambda found: live.update(screen(found), refresh=True))


def _follow_in_lines(looker: Looker, wanted: Wanted, console: Console) -> Snapshot:
    told: list[str] = []

    def tell(found: Snapshot) -> None:
        if wanted.output == "json":
            _write_json(console, found, indent=None)
        elif (line := job_line(found)) not in told[-1:]:
            told.append(line)
            console.print(escape(line), highlight=False, soft_wrap=True)

    return _until_over(looker, tell)


def _until_over(looker: Looker, tell: Callable[[Snapshot], None]) -> Snapshot:
    answered = time.monotonic()
    while True:
        found = looker.look()
        tell(found)
        now = time.monotonic()
        if found.jobs is not None:
            answered = now
            if found.shown is None or found.shown.is_over:
                return found
        elif now - answered > _SILENCE_SECONDS:
            raise CommandError("the cluster has not answered for five minutes: "
                               + "; ".join(unknown.why for unknown in found.unknown))
        time.sleep(_EVERY_SECONDS)


def _write_json(console: Console, found: Snapshot, indent: int | None = 2) -> None:
    console.file.write(json.dumps(as_json(found), indent=indent) + "\n")
