"""Commands for a deployment that stands: status."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.console import Console

app = typer.Typer()

ContextOption = Annotated[list[str] | None, typer.Option("-c", "--context", metavar="KEY=VALUE", help=
    "config=NAME or file, set=path=value,…: as for cdk, and by default what cdk would take.")]


@app.command(epilog="Example: eagleray status --follow")
def status(
    job: Annotated[str | None, typer.Argument(metavar="[RAYJOB]", help=
        "Whose run to tell of; by default the newest that trains.")] = None,
    context: ContextOption = None,
    follow: Annotated[bool, typer.Option("--follow", help="Look again every 5 s until the job has ended.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines; with --follow one line a look.")] = False,
) -> None:
    """What stands and what runs, on one screen: stacks, nodes with GPUs and EFA, pods and why they do not run,
    jobs, the run's step, loss, speed, wire and restarts, and the dollars so far.

    Only reads. What cannot be asked (no credentials, no cluster) is told as unknown, beside all else.

    Exit codes: 0 shown, 1 the job that was followed failed, 2 wrong settings, no such job, or neither AWS nor the
    cluster can be asked, 130 stopped by Ctrl-C, 143 by SIGTERM.
    """
    from ops.context import read_context
    from ops.status.command import Wanted, run

    wanted = Wanted(read_context(context or []), job, "follow" if follow else "once",
                    "json" if as_json else "screen")
    raise typer.Exit(run(wanted, Console()))
