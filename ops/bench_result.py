"""What a comparison found: medians, their ratio with its spread, and whether each run went over its wire."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.bench_job import PlannedRun, Wire, Wires
from ops.errors import CommandError
from ops.run_folder import Run, finite, read_run

PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text())
"""The figures of the AWS sample, with source and date. Ours to compare with, never ours."""


@dataclass(frozen=True)
class RunResult:
    """One run: medians over the steps after the warm-up, and the transport that its summary proves.

    `tokens` are tokens/s of all workers after the warm-up, step by step.
    """

    label: str
    wire: Wire
    verdict: str
    reasons: tuple[str, ...]
    tokens: tuple[float, ...]
    steps_per_second: float

    @property
    def tokens_per_second(self) -> float:
        """The median step's."""
        return statistics.median(self.tokens)

    @property
    def problem(self) -> str | None:
        """Why this run proves nothing about its wire."""
        if self.verdict == self.wire.verdict:
            return None
        why = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        return f"run {self.label} went over '{self.verdict}' where '{self.wire.verdict}' was wanted{why}"


@dataclass(frozen=True)
class Comparison:
    """Runs of both wires."""

    wires: Wires
    runs: tuple[RunResult, ...]
    problems: tuple[str, ...]
    """Why the ratio is not one of the two wires; empty for a valid comparison."""

    def of(self, wire: Wire) -> list[RunResult]:
        """The runs of one wire."""
        return [run for run in self.runs if run.wire == wire]

    def ratio(self) -> tuple[float, float, float]:
        """Median over median of tokens/s, first wire over second; then the smallest and largest of any two runs."""
        first, second = ([run.tokens_per_second for run in self.of(wire)] for wire in self.wires)
        return statistics.median(first) / statistics.median(second), min(first) / max(second), \
            max(first) / min(second)

    def as_json(self) -> dict[str, Any]:
        """What bench.json holds of it."""
        ratio, low, high = self.ratio()
        return {
            "valid": not self.problems,
            "problems": list(self.problems),
            "ratio": ratio, "ratio_lowest": low, "ratio_highest": high,
            "runs": [{"run": run.label, "tokens_per_second": run.tokens_per_second,
                      "steps_per_second": run.steps_per_second, "verdict": run.verdict,
                      "expected": run.wire.verdict} for run in self.runs],
        }


def compare(wires: Wires, results: Sequence[RunResult], more_problems: Sequence[str] = ()) -> Comparison:
    """The comparison of finished runs. `more_problems`: what the back end found besides the verdicts."""
    problems = [problem for run in results if (problem := run.problem)]
    return Comparison(wires, tuple(results), (*problems, *more_problems))


def read_result(folder: Path, run: PlannedRun, warm_up: int) -> RunResult:
    """The result of a run from its summary.json and metrics.jsonl.

    Raises:
        CommandError: if the run has no finite speed after the warm-up.
    """
    found = read_run(folder)
    rows = [row for row in found.last_attempt() if row["step"] > warm_up]
    tokens = [row["tokens_per_second"] for row in rows if finite(row.get("tokens_per_second"))]
    seconds = [row["step_seconds"] for row in rows if finite(row.get("step_seconds"))]
    if not tokens or not seconds or min(tokens) <= 0 or min(seconds) <= 0:
        raise CommandError(f"{folder}/metrics.jsonl holds no speed of a step after step {warm_up}")
    verdict, reasons = _transport(found)
    return RunResult(run.label, run.wire, verdict, reasons, tuple(tokens), 1 / statistics.median(seconds))


def _transport(run: Run) -> tuple[str, tuple[str, ...]]:
    transport = run.summary.get("transport")
    if not isinstance(transport, dict):
        return "unproven", ("its summary says nothing of the transport",)
    return str(transport.get("verdict", "unproven")), tuple(map(_reason, transport.get("reasons") or ()))


def _reason(reason: Any) -> str:
    """A reason is a text, or a code with its text."""
    return " ".join(str(value) for value in reason.values()) if isinstance(reason, dict) else str(reason)
