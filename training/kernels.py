"""Triton kernels for what PyTorch would do in several passes over memory. CUDA only: import where needed.

Each has its plain PyTorch equal where it is called; tests/training/test_gpu_kernels.py compares the two.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor


def cross_entropy_(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy, and its gradient written over the logits. Arithmetic in fp32.

    A row is read twice, the second time mostly from the L2 cache: about one read and one write of the logits
    where separate passes take three reads and a write.

    Args:
        logits: [N, V] contiguous bf16, fp16 or fp32; holds the gradient afterwards.
        labels: [N] int64; -100 does not count, and its row of gradients is 0.

    Returns:
        fp32 scalar loss, and `logits` itself.
    """
    rows, vocabulary = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _launch(_cross_entropy, rows)(logits, labels, losses, vocabulary, LANES=2048, num_warps=32)
    return losses.sum(), logits


def adamw_(
    master: Tensor, moment1: Tensor, moment2: Tensor, steps: Tensor, gradient: Tensor, copy: Tensor, *,
    scale: Tensor, skip: Tensor, learning_rate: float, betas: tuple[float, float], eps: float, weight_decay: float,
) -> None:
    """One AdamW update of one parameter, and its rounded copy, in one pass: 28 bytes a bf16 parameter.

    Args:
        master, moment1, moment2: fp32, changed in place.
        steps: fp32 scalar, updates so far; not changed.
        gradient: bf16 or fp32, divided by `scale` (fp32 scalar).
        copy: the working copy, in its own dtype; written.
        skip: fp32 scalar; 1 leaves all as it is.
        learning_rate, betas, eps, weight_decay: as of torch.optim.AdamW.
    """
    count = master.numel()
    _launch(_adamw, triton.cdiv(count, 1024))(
        master, moment1, moment2, steps, gradient, copy, scale, skip, learning_rate, betas[0], betas[1], eps,
        weight_decay, count, BLOCK=1024, num_warps=4)


def _launch(kernel: Any, programs: int) -> Any:
    return kernel[(programs,)]


@triton.jit
def _cross_entropy(logits, labels, losses, vocabulary, LANES: tl.constexpr):  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    logits += row * vocabulary
    # eight neighbours a lane: one wide load, and one rescaling of the lane's sum instead of eight
    block: tl.constexpr = LANES * 8
    offsets = tl.arange(0, LANES)[:, None] * 8 + tl.arange(0, 8)[None, :]
    label = tl.load(labels + row)
    if label == -100:
        for start in range(0, vocabulary, block):
            at = start + offsets
            tl.store(logits + at, tl.zeros([LANES, 8], tl.float32), at < vocabulary)
        tl.store(losses + row, 0.0)
        return
    # each lane keeps its own maximum and sum; they meet once, at the end
    highest = tl.full([LANES], -float("inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    for start in range(0, vocabulary, block):
        at = start + offsets
        z = tl.load(logits + at, at < vocabulary, other=-float("inf")).to(tl.float32)
        now = tl.maximum(highest, tl.max(z, 1))
        # a lane past the vocabulary of a short row has seen only -inf, and -inf - -inf is not a number
        safe = tl.where(now == -float("inf"), 0.0, now)
        total = total * tl.exp(highest - safe) + tl.sum(tl.exp(z - safe[:, None]), 1)
        highest = now
    top = tl.max(highest, 0)
    normaliser = top + tl.log(tl.sum(total * tl.exp(highest - top), 0))
    tl.store(losses + row, normaliser - tl.load(logits + label).to(tl.float32))
    tl.debug_barrier()  # the label's logit is read before any lane writes over it
    for start in range(0, vocabulary, block):
        at = start + offsets
        z = tl.load(logits + at, at < vocabulary, other=-float("inf")).to(tl.float32)
        tl.store(logits + at, tl.exp(z - normaliser) - tl.where(at == label, 1.0, 0.0), at < vocabulary)


@triton.jit
def _adamw(
    master, moment1, moment2, steps, gradient, copy, scale, skip, learning_rate, beta1, beta2, eps, weight_decay,
    count, BLOCK: tl.constexpr,  # noqa: N803
):
    if tl.load(skip) != 0:
        return
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    step = tl.load(steps) + 1
    correction1 = 1 - tl.exp2(step * tl.log2(beta1))
    correction2 = 1 - tl.exp2(step * tl.log2(beta2))
    g = tl.load(gradient + at, inside).to(tl.float32) / tl.load(scale)
    m = tl.load(moment1 + at, inside)
    m += (g - m) * (1 - beta1)
    v = tl.load(moment2 + at, inside) * beta2 + g * g * (1 - beta2)
    w = tl.load(master + at, inside) * (1 - learning_rate * weight_decay)
    w -= learning_rate / correction1 * m / (tl.sqrt(v / correction2) + eps)
    tl.store(moment1 + at, m, inside)
    tl.store(moment2 + at, v, inside)
    tl.store(master + at, w, inside)
    tl.store(copy + at, w, inside)
