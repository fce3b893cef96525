"""Puts a value in the place of every `auto`: mesh, recomputation, reduction, micro-batch, accumulation.

All combinations that fit the GPU's memory are predicted (memory.py, step_time.py). Reduction is fp32 unless that
costs too much; among the fastest plans the one with the fewest tokens a step and the least traffic is taken. A
value that the user set is kept. Everything here is a prediction from data files: no GPU, no network, no torch.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from training import elastic
from training.config import AUTO, Placement, TrainConfig, TrainJob
from training.hardware import Hardware, gpus, hardware_of
from training.plan import Plan, predict, with_choice
from training.reasons import reasons_for, said
from training.shape import ModelShape

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""What an automatic micro-batch is chosen from."""
ACCUMULATIONS = (1, 2, 4, 8, 16, 32)
"""What an automatic accumulation is chosen from."""
TOKENS_A_STEP = 2**18
"""Automatic choices stay at or below this many tokens a step: larger steps learn less from each token."""
EXACT = 0.92
"""fp32 reduction is taken if it keeps this share of the speed that bf16 reduction would have."""
NEARLY = 0.97
"""The predictions cannot tell plans apart that are this close to the fastest; other merits decide between them."""


class TopologyError(ValueError):
    """The job cannot run on its GPUs as it is set; one line that names the setting and what would work."""


def resolve(job: TrainJob, shape: ModelShape | None) -> tuple[TrainJob, list[str]]:
    """The job without `auto` and with its length in steps, and a line for each choice saying why.

    Args:
        job: as read from train.json.
        shape: of its model; None where it is not known (a mixture of experts): then nothing is predicted and
            the choices are the cautious ones.

    Raises:
        TopologyError: if the sequences are longer than the model's positions, or the model and micro-batch
            cannot fit the GPU, or the GPU has no units for the precision, or a number of nodes that
            `placement.min_nodes` allows cannot take the same step.
        UnknownGpuError: if the placement names a GPU that gpus.json lacks.
    """
    if shape is not None:
        check_positions(job.training, shape)
    check_shares(job)
    hardware = hardware_of(job.placement)
    if hardware is not None and job.training.precision == "fp8":
        check_fp8(hardware)
    if hardware is None or shape is None:
        return _in_steps(*_without_prediction(job, _unknown(job.placement, hardware)))
    plan = choose(job.training, shape, hardware, elastic.shares(job.placement))
    reasons = reasons_for(plan.training, job.training, shape, hardware)
    resolved, reasons = _in_steps(job.model_copy(update={"training": plan.training}), reasons)
    if job.placement.is_elastic:
        reasons.append(_least(job, resolved, shape, hardware))
    return resolved, reasons


def resolve_on(job: TrainJob, shape: ModelShape | None, nodes: int) -> tuple[TrainJob, list[str]]:
    """As `resolve`, for a start of the job on `nodes` nodes: the step of all of them, shared out to these.

    Raises:
        TopologyError, UnknownGpuError: as `resolve`.
    """
    resolved, reasons = resolve(job, shape)
    if nodes == job.placement.nodes:
        return resolved, reasons
    fewer = resolved.model_copy(update={"placement": elastic.on(job.placement, nodes)})
    hardware = hardware_of(fewer.placement)
    if hardware is None or shape is None:
        training, each = resolved.training, _sequences(resolved) // fewer.placement.world_size
        micro = math.gcd(each, training.micro_batch) if job.training.micro_batch == AUTO else training.micro_batch
        training = with_choice(training, micro_batch=micro, accumulation=each // micro)
    else:
        training = _on_fewer(job, resolved, shape, hardware).training
        reasons = reasons_for(training, job.training, shape, hardware)
    first = (f"nodes {nodes} of {job.placement.nodes}: micro_batch {training.micro_batch} x accumulation "
             f"{training.accumulation} a rank, so a step keeps its {resolved.tokens_per_step:,} tokens")
    return fewer.model_copy(update={"training": training}), [first, *reasons]


def choose(training: TrainConfig, shape: ModelShape, hardware: Hardware, shares: int = 1) -> Plan:
    """The plan that `resolve` takes, with its predictions.

    Args:
        training, shape, hardware: as for `plan.predict`, but with `auto`.
        shares: as in elastic.py; 1: the nodes stay as they are.

    Raises:
        TopologyError: if nothing fits.
    """
    return _best(training, list(_plans(training, shape, hardware, _batches(training, shares))), shape, hardware)


def _best(training: TrainConfig, plans: list[Plan], shape: ModelShape, hardware: Hardware) -> Plan:
    # What the user set may go to the last byte; the prediction is not exact enough to refuse that.
    fitting = ([plan for plan in plans if plan.memory.total <= hardware.comfortable_room]
               or [plan for plan in plans if plan.memory.total <= hardware.room])
    if not fitting:
        raise TopologyError(_refusal(training, shape, hardware))
    modest = [plan for plan in fitting if plan.time.tokens <= TOKENS_A_STEP]
    if not modest:
        fewest = min(plan.time.tokens for plan in fitting)
        modest = [plan for plan in fitting if plan.time.tokens == fewest]
    exact = [plan for plan in modest if plan.recipe.reduce_dtype == "fp32"]
    if exact and _fastest(exact) >= EXACT * _fastest(modest):
        modest = exact
    near = [plan for plan in modest if plan.time.tokens_per_second >= NEARLY * _fastest(modest)]
    return min(near, key=_merits)


def _fastest(plans: Sequence[Plan]) -> float:
    return max(plan.time.tokens_per_second for plan in plans)


def _merits(plan: Plan) -> tuple[float, ...]:
    """Lower is better: small steps, little on the wire (latency is not predicted), then speed, then memory."""
    time = plan.time
    return time.tokens, time.link_bytes, round(time.seconds, 2), plan.memory.total


def check_positions(training: TrainConfig, shape: ModelShape) -> None:
    """Raises TopologyError if the sequences are longer than the model has positions."""
    if shape.positions and training.sequence_length > shape.positions:
        raise TopologyError(f"training.sequence_length {training.sequence_length} is beyond the model's "
                            f"{shape.positions} positions; use {shape.positions} or less")


def check_fp8(hardware: Hardware) -> None:
    """Raises TopologyError if the GPUs have no fp8 units."""
    if not hardware.fp8:
        able = ", ".join(name for name, gpu in gpus().items() if gpu.fp8)
        raise TopologyError(f"training.precision fp8 needs GPUs with fp8 units, and {hardware.gpu} has none; "
                            f"use bf16, or one of {able}")


def largest_micro_batch(training: TrainConfig, shape: ModelShape, hardware: Hardware) -> int:
    """The largest micro-batch that fits the training's other settings, `auto` at its leanest; 0: none fits."""
    largest = 0
    step = 1 << 16
    while step:
        tried = with_choice(training, micro_batch=largest + step)
        plans = _plans(tried, shape, hardware, _batches(tried))
        if any(plan.memory.total <= hardware.room for plan in plans):
            largest += step
        else:
            step //= 2
    return largest


def _batches(training: TrainConfig, shares: int = 1) -> list[tuple[int, int]]:
    """Micro-batch and accumulation, as they may be chosen, so that a rank's sequences can be shared out."""
    found = []
    for micro in _options(training.micro_batch, MICRO_BATCHES):
        # A micro-batch that the user set stays on fewer nodes: then the accumulation alone is shared out.
        unit = shares // math.gcd(shares, micro) if training.micro_batch == AUTO else shares
        counts = _options(training.accumulation, [unit * times for times in ACCUMULATIONS])
        found += [(micro, count) for count in counts if count % unit == 0]
    return found


def _plans(training: TrainConfig, shape: ModelShape, hardware: Hardware,
           batches: Sequence[tuple[int, int]]) -> Iterator[Plan]:
    parallel = training.parallel
    shardings = ("hybrid", "full") if hardware.nodes > 1 else ("full",)
    fields = {
        "sharding": _options(parallel.sharding, shardings),
        "reshard_after_forward": _options(parallel.reshard_after_forward, (True, False)),
        "reduce_dtype": _options(parallel.reduce_dtype, ("fp32", "bf16")),
        "recompute": _options(parallel.recompute, ("none", "layers")),
    }
    for (micro, count), *values in itertools.product(batches, *fields.values()):
        chosen = {"micro_batch": micro, "accumulation": count, **dict(zip(fields, values, strict=True))}
        yield predict(with_choice(training, **chosen), shape, hardware)


def _on_fewer(job: TrainJob, resolved: TrainJob, shape: ModelShape, hardware: Hardware) -> Plan:
    """The plan for the step of `resolved` on fewer nodes; `job`: as written. What rounds alike stays as it was."""
    parallel = job.training.parallel
    free = {name: AUTO for name in ("sharding", "reshard_after_forward", "recompute")
            if getattr(parallel, name) == AUTO}
    training = with_choice(resolved.training, micro_batch=job.training.micro_batch, **free)
    each = _sequences(resolved) // hardware.world
    micros = _options(job.training.micro_batch, MICRO_BATCHES)
    batches = [(micro, each // micro) for micro in micros if each % micro == 0]
    try:
        return _best(training, list(_plans(training, shape, hardware, batches)), shape, hardware)
    except TopologyError as error:
        where = f"on {hardware.nodes} of {job.placement.nodes} nodes (gpu.min_nodes, gpu.nodes)"
        raise TopologyError(f"{where} {error}; or use a larger gpu.min_nodes") from error


def _least(job: TrainJob, resolved: TrainJob, shape: ModelShape, hardware: Hardware) -> str:
    """What the fewest nodes would do; they are those that hold most in memory.

    Raises:
        TopologyError: if it does not fit them.
    """
    fewest = job.placement.fewest_nodes
    plan = _on_fewer(job, resolved, shape, dataclasses.replace(hardware, nodes=fewest))
    batch = f"micro_batch {plan.recipe.micro_batch} x accumulation {plan.recipe.accumulation}"
    return (f"min_nodes {fewest}: a step there is the same {resolved.tokens_per_step:,} tokens, {batch} a GPU, and "
            f"predicted to take {plan.time.seconds:.2f} s")


def _sequences(resolved: TrainJob) -> int:
    """Sequences of one step."""
    return resolved.tokens_per_step // resolved.training.sequence_length


def check_shares(job: TrainJob) -> None:
    """Raises TopologyError if some number of nodes that is allowed could not take the same step as all of them."""
    training, place = job.training, job.placement
    unit, sizes = elastic.shares(place), f"{elastic.sizes_said(place)} nodes (gpu.min_nodes, gpu.nodes)"
    if not _batches(training, unit):
        raise TopologyError(f"training.accumulation {training.accumulation} cannot be shared out to {sizes}, each "
                            f"with the same step; use auto, a multiple of {unit}, or another gpu.min_nodes")
    if training.accumulation != AUTO:
        return
    micro = 1 if training.micro_batch == AUTO else training.micro_batch
    smallest = place.world_size * micro * training.sequence_length
    if unit * smallest > max(TOKENS_A_STEP, 2 * smallest):
        raise TopologyError(f"training.accumulation auto: a step that {sizes} can share out alike has at least "
                            f"{unit * smallest:,} tokens, and automatic choices stay under {TOKENS_A_STEP:,}; "
                            f"use another gpu.min_nodes, or set accumulation to a multiple of {unit}")


def _options(value: Any, choices: Sequence[Any]) -> Sequence[Any]:
    return choices if value == AUTO else (value,)


def _refusal(training: TrainConfig, shape: ModelShape, hardware: Hardware) -> str:
    asked = training.micro_batch
    smallest = with_choice(training, micro_batch=1) if asked == AUTO else training
    leanest = min(_plans(smallest, shape, hardware, _batches(smallest)), key=lambda plan: plan.memory.total)
    gib, held = 2.0**30, leanest.memory.state + leanest.memory.gradients
    name = f"{'an' if hardware.gpu[0] in 'alhr' else 'a'} {hardware.gpu}"
    line = (f"training.micro_batch {asked} does not fit: about {leanest.memory.gib:.1f} GiB a GPU "
            f"({held / gib:.1f} of them weights, gradients and optimizer), and {name} has "
            f"{hardware.room / gib:.1f} to give")
    largest = largest_micro_batch(training, shape, hardware)
    if largest:
        return f"{line}; the largest that fits is {largest}"
    ways = [] if training.parallel.recompute != "none" else ["training.parallel.recompute: layers"]
    if leanest.recipe.sharding == "hybrid":
        ways.append("training.parallel.sharding: full")
    ways.append("a shorter training.sequence_length, more nodes, or GPUs with more memory")
    return f"{line}; not even 1 fits: use {', '.join(ways)}"


def steps_of(training: TrainConfig, tokens_per_step: int) -> int:
    """Optimizer steps of a training whose length is said in steps or in tokens; the last step is a whole one."""
    return training.steps if training.tokens is None else math.ceil(training.tokens / tokens_per_step)


def _in_steps(job: TrainJob, reasons: list[str]) -> tuple[TrainJob, list[str]]:
    """The job with steps in the place of tokens, now that the tokens of one step are known."""
    tokens = job.training.tokens
    if tokens is None:
        return job, reasons
    steps = steps_of(job.training, job.tokens_per_step)
    training = job.training.model_copy(update={"steps": steps, "tokens": None})
    reason = f"steps {steps}: {tokens:,} tokens at {job.tokens_per_step:,} a step"
    return job.model_copy(update={"training": training}), [*reasons, reason]


def _unknown(placement: Placement, hardware: Hardware | None) -> str:
    if hardware is not None:
        return "the model's shape is not known"
    return "nothing is predicted for CPUs" if placement.device == "cpu" else "no GPU is named"


def _without_prediction(job: TrainJob, why: str) -> tuple[TrainJob, list[str]]:
    """The cautious choices; recomputation and fp32 cost time and never correctness."""
    training, place = job.training, job.placement
    unit = elastic.shares(place)
    cautious = {
        "sharding": "hybrid" if place.nodes > 1 else "full",
        "reshard_after_forward": True,
        "reduce_dtype": "fp32",
        "recompute": "none" if place.device == "cpu" else "layers",
        "micro_batch": 1 if training.accumulation == AUTO else unit // math.gcd(unit, training.accumulation),
        "accumulation": unit,
    }
    asked = {**training.parallel.model_dump(), "micro_batch": training.micro_batch,
             "accumulation": training.accumulation}
    chosen = {name: value for name, value in cautious.items() if asked[name] == AUTO}
    reasons = [f"{name} {said(value)}: {why}, so the cautious choice" for name, value in chosen.items()]
    return job.model_copy(update={"training": with_choice(training, **chosen)}), reasons
