"""Seconds of one optimizer step, predicted: matrix products, memory traffic, and bytes between GPUs.

Communication runs beside computation (FSDP2 prefetches the next layer and reduces the last one). In each of
the two passes the longer of the two counts whole, and of the shorter one what does not overlap.
Not modelled: latency of small messages, kernel launches, the input pipeline. So a step of a few hundred
tokens a GPU takes longer than predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.hardware import Hardware
from training.memory import Recipe
from training.shape import ModelShape

OVERLAP = 0.8
"""Share of the shorter of computation and communication that hides behind the longer: assumed."""
EAGER_SLOWDOWN = 1.28
"""Matrix work without compiled layers against with: 406 to 316 ms at batch 8 on an H200 (measured)."""
FP8_SPEEDUP = 1.36
"""The layers' matrix work in bf16 against in fp8, quantising included: 30.3 to 22.3 ms for 2048 tokens of
Qwen2.5-1.5B on an H200 (measured); assumed to hold for other GPUs with fp8 units."""
_SHARD_TRAFFIC = 36
"""Bytes of memory traffic for each parameter of a shard in an optimizer step: the norm reads gradients (4), AdamW
reads weight, gradient and two moments, clips on the way and writes four (32)."""
_LONE_TRAFFIC = 30
"""The same on one rank, whose gradients are bf16 and whose bf16 copy AdamW writes (training/working.py)."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that one link carries in one direction: `forward` and `backward` of a micro-batch whose gradients
    stay here, and `sync`, what the last micro-batch of a step adds."""

    forward: float = 0
    backward: float = 0
    sync: float = 0

    def step(self, accumulation: int) -> float:
        """Bytes in one optimizer step."""
        return accumulation * (self.forward + self.backward) + self.sync


def ring_bytes(size: float, ranks: int) -> float:
    """Bytes that cross each edge of a ring in an all-gather or reduce-scatter of `size` bytes."""
    return size * (ranks - 1) / ranks


def intra_traffic(shape: ModelShape, recipe: Recipe, hardware: Hardware) -> Traffic:
    """Bytes between neighbouring GPUs of a node.

    The embedding and head stay gathered through backward; layers are gathered again where the recipe
    frees them after forward.
    """
    layers = 2.0 * shape.layers * shape.layer_parameters
    gathers = ring_bytes(layers + 2.0 * shape.root_parameters, recipe.shards)
    again = ring_bytes(layers, recipe.shards) if recipe.reshard_after_forward else 0
    reduced = hardware.reduce_scatter_cost * ring_bytes(recipe.reduce_bytes * shape.parameters, recipe.shards)
    if recipe.sharding == "hybrid":
        return Traffic(gathers, again + reduced, 0)
    return Traffic(gathers, again, reduced)


def link_traffic(shape: ModelShape, recipe: Recipe, hardware: Hardware) -> Traffic:
    """Bytes that leave a node. Zero on one node.

    `full`: the ring over all ranks leaves each node once. `hybrid`: the ranks of a node each all-reduce
    their shard with the other nodes, together one model of gradients.
    """
    if hardware.nodes == 1:
        return Traffic()
    if recipe.sharding == "full":
        return intra_traffic(shape, recipe, hardware)
    return Traffic(sync=2 * ring_bytes(recipe.reduce_bytes * shape.parameters, hardware.nodes))


@dataclass(frozen=True)
class StepTime:
    """A predicted step. Seconds of its parts as if each were alone, and of all together."""

    compute: float
    memory: float
    link: float
    intra: float
    seconds: float
    link_bytes: float
    tokens: int
    mfu: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of all GPUs."""
        return self.tokens / self.seconds


def predict_step(shape: ModelShape, recipe: Recipe, hardware: Hardware) -> StepTime:
    """The step of `recipe` on `hardware`."""
    forward, backward = _compute_seconds(shape, recipe, hardware)
    link, intra = link_traffic(shape, recipe, hardware), intra_traffic(shape, recipe, hardware)

    def slower(link_bytes: float, intra_bytes: float) -> float:
        # Two different wires; what crosses both goes at the pace of the slower.
        return max(link_bytes / hardware.link, intra_bytes / hardware.intra)

    forward_pass = _beside(forward, slower(link.forward, intra.forward))
    held = _beside(backward, slower(link.backward, intra.backward))
    last = _beside(backward, slower(link.backward + link.sync, intra.backward + intra.sync))
    memory = _memory_seconds(shape, recipe, hardware)
    seconds = recipe.accumulation * forward_pass + (recipe.accumulation - 1) * held + last + memory
    tokens = recipe.tokens * recipe.accumulation * hardware.world
    ideal = tokens * shape.flops_per_token(recipe.sequence) / (hardware.peak_flops * hardware.world)
    return StepTime(
        compute=recipe.accumulation * (forward + backward),
        memory=memory,
        link=link.step(recipe.accumulation) / hardware.link,
        intra=intra.step(recipe.accumulation) / hardware.intra,
        seconds=seconds,
        link_bytes=link.step(recipe.accumulation),
        tokens=tokens,
        mfu=ideal / seconds,
    )


def _beside(a: float, b: float) -> float:
    return max(a, b) + (1 - OVERLAP) * min(a, b)


def _compute_seconds(shape: ModelShape, recipe: Recipe, hardware: Hardware) -> tuple[float, float]:
    """Matrix work of one micro-batch, forward and backward. The chunked loss takes its gradients in forward."""
    rate = hardware.peak_flops * hardware.achieved / (1 if recipe.compiled else EAGER_SLOWDOWN)
    layers = recipe.tokens * shape.layers * shape.layer_forward_flops(recipe.sequence)
    layers /= FP8_SPEEDUP if recipe.precision == "fp8" else 1
    head = recipe.tokens * shape.head_flops
    times_backward = 3 if recipe.recompute == "layers" else 2
    return (layers + head) / rate, times_backward * layers / rate


def _memory_seconds(shape: ModelShape, recipe: Recipe, hardware: Hardware) -> float:
    """Optimizer, clipping, and the copies around collectives: bound by memory bandwidth, beside nothing."""
    if recipe.shards == 1:
        return _LONE_TRAFFIC * shape.parameters / hardware.memory_rate
    shard = shape.parameters / recipe.shards
    gathers = 2 if recipe.reshard_after_forward else 1
    # A gather casts the fp32 shard to bf16 (6 bytes) and copies the whole out (4); a reduction packs bf16
    # gradients into the buffer (2 + r), reads it (r) and adds the shard (8).
    gather = 6 * shard + 4 * shape.parameters
    reduction = (2 + 2 * recipe.reduce_bytes) * shape.parameters + 8 * shard
    reductions = recipe.accumulation if recipe.sharding == "hybrid" else 1
    moved = _SHARD_TRAFFIC * shard + recipe.accumulation * gathers * gather + reductions * reduction
    return moved / hardware.memory_rate
