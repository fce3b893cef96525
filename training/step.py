"""One optimizer step, exact over ranks and micro-batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from training.config import OptimizerConfig
from training.loss import IGNORE
from training.model import CausalLMWithLoss
from training.parallel import allow_reduction, hold_reduction


def make_optimizer(trained: nn.Module, config: OptimizerConfig) -> AdamW:
    """AdamW over fp32 shards; weight decay on matrices only, not on norms and biases."""
    parameters = [p for p in trained.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=True,
    )


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """Rate of the step `step` (1 to `steps`): linear warm-up, then cosine to `final_fraction` of the peak."""
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return config.learning_rate * (config.final_fraction + (1 - config.final_fraction) * cosine)


def train_step(
    trained: CausalLMWithLoss,
    optimizer: AdamW,
    mesh: DeviceMesh,
    micro_batches: Sequence[tuple[Tensor, ...]],
    *,
    learning_rate: float,
    clip_norm: float,
) -> tuple[Tensor, Tensor]:
    """One step over this rank's micro-batches. Does not wait for the GPU.

    The loss is the mean over all labelled tokens of the global batch. FSDP averages gradients over
    ranks, so each rank's sum counts with world / tokens.

    A step whose loss or gradient norm is not finite changes nothing: neither weights nor moments nor
    the optimizer's count of steps. The caller sees it in what is returned.

    Args:
        trained: from `parallel.build`.
        optimizer: from `make_optimizer`.
        mesh: the mesh `trained` is sharded over.
        micro_batches: (input_ids, labels) or (input_ids, labels, position_ids), each [batch, sequence] on
            this rank's device.
        learning_rate: for this step.
        clip_norm: gradients are scaled down to this global norm.

    Returns:
        Loss and gradient norm before clipping: fp32 scalars on the device, the same on all ranks.
    """
    tokens = torch.stack([(batch[1] != IGNORE).sum() for batch in micro_batches]).sum()
    dist.all_reduce(tokens)
    tokens = tokens.clamp_min(1)  # a step of questions only
    weight = dist.get_world_size() / tokens.float()
    total = torch.zeros((), dtype=torch.float32, device=tokens.device)
    working = trained.working
    for index, batch in enumerate(micro_batches):
        last = index == len(micro_batches) - 1
        (allow_reduction if last else hold_reduction)(trained, mesh)
        with working.in_place() if working else nullcontext():
            loss = trained(*batch)
            (loss * weight).backward()
        if working and not (working.is_fused and len(micro_batches) == 1):
            working.keep_gradients()
        total += loss.detach()
    dist.all_reduce(total)
    loss, norm = total / tokens, working.gradient_norm() if working else _gradient_norm(trained)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    _update(trained, optimizer, loss, norm, clip_norm)
    optimizer.zero_grad(set_to_none=True)
    return loss, norm


def _gradient_norm(trained: nn.Module) -> Tensor:
    norm = nn.utils.get_total_norm([p.grad for p in trained.parameters() if p.grad is not None])
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _update(trained: CausalLMWithLoss, optimizer: AdamW, loss: Tensor, norm: Tensor, clip_norm: float) -> None:
    """Clip, and step unless something is not finite, inside the optimizer's own kernel.

    The kernel divides gradients by `grad_scale` and does nothing where `found_inf` is 1: made for fp16's
    loss scaling, here it saves a pass over all gradients, and the host need not look at the norm.
    """
    scale = ((norm + 1e-6) / clip_norm).clamp_min(1.0)
    skip = (~(loss.isfinite() & norm.isfinite())).float()
    if trained.working and trained.working.is_fused:
        trained.working.update(optimizer, scale, skip)
        return
    optimizer.grad_scale, optimizer.found_inf = scale, skip  # pyright: ignore[reportAttributeAccessIssue]
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf  # pyright: ignore[reportAttributeAccessIssue]
