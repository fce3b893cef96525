"""A look at a deployment on one screen, and for machines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from ops.run_cost import RunCost
from ops.status.run_state import RunState
from ops.status.snapshot import JobState, NodeState, Snapshot, StackState

_ALL_PODS = 12
"""Pods up to which the well ones are listed too."""
_GOOD_STACKS = ("CREATE_COMPLETE", "UPDATE_COMPLETE")


def screen(found: Snapshot) -> RenderableType:
    """The whole screen."""
    settings = found.settings
    context = f", context {found.context}" if found.context else ""
    title = f"[bold]{settings.name}[/] in {settings.region}{escape(context)}, {found.at:%Y-%m-%d %H:%M} UTC"
    rows = Table.grid(padding=(0, 1))
    rows.add_column(style="cyan", no_wrap=True, min_width=8)
    rows.add_column(overflow="fold")
    for label, lines in (("stacks", _stacks(found)), ("nodes", _nodes(found)), ("pods", _pods(found)),
                         ("jobs", _jobs(found)), ("run", _run(found)), ("dollars", _dollars(found)),
                         ("unknown", _unknown(found))):
        for number, line in enumerate(lines):
            rows.add_row("" if number else label, line)
    return Group(title, rows)


def job_line(found: Snapshot) -> str:
    """The followed job in one plain line: what a terminal that cannot redraw is told when it changes."""
    if found.shown is None:
        return "no job"
    job = found.shown
    words = [job.name, " ".join(filter(None, [job.deployment, job.job])), *([job.why] if job.why else [])]
    return "  ".join([*words, *(_run_words(found.run) if found.run else [])])


def _stacks(found: Snapshot) -> Iterator[str]:
    if found.stacks is None:
        return
    if not any(stack.status for stack in found.stacks):
        yield f"none of {found.settings.name}-* stands; [bold]cdk deploy --all[/] makes them"
        return
    for stack in found.stacks:
        yield f"{stack.name}  {_stack_words(stack)}"


def _stack_words(stack: StackState) -> str:
    if stack.status is None:
        return "[dim]not there[/]"
    bad = "FAILED" in stack.status or "ROLLBACK" in stack.status
    tone = "green" if stack.status in _GOOD_STACKS else "red" if bad else "yellow"
    return f"[{tone}]{stack.status}[/]" + (f"  {escape(stack.why)}" if stack.why and bad else "")


def _nodes(found: Snapshot) -> Iterator[str]:
    if found.nodes is None:
        return
    gpu = found.settings.gpu
    have = [node for node in found.nodes if node.instance_type == gpu.instance_type]
    gpus, efa = sum(node.gpus for node in have), sum(node.efa for node in have)
    complete = len(have) == gpu.nodes and all(_is_whole(found, node) for node in have)
    idle = not have and not any(not job.is_over for job in found.jobs or [])
    tone = "green" if complete else "dim" if idle else "yellow"
    yield (f"[{tone}]{len(have)} of {gpu.nodes} {gpu.instance_type}: "
           f"GPUs {gpus} of {gpu.nodes * gpu.instance.gpus}, EFA {efa} of {gpu.nodes * gpu.instance.efa}[/]"
           + (" (no job wants them)" if idle else " (allocatable of expected)"))
    for node in found.nodes:
        if node in have:
            note = "" if _is_whole(found, node) else "  [yellow]incomplete: do the device plugins run?[/]"
            yield (f"{node.name}  {_node_words(node)}  GPUs {node.gpus}/{gpu.instance.gpus}  "
                   f"EFA {node.efa}/{gpu.instance.efa}{note}")
        else:
            yield f"{node.name}  {node.instance_type}  {_node_words(node)}"


def _is_whole(found: Snapshot, node: NodeState) -> bool:
    wanted = found.settings.gpu.instance
    return node.state == "ready" and (node.gpus, node.efa) == (wanted.gpus, wanted.efa)


def _node_words(node: NodeState) -> str:
    return f"[{'green' if node.state == 'ready' else 'yellow'}]{escape(node.state)}[/]"


def _pods(found: Snapshot) -> Iterator[str]:
    if found.pods is None:
        return
    well = [pod for pod in found.pods if pod.is_well]
    for pod in found.pods:
        if not pod.is_well:
            yield f"{pod.name}  [red]{escape(pod.state)}[/]: {escape(pod.why)}"
    if len(well) <= _ALL_PODS:
        yield from (f"{pod.name}  [green]{pod.state}[/]" for pod in well)
    else:
        yield f"{len(well)} more, which run or are done"
    if not found.pods:
        yield "none"


def _jobs(found: Snapshot) -> Iterator[str]:
    if found.jobs is None:
        return
    for job in found.jobs:
        mark = "[bold]>[/] " if found.shown and job.name == found.shown.name and len(found.jobs) > 1 else ""
        state, *more = _job_words(job)
        tone = "green" if job.succeeded or job.job == "RUNNING" else "red" if job.is_over else "yellow"
        yield f"{mark}{job.name}  [{tone}]{escape(state)}[/]" + "".join(f"  {escape(word)}" for word in more)
    if not found.jobs:
        yield "none"


def _job_words(job: JobState) -> list[str]:
    state = " ".join(filter(None, [job.deployment, job.job]))
    if job.since and job.ended:
        state += f" after {_span(job.ended - job.since)}"
    elif job.since and not job.is_over:
        state += f" for {_span(datetime.now(job.since.tzinfo) - job.since)}"
    words = [state, *([job.why] if job.why else [])]
    if job.deadline and not job.is_over:
        by = f" ({job.ends_by})" if job.ends_by else ""
        words.append(f"ends at {job.deadline:%Y-%m-%d %H:%M} UTC at the latest{by}")
    return words


def _run(found: Snapshot) -> Iterator[str]:
    run = found.run
    if run is None:
        return
    words = _run_words(run)
    yield escape("  ".join(words)) if words else "no step yet"
    restarts = "" if run.restarts is None else f"  restarts {run.restarts}"
    verdict = run.verdict or "not known yet"
    tone = {"efa": "green", "tcp": "red", "error": "red"}.get(verdict, "yellow")
    yield f"wire [{tone}]{verdict}[/]{restarts}  {escape(run.run.uri)}"
    if run.reason:
        yield f"[red]{escape(run.reason)}[/]"
    if found.cost:
        yield _cost_words(found.cost)


def _cost_words(cost: RunCost) -> str:
    dollars, tokens = cost.spent.dollars, cost.per_million_tokens
    if dollars.value is None:
        return f"cost [yellow]unknown[/]: {escape(dollars.note)}"
    speed = "" if tokens.value is None else f", ${tokens.value:.4f} a million tokens at this speed"
    return f"cost ${dollars.value:,.2f}{speed} [dim](predicted, {escape(dollars.note)})[/]"


def _run_words(run: RunState) -> list[str]:
    if run.step is None:
        return []
    of = f" of {run.steps}" if run.steps else ""
    words = [f"step {run.step}{of}", f"loss {run.loss:.4g}" if run.loss is not None else ""]
    words += [f"skipped: {run.skipped}" if run.skipped else ""]
    words += [f"{run.tokens_per_second:,.0f} tokens/s" if run.tokens_per_second is not None else ""]
    words += [f"MFU {run.mfu:.1%}" if run.mfu is not None else ""]
    return [word for word in words if word]


def _dollars(found: Snapshot) -> Iterator[str]:
    spent = found.spent
    if spent is None:
        return
    if spent.dollars.value is None:
        yield f"[yellow]unknown[/]: {escape(spent.dollars.note)}"
    else:
        yield (f"[bold]${spent.dollars.value:,.2f}[/] so far, ${spent.an_hour.value or 0:,.2f} an hour as it "
               f"stands (predicted: {escape(spent.dollars.note)})")
    yield from (f"[dim]{escape(line)}[/]" for line in spent.lines)


def _unknown(found: Snapshot) -> Iterator[str]:
    return (f"[yellow]{unknown.what}[/]: {escape(unknown.why)}" for unknown in found.unknown)


def _span(time: timedelta) -> str:
    minutes = int(time.total_seconds() // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def as_json(found: Snapshot) -> dict[str, Any]:
    """For machines; keys are only ever added. None: not known, and `unknown` says why."""
    gpu = found.settings.gpu
    return {
        "name": found.settings.name, "region": found.settings.region, "context": found.context,
        "at": found.at.isoformat(),
        "stacks": _each(found.stacks, "name", "status", "why"),
        "expected": {"instance_type": gpu.instance_type, "nodes": gpu.nodes, "gpus_per_node": gpu.instance.gpus,
                     "efa_per_node": gpu.instance.efa},
        "nodes": _each(found.nodes, "name", "instance_type", "state", "gpus", "efa"),
        "pods": _each(found.pods, "name", "state", "why", "node"),
        "jobs": None if found.jobs is None else [_job_json(job) for job in found.jobs],
        "job": found.shown.name if found.shown else None,
        "run": _run_json(found) if found.run else None,
        "dollars": found.spent.dollars.as_json() if found.spent else None,
        "dollars_per_hour": found.spent.an_hour.as_json() if found.spent else None,
        "unknown": _each(found.unknown, "what", "why"),
    }


def _run_json(found: Snapshot) -> dict[str, Any]:
    cost = found.cost
    return {**(found.run.as_json() if found.run else {}),
            "dollars": cost.spent.dollars.as_json() if cost else None,
            "dollars_per_million_tokens": cost.per_million_tokens.as_json() if cost else None}


def _job_json(job: JobState) -> dict[str, Any]:
    kept = {name: getattr(job, name) for name in ("name", "deployment", "job", "why", "is_over", "ends_by")}
    return {**kept, "deadline": job.deadline.isoformat() if job.deadline else None}


def _each(items: Iterable[Any] | None, *names: str) -> list[dict[str, Any]] | None:
    return None if items is None else [{name: getattr(item, name) for name in names} for item in items]
