"""Commands that read what a job left, or is made of: transport, check, report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ops.console import Console

app = typer.Typer()


@app.command(epilog="Example: kubectl logs -l ray.io/group=gpu --prefix --tail=-1 | eagleray transport -")
def transport(
    logs: Annotated[list[str], typer.Argument(metavar="FILE|DIR|-…", help="NCCL's logs, in any mix of ranks.")],
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    ranks: Annotated[int | None, typer.Option(min=1, metavar="N", help=
        "How many ranks the job has: then all of them must prove it.")] = None,
) -> None:
    """Tell over which wire the bytes of a job went: EFA or TCP, from its NCCL logs (NCCL_DEBUG=INFO).

    efa needs proof from every rank: provider efa, every channel to another node over Libfabric, and no line
    that says otherwise. What is not recognised is never taken for proof.

    Exit codes: 0 efa, 3 tcp, 4 error, 5 unproven, 2 a log that cannot be read.
    """
    from ops.transport_command import EXIT_CODES, judge, show

    found = judge(logs, ranks)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1))
    else:
        show(found, Console())
    raise typer.Exit(EXIT_CODES[found.verdict])


@app.command(epilog="Example: eagleray check cdk.out my-rayjob.yaml")
def check(
    manifests: Annotated[list[str], typer.Argument(metavar="FILE|DIR|-…", help="YAML or JSON, or a cdk.out.")],
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Find what is wrong with manifests for Ray and EFA before a cluster sees them, one finding a line.

    Also what neither the API server nor KubeRay says: jobs that are never submitted, pods that fit no node, NCCL
    that may fall back to TCP, a published dashboard. Every rule with its reason: docs/check.md.

    Exit codes: 0 nothing found, 1 findings, 2 something that cannot be read.
    """
    from ops.check_command import findings, text

    found = findings(manifests)
    typer.echo(text(found, "json" if as_json else "lines"), nl=False)
    raise typer.Exit(1 if found else 0)


@app.command(epilog="Example: eagleray report out/rehearsal -o report.html")
def report(
    run_dir: Annotated[Path, typer.Argument(help="A run's folder, with metrics.jsonl and summary.json.")],
    other: Annotated[Path | None, typer.Argument(metavar="[OTHER]", help="Another run, to compare with.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help=
        "By default report.html in RUN_DIR; of two runs comparison.html.")]
        = None,
) -> None:
    """Make a self-contained HTML page of a run: key figures, curves, replacements, settings, transport.

    With another run both are on one page: the same axes, figures side by side, the settings that differ.

    Exit codes: 0 done, 2 the run's files are missing or damaged.
    """
    from ops.report import write_report
    from ops.report_pair import write_pair

    if other is None:
        target = output or run_dir / "report.html"
        write_report(run_dir, target)
    else:
        target = output or run_dir / "comparison.html"
        write_pair(run_dir, other, target)
    typer.echo(target)
