"""A plan, or several side by side, on one screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ops.plan import Plan, Prediction, Quota
from settings.cost import NOT_INCLUDED, Cost
from settings.figure import Figure
from training.config import ModelConfig


def show(plan: Plan, console: Console) -> None:
    """One plan, with every reason and price."""
    machines, model = plan.settings.gpu, _model(plan.settings.training.model)
    console.print(f"[bold]Plan {escape(plan.label)}[/]: {escape(model)} on {machines.nodes} x "
                  f"{machines.instance_type} in {plan.settings.network.zone}", highlight=False)
    console.print(_verdict(plan) + "\n", highlight=False)
    rows = _table()
    _machine_rows(plan, rows)
    _money_rows(plan, rows)
    if plan.prediction is not None:
        _training_rows(plan.prediction, rows)
    console.print(rows, highlight=False)
    if plan.reasons:
        console.print("\n[bold]Chosen, and why[/]", highlight=False)
        console.print(_reasons(plan.reasons), highlight=False)
    for warning in plan.warnings:
        console.print(f"[yellow]warning[/]: {escape(warning)}", highlight=False)
    if plan.fits:
        console.print("\n[dim]Next: eagleray preflight asks AWS whether your account can have these nodes.[/]",
                      highlight=False)


def _model(model: ModelConfig) -> str:
    return model.name if model.architecture is None else f"a {model.architecture['model_type']} of your own sizes"


def _verdict(plan: Plan) -> str:
    if plan.fits:
        return "[green]It fits[/] (predicted)."
    if plan.fits is None:
        return f"[yellow]Not known whether it fits[/]: {escape(plan.problem)}"
    return f"[red]It does not fit[/] (predicted): {escape(plan.problem)}"


def _table() -> Table:
    rows = Table.grid(padding=(0, 1))
    rows.add_column(min_width=12, style="cyan", no_wrap=True)
    rows.add_column(overflow="fold")
    rows.add_column(style="dim", no_wrap=True)
    return rows


def _machine_rows(plan: Plan, rows: Table) -> None:
    gpu, node = plan.settings.gpu, plan.settings.gpu.instance
    many = "" if node.efa == 1 else "s"
    rows.add_row("GPU nodes", f"{gpu.nodes} x {node.type}, {gpu.capacity.kind}: {gpu.nodes * node.gpus} GPUs "
                 f"({node.gpu}, {node.gpu_mem_mib / 1024:.0f} GiB), a node {node.efa} EFA interface{many} "
                 f"and {node.net_mbps / 1000:g} Gbit/s", "published")
    system = plan.settings.system
    rows.add_row("system nodes", f"{system.nodes} x {system.instance_type}", "published")
    rows.add_row("vCPU quota", _quota(plan.gpu_quota) if plan.gpu_quota else "none for a Capacity Block",
                 "published")
    rows.add_row("and", _quota(plan.system_quota), "published")


def _quota(quota: Quota) -> str:
    return f"{quota.vcpu} of {quota.name}" + (f", {quota.code}" if quota.code else "")


def _money_rows(plan: Plan, rows: Table) -> None:
    total = plan.dollars_per_hour
    rows.add_row("an hour", f"[bold]{dollars(total)}[/] without {NOT_INCLUDED}" if total.value is not None
                 else f"unknown: {escape(total.note)}", _basis(total))
    for cost in plan.costs:
        rows.add_row("", escape(_cost(cost)), _basis(cost.each))
    rows.add_row("a job ends", escape(plan.settings.run_limit.text))


def _cost(cost: Cost) -> str:
    times = f"{cost.count} x {cost.what}" if cost.count > 1 else cost.what
    if cost.each.value is None:
        return f"{times}: unknown"
    spent = cost.count * cost.each.value
    return f"{times}: ${spent:,.{2 if spent >= 0.1 else 3}f} (list price, {cost.each.note.split(':')[0]})"


def _training_rows(found: Prediction, rows: Table) -> None:
    training = found.training
    tokens = found.steps * found.tokens_per_step
    rows.add_row("memory a GPU", f"{found.memory.value:.1f} GiB of {found.room.value:.1f}", "predicted")
    rows.add_row("a step", f"[bold]{found.seconds_per_step.value:.2f} s[/] for {found.tokens_per_step:,} tokens "
                 f"(sequences of {training.sequence_length:,})", "predicted")
    rows.add_row("speed", f"[bold]{found.tokens_per_second.value:,.0f} tokens/s[/], MFU "
                 f"{100 * (found.mfu.value or 0):.0f} % ({escape(found.seconds_per_step.note)})", "predicted")
    spent = "dollars unknown" if found.dollars.value is None else dollars(found.dollars)
    rows.add_row("the run", f"[bold]{duration(found.hours)}, {spent}[/] for {found.steps:,} steps, "
                 f"{_large(tokens)} tokens", _basis(found.hours))
    rows.add_row("10^9 tokens", dollars(found.dollars_per_billion_tokens), _basis(found.dollars_per_billion_tokens))


def _reasons(reasons: Sequence[str]) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for line in reasons:
        choice, _, why = line.partition(": ")
        table.add_row(escape(choice), escape(why))
    return table


_ROWS: tuple[tuple[str, str, Callable[[Plan], str]], ...] = (
    ("fits", "predicted", lambda plan: {True: "yes", False: "no", None: "not known"}[plan.fits]),
    ("nodes", "published", lambda plan: f"{plan.settings.gpu.nodes} x {plan.settings.gpu.instance_type}"),
    ("GPUs", "published", lambda plan: f"{plan.settings.gpu.nodes * plan.settings.gpu.instance.gpus} "
     f"{plan.settings.gpu.instance.gpu}"),
    ("EFA a node", "published", lambda plan: str(plan.settings.gpu.instance.efa)),
    ("vCPU quota", "published", lambda plan: (
        f"{plan.gpu_quota.vcpu} {plan.gpu_quota.code or ''}".strip() if plan.gpu_quota else "none")),
    ("an hour", "published", lambda plan: dollars(plan.dollars_per_hour)),
    ("GiB a GPU", "predicted", lambda plan: _of(plan, lambda p: f"{p.memory.value:.1f} of {p.room.value:.1f}")),
    ("sharding", "predicted", lambda plan: _of(plan, lambda p: p.training.parallel.sharding)),
    ("recompute", "predicted", lambda plan: _of(plan, lambda p: p.training.parallel.recompute)),
    ("batch a GPU", "predicted", lambda plan: _of(
        plan, lambda p: f"{p.training.micro_batch} x {p.training.accumulation}")),
    ("step", "predicted", lambda plan: _of(plan, lambda p: f"{p.seconds_per_step.value:.2f} s")),
    ("tokens/s", "predicted", lambda plan: _of(plan, lambda p: f"{p.tokens_per_second.value:,.0f}")),
    ("MFU", "predicted", lambda plan: _of(plan, lambda p: f"{100 * (p.mfu.value or 0):.0f} %")),
    ("run: tokens", "predicted", lambda plan: _of(plan, lambda p: _large(p.steps * p.tokens_per_step))),
    ("run: time", "predicted", lambda plan: _of(plan, lambda p: duration(p.hours))),
    ("run: dollars", "predicted", lambda plan: _of(plan, lambda p: dollars(p.dollars))),
    ("10^9 tokens", "predicted", lambda plan: _of(plan, lambda p: dollars(p.dollars_per_billion_tokens))),
)


def show_side_by_side(plans: Sequence[Plan], console: Console) -> None:
    """Several plans in columns, as many beside each other as the width holds."""
    for group in _groups(plans, console.width):
        console.print(_columns(group), highlight=False)
        console.print()
    for plan in plans:
        if plan.problem:
            console.print(f"{escape(plan.label)}: {escape(plan.problem)}", highlight=False)
        if plan.dollars_per_hour.value is None:
            console.print(f"{escape(plan.label)}: {escape(plan.dollars_per_hour.note)}", highlight=False)
        for warning in plan.warnings:
            console.print(f"[yellow]warning[/] {escape(plan.label)}: {escape(warning)}", highlight=False)
    lengths = {p.prediction.steps * p.prediction.tokens_per_step for p in plans if p.prediction}
    if lengths and max(lengths) > 1.01 * min(lengths):  # runs of as many tokens differ by a part of a step
        console.print("the runs differ in tokens: compare them by 10^9 tokens, or say their length with "
                      "-c set=training.tokens=1e9", highlight=False)


def _groups(plans: Sequence[Plan], width: int) -> Iterator[list[Plan]]:
    names = max(len(name) for name, _, _ in _ROWS) + 2
    room = width - names - len("published")
    group: list[Plan] = []
    left = room
    for plan in plans:
        needed = max(len(plan.label), *(len(cell(plan)) for _, _, cell in _ROWS)) + 2
        if group and needed > left:
            yield group
            group, left = [], room
        group.append(plan)
        left -= needed
    yield group


def _columns(plans: Sequence[Plan]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold", pad_edge=False)
    table.add_column("", style="cyan", no_wrap=True)
    for plan in plans:
        table.add_column(escape(plan.label), overflow="fold")
    table.add_column("", style="dim", no_wrap=True)
    for name, basis, cell in _ROWS:
        table.add_row(name, *(escape(cell(plan)) for plan in plans), basis)
    return table


def _of(plan: Plan, cell: Callable[[Prediction], str]) -> str:
    return "-" if plan.prediction is None else cell(plan.prediction)


def dollars(figure: Figure) -> str:
    """`$9.55`; `unknown` where it is."""
    return "unknown" if figure.value is None else f"${figure.value:,.2f}"


def duration(hours: Figure) -> str:
    """`52 s`, `21 min`, `3.4 h` or `12.3 days`."""
    if hours.value is None:
        return "unknown"
    seconds = hours.value * 3600
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{hours.value:.1f} h" if hours.value < 48 else f"{hours.value / 24:.1f} days"


def _large(number: int) -> str:
    for size, name in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return f"{number:,}"


def _basis(figure: Figure) -> str:
    return "" if figure.basis == "unknown" else figure.basis
