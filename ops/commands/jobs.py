"""Commands that run the job, or its data and model: rehearse, bench, tokenize, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from ops.console import Console

app = typer.Typer()


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


def result_lines(folder: Path) -> list[str]:
    """What a rehearsal says at its end."""
    from ops.run_folder import read_run

    summary = read_run(folder).summary
    return [
        f"rehearsal {summary['status']}: {summary['steps']} steps on {summary['world_size']} workers, "
        f"loss {summary['first_loss']:.2f} → {summary['last_loss']:.2f}",
        f"report: {folder / 'report.html'}",
    ]
