"""A line for each choice of topology.py, with the numbers that decided it."""

from __future__ import annotations

from typing import Any

from training.config import AUTO, TrainConfig
from training.hardware import Hardware, gpus
from training.plan import Plan, predict, with_choice
from training.shape import ModelShape

_GIB = 2.0**30


def reasons_for(chosen: TrainConfig, asked: TrainConfig, shape: ModelShape, hardware: Hardware) -> list[str]:
    """Why each setting has its value: `sharding hybrid: …`. What the user set says so.

    The last lines say what is predicted in all.
    """
    plan = predict(chosen, shape, hardware)

    def other(**choices: Any) -> Plan:
        return predict(with_choice(chosen, **choices), shape, hardware)

    why = {
        "sharding": _why_sharding(plan, other, hardware),
        "reshard_after_forward": _why_reshard(plan, other, hardware),
        "reduce_dtype": _why_reduce(plan, other),
        "recompute": _why_recompute(plan, other, hardware),
        "micro_batch": _why_micro_batch(plan, other, hardware),
        "accumulation": _why_accumulation(plan, hardware),
    }
    lines = []
    for name, reason in why.items():
        holder, was = (chosen.parallel, asked.parallel) if hasattr(chosen.parallel, name) else (chosen, asked)
        by_user = getattr(was, name) != AUTO
        lines.append(f"{name} {said(getattr(holder, name))}: {'set by you' if by_user else reason}")
    return [*lines, *_predicted(plan, hardware)]


def said(value: Any) -> str:
    """A value as it is written in YAML."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _why_sharding(plan: Plan, other: Any, hardware: Hardware) -> str:
    if hardware.nodes == 1:
        return "one node"
    chosen = plan.recipe.sharding
    rival = other(sharding="hybrid" if chosen == "full" else "full")
    link = f"the {hardware.link / 1e9:.3g} GB/s link of a node"
    ours, theirs = (f"{p.time.link_bytes / 1e9:.1f} GB a step {_over(p.recipe.sharding, p.recipe.shards)}"
                    for p in (plan, rival))
    if chosen == "hybrid":
        return f"{link} carries {ours}, where it would carry {theirs}"
    if rival.memory.total > hardware.comfortable_room:
        return f"hybrid would need {rival.memory.gib:.1f} GiB a GPU of {_room(hardware)}; {link} carries {ours}"
    return f"{link} carries {ours}, and {theirs}, which would be no faster"


def _over(sharding: str, shards: int) -> str:
    return f"with hybrid ({shards} shards a node)" if sharding == "hybrid" else f"sharded over {shards}"


def _why_reshard(plan: Plan, other: Any, hardware: Hardware) -> str:
    kept, freed = other(reshard_after_forward=False), other(reshard_after_forward=True)
    costs = f"keeping the gathered layers takes {(kept.memory.total - freed.memory.total) / _GIB:.1f} GiB"
    saves = f"saves {max(0.0, 100 * (1 - kept.time.seconds / freed.time.seconds)):.1f} % of a step"
    if not plan.recipe.reshard_after_forward:
        return f"{costs} that are free, and {saves}"
    if kept.memory.total > hardware.comfortable_room:
        return f"{costs}, and {_room(hardware)} do not hold it"
    return f"{costs} and only {saves}"


def _why_reduce(plan: Plan, other: Any) -> str:
    exact, short = other(reduce_dtype="fp32"), other(reduce_dtype="bf16")
    slower = 100 * (exact.time.seconds / short.time.seconds - 1)
    if plan.recipe.reduce_dtype == "fp32":
        return f"exact sums of gradients cost {slower:.0f} % of a step against bf16"
    return f"fp32 would lengthen this step by {slower:.0f} %"


def _why_recompute(plan: Plan, other: Any, hardware: Hardware) -> str:
    kept, again = other(recompute="none"), other(recompute="layers")
    tokens = f"{plan.recipe.micro_batch} x {plan.recipe.sequence} tokens"
    if plan.recipe.recompute == "none":
        return f"the activations of {tokens} fit: {kept.memory.gib:.1f} GiB in all of {_room(hardware)}"
    if kept.memory.total > hardware.comfortable_room:
        return (f"the activations of {tokens} would need {kept.memory.gib:.1f} GiB in all of {_room(hardware)}; "
                f"recomputed, {again.memory.gib:.1f}")
    return f"leaves room: {again.memory.gib:.1f} GiB instead of {kept.memory.gib:.1f}"


def _why_micro_batch(plan: Plan, other: Any, hardware: Hardware) -> str:
    more = other(micro_batch=plan.recipe.micro_batch + 1)
    fits = f"{plan.memory.gib:.1f} GiB of {_room(hardware)}"
    if more.memory.total > hardware.comfortable_room:
        return f"the largest that fits this plan, {fits}"
    gain = 100 * (more.time.tokens_per_second / plan.time.tokens_per_second - 1)
    return f"{fits}; {plan.recipe.micro_batch + 1} would be {gain:.1f} % faster, with larger steps"


def _why_accumulation(plan: Plan, hardware: Hardware) -> str:
    recipe, time = plan.recipe, plan.time
    tokens = f"{time.tokens:,} tokens a step"
    where = "between nodes" if hardware.nodes > 1 else "between GPUs"
    if hardware.world == 1:
        return tokens
    if recipe.accumulation == 1:
        wire = max(time.link, time.intra)
        return f"{tokens}; {time.compute:.2f} s of computation stand beside {wire:.2f} s on the wire"
    return f"{tokens}; gradients travel {where} once for {recipe.accumulation} micro-batches"


def _predicted(plan: Plan, hardware: Hardware) -> list[str]:
    time, basis = plan.time, gpus()[hardware.gpu].basis
    return [
        f"predicted: {time.seconds:.2f} s a step, {time.tokens_per_second:,.0f} tokens/s, "
        f"MFU {100 * time.mfu:.0f} %, {plan.memory.gib:.1f} GiB a GPU of {_room(hardware)}",
        f"predicted: {time.compute:.2f} s computation ({hardware.gpu} at {100 * hardware.achieved:.0f} % "
        f"of its peak, {basis}), {time.link:.2f} s between nodes, {time.intra:.2f} s between GPUs of a node",
    ]


def _room(hardware: Hardware) -> str:
    return f"{hardware.comfortable_room / _GIB:.1f} GiB"
