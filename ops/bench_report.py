"""What a comparison says at its end: a table on the screen, and a page that opens from a disk and loads nothing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rich.markup import escape as escape_markup
from rich.table import Table

from ops.bench_record import Record
from ops.bench_result import PUBLISHED, Comparison, RunResult
from ops.curves import LINE, TEXT, figure_for_page, for_page
from ops.report import document, table

_REHEARSAL = ("Rehearsal: both sides ran on the CPUs of one machine, with gloo over ordinary sockets. It shows "
              "that the comparison works from end to end; it says nothing about EFA, NCCL or a GPU cluster.")
_MEASURED = "Measured by the jobs themselves, where they ran."


def result_table(comparison: Comparison) -> Table:
    """Every run, and the median of each wire."""
    shown = Table("run", "tokens/s", "steps/s", "transport", box=None, pad_edge=False, header_style="bold")
    for column in shown.columns[1:3]:
        column.justify = "right"
    for wire in comparison.wires:
        runs = comparison.of(wire)
        for run in runs:
            shown.add_row(run.label, f"{run.tokens_per_second:,.0f}", f"{run.steps_per_second:.4g}",
                          _verdict(run))
        shown.add_row(f"[bold]{escape_markup(wire.title)}[/], median", f"[bold]{_median_tokens(runs):,.0f}[/]",
                      f"[bold]{_median_steps(runs):.4g}[/]", "", end_section=True)
    return shown


def result_lines(comparison: Comparison, out: Path) -> list[str]:
    """The ratio with its spread, whether it counts, the published one beside it, and where the page is."""
    ratio, low, high = comparison.ratio()
    first, second = (wire.title for wire in comparison.wires)
    lines = [f"{first} / {second}: {ratio:.2f}x tokens/s (any two runs: {low:.2f}x to {high:.2f}x)"]
    lines += [f"INVALID: {problem}" for problem in comparison.problems]
    return [*lines, published(), f"report: {out / 'report.html'}"]


def published() -> str:
    """The sample's figures in a line."""
    steps = PUBLISHED["steps_per_second"]
    return (f"published by the AWS sample, {PUBLISHED['as_of']}, for another workload: {steps['efa']} and "
            f"{steps['tcp']} steps/s = {PUBLISHED['ratio']:.2f}x")


def write_bench_report(target: Path, record: Record, comparison: Comparison) -> None:
    """Write the page."""
    first, second = (wire.title for wire in comparison.wires)
    title = f"{'Rehearsal: ' if record.kind == 'rehearsal' else ''}{first} against {second}"
    body = "\n".join([
        f"<h1>{escape(title)}</h1>",
        f'<p class="note">{_REHEARSAL if record.kind == "rehearsal" else _MEASURED}</p>',
        _verdicts(comparison), _figures(comparison),
        '<h2>Runs</h2><div class="curves">'
        f'<figure><h3>Throughput of each run</h3>{_runs_chart(comparison)}</figure>'
        f'<figure><h3>Throughput of each step</h3>{_steps_chart(comparison, record.shape.warm_up)}</figure></div>',
        table(["run", "tokens/s, median step", "steps/s", "transport"],
              [[run.label, f"{run.tokens_per_second:,.0f}", f"{run.steps_per_second:.4g}", _verdict(run)]
               for run in comparison.runs]),
        _made_of(record),
        f"<h2>Published beside it</h2><p>{escape(published())}.</p><p>{escape(PUBLISHED['workload'])}. Not "
        "measured by us; the less a GPU computes between two reductions, the more the wire counts. Source: "
        f"{escape(PUBLISHED['source'])}.</p>"])
    target.write_text(document(title, body, "Made by <code>eagleray bench</code>."), encoding="utf-8")


def _verdict(run: RunResult) -> str:
    return run.verdict if run.problem is None else f"{run.verdict}, wanted {run.wire.verdict}"


def _median_tokens(runs: Sequence[RunResult]) -> float:
    return statistics.median(run.tokens_per_second for run in runs)


def _median_steps(runs: Sequence[RunResult]) -> float:
    return statistics.median(run.steps_per_second for run in runs)


def _verdicts(comparison: Comparison) -> str:
    if not comparison.problems:
        return '<p class="good">Every run went over the wire that it should.</p>'
    listed = "".join(f"<li>{escape(problem)}</li>" for problem in comparison.problems)
    return f'<p class="bad status">Invalid as a comparison of the two wires:</p><ul>{listed}</ul>'


def _figures(comparison: Comparison) -> str:
    ratio, low, high = comparison.ratio()
    pairs = [("Ratio of tokens/s", f"{ratio:.2f}x"), ("Any two runs", f"{low:.2f}x to {high:.2f}x")]
    for wire in comparison.wires:
        runs = comparison.of(wire)
        pairs += [(f"{wire.title}, tokens/s", f"{_median_tokens(runs):,.0f}"),
                  (f"{wire.title}, steps/s", f"{_median_steps(runs):.4g}")]
    shown = "".join(f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>" for label, value in pairs)
    return f'<dl class="figures">{shown}</dl>'


def _runs_chart(comparison: Comparison) -> str:
    """A bar a wire at its median, a dot a run."""
    with figure_for_page("bench-runs") as figure:
        axes = figure.add_subplot()
        for place, (wire, colour) in enumerate(zip(comparison.wires, (LINE, TEXT), strict=True)):
            runs = comparison.of(wire)
            axes.bar([place], [_median_tokens(runs)], width=0.55, color=colour, alpha=0.35)
            spread = [place + 0.06 * (number - (len(runs) - 1) / 2) for number in range(len(runs))]
            axes.scatter(spread, [run.tokens_per_second for run in runs], color=colour, s=22, zorder=3)
        axes.set_xticks([0, 1], [wire.title for wire in comparison.wires])
        axes.set_ylabel("tokens/s, all workers")
        axes.grid(True, axis="y", linewidth=0.6)
        axes.set_axisbelow(True)
        return for_page(figure, "; ".join(f"{wire.title}: {_median_tokens(comparison.of(wire)):,.0f} tokens/s"
                                          for wire in comparison.wires))


def _steps_chart(comparison: Comparison, warm_up: int) -> str:
    """A line a run, so that a drift or a stall is seen."""
    with figure_for_page("bench-steps") as figure:
        axes = figure.add_subplot()
        for wire, colour, dash in zip(comparison.wires, (LINE, TEXT), ("-", "--"), strict=True):
            for number, run in enumerate(comparison.of(wire)):
                steps = range(warm_up + 1, warm_up + 1 + len(run.tokens))
                axes.plot(steps, run.tokens, color=colour, linestyle=dash, linewidth=1.3,
                          label=wire.title if number == 0 else None, marker="o" if len(run.tokens) < 3 else None)
        axes.set_xlabel(f"optimizer step (the first {warm_up} do not count)")
        axes.set_ylabel("tokens/s, all workers")
        axes.set_ylim(bottom=0)
        axes.grid(True, linewidth=0.6)
        axes.legend(frameon=False, loc="lower right")
        return for_page(figure, "tokens per second over the steps of every run")


def _made_of(record: Record) -> str:
    shape = record.shape
    rows = [["RayJob", record.job], ["where", record.where], ["steps of a run", shape.steps],
            ["of these to warm up", shape.warm_up], ["runs of each wire, in turn", shape.repeats]]
    return ("<h2>What ran</h2>" + table(["what", "value"], rows)
            + "<p>The two RayJobs of a run stand in <code>runs/*/manifests</code>: <code>diff</code> shows that "
              "nothing but the wire, the name and the proof that is asked for differs.</p>")
