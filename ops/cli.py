"""The `eagleray` command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ops.errors import CommandError, NothingToDoError, StoppedError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Rehearse a training job before it costs anything, and read what it did.")


@app.callback()
def _every_command() -> None:
    """Present so that a single command keeps its name."""


@app.command(epilog="Example: eagleray plan -c config=h100 -c set=training.tokens=1e9 --compare l4,h100,g6e")
def plan(
    context: Annotated[list[str] | None, typer.Option("-c", "--context", metavar="KEY=VALUE", help=
        "config=NAME or file, set=path=value,…: as for cdk, and by default what cdk would take.")] = None,
    compare: Annotated[str | None, typer.Option(metavar="A,B,…", help=
        "Side by side: configs, and instance types or families in place of the GPU type.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Prices from AWS as of now; needs credentials.")] = False,
) -> None:
    """What a training needs, costs and reaches, before anything is paid: instances, quota, dollars, memory, speed.

    Needs no credentials and asks nothing of AWS (but for --live). Each figure says whether it is measured,
    published or predicted; the predictions are those that the job itself chooses its mesh and batch by.

    Exit codes: 0 it fits, or nothing is known against it; 1 it does not fit (with --compare: none does);
    2 a wrong setting or option.
    """
    from ops.context import read_context
    from ops.plan_command import Wanted, run

    wanted = Wanted(read_context(context or []), compare, "live" if live else "file",
                    "json" if as_json else "screen")
    raise typer.Exit(run(wanted, Console(), Console(stderr=True)))


catalog_app = typer.Typer(no_args_is_help=True, help="The data files about what AWS sells, from AWS's own answers.")
app.add_typer(catalog_app, name="catalog")


@catalog_app.command("add", epilog="Example: eagleray catalog add g7e.12xlarge --region us-west-2")
def catalog_add(
    instance_type: Annotated[str, typer.Argument(help="Instance type, such as g7e.12xlarge.")],
    region: Annotated[str, typer.Option(help="Where to ask.")] = "us-east-2",
) -> None:
    """Write a new instance type into the catalog, from EC2's DescribeInstanceTypes; needs credentials.

    Exit codes: 0 added, 1 AWS did not answer, 2 no such type, one that cannot train, or no credentials.
    """
    from ops.catalog_command import add_type

    for line in add_type(instance_type, region):
        typer.echo(line)


@catalog_app.command("prices", epilog="Example: eagleray catalog prices us-east-2 us-west-2")
def catalog_prices(regions: Annotated[list[str], typer.Argument(help="Regions to ask the prices of.")]) -> None:
    """Write today's on-demand prices of the catalog's types into prices.json; needs credentials.

    Exit codes: 0 written, 1 AWS did not answer, 2 a region without EKS, or no credentials.
    """
    from ops.catalog_command import update_prices

    for line in update_prices(regions):
        typer.echo(line)


@app.command(epilog="Example: eagleray preflight --regions us-east-2,us-west-2 --probe")
def preflight(
    context: Annotated[list[str] | None, typer.Option("-c", "--context", metavar="KEY=VALUE", help=
        "config=NAME or file, set=path=value,…: as for cdk, and by default what cdk would take.")] = None,
    regions: Annotated[str | None, typer.Option(metavar="A,B,…", help="Rank these regions and zones.")] = None,
    all_regions: Annotated[bool, typer.Option("--all-regions", help="Rank every region with EKS.")] = False,
    azs: Annotated[str | None, typer.Option(metavar="A,B,…", help=
        "Only these zones, by name (us-east-2a) or id (use2-az1).")] = None,
    probe: Annotated[bool, typer.Option("--probe", help=
        "Reserve the GPU nodes and cancel that at once, to know whether they are free now. Asks first.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Probe without asking.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Ask AWS what a deployment would meet: quota, zones, capacity, reservations, roles, images. Changes nothing.

    Each failure comes with the command that mends it. What the credentials may not ask is "unknown", and the
    other checks go on. Only --probe makes anything: a reservation that is cancelled within seconds, also after
    Ctrl-C, and that EC2 would end by itself.

    Exit codes: 0 ready, 1 something fails, 2 wrong input or no usable credentials, 3 nothing fails but something
    is unknown, 130 stopped by Ctrl-C, 143 by SIGTERM.
    """
    from ops.context import read_context
    from ops.preflight.command import Wanted, listed, run

    if yes and not probe:
        raise NothingToDoError("--yes answers the question of --probe; add --probe, or leave --yes out")
    wanted = Wanted(
        read_context(context or []), listed(regions), listed(azs), all_regions,
        "no" if not probe else "yes" if yes else "ask", "json" if as_json else "screen")
    raise typer.Exit(run(wanted, Console(), confirm=lambda question: typer.confirm(question, err=True)))


@app.command(epilog="Example: eagleray up --azs us-east-2a,us-east-2b,us-west-2a -- --require-approval never")
def up(
    context: Annotated[list[str] | None, typer.Option("-c", "--context", metavar="KEY=VALUE", help=
        "config=NAME or file, set=path=value,…: as for cdk, and by default what cdk would take.")] = None,
    regions: Annotated[str | None, typer.Option(metavar="A,B,…", help="Regions that will do, best first.")] = None,
    azs: Annotated[str | None, typer.Option(metavar="A,B,…", help=
        "Zones that will do, best first, by name (us-east-2a) or id (use2-az1); by default all of the region.")]
        = None,
    cdk_options: Annotated[list[str] | None, typer.Argument(metavar="-- OPTIONS", help=
        "Handed to cdk deploy, for example -- --require-approval never.")] = None,
) -> None:
    """Deploy in the first zone that has the GPUs: preflight, cdk deploy, and the next zone where one has none.

    Keeps what stands for the next attempt, says what, and remembers the zone in eagleray.placement.json, which a
    later cdk deploy reads. Stopped or failed, the same command goes on from there.

    Exit codes: 0 deployed, 1 failed for another reason than capacity, 2 wrong input or no usable credentials,
    3 no zone has the capacity, 130 stopped by Ctrl-C, 143 by SIGTERM.
    """
    from ops.context import read_context
    from ops.preflight.command import listed
    from ops.up.command import Wanted, run

    run(Wanted(read_context(context or []), listed(regions), listed(azs), tuple(cdk_options or ())), Console())


@app.command(epilog="Example: eagleray rehearse --steps 20 --out out/short")
def rehearse(
    cdk_out: Annotated[Path, typer.Option(help="Folder that cdk synth wrote.")] = Path("cdk.out"),
    out: Annotated[Path, typer.Option(help="Folder for the results; earlier ones there are replaced at the end.")]
        = Path("out/rehearsal"),
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps; by default config/local.yaml's.")]
        = None,
    minutes: Annotated[int, typer.Option(min=1, help="Give up after this many minutes of training.")] = 15,
) -> None:
    """Run the synthesized RayJob on this machine: a Ray cluster of a CPU-less head and two nodes.

    Job, environment and code are taken out of the synthesized app; only what a laptop cannot have is
    replaced, and each replacement is listed. Leaves summary.json, metrics.jsonl, report.html and
    checkpoints/ in the results folder.

    Exit codes: 0 done, 1 the job or its cluster failed, 2 nothing to rehearse or a wrong option,
    130 stopped by Ctrl-C, 143 by SIGTERM.
    """
    from ops.rehearsal import Request, rehearse
    from ops.screen import Screen

    console = Console()
    folder = rehearse(Request(cdk_out, out, steps, minutes), Screen(console))
    for line in result_lines(folder):
        console.print(escape(line), highlight=False, soft_wrap=True)


@app.command(epilog="Example: eagleray bench --repeats 5 --out out/l4-bench")
def bench(
    cdk_out: Annotated[Path, typer.Option(help="Folder that cdk synth wrote.")] = Path("cdk.out"),
    out: Annotated[Path | None, typer.Option(help="Results; by default out/bench or out/bench-rehearsal.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each transport, in turn.")] = 3,
    steps: Annotated[int, typer.Option(min=2, help="Optimizer steps of a run.")] = 30,
    warm_up: Annotated[int, typer.Option(min=1, help="First steps of a run, which do not count.")] = 5,
    minutes: Annotated[int, typer.Option(min=1, help="Minutes that a run may take once its nodes are there.")] = 30,
    storage: Annotated[str | None, typer.Option(help="Where runs leave results; by default the deployed job's.")]
        = None,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Here, with gloo over two links.")] = False,
) -> None:
    """Compare training over EFA with training over TCP, on the cluster that KUBECONFIG names.

    Two RayJobs that differ in nothing but the transport run in turn on the deployed Ray cluster, which is not
    restarted. A run that went over another transport than it should makes the comparison invalid. Leaves
    bench.json, report.html and every run in the results folder; if it is interrupted, its RayJob is deleted,
    and the same command goes on.

    Exit codes: 0 compared, 1 a run failed, 2 nothing to compare or a wrong option, 3 compared, but invalid: a
    run went over the wrong transport, 130 stopped by Ctrl-C, 143 by SIGTERM.
    """
    from ops.bench import Request, bench, rehearse_bench
    from ops.bench_job import Shape
    from ops.bench_report import result_lines, result_table
    from ops.screen import Screen

    if warm_up >= steps:
        raise typer.BadParameter(f"{warm_up} is not less than --steps {steps}", param_hint="--warm-up")
    console = Console()
    out = out or Path("out/bench-rehearsal" if rehearse else "out/bench")
    request = Request(cdk_out, out, Shape(steps, warm_up, repeats, minutes), storage)
    comparison = (rehearse_bench if rehearse else bench)(request, Screen(console))
    console.print(result_table(comparison))
    for line in result_lines(comparison, out):
        console.print(escape(line), highlight=False, soft_wrap=True)
    raise typer.Exit(3 if comparison.problems else 0)


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


@app.command(epilog="Example: eagleray tokenize corpus/ --kind jsonl --tokenizer Qwen/Qwen2.5-1.5B --out tokens")
def tokenize(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A file, a folder, an s3:// prefix, or with "
                                          "--kind hub the name of a dataset.")],
    tokenizer: Annotated[str, typer.Option(help="A Hub id or a folder; as data.tokenizer.")],
    out: Annotated[Path, typer.Option(help="Folder for the token files; must not exist yet.")],
    kind: Annotated[str, typer.Option(help="text, jsonl, parquet or hub; as data.kind.")] = "text",
    rows: Annotated[str, typer.Option(help="text, messages or prompt; as data.rows.")] = "text",
    column: Annotated[str | None, typer.Option(help="As data.column.")] = None,
) -> None:
    """Tokenise files once, into token files that training reads with data.kind tokens.

    Exit codes: 0 written, 2 something that cannot be tokenised; named by file and row.
    """
    from ops.model_files import tokenize_files

    data = {"kind": kind, "path": source, "tokenizer": tokenizer, "rows": rows, "column": column}
    written = tokenize_files(data, out)
    typer.echo(f"{written['tokens']:,} tokens of {written['documents']:,} documents, of which "
               f"{written['counted']:,} tokens count in the loss: {out}")


@app.command(epilog="Example: eagleray export out/rehearsal --out my-model")
def export(
    run_dir: Annotated[str, typer.Argument(metavar="RUN_DIR", help="A run's folder, or its s3:// URI.")],
    out: Annotated[Path, typer.Option(help="Folder for the model; must not exist yet.")],
    step: Annotated[int | None, typer.Option(min=1, help="Of the checkpoint; by default the newest.")] = None,
    dtype: Annotated[str, typer.Option(help="bf16, or fp32 as trained.")] = "bf16",
) -> None:
    """Write a checkpoint as a Hugging Face folder, on a CPU: weights, config, tokenizer.

    Exit codes: 0 written, 2 no such run or checkpoint, or one that does not match its model.
    """
    from ops.model_files import export_run

    typer.echo(f"step {export_run(run_dir, out, step, dtype)}: {out}")


@app.command(epilog="Example: eagleray report out/rehearsal -o report.html")
def report(
    run_dir: Annotated[Path, typer.Argument(help="A run's folder, with metrics.jsonl and summary.json.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="By default report.html in RUN_DIR.")]
        = None,
) -> None:
    """Make a self-contained HTML page of a run: key figures, curves, replacements, settings, transport.

    Exit codes: 0 done, 2 the run's files are missing or damaged.
    """
    from ops.report import write_report

    target = output or run_dir / "report.html"
    write_report(run_dir, target)
    typer.echo(target)


def result_lines(folder: Path) -> list[str]:
    """What a rehearsal says at its end."""
    from ops.run_folder import read_run

    summary = read_run(folder).summary
    return [
        f"rehearsal {summary['status']}: {summary['steps']} steps on {summary['world_size']} workers, "
        f"loss {summary['first_loss']:.2f} → {summary['last_loss']:.2f}",
        f"report: {folder / 'report.html'}",
    ]


def main() -> None:
    """Entry point: a CommandError becomes its message on stderr and its exit code."""
    try:
        app()
    except StoppedError as stop:
        raise SystemExit(_say(str(stop), stop.exit_code)) from None
    except (CommandError, OSError) as error:
        code = error.exit_code if isinstance(error, CommandError) else 1
        raise SystemExit(_say(f"[bold red]error:[/] {escape(str(error))}", code)) from None


def _say(markup: str, exit_code: int) -> int:
    Console(stderr=True).print(markup, highlight=False, soft_wrap=True)
    return exit_code
