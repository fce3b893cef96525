"""One self-contained HTML page about a run: it opens from a disk, loads nothing, and says what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ops.curves import CURVES, step_times, svg
from ops.run_cost import RunCost, run_cost
from ops.run_folder import Run, finite, read_run
from ops.screen import short
from settings.figure import Figure
from settings.prices import read_prices

_CSS = Path(__file__).with_name("report.css")
_SHOWN = 10  # skipped steps that are listed

_KINDS = {
    "rehearsal": "Rehearsal: the synthesized job ran on one machine, on CPUs, with what is listed under "
                 "“Replaced” exchanged. Its speed says nothing about a GPU cluster, and nothing was deployed.",
    "predicted": "Predicted: these numbers were computed, nothing ran.",
    "published": "Published: these numbers come from AWS's article; they were not measured here.",
    "measured": "Measured by the job itself, where it ran.",
}


def write_report(folder: Path, target: Path) -> None:
    """Write the report of the run in `folder` to `target`.

    Raises:
        NothingToDoError: if the run's files are missing or damaged.
    """
    target.write_text(render(read_run(folder)), encoding="utf-8")


def render(run: Run) -> str:
    """The whole page."""
    name = (run.rehearsal or {}).get("job") or run.summary.get("name") or run.folder.name
    title = f"{run.kind.capitalize()} of {name}" if run.kind != "measured" else f"Run {name}"
    sections = [_head(run, title), _figures(run), _curves(run), _faults_section(run), _startup(run),
                _transport(run), cost_section(run), _replaced(run), _settings(run), _versions(run)]
    return document(title, "\n".join(section for section in sections if section),
                    "Made by <code>eagleray report</code> from summary.json and metrics.jsonl.")


def document(title: str, body: str, footer: str) -> str:
    """A whole page. `title` is plain text; `body` and `footer` are HTML."""
    return (f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{_text(title)}</title>\n'
            f"<style>\n{_CSS.read_text()}</style>\n</head>\n<body>\n<main>\n{body}\n"
            f"<footer>{footer}</footer>\n</main>\n</body>\n</html>\n")


def _head(run: Run, title: str) -> str:
    status = str(run.summary.get("status", "unknown"))
    tone = "good" if status == "succeeded" else "bad"
    reason = run.summary.get("reason")
    words = [f"<h1>{_text(title)}</h1>",
             f'<p>Status: <span class="status {tone}">{_text(status)}</span>',
             f"{_text(reason)}</p>" if reason else "</p>",
             f'<p class="note">{_text(_KINDS.get(run.kind, run.kind))}</p>']
    transport = run.summary.get("transport")
    if isinstance(transport, Mapping) and transport.get("warning"):
        words.append(f'<p class="note bad"><strong>{_text(transport["warning"])}</strong></p>')
    return "\n".join(words)


def figure_pairs(run: Run) -> list[tuple[str, str]]:
    """The key figures: label and value, which is empty where it is not known."""
    s = run.summary
    restarts = s.get("restarts")
    return [
        ("Steps", _number(s.get("steps"), "{:,.0f}")),
        ("First loss", _number(s.get("first_loss"), "{:.3f}")),
        ("Last loss", _number(s.get("last_loss"), "{:.3f}")),
        ("Tokens per second", _number(s.get("tokens_per_second"), "{:,.0f}")),
        ("MFU", _number(s.get("mfu"), "{:.1%}")),
        ("Step time p50 / p90 / p99", _percentiles(s.get("step_seconds"))),
        ("Peak memory, rank 0", _number(s.get("memory_gib"), "{:.1f} GiB")),
        ("Reserved memory, rank 0", _number(s.get("memory_reserved_gib"), "{:.1f} GiB")),
        ("Allocation retries, rank 0", _number(s.get("alloc_retries"), "{:.0f}")),
        ("Skipped steps", _number(s.get("skipped_steps"), "{:,.0f}")),
        ("Workers", _number(s.get("world_size"), "{:.0f}")),
        ("Nodes", _number(s.get("nodes"), "{:.0f}")),
        ("Restarts", str(len(restarts)) if isinstance(restarts, list) else _number(restarts, "{:.0f}")),
        ("Wire", str(transport.get("verdict", "")) if isinstance(transport := s.get("transport"), dict) else ""),
        *_cost_pairs(run),
    ]


def _cost(run: Run) -> RunCost | None:
    return None if run.rehearsal else run_cost(run.summary, read_prices())


def _cost_pairs(run: Run) -> list[tuple[str, str]]:
    if (cost := _cost(run)) is None:
        return [("Dollars", ""), ("Dollars per million tokens", "")]
    return [("Dollars", _dollars(cost.spent.dollars, "{:,.2f}")),
            ("Dollars per million tokens", _dollars(cost.per_million_tokens, "{:,.4f}"))]


def _dollars(figure: Figure, form: str) -> str:
    return "unknown" if figure.value is None else form.format(figure.value)


def cost_section(run: Run, title: str = "Cost") -> str:
    """What billed while the run had nodes, with date and source of each price; nothing where nothing did."""
    if (cost := _cost(run)) is None:
        return ""
    total = cost.spent.dollars
    caption = (f"Predicted ${total.value:,.2f}: hours times list prices, {total.note}" if total.value is not None
               else f"Unknown: {total.note}")
    return f"<h2>{_text(title)}</h2>" + table(["", "hours", "$ an hour", "$", "price of"], cost.rows(), caption)


def _figures(run: Run) -> str:
    shown = "".join(f"<div><dt>{label}</dt><dd>{_text(value)}</dd></div>" for label, value in figure_pairs(run)
                    if value)
    return f'<dl class="figures">{shown}</dl>'


def _percentiles(seconds: Any) -> str:
    """`0.21 / 0.22 / 0.30 s`."""
    if not isinstance(seconds, Mapping):
        return ""
    return " / ".join(_number(seconds.get(name), "{:.2f}") for name in ("p50", "p90", "p99")) + " s"


def _curves(run: Run) -> str:
    rows = run.last_attempt()
    figures = []
    for curve in CURVES:
        drawn = svg(curve, rows)
        if drawn:
            figures.append(f"<figure><h3>{_text(curve.title)}</h3>{drawn}</figure>")
    if drawn := step_times(rows):
        figures.append(f"<figure><h3>Distribution of step times</h3>{drawn}</figure>")
    broken = sum(not finite(row.get("loss")) for row in rows)
    note = f'<p class="bad">{broken} of {len(rows)} steps have no finite loss.</p>' if broken else ""
    return f'<h2>Curves</h2>{note}{_skipped(rows)}<div class="curves">{"".join(figures)}</div>'


def _skipped(rows: Sequence[Mapping[str, Any]]) -> str:
    """The steps that changed nothing, and where their data is."""
    skipped = [row for row in rows if row.get("skipped")]
    lines = [f"step {row['step']}: {row.get('reason')}; sequences {short(row.get('sequences'))} of the data"
             for row in skipped[:_SHOWN]]
    lines += [f"and {len(skipped) - _SHOWN} more"] if len(skipped) > _SHOWN else []
    shown = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f'<p class="bad">Skipped, nothing learned:</p><ul>{shown}</ul>' if lines else ""


def _faults(run: Run) -> list[str]:
    """Hangs, and restarts: steps that were trained again show where one fell back to."""
    hangs = run.summary.get("hangs")
    again = [(before["step"], after["step"]) for before, after in zip(run.rows, run.rows[1:], strict=False)
             if after["step"] <= before["step"]]
    told = run.summary.get("restarts") or []
    lines = [f"hang: {short(reason, 300)}" for reason in (hangs if isinstance(hangs, list) else [])]
    lines += [f"after step {before} the run went on at step {after}" for before, after in again]
    return lines + [short(item, 300) for item in (told if isinstance(told, list) else
                                                  [f"workers started again: {told}"])]


def _faults_section(run: Run) -> str:
    return f"<h2>Faults and restarts</h2>{fault_list(run)}"


def fault_list(run: Run) -> str:
    """Hangs and restarts of the run, as HTML."""
    lines = _faults(run)
    return f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>" if lines else "<p>None.</p>"


def _startup(run: Run) -> str:
    """Seconds of each start until its first step was done."""
    starts = run.summary.get("startup")
    found = [start for start in starts if isinstance(start, Mapping)] if isinstance(starts, list) else []
    phases = list(dict.fromkeys(phase for start in found for phase in start.get("seconds") or {}))
    rows = []
    for number, start in enumerate(found, 1):
        at, graphs = start.get("resumed_at"), start.get("compiled")
        name, seconds = f"{number}, after step {at}" if at else f"{number}", start.get("seconds") or {}
        compiled = f"{graphs.get('anew')} / {graphs.get('from_cache')}" if isinstance(graphs, Mapping) else "none"
        rows.append([name, *(seconds.get(phase) for phase in phases), start.get("total"), compiled])
    columns = ["start", *(phase.replace("_", " ") for phase in phases), "total", "graphs compiled / cached"]
    caption = "Seconds from the start of rank 0's process to the end of its first step, by phase"
    return f"<h2>Start-up</h2>{table(columns, rows, caption)}" if rows else ""


def _transport(run: Run) -> str:
    transport = run.summary.get("transport")
    if not isinstance(transport, Mapping):
        return ""
    verdict, require = transport.get("verdict", "none"), transport.get("require")
    allowed = "allowed" if transport.get("allowed") else "not allowed"
    asked = f" ({allowed} by training.transport.require {_text(require)})" if require else ""
    listed = "".join(f"<li>{_text(_reason(reason))}</li>" for reason in transport.get("reasons") or [])
    ranks = [rank for rank in transport.get("ranks") or [] if isinstance(rank, Mapping)]
    return (f"<h2>Over which wire</h2><p>Verdict: <strong>{_text(verdict)}</strong>{asked}</p>"
            f"<ul>{listed}</ul>{_fabric(transport.get('fabric'))}{_counters(transport.get('counters'))}"
            f"{_rank_table(ranks)}")


def _reason(reason: Any) -> str:
    """A reason is a text, or a code with what was seen and its mend."""
    if not isinstance(reason, Mapping):
        return short(reason, 300)
    return "; ".join(str(reason[key]) for key in ("code", "detail", "mend") if reason.get(key))


def _fabric(fabric: Any) -> str:
    """The check before the model loaded: bandwidth by message size."""
    if not isinstance(fabric, Mapping):
        return ""
    expected = fabric.get("expected")
    should = ""
    if isinstance(expected, Mapping):
        should = f" {expected['what']} should give {expected['gb_s']:.2f} GB/s."
    caption = (f"All-reduce over {fabric.get('ranks')} ranks before the model loaded: sums {fabric.get('sums')}; "
               f"{fabric.get('convention')}.{should}")
    rows = [(f"{item['size'] / 2**20:.0f} MiB", f"{item['bus_gb_s']:.2f}", f"{item['seconds'] * 1e3:.2f}")
            for item in fabric.get("measured") or []]
    return table(["message", "GB/s", "ms"], rows, caption)


def _counters(counters: Any) -> str:
    """What the EFA devices counted over the steps: unavailable is not zero."""
    if not isinstance(counters, Mapping):
        return ""
    if counters.get("status") != "read":
        return f"<p>EFA counters: unavailable ({_text(short(counters.get('reason'), 300))})</p>"
    return table(["EFA counter", "over the steps, all nodes"], list((counters.get("counters") or {}).items()))


def _rank_table(ranks: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(key for rank in ranks for key in rank))
    return table(columns, ([rank.get(column) for column in columns] for rank in ranks)) if columns else ""


def _replaced(run: Run) -> str:
    found = (run.rehearsal or {}).get("replaced")
    if not isinstance(found, list):
        return ""
    reasons: dict[str, list[Mapping[str, Any]]] = {}
    for item in found:
        reasons.setdefault(str(item.get("why")), []).append(item)
    groups = "".join(
        f'<tbody><tr><th colspan="2" scope="rowgroup" class="why">{_text(why)}</th></tr>'
        + "".join(f'<tr><th scope="row" class="value">{_breakable(item.get("setting"))}</th>'
                  f'<td>{_breakable(short(item.get("before"), 300))} <b aria-label="becomes">→</b> '
                  f'{_breakable(short(item.get("after"), 300))}</td></tr>' for item in items) + "</tbody>"
        for why, items in reasons.items())
    return (f'<h2>Replaced</h2><div class="table"><table>'
            f"<caption>{len(found)} settings; the rest ran as synthesized.</caption>"
            f'<thead><tr><th scope="col">setting</th><th scope="col">in the job → here</th></tr></thead>'
            f"{groups}</table></div>")


def _settings(run: Run) -> str:
    settings = (run.rehearsal or {}).get("settings") or run.summary.get("config")
    config_hash = run.summary.get("config_hash")
    caption = f"config hash {config_hash}" if config_hash else ""
    if not isinstance(settings, Mapping):
        return f"<h2>Settings</h2><p>{_text(caption)}</p>" if caption else ""
    return "<h2>Settings</h2><details><summary>All settings of the run</summary>" + table(
        ["setting", "value"], leaves("", settings), caption) + "</details>"


def _versions(run: Run) -> str:
    versions = run.summary.get("versions")
    rows = list(versions.items()) if isinstance(versions, Mapping) else []
    rows += [(key, (run.rehearsal or {})[key]) for key in ("machine", "entrypoint") if key in (run.rehearsal or {})]
    rows += [(f"seconds: {key}", value) for key, value in ((run.rehearsal or {}).get("seconds") or {}).items()]
    return "<h2>Versions and times</h2>" + table(["what", "value"], rows) if rows else ""


def leaves(path: str, value: Any) -> Iterable[tuple[str, Any]]:
    """Every value inside of `value`, by its path."""
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from leaves(f"{path}.{key}" if path else str(key), below)
    else:
        yield path, value


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """A table of plain values, the first of each row as its head."""
    head = "".join(f'<th scope="col">{_text(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row" class="value">{_breakable(short(row[0], 300))}</th>'
        + "".join(f"<td>{_breakable(short(cell, 300))}</td>" for cell in row[1:]) + "</tr>"
        for row in rows)
    above = f"<caption>{_text(caption)}</caption>" if caption else ""
    return f'<div class="table"><table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _breakable(value: Any) -> str:
    """Long names and paths may break after a dot, slash or underscore, not in a word."""
    return re.sub(r"([./_]+)", r"\1<wbr>", _text(value))


def _number(value: Any, form: str) -> str:
    return form.format(value) if finite(value) else "" if value is None else str(value)


def _text(value: Any) -> str:
    return escape(str(value), quote=True)
