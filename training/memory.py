"""Memory of one GPU at its worst moment, predicted from the model's shape and the recipe.

Checked against measured peaks of one H200 in tests/training/test_topology.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.shape import ModelShape

_GIB = 2.0**30
_REDUCE_BYTES = {"bf16": 2, "fp32": 4}


def loss_chunk(tokens: int) -> int:
    """Tokens whose logits exist at one time in the loss: a quarter of all, 1024 to 8192.

    Each chunk reads and writes the fp32 gradient of the lm_head once more; each token of it holds a row of logits.
    """
    return min(max(tokens // 4, 1024), 8192)


@dataclass(frozen=True)
class Recipe:
    """How a model is trained, all choices made. `shards` is the number of GPUs that share one copy of it."""

    sharding: str
    shards: int
    reshard_after_forward: bool
    reduce_dtype: str
    recompute: str
    compiled: bool
    sequence: int
    micro_batch: int
    accumulation: int
    precision: str = "bf16"

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on one GPU."""
        return self.micro_batch * self.sequence

    @property
    def reduce_bytes(self) -> int:
        """Bytes of one gradient on its way between ranks."""
        return _REDUCE_BYTES[self.reduce_dtype]


@dataclass(frozen=True)
class Memory:
    """Bytes of one GPU at the worst moment, by what holds them."""

    state: float
    gradients: float
    gathered: float
    activations: float
    loss: float
    working: float
    moment: str

    @property
    def total(self) -> float:
        """Bytes in all."""
        return self.state + self.gradients + self.gathered + self.activations + self.loss + self.working

    @property
    def gib(self) -> float:
        """GiB in all."""
        return self.total / _GIB


def predict_memory(shape: ModelShape, recipe: Recipe) -> Memory:
    """The largest of three moments: the loss, the first layer of backward, the last gradients of backward."""
    return max(_moments(shape, recipe), key=lambda memory: memory.total)


def _moments(shape: ModelShape, recipe: Recipe) -> list[Memory]:
    tokens, head = recipe.tokens, shape.vocab * shape.hidden
    shard = shape.parameters / recipe.shards
    state = 12 * shard  # fp32 master, AdamW's two moments
    # One rank casts nothing: its gradients stay bf16 as computed, unless micro-batches are added up.
    alone = recipe.shards == 1
    gradients = 2 * shape.parameters if alone and recipe.accumulation == 1 else 4 * shard
    earlier = _gradients_of_earlier_micro_batches(shape, recipe)
    layers_gathered = min(2, shape.layers) if recipe.reshard_after_forward and not alone else shape.layers
    root, layer = 2 * shape.root_parameters, 2 * shape.layer_parameters
    gathered = root + layers_gathered * layer
    kept, whole_layer = _activations(shape, recipe)
    hidden = 2 * shape.hidden * tokens
    chunk = min(tokens, loss_chunk(tokens)) * shape.vocab * 2 * 2  # logits and their gradients, bf16
    # Two layers' gradients on their way: bf16 as computed, and the buffer that is reduced.
    buffer = 0 if alone else recipe.reduce_bytes
    layer_reduction = 2 * (2 + buffer) * shape.layer_parameters
    root_reduction = (2 + buffer) * shape.root_parameters
    return [
        Memory(state, earlier, gathered, kept, 2 * hidden + 4 * head + chunk, 0, "in the loss"),
        Memory(state, earlier, gathered, kept, hidden + 2 * head, whole_layer + layer_reduction,
               "as backward begins"),
        Memory(state, max(gradients, earlier), root + layer, 0, 2 * head, max(root_reduction, whole_layer),
               "as backward ends"),
    ]


def _gradients_of_earlier_micro_batches(shape: ModelShape, recipe: Recipe) -> float:
    """`full` skips the reduction until the last micro-batch and so holds whole gradients; `hybrid` holds shards."""
    if recipe.accumulation == 1:
        return 0
    return 4 * shape.parameters / (1 if recipe.sharding == "full" else recipe.shards)


def _activations(shape: ModelShape, recipe: Recipe) -> tuple[float, float]:
    """Bytes kept for backward over all layers, and those that one layer needs while its backward runs."""
    if recipe.precision == "fp8":
        a_token = shape.fp8_layer_activation_bytes
    else:
        a_token = shape.layer_activation_bytes if recipe.compiled else shape.eager_layer_activation_bytes
    one = a_token * recipe.tokens
    # gradients of gate, up and two residuals; the product and two norms' outputs once more
    gradients_of_one = 2 * recipe.tokens * (3 * shape.intermediate + 4 * shape.hidden)
    if recipe.recompute == "none":
        return shape.layers * one, gradients_of_one
    return shape.layers * 2 * shape.hidden * recipe.tokens, one + gradients_of_one
