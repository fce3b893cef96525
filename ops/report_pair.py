"""Two runs on one page: the same axes, the figures side by side, and what differs in their settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from ops.curves import CURVES, svg_of_runs
from ops.report import cost_section, document, fault_list, figure_pairs, leaves, table
from ops.run_folder import Run, read_run
from ops.screen import short

_ABSENT = "no such rank"


def write_pair(first: Path, second: Path, target: Path) -> None:
    """Write the comparison of the runs in two folders to `target`.

    Raises:
        NothingToDoError: if a run's files are missing or damaged.
    """
    target.write_text(render_pair(read_run(first), read_run(second)), encoding="utf-8")


def render_pair(first: Run, second: Run) -> str:
    """The whole page."""
    labels = _labels(first, second)
    title = " and ".join(labels)
    kinds = f'<p class="note">{escape(f"{labels[0]}: {first.kind}. {labels[1]}: {second.kind}.")}</p>'
    body = "\n".join([f"<h1>{escape(title)}</h1>", kinds, _figures(first, second, labels),
                      _curves(first, second, labels), _faults(first, second, labels),
                      _transport(first, second, labels), *_costs(first, second, labels),
                      _settings(first, second, labels)])
    return document(title, body, "Made by <code>eagleray report RUN OTHER</code> from summary.json, metrics.jsonl "
                                 "and run.json.")


def _labels(first: Run, second: Run) -> tuple[str, str]:
    """Names that tell them apart."""
    names = [str(run.summary.get("name") or run.folder.name) for run in (first, second)]
    if names[0] == names[1]:
        names = [str(run.folder) for run in (first, second)]
    return (names[0], names[1]) if names[0] != names[1] else (f"{names[0]} (1)", f"{names[1]} (2)")


def _figures(first: Run, second: Run, labels: tuple[str, str]) -> str:
    left, right = dict(figure_pairs(first)), dict(figure_pairs(second))
    rows = [("Status", first.summary.get("status"), second.summary.get("status"))]
    rows += [(label, left[label], right[label]) for label in left if left[label] or right[label]]
    return table(["", *labels], rows)


def _costs(first: Run, second: Run, labels: tuple[str, str]) -> list[str]:
    return [cost_section(run, f"Cost of {label}") for run, label in zip((first, second), labels, strict=True)]


def _curves(first: Run, second: Run, labels: tuple[str, str]) -> str:
    rows = ((labels[0], first.last_attempt()), (labels[1], second.last_attempt()))
    drawn = [(curve.title, svg) for curve in CURVES if (svg := svg_of_runs(curve, rows))]
    figures = "".join(f"<figure><h3>{escape(title)}</h3>{svg}</figure>" for title, svg in drawn)
    return f'<h2>Curves</h2><div class="curves">{figures}</div>'


def _faults(first: Run, second: Run, labels: tuple[str, str]) -> str:
    lists = "".join(f"<h3>{escape(label)}</h3>{fault_list(run)}"
                    for label, run in zip(labels, (first, second), strict=True))
    return f"<h2>Faults and restarts</h2>{lists}"


def _transport(first: Run, second: Run, labels: tuple[str, str]) -> str:
    """Rank by rank; a rank that only one of the runs had says so."""
    left, right = _wires(first), _wires(second)
    rows = [(rank, left.get(rank, _ABSENT), right.get(rank, _ABSENT)) for rank in dict.fromkeys([*left, *right])]
    return "<h2>Over which wire, by rank</h2>" + table(["rank", *labels], rows) if rows else ""


def _wires(run: Run) -> dict[str, str]:
    """`provider efa, network Libfabric, NET/Libfabric 16` by rank, in the order of the summary."""
    transport = run.summary.get("transport")
    ranks = transport.get("ranks") if isinstance(transport, Mapping) else None
    return {_rank(rank): _wire(rank) for rank in ranks or [] if isinstance(rank, Mapping)}


def _rank(rank: Mapping[str, Any]) -> str:
    """Its number, or its process where the log did not tell one."""
    number = rank.get("rank")
    return f"{rank.get('host')} process {rank.get('pid')}" if number is None else str(number)


def _wire(rank: Mapping[str, Any]) -> str:
    channels, errors = rank.get("channels"), rank.get("errors")
    told = [f"{name} {rank[name]}" for name in ("provider", "network") if rank.get(name)]
    told += [f"{name} {count}" for name, count in (channels.items() if isinstance(channels, Mapping) else ())]
    told += [f"error {code}" for code in (errors if isinstance(errors, list) else ())]
    return ", ".join(told) or "nothing seen"


def _settings(first: Run, second: Run, labels: tuple[str, str]) -> str:
    left, right = _written(first), _written(second)
    if left is None or right is None:
        return "<h2>Settings</h2><p>Not both runs say what they were made of (run.json).</p>"
    differing = [(path, short(left.get(path)), short(right.get(path))) for path in _all(left, right)
                 if left.get(path) != right.get(path)]
    if not differing:
        return "<h2>Settings</h2><p>The same in both.</p>"
    return "<h2>Settings that differ</h2>" + table(["setting", *labels], differing)


def _all(*leaves_of: Mapping[str, Any]) -> Iterable[str]:
    return dict.fromkeys(path for found in leaves_of for path in found)


def _written(run: Run) -> dict[str, Any] | None:
    """The training's settings by path, from run.json."""
    try:
        told = json.loads((run.folder / "run.json").read_text())["training"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(leaves("", told))
