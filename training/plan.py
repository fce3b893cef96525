"""One way to run a training, all choices made, and what is predicted of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from training.config import ParallelConfig, TrainConfig
from training.hardware import Hardware
from training.memory import Memory, Recipe, predict_memory
from training.shape import ModelShape
from training.step_time import StepTime, predict_step


@dataclass(frozen=True)
class Plan:
    """One way to run a job, and what is predicted of it."""

    training: TrainConfig
    recipe: Recipe
    memory: Memory
    time: StepTime


def predict(training: TrainConfig, shape: ModelShape, hardware: Hardware) -> Plan:
    """What is predicted of a training without `auto`."""
    recipe = recipe_of(training, hardware)
    return Plan(training, recipe, predict_memory(shape, recipe), predict_step(shape, recipe, hardware))


def recipe_of(training: TrainConfig, hardware: Hardware) -> Recipe:
    """The training as the models of memory and time see it; `hybrid` on one node is `full`."""
    parallel = training.parallel
    hybrid = parallel.sharding == "hybrid" and hardware.nodes > 1
    return Recipe(
        sharding="hybrid" if hybrid else "full",
        shards=hardware.gpus_per_node if hybrid else hardware.world,
        reshard_after_forward=parallel.reshard_after_forward,
        reduce_dtype=parallel.reduce_dtype,
        recompute=parallel.recompute,
        compiled=parallel.compile,
        sequence=training.sequence_length,
        micro_batch=training.micro_batch,
        accumulation=training.accumulation,
        precision=training.precision,
    )


def with_choice(training: TrainConfig, **choices: Any) -> TrainConfig:
    """The training with some of micro_batch, accumulation and the fields of `parallel` replaced."""
    own = {key: value for key, value in choices.items() if key in TrainConfig.model_fields}
    rest = {key: value for key, value in choices.items() if key not in own}
    assert rest.keys() <= ParallelConfig.model_fields.keys()
    return training.model_copy(update={**own, "parallel": training.parallel.model_copy(update=rest)})
