"""The `eagleray` command: its subcommands are in ops/commands/."""

from __future__ import annotations

import typer
from rich.markup import escape

from ops.commands import before, diagnosing, jobs, operation, reading
from ops.console import Console
from ops.errors import CommandError, StoppedError

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Rehearse a training job before it costs anything, and read what it did.")
for commands in (before, jobs, operation, reading, diagnosing):
    app.add_typer(commands.app)


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
