"""Commands for a deployment that stands: status, logs, run, down."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, cast

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


class LogOf(StrEnum):
    """Whose log."""

    driver = "driver"
    submitter = "submitter"
    rank = "rank"
    head = "head"
    operator = "operator"
    plugins = "plugins"


@app.command(epilog="Example: eagleray logs rank --rank 3 --tail 100")
def logs(
    what: Annotated[LogOf, typer.Argument(help="driver: the job without its ranks; submitter: all of the job; "
                                          "rank: one with --rank, else all.")] = LogOf.driver,
    job: Annotated[str | None, typer.Option(metavar="RAYJOB", help="By default the newest that trains.")] = None,
    rank: Annotated[int | None, typer.Option(min=0, help="Of this rank.")] = None,
    tail: Annotated[int | None, typer.Option(min=1, help="Only the last lines.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="As the lines come.")] = False,
    storage: Annotated[str | None, typer.Option(help="s3://BUCKET/runs, when cluster and job are gone; --job is "
                                                "then the name of the run's folder.")] = None,
    context: ContextOption = None,
) -> None:
    """The log of a part: from its pod; when that is gone from CloudWatch; else what the run left in its storage.

    The first line, on stderr, says from where.

    Exit codes: 0 shown, 1 the cluster refused, 2 there is no such log, with each place that was looked in,
    130 stopped by Ctrl-C, 143 by SIGTERM.
    """
    import sys

    from ops.context import read_context
    from ops.logs_command import Wanted, What, run

    if rank is not None:
        if what not in (LogOf.driver, LogOf.rank):
            raise typer.BadParameter(f"the {what.value} has no ranks", param_hint="--rank")
        what = LogOf.rank
    how = "follow" if follow else "once"
    wanted = Wanted(read_context(context or []), cast(What, what.value), job, rank, tail, how, storage)
    run(wanted, sys.stdout, lambda line: typer.echo(line, err=True))


@app.command(epilog="Example: eagleray run --set training.steps=50,training.seed=7 --name seed-7 --queue 12")
def run(
    overrides: Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE,…", help=
        "Settings of this job: training.*, ray.run_hours, ray.max_dollars, ray.start_minutes.")] = None,
    name: Annotated[str | None, typer.Option(help="Of job and folder, in place of the deployment's.")] = None,
    queue: Annotated[int | None, typer.Option(min=1, max=720, metavar="HOURS", help=
        "Wait that long for GPUs that other jobs have.")] = None,
    context: ContextOption = None,
) -> None:
    """Submit a further job to the standing cluster: no deployment, within a minute while nodes are up.

    It is made as the deployed one is, with your code as it lies here, and named after what it contains. What
    would change the cluster is refused.

    Exit codes: 0 submitted, or the same job is there and not done; 1 the cluster refused; 2 nothing submitted:
    a wrong setting, no cluster, or another job has the GPUs (without --queue).
    """
    from ops.context import read_context
    from ops.run_command import Wanted, run

    wanted = Wanted(read_context(context or []), tuple(overrides or ()), name, queue)
    submitted = run(wanted, typer.echo)
    typer.echo(f"watch it: eagleray status {submitted} --follow")


@app.command(epilog="Example: eagleray down -c config=h100")
def down(
    context: ContextOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Without asking.")] = False,
) -> None:
    """Take the deployment down: jobs, Ray clusters, all stacks; then name what still bills, and how to remove it.

    Shows what goes and what stays (the bucket) and asks first; until then it only reads. Stopped or failed, the
    same command goes on from there.

    Exit codes: 0 down, or nothing was changed; 1 a stack is left, with the reason; 2 wrong settings, no
    credentials or no cdk; 130 stopped by Ctrl-C, 143 by SIGTERM.
    """
    from ops.context import read_context
    from ops.down.command import Wanted, run

    wanted = Wanted(read_context(context or []), "yes" if yes else "ask")
    raise typer.Exit(run(wanted, Console(), confirm=lambda question: typer.confirm(question, err=True)))
