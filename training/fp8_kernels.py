"""Triton kernels of fp8.py, which says what they compute. CUDA only: import where needed."""

from __future__ import annotations

from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

_BLOCK, _TILE = 1024, 128


def silu_product(gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """As fp8.silu_product; the bf16 product never reaches memory."""
    rows, columns = gate.shape
    q, scale = _rows(gate)
    _launch(_silu_product, rows)(gate, up, q, scale, columns, BLOCK=_BLOCK, num_warps=4)
    return q, scale


def silu_product_gradient(d: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As fp8.silu_product_gradient."""
    rows, columns = gate.shape
    (dg, dg_scale), (du, du_scale) = _rows(gate), _rows(gate)
    _launch(_silu_product_gradient, rows)(
        d, gate, up, dg, dg_scale, du, du_scale, columns, BLOCK=_BLOCK, num_warps=4)
    return dg, dg_scale, du, du_scale


def transpose_rescaled(q: Tensor, scale: Tensor, common: Tensor) -> Tensor:
    """As fp8.transpose_rescaled."""
    rows, columns = q.shape
    out = torch.empty(columns, rows, dtype=q.dtype, device=q.device)
    _launch(_transpose, triton.cdiv(rows, _TILE), triton.cdiv(columns, _TILE))(
        q, scale, common, out, rows, columns, TILE=_TILE, num_warps=8)
    return out


def _rows(like: Tensor) -> tuple[Tensor, Tensor]:
    return (torch.empty_like(like, dtype=torch.float8_e4m3fn),
            torch.empty(like.shape[0], 1, dtype=torch.float32, device=like.device))


def _launch(kernel: Any, *programs: int) -> Any:
    return kernel[programs]


@triton.jit
def _scales(largest):
    """The largest power of two that keeps `largest` at or below 448 = 1.75 * 2**8, and its inverse."""
    bits = tl.maximum(largest, 1e-30).to(tl.int32, bitcast=True)
    power = 8 - ((bits >> 23) - 127) - tl.where((bits & 0x7FFFFF) > 0x600000, 1, 0)
    return ((power + 127) << 23).to(tl.float32, bitcast=True), ((127 - power) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _product(gate, up, at, inside):
    g = tl.load(gate + at, inside, other=0).to(tl.float32)
    u = tl.load(up + at, inside, other=0).to(tl.float32)
    return (g * tl.sigmoid(g) * u).to(tl.bfloat16).to(tl.float32)


@triton.jit
def _silu_product(gate, up, q, scale, columns, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    gate, up, q = gate + row * columns, up + row * columns, q + row * columns
    largest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        largest = tl.maximum(largest, tl.abs(_product(gate, up, at, at < columns)))
    raised, lowered = _scales(tl.max(largest, 0))
    tl.store(scale + row, lowered)
    for start in range(0, columns, BLOCK):  # the row again, from the caches
        at = start + tl.arange(0, BLOCK)
        tl.store(q + at, (_product(gate, up, at, at < columns) * raised).to(tl.float8e4nv), at < columns)


@triton.jit
def _gradients(d, gate, up, at, inside):
    wide = tl.load(d + at, inside, other=0).to(tl.float32)
    g = tl.load(gate + at, inside, other=0).to(tl.float32)
    u = tl.load(up + at, inside, other=0).to(tl.float32)
    sigmoid = tl.sigmoid(g)
    silu = g * sigmoid
    return wide * u * (sigmoid + silu * (1 - sigmoid)), wide * silu


@triton.jit
def _silu_product_gradient(d, gate, up, dg, dg_scale, du, du_scale, columns, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    d, gate, up = d + row * columns, gate + row * columns, up + row * columns
    dg, du = dg + row * columns, du + row * columns
    largest_g = tl.zeros([BLOCK], tl.float32)
    largest_u = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        grad_g, grad_u = _gradients(d, gate, up, at, at < columns)
        largest_g, largest_u = tl.maximum(largest_g, tl.abs(grad_g)), tl.maximum(largest_u, tl.abs(grad_u))
    raised_g, lowered_g = _scales(tl.max(largest_g, 0))
    raised_u, lowered_u = _scales(tl.max(largest_u, 0))
    tl.store(dg_scale + row, lowered_g)
    tl.store(du_scale + row, lowered_u)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        grad_g, grad_u = _gradients(d, gate, up, at, at < columns)
        tl.store(dg + at, (grad_g * raised_g).to(tl.float8e4nv), at < columns)
        tl.store(du + at, (grad_u * raised_u).to(tl.float8e4nv), at < columns)


@triton.jit
def _transpose(q, scale, common, out, rows, columns, TILE: tl.constexpr):  # noqa: N803
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    values = tl.load(q + row[:, None] * columns + column[None, :], inside, other=0.0).to(tl.float32)
    values *= (tl.load(scale + row, row < rows, other=0.0) / tl.load(common))[:, None]
    turned = tl.trans(values.to(tl.float8e4nv))
    tl.store(out + column[:, None] * rows + row[None, :], turned, tl.trans(inside))
