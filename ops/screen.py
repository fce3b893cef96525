"""What a rehearsal shows while it runs: a live bar on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ops.replacements import Replacement

_PLAIN_EVERY = 10  # steps between two lines without a terminal


class Screen:
    """Prints phases, replacements and steps."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}
        """How long each phase took."""

    @contextmanager
    def phase(self, name: str, doing: str) -> Iterator[None]:
        """Say what is being done; when it is done, how long it took."""
        began = time.monotonic()
        with self.console.status(f"{escape(doing)} …"):
            yield
        self.seconds[name] = round(time.monotonic() - began, 1)
        self.line(f"{doing}: {self.seconds[name]:.1f} s")

    def line(self, text: str) -> None:
        """One line, as it is."""
        self.console.print(escape(text), highlight=False, soft_wrap=True)

    def replacements(self, found: Sequence[Replacement]) -> None:
        """Every replaced setting, under the reason for it."""
        self.console.print("\n[bold]Replaced, because a laptop cannot have it[/] (the rest is as synthesized):")
        for why, group in groupby(sorted(found, key=lambda r: _first(found, r.why)), key=lambda r: r.why):
            self.console.print(f"  [cyan]{escape(why)}[/]", soft_wrap=True)
            for item in group:
                self.line(f"    {item.setting}: {short(item.before)} → {short(item.after)}")
        self.console.print()

    @contextmanager
    def training(self, steps: int) -> Iterator[Steps]:
        """Show steps until the block ends."""
        if not self.console.is_terminal:
            yield Steps(self, steps, None)
            return
        columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                   TextColumn("{task.fields[facts]}"), TimeElapsedColumn()]
        with Progress(*columns, console=self.console, transient=True) as bar:
            yield Steps(self, steps, bar)


class Steps:
    """The progress of one training."""

    def __init__(self, screen: Screen, steps: int, bar: Progress | None) -> None:
        self._screen, self._steps, self._bar = screen, steps, bar
        self._task = bar.add_task("starting workers", total=steps, facts="") if bar else None

    def show(self, row: dict[str, Any]) -> None:
        """A finished step: a row of metrics.jsonl."""
        loss = f"skipped: {row['reason']}" if row.get("skipped") else f"loss {row['loss']:.3f}"
        facts = f"{loss}  {row['tokens_per_second']:,.0f} tokens/s"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description="training", completed=row["step"], facts=facts)
        elif (row["step"] == 1 or row["step"] % _PLAIN_EVERY == 0 or row["step"] == self._steps
              or row.get("skipped")):
            self._screen.line(f"step {row['step']}/{self._steps}  {facts}")


def short(value: Any, width: int = 90) -> str:
    """A value on one line; None means that a setting is not set."""
    if value is None:
        return "(not set)"
    if value == "":
        return "(empty)"
    text = " ".join(str(value).split())
    return text if len(text) <= width else text[: width - 1] + "…"


def _first(found: Sequence[Replacement], why: str) -> int:
    return next(i for i, r in enumerate(found) if r.why == why)
