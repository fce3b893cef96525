"""Puts a value in the place of every `auto`: mesh, recomputation, reduction, micro-batch, accumulation.

All combinations that fit the GPU's memory are predicted (memory.py, step_time.py). Reduction is fp32 unless that
costs too much; among the fastest plans the one with the fewest tokens a step and the least traffic is taken. A
value that the user set is kept. Everything here is a prediction from data files: no GPU, no network, no torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

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
            cannot fit the GPU, or the GPU has no units for the precision.
        UnknownGpuError: if the placement names a GPU that gpus.json lacks.
    """
    if shape is not None:
        check_positions(job.training, shape)
    hardware = hardware_of(job.placement)
    if hardware is not None and job.training.precision == "fp8":
        check_fp8(hardware)
    if hardware is None or shape is None:
        return _in_steps(*_without_prediction(job, _unknown(job.placement, hardware)))
    plan = choose(job.training, shape, hardware)
    reasons = reasons_for(plan.training, job.training, shape, hardware)
    return _in_steps(job.model_copy(update={"training": plan.training}), reasons)


def choose(training: TrainConfig, shape: ModelShape, hardware: Hardware) -> Plan:
    """The plan that `resolve` takes, with its predictions.

    Raises:
        TopologyError: if nothing fits.
    """
    fitting = [plan for plan in _plans(training, shape, hardware) if plan.memory.total <= hardware.comfortable_room]
    if not fitting:
        # What the user set may go to the last byte; the prediction is not exact enough to refuse that.
        fitting = [plan for plan in _plans(training, shape, hardware) if plan.memory.total <= hardware.room]
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
        plans = _plans(with_choice(training, micro_batch=largest + step), shape, hardware)
        if any(plan.memory.total <= hardware.room for plan in plans):
            largest += step
        else:
            step //= 2
    return largest


def _plans(training: TrainConfig, shape: ModelShape, hardware: Hardware) -> Iterator[Plan]:
    parallel = training.parallel
    shardings = ("hybrid", "full") if hardware.nodes > 1 else ("full",)
    fields = {
        "sharding": _options(parallel.sharding, shardings),
        "reshard_after_forward": _options(parallel.reshard_after_forward, (True, False)),
        "reduce_dtype": _options(parallel.reduce_dtype, ("fp32", "bf16")),
        "recompute": _options(parallel.recompute, ("none", "layers")),
        "micro_batch": _options(training.micro_batch, MICRO_BATCHES),
        "accumulation": _options(training.accumulation, ACCUMULATIONS),
    }
    for values in itertools.product(*fields.values()):
        yield predict(with_choice(training, **dict(zip(fields, values, strict=True))), shape, hardware)


def _options(value: Any, choices: Sequence[Any]) -> Sequence[Any]:
    return choices if value == AUTO else (value,)


def _refusal(training: TrainConfig, shape: ModelShape, hardware: Hardware) -> str:
    asked = training.micro_batch
    smallest = with_choice(training, micro_batch=1) if asked == AUTO else training
    leanest = min(_plans(smallest, shape, hardware), key=lambda plan: plan.memory.total)
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
    cautious = {
        "sharding": "hybrid" if place.nodes > 1 else "full",
        "reshard_after_forward": True,
        "reduce_dtype": "fp32",
        "recompute": "none" if place.device == "cpu" else "layers",
        "micro_batch": 1,
        "accumulation": 1,
    }
    asked = {**training.parallel.model_dump(), "micro_batch": training.micro_batch,
             "accumulation": training.accumulation}
    chosen = {name: value for name, value in cautious.items() if asked[name] == AUTO}
    reasons = [f"{name} {said(value)}: {why}, so the cautious choice" for name, value in chosen.items()]
    return job.model_copy(update={"training": with_choice(training, **chosen)}), reasons
