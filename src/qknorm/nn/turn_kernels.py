"""Queries and keys turned by their positions, as a Triton kernel; for where Triton is.

A program works on some rows of one head. Turning is orthogonal, so its gradient is turned back by the same
kernel.

Axes: R rows, H heads, D width of one head; a row holds 3H heads: queries, keys, values.
"""
# mypy: ignore-errors

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from qknorm.nn.aside import current_aside, do_aside
from qknorm.nn.residual_ops import column_sums

ROWS = 32
"""Rows one program (of one warp) works on."""


@triton_op("qknorm::turned", mutates_args={})
def fused_turned(qkv: Tensor, turns: Tensor, bias: Tensor | None = None, back: bool = False) -> Tensor:
    """``plain_turned`` in one kernel; ``back`` turns the other way."""
    R, heads, D = qkv.shape[0], int(qkv.shape[1]), int(qkv.shape[2])  # of these two a kernel is made each
    qkv, turns = qkv.contiguous(), turns.contiguous()
    out = torch.empty_like(qkv)
    if R:
        wrap_triton(turn_rows)[(triton.cdiv(R, ROWS), heads)](
            qkv, turns, out, R, heads // 3, D // 2, triton.next_power_of_2(D // 2), ROWS, back, num_warps=1
        )
    return out


@triton_op("qknorm::turned_bias", mutates_args={})
def fused_turned_bias(dqkv: Tensor, bias: Tensor) -> Tensor:
    """The gradient of the bias, of that of the projections."""
    dbias = torch.empty_like(bias)
    column_sums(dqkv.flatten(1), dbias)
    return dbias


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, turns, bias, ctx.back = inputs
    ctx.save_for_backward(turns, bias)
    ctx.aside = current_aside()


def _backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    turns, bias = ctx.saved_tensors
    dqkv = fused_turned(dout, turns, None, not ctx.back)
    if bias is None:
        return dqkv, None, None, None
    if torch.is_grad_enabled():  # somebody differentiates this gradient: use operations that allow it
        return dqkv, None, dqkv.flatten(1).sum(0).to(bias.dtype), None
    return dqkv, None, do_aside(ctx.aside, lambda: fused_turned_bias(dqkv, bias), dqkv), None


fused_turned.register_autograd(_backward, setup_context=_keep)


@triton.jit
def turn_rows(
    qkv, turns, out, R,
    H: tl.constexpr, HALF: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, WIDTH)
    there = (row[:, None] < R) & (col[None, :] < HALF)
    at = (row[:, None] * (3 * H) + h) * (2 * HALF) + col[None, :]
    a = tl.load(qkv + at, mask=there)
    b = tl.load(qkv + at + HALF, mask=there)
    if h < 2 * H:
        angle = turns + row[:, None] * (2 * HALF) + col[None, :]
        cos = tl.load(angle, mask=there)
        sin = tl.load(angle + HALF, mask=there)
        if BACK:
            sin = -sin
        x, y = a.to(tl.float32), b.to(tl.float32)
        a, b = (x * cos - y * sin).to(a.dtype), (y * cos + x * sin).to(b.dtype)
    tl.store(out + at, a, mask=there)
    tl.store(out + at + HALF, b, mask=there)
