"""fp8 for the matrix products of the decoder layers: `training.precision: fp8`.

Weights stay fp32, and everything else stays bf16: embedding, norms, attention, lm_head and loss. Both operands of a
product are rounded to e4m3 (3 bits of mantissa), each row with a scale of its own: a token's, or a channel's. A row
is read once for its scale and its values, nothing is remembered between steps, and one large token does not cost
the others their precision.

A weight's gradient sums over tokens, so a scale a token cannot be taken out of that sum. There the rows are brought
to one scale. All scales are powers of two: what is already rounded stays what it is, unless it falls below fp8's
smallest number.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.errors import JobError

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
"""Largest number of e4m3."""
_MULTIPLE = 16
"""Rows and columns of an fp8 product must be multiples of this (torch._scaled_mm)."""


def use_fp8(layer: nn.Module) -> None:
    """Let a decoder layer's linear layers compute in fp8; call before its forward is compiled.

    Modules and parameters stay what they are; only `forward` is replaced. A gated MLP with SiLU becomes one
    function, whose product of gate and up is never written in bf16.

    Raises:
        JobError: if the layer has no linear layer that can.
    """
    converted = 0
    for module in layer.modules():
        if _is_gated_silu(module):
            module.forward = types.MethodType(_gated_forward, module)
        elif type(module) is nn.Linear and not (module.in_features % _MULTIPLE or module.out_features % _MULTIPLE):
            module.forward = types.MethodType(_linear_forward, module)
            converted += 1
    if not converted:
        raise JobError("training.precision fp8: the decoder layers have no nn.Linear whose sizes are multiples "
                       f"of {_MULTIPLE}; use bf16")


def quantise_rows(x: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Round to e4m3 with a power-of-two scale for each row (dim -1) or column (dim 0).

    Args:
        x: [N, K].

    Returns:
        [N, K] e4m3 and fp32 scales [N, 1] or [1, K]: x is about the one times the other.
    """
    largest = x.abs().amax(dim, keepdim=True).float().clamp_min(1e-30)
    up = torch.exp2(torch.floor(torch.log2(LARGEST / largest)))
    return (x.float() * up).clamp(-LARGEST, LARGEST).to(E4M3), 1.0 / up


def _multiply(a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, *, fast: bool = True) -> Tensor:
    """a [M, K] times the transpose of b [N, K], both e4m3, as bf16 [M, N].

    `fast` sums 16 or so products in the tensor core's own precision: fine over a few thousand channels, not over
    all tokens of a batch.
    """
    return torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
        a, b.t(), scale_a=a_scale, scale_b=b_scale, out_dtype=torch.bfloat16, use_fast_accum=fast)


def _forward_product(x: Tensor, x_scale: Tensor, weight: Tensor) -> Tensor:
    w, w_scale = quantise_rows(weight)
    return _multiply(x, x_scale, w, w_scale.t())


def _input_gradient(dy: Tensor, dy_scale: Tensor, weight: Tensor) -> Tensor:
    w, w_scale = quantise_rows(weight, 0)
    return _multiply(dy, dy_scale, w.t().contiguous(), w_scale)


def _one_scale(q: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [N, K] with scales [N, 1] as their transpose [K, N] with one scale."""
    largest = scale.amax()
    return transpose_rescaled(q, scale, largest), largest


def _weight_gradient(dy: tuple[Tensor, Tensor], x: tuple[Tensor, Tensor]) -> Tensor:
    """[out, in] from transposes [out, N] and [in, N] of one scale each."""
    return _multiply(*dy, *x, fast=False)


class _Linear(torch.autograd.Function):
    """x [N, K] times the transpose of weight [M, K]."""

    @staticmethod
    def forward(ctx, x, weight):
        q, scale = quantise_rows(x)
        ctx.save_for_backward(q, scale, weight)
        return _forward_product(q, scale, weight)

    @staticmethod
    def backward(ctx, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, scale, weight = ctx.saved_tensors
        dq, d_scale = quantise_rows(dy)
        d_weight = _weight_gradient(_one_scale(dq, d_scale), _one_scale(q, scale))
        return _input_gradient(dq, d_scale, weight), d_weight


class _GatedSilu(torch.autograd.Function):
    """down(silu(gate(x)) * up(x)) for x [N, K] and weights as nn.Linear has them."""

    @staticmethod
    def forward(ctx, x, w_gate, w_up, w_down):
        q, scale = quantise_rows(x)
        gate, up = _forward_product(q, scale, w_gate), _forward_product(q, scale, w_up)
        h, h_scale = silu_product(gate, up)
        ctx.save_for_backward(q, scale, gate, up, h, h_scale, w_gate, w_up, w_down)
        return _forward_product(h, h_scale, w_down)

    @staticmethod
    def backward(ctx, dy):  # pyright: ignore[reportIncompatibleMethodOverride]
        q, scale, gate, up, h, h_scale, w_gate, w_up, w_down = ctx.saved_tensors
        dq, d_scale = quantise_rows(dy)
        dg, dg_scale, du, du_scale = silu_product_gradient(_input_gradient(dq, d_scale, w_down), gate, up)
        x = _one_scale(q, scale)
        return (
            _input_gradient(dg, dg_scale, w_gate) + _input_gradient(du, du_scale, w_up),
            _weight_gradient(_one_scale(dg, dg_scale), x),
            _weight_gradient(_one_scale(du, du_scale), x),
            _weight_gradient(_one_scale(dq, d_scale), _one_scale(h, h_scale)),
        )


def _linear_forward(self: nn.Linear, x: Tensor) -> Tensor:
    y: Tensor = _Linear.apply(x.flatten(0, -2), self.weight)  # pyright: ignore[reportAssignmentType]
    y = y.view(*x.shape[:-1], self.out_features)
    return y if self.bias is None else y + self.bias


def _gated_forward(self: Any, x: Tensor) -> Tensor:
    weights = (self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)
    y: Tensor = _GatedSilu.apply(x.flatten(0, -2), *weights)  # pyright: ignore[reportAssignmentType]
    return y.view(x.shape)


def _is_gated_silu(module: nn.Module) -> bool:
    """Whether the module is `down_proj(silu(gate_proj(x)) * up_proj(x))`: by its parts, and by what it answers."""
    gate, up, down = (getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj"))
    for part in (gate, up, down):
        if type(part) is not nn.Linear or part.bias is not None or part.in_features % _MULTIPLE:
            return False
    assert isinstance(gate, nn.Linear)
    assert isinstance(up, nn.Linear)
    assert isinstance(down, nn.Linear)
    with torch.no_grad():
        x = torch.linspace(-3, 3, 2 * gate.in_features, device=gate.weight.device, dtype=gate.weight.dtype)
        x = x.view(1, 2, gate.in_features)
        answer, known = module(x), down(F.silu(gate(x)) * up(x))
    return isinstance(answer, Tensor) and torch.allclose(answer, known, rtol=1e-3, atol=1e-4)


def _on_gpu(tensor: Tensor) -> Any:
    """The Triton kernels, where the tensor can use them."""
    if not tensor.is_cuda:
        return None
    from training import fp8_kernels

    return fp8_kernels


@torch.library.custom_op("eagleray::silu_product", mutates_args=())
def silu_product(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """`silu(gate) * up` as quantised rows: bf16 [N, K] twice, e4m3 [N, K] and fp32 scales [N, 1]."""
    if kernels := _on_gpu(gate):
        return kernels.silu_product(gate, up)
    return quantise_rows((F.silu(gate.float()) * up.float()).to(gate.dtype))


@torch.library.custom_op("eagleray::silu_product_gradient", mutates_args=())
def silu_product_gradient(d: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of gate and up, each as quantised rows and scales, from `d`, that of their product."""
    if kernels := _on_gpu(gate):
        return kernels.silu_product_gradient(d, gate, up)
    wide, sigmoid = d.float(), torch.sigmoid(gate.float())
    silu = gate.float() * sigmoid
    return *quantise_rows(wide * up.float() * (sigmoid + silu * (1 - sigmoid))), *quantise_rows(wide * silu)


@torch.library.custom_op("eagleray::transpose_rescaled", mutates_args=())
def transpose_rescaled(q: Tensor, scale: Tensor, common: Tensor) -> Tensor:
    """e4m3 rows [N, K] with scales [N, 1] as [K, N] with the one scale `common`, no smaller than any of them."""
    if kernels := _on_gpu(q):
        return kernels.transpose_rescaled(q, scale, common)
    return (q.float() * (scale / common)).to(E4M3).t().contiguous()


def _rows_like(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, dtype=E4M3), x.new_empty(x.shape[0], 1, dtype=torch.float32)


_fakes: dict[Any, Callable[..., Any]] = {
    silu_product: lambda gate, up: _rows_like(gate),
    silu_product_gradient: lambda d, gate, up: (*_rows_like(gate), *_rows_like(gate)),
    transpose_rescaled: lambda q, scale, common: q.new_empty(q.shape[1], q.shape[0]),
}
for _op, _fake in _fakes.items():
    _op.register_fake(_fake)
