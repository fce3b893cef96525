"""The command that says what went wrong: diagnose."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ops.console import Console
from ops.errors import NothingToDoError

app = typer.Typer()


@app.command(epilog="Example: kubectl get events -n ray | eagleray diagnose - worker-logs/ nodes.txt")
def diagnose(
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE|DIR|-…", help=
        "Logs, events, descriptions, states, stack events, a bundle, in any mix; by default the cluster that "
        "KUBECONFIG names is asked.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    bundle: Annotated[Path | None, typer.Option("--bundle", metavar="OUT.tar.gz", help=
        "Also keep what the cluster told, without account ids, tokens and secrets, as a file to send.")] = None,
    hide_addresses: Annotated[bool, typer.Option("--hide-addresses", help="No IP addresses in the bundle either.")]
        = False,
    context: Annotated[list[str] | None, typer.Option("-c", "--context", metavar="KEY=VALUE", help=
        "config=NAME or file, set=path=value,…: as for cdk; names namespace, stacks and region.")] = None,
) -> None:
    """Name the cause of a trouble and its fix, most likely first, with the lines it was judged by.

    Relates lines across ranks and time: the first failure, not the loudest. Where the evidence does not decide,
    the answer is unknown and says what else to collect. Kinds and confidence: docs/diagnose.md.

    Exit codes: 0 healthy, 1 a fault, 4 unknown, 2 something that cannot be read, no cluster to ask, or a wrong
    option.
    """
    from ops.diagnose.command import run, run_live
    from ops.diagnose.sources import read

    output, console = "json" if as_json else "screen", Console()
    if files:
        if bundle or hide_addresses:
            raise NothingToDoError("--bundle keeps what the cluster tells; leave the files out, or --bundle")
        raise typer.Exit(run(read(files), output, console))
    if hide_addresses and not bundle:
        raise NothingToDoError("--hide-addresses is for --bundle; add --bundle, or leave it out")

    from ops.context import read_context

    settings = read_context(context or []).settings()
    addresses = "hidden" if hide_addresses else "kept"
    raise typer.Exit(run_live(settings, output, console, bundle, addresses))
