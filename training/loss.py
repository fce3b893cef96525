"""Cross-entropy straight from hidden states, without ever holding the logits of the whole batch.

For Qwen2.5 the logits of one sequence of 2048 tokens are 2048 x 151,936 values: 1.2 GB in fp32, and the
usual loss keeps several copies. Here the tokens go through in chunks, and each chunk's gradients are
taken right after its loss, while its logits are still at hand. So a chunk costs three matrix products
(logits, gradient of hidden, gradient of weight), where recomputing the logits in backward costs four.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from training.memory import loss_chunk

IGNORE = -100


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    chunk_tokens: int | None = None,
) -> Tensor:
    """Sum over tokens of `cross_entropy(hidden @ weight.T + bias, labels)`.

    Args:
        hidden: [N, H], the model's last hidden states.
        weight: [V, H], the lm_head; same dtype as `hidden`.
        labels: [N] token ids; -100 marks tokens that do not count.
        bias: [V], the lm_head's bias if it has one.
        softcap: logits become `softcap * tanh(logits / softcap)` first (Gemma 2).
        chunk_tokens: tokens whose logits exist at one time; None: as memory.loss_chunk says.

    Returns:
        fp32 scalar, differentiable in hidden, weight and bias. Divide by the number of labelled tokens
        for the mean.

    Raises:
        ValueError: for shapes that do not fit, or a label outside of the vocabulary (checked on CPU;
            on a GPU that check would wait for the device).
    """
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(f"hidden [N, H] and weight [V, H] do not fit: {list(hidden.shape)}, {list(weight.shape)}")
    if labels.shape != hidden.shape[:1]:
        raise ValueError(f"labels must be [{hidden.shape[0]}], one a token; they are {list(labels.shape)}")
    if chunk_tokens is None:
        chunk_tokens = loss_chunk(hidden.shape[0])
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens is {chunk_tokens}; use 1 or more")
    if labels.device.type == "cpu" and labels.numel() and int(labels.max()) >= weight.shape[0]:
        raise ValueError(f"label {int(labels.max())} is outside of the vocabulary of {weight.shape[0]}")
    return _LinearCrossEntropy.apply(hidden, weight, labels, bias, softcap, chunk_tokens)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, bias, softcap, chunk_tokens):
        grad = ctx.needs_input_grad
        d_hidden = torch.empty_like(hidden) if grad[0] else None
        d_weight = torch.zeros_like(weight, dtype=torch.float32) if grad[1] else None
        d_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and grad[3] else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for start in range(0, hidden.shape[0], chunk_tokens):
            part = slice(start, start + chunk_tokens)
            x, y = hidden[part], labels[part]
            logits = torch.nn.functional.linear(x, weight, bias)
            loss, d_logits = _loss_and_gradient(logits, y, softcap)
            total += loss
            if d_hidden is not None:
                torch.mm(d_logits, weight, out=d_hidden[part])
            if d_weight is not None:
                _accumulate(d_weight, d_logits.t(), x)
            if d_bias is not None:
                d_bias += d_logits.float().sum(0)
        ctx.save_for_backward(
            d_hidden,
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None or bias is None else d_bias.to(bias.dtype),
        )
        return total

    @staticmethod
    def backward(ctx, grad_output):  # pyright: ignore[reportIncompatibleMethodOverride]
        saved = ctx.saved_tensors
        d_hidden, d_weight, d_bias = (None if g is None else g * grad_output.to(g.dtype) for g in saved)
        return d_hidden, d_weight, None, d_bias, None, None


def _chunk_loss_and_gradient(logits: Tensor, labels: Tensor, softcap: float | None) -> tuple[Tensor, Tensor]:
    """Summed loss of a chunk and its gradient in the logits' own dtype. Arithmetic in fp32."""
    z = logits.float()
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    counted = (labels != IGNORE).unsqueeze(1)
    target = labels.clamp_min(0).unsqueeze(1)
    log_normaliser = torch.logsumexp(z, dim=1, keepdim=True)
    loss = torch.where(counted, log_normaliser - z.gather(1, target), 0.0).sum()
    is_target = torch.arange(z.shape[1], device=z.device) == target
    d = torch.exp(z - log_normaliser) - is_target.to(z.dtype)
    if softcap is not None:
        d = d * (1 - (z / softcap) ** 2)
    return loss, torch.where(counted, d, 0.0).to(logits.dtype)


@functools.cache
def _compiled() -> Callable[[Tensor, Tensor, float | None], tuple[Tensor, Tensor]]:
    # Made when first wanted: it imports the compiler, a second that the driver and CPU ranks need not spend.
    return torch.compile(_chunk_loss_and_gradient)


def _loss_and_gradient(logits: Tensor, labels: Tensor, softcap: float | None) -> tuple[Tensor, Tensor]:
    """The same; on a GPU in fewer passes over the logits, and where it can be in their own memory."""
    if not logits.is_cuda:
        return _chunk_loss_and_gradient(logits, labels, softcap)
    if softcap is not None:
        return _compiled()(logits, labels, softcap)
    from training.kernels import cross_entropy_

    return cross_entropy_(logits, labels)


def _accumulate(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b in fp32, whatever the dtype of a and b."""
    if a.is_cuda and a.dtype in (torch.bfloat16, torch.float16):
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))
