"""A run as its folder tells it: metrics.jsonl, summary.json (before there is one run.json) and, for a rehearsal,
rehearsal.json."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.errors import NothingToDoError
from ops.result_folder import RECORD
from ops.unfinished_run import unfinished

METRICS = ("loss", "grad_norm", "learning_rate", "tokens_per_second", "step_seconds", "mfu", "memory_gib")
"""Numbers of a metrics row that are drawn, besides `step`."""


@dataclass(frozen=True)
class Run:
    """Rows in the order they were written: after a restart, steps come again."""

    folder: Path
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    rehearsal: dict[str, Any] | None

    @property
    def kind(self) -> str:
        """`rehearsal` on a laptop, else `measured`: a number is worth what it was measured on."""
        return "rehearsal" if self.rehearsal else str(self.summary.get("kind", "measured"))

    def last_attempt(self) -> list[dict[str, Any]]:
        """One row a step: where a step was trained again after a restart, the later one."""
        return [row for _, row in sorted({row["step"]: row for row in self.rows}.items())]


def read_run(folder: Path) -> Run:
    """Read a run's folder.

    Raises:
        NothingToDoError: naming the file, and for metrics.jsonl the line, that is missing or damaged.
    """
    if not folder.is_dir():
        raise NothingToDoError(f"{folder}: no such folder; name a run's folder, for example out/rehearsal")
    finished = (folder / "summary.json").exists() or not (folder / "run.json").exists()
    summary = read_json(folder / "summary.json") if finished else None
    rehearsal = read_json(folder / RECORD) if (folder / RECORD).exists() else None
    rows = _read_rows(folder / "metrics.jsonl")
    return Run(folder, rows, summary or unfinished(read_json(folder / "run.json"), rows), rehearsal)


def read_json(path: Path) -> dict[str, Any]:
    """A file's JSON object.

    Raises:
        NothingToDoError: naming the file and what is wrong with it.
    """
    try:
        value = json.loads(_read_text(path))
    except ValueError as error:
        raise NothingToDoError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise NothingToDoError(f"{path}: must be a JSON object")
    return value


def _read_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(_read_text(path).splitlines(), 1):
        if line.strip():
            rows.append(_row(path, number, line))
    if not rows:
        raise NothingToDoError(f"{path}: holds no steps; the run ended before its first step")
    return rows


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise NothingToDoError(f"{path} line {number}: not JSON: {error}") from None
    if not isinstance(row, dict) or not _is_number(row.get("step")):
        raise NothingToDoError(f"{path} line {number}: has no step number")
    wrong = [name for name in METRICS if row.get(name) is not None and not _is_number(row[name])]
    if wrong:
        raise NothingToDoError(f"{path} line {number}: {wrong[0]} is not a number")
    return row


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def finite(value: Any) -> bool:
    """True for a number that can be drawn: a diverged loss is NaN."""
    return _is_number(value) and math.isfinite(value)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NothingToDoError(f"{path}: no such file; a run leaves metrics.jsonl and summary.json") from None
    except (OSError, UnicodeDecodeError) as error:
        raise NothingToDoError(f"{path}: not readable: {error}") from None
