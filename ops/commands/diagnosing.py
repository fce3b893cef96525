"""The command that says what went wrong: diagnose."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.console import Console

app = typer.Typer()


@app.command(epilog="Example: kubectl get events -n ray | eagleray diagnose - worker-logs/ nodes.txt")
def diagnose(
    files: Annotated[list[str], typer.Argument(metavar="FILE|DIR|-…", help=
        "Logs, events, descriptions, states, CloudFormation events, a bundle; in any mix.")],
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Name the cause of a trouble and its fix, most likely first, with the lines it was judged by.

    Relates lines across ranks and time: the first failure, not the loudest. Where the evidence does not decide,
    the answer is unknown and says what else to collect. Kinds and confidence: docs/diagnose.md.

    Exit codes: 0 healthy, 1 a fault, 4 unknown, 2 something that cannot be read.
    """
    from ops.diagnose.command import run
    from ops.diagnose.sources import read

    raise typer.Exit(run(read(files), "json" if as_json else "screen", Console()))
