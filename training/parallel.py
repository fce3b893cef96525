"""The model spread over ranks: FSDP2 per decoder layer, over one mesh or inside each node (HSDP).

Parameters, gradients and optimizer state are fp32 shards; forward and backward run in bf16. On one rank
nothing is sharded (working.py).
"""

from __future__ import annotations

import functools

import torch
import torch._functorch.config as functorch_config
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint
from transformers import PretrainedConfig

from training import fp8
from training.config import ParallelConfig
from training.errors import JobError
from training.model import CausalLMWithLoss, decoder_layers, empty_model, outer_norms, uses_dropout
from training.pretrained import Pretrained
from training.weights import Weights
from training.working import WorkingWeights

_REDUCE = {"bf16": torch.bfloat16, "fp32": torch.float32}


def make_mesh(parallel: ParallelConfig, nodes: int, workers_per_node: int, device_type: str) -> DeviceMesh:
    """The mesh of ranks; the ranks of a node must follow one another.

    Returns:
        `full`: [world] named shard. `hybrid` on more than one node: [nodes, workers_per_node] named
        replicate, shard.

    Raises:
        JobError: if the process group has another number of ranks.
    """
    world = dist.get_world_size()
    if world != nodes * workers_per_node:
        raise JobError(f"training.parallel.sharding {parallel.sharding}: {world} ranks do not fill the mesh of "
                       f"{nodes} nodes with {workers_per_node} each; it needs {nodes * workers_per_node} "
                       "(gpu.nodes, gpu.instance_type)")
    if parallel.sharding == "hybrid" and nodes > 1:
        return init_device_mesh(device_type, (nodes, workers_per_node), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(device_type, (world,), mesh_dim_names=("shard",))


def build(
    config: PretrainedConfig,
    parallel: ParallelConfig,
    mesh: DeviceMesh,
    device: torch.device,
    *,
    seed: int,
    precision: str = "bf16",
    pretrained: Pretrained | None = None,
    compute_dtype: torch.dtype = torch.bfloat16,
) -> CausalLMWithLoss:
    """The sharded model, with weights, ready to train. Call on all ranks.

    Args:
        config: the transformers config.
        parallel: recompute, compile, reduction and resharding.
        mesh: from `make_mesh`.
        device: this rank's device.
        seed: of random weights; the same on all ranks.
        precision: of the decoder layers' matrix products, bf16 or fp8.
        pretrained: weights to load instead of random ones.
        compute_dtype: of forward and backward; the master weights are fp32 always.

    Raises:
        JobError: if the model cannot be built or sharded.
    """
    trained = empty_model(config)
    weights = Weights(trained, device, seed, pretrained)
    shard = _leave_whole if mesh.size() == 1 else functools.partial(
        fully_shard,
        mesh=mesh,
        mp_policy=MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=_REDUCE[parallel.reduce_dtype]),
    )
    for layer in decoder_layers(trained.model):
        weights.fill(layer)
        if precision == "fp8":
            fp8.use_fp8(layer)
        _wrap_forward(layer, parallel, precision, device, keeps_rng=uses_dropout(config))
        shard(layer, reshard_after_forward=parallel.reshard_after_forward)
    for norm in outer_norms(trained.model):
        _compile_forward(norm, parallel, precision, device)
    # The root group holds all that is in no layer. Embedding and lm_head belong in one group: tied ones
    # cannot be split (torch >= 2.13 refuses). It stays gathered, for backward needs the head at once.
    weights.fill(trained)
    shard(trained, reshard_after_forward=False)
    if mesh.size() == 1:
        trained.working = WorkingWeights(trained, compute_dtype)
    return trained


def _leave_whole(_part: nn.Module, *, reshard_after_forward: bool) -> None:
    """One rank has nothing to shard, and would pay for FSDP's copies of all weights and gradients."""


def hold_reduction(trained: nn.Module, mesh: DeviceMesh) -> None:
    """The next backward is not the step's last: keep its gradients on this side of the slow link.

    `hybrid` still reduces inside the node, which costs little and keeps gradients in shards; `full`
    keeps whole gradients (fp32, the model's size) until the last micro-batch.
    """
    _set_reduction(trained, mesh, reduces=False)


def allow_reduction(trained: nn.Module, mesh: DeviceMesh) -> None:
    """The next backward is the step's last: reduce all gradients over all ranks."""
    _set_reduction(trained, mesh, reduces=True)


def _set_reduction(trained: nn.Module, mesh: DeviceMesh, reduces: bool) -> None:
    if not isinstance(trained, FSDPModule):
        return
    if mesh.ndim == 2:
        trained.set_requires_all_reduce(reduces)
    else:
        trained.set_requires_gradient_sync(reduces)


def _wrap_forward(
    layer: nn.Module, parallel: ParallelConfig, precision: str, device: torch.device, keeps_rng: bool
) -> None:
    """Compile a layer's forward, and recompute it in backward.

    The method is replaced and no module is wrapped: parameter names stay those of transformers, and the
    hooks of FSDP stay outside of what is compiled. All layers share the code of one forward, so the
    first compile serves the others.
    """
    _compile_forward(layer, parallel, precision, device)
    if parallel.recompute == "layers":
        # keeping the random state makes the host wait for the GPU in each layer: only where dropout needs it
        layer.forward = functools.partial(  # pyright: ignore[reportAttributeAccessIssue]
            checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=keeps_rng)


def _compile_forward(part: nn.Module, parallel: ParallelConfig, precision: str, device: torch.device) -> None:
    if not parallel.compile or device.type != "cuda":
        return
    # What costs no matrix product is computed again in backward (the MLP's gated product, the norms'
    # outputs): a third of the activations, at no measured cost. In fp8 that would be the quantising too,
    # which takes a tenth of a step; 1.0 keeps it.
    functorch_config.activation_memory_budget = 1.0 if precision == "fp8" else 0.8
    part.forward = torch.compile(part.forward)
