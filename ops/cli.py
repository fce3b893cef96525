"""The `eagleray` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ops.errors import CommandError, StoppedError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Rehearse a training job before it costs anything, and read what it did.")


@app.callback()
def _every_command() -> None:
    """Present so that a single command keeps its name."""


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
