"""Normalised heads as Triton kernels; imported only where Triton is.

The projection of self-attention writes queries, keys and values of a token side by side. Left to
themselves, PyTorch and its compiler read and write them several times over to normalise and to take them
apart (and, backward, to put them together again); here that is one kernel each way. One program works on
some rows of one head: its queries, its keys, its values.

Axes: R rows (tokens), H heads, D width of one head.
"""
# mypy: ignore-errors

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from qknorm.nn.functional import plain_heads

FORWARD_ROWS, BACKWARD_ROWS = 16, 8
"""Rows one program (of one warp) works on: the fastest of those tried on an H200."""


@triton_op("qknorm::fused_heads", mutates_args={})
def fused_heads(qkv: Tensor, g: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """``plain_heads`` of (R, 3H, D) in one kernel; the three results are tensors of their own."""
    R, H, D = qkv.size(0), qkv.size(1) // 3, qkv.size(2)
    qkv = qkv.contiguous()
    q, k, v = (qkv.new_empty(R, H, D) for _ in "qkv")
    if R:
        wrap_triton(normalize_heads)[(triton.cdiv(R, FORWARD_ROWS), H)](
            qkv, g, q, k, v, R, eps,
            H, D, triton.next_power_of_2(D), FORWARD_ROWS, g.numel() > 1, num_warps=1,
        )  # fmt: skip
    return q, k, v


@triton_op("qknorm::fused_heads_backward", mutates_args={})
def fused_heads_backward(
    dq: Tensor, dk: Tensor, dv: Tensor, qkv: Tensor, g: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The gradient of qkv, and (H, programs) parts whose sum is that of g."""
    R, H, D = qkv.size(0), qkv.size(1) // 3, qkv.size(2)
    dq, dk, dv, qkv = dq.contiguous(), dk.contiguous(), dv.contiguous(), qkv.contiguous()
    programs = triton.cdiv(R, BACKWARD_ROWS)
    dqkv = torch.empty_like(qkv)
    parts = qkv.new_empty(H, programs, dtype=torch.float32)
    if R:
        wrap_triton(normalize_heads_backward)[(programs, H)](
            dq, dk, dv, qkv, g, dqkv, parts, R, eps,
            H, D, triton.next_power_of_2(D), BACKWARD_ROWS, g.numel() > 1, num_warps=1,
        )  # fmt: skip
    return dqkv, parts


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    qkv, g, ctx.eps = inputs
    ctx.save_for_backward(qkv, g)


def _backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    qkv, g = ctx.saved_tensors
    if torch.is_grad_enabled():  # somebody differentiates this gradient: use operations that allow it
        wanted = [x for x in (qkv, g) if x.requires_grad]
        found = iter(
            torch.autograd.grad(plain_heads(qkv, g, ctx.eps), wanted, (dq, dk, dv), create_graph=True)
        )
        return next(found) if qkv.requires_grad else None, next(found) if g.requires_grad else None, None
    dqkv, parts = fused_heads_backward(dq, dk, dv, qkv, g, ctx.eps)
    dg = parts.sum(-1) if g.numel() > 1 else parts.sum().view(1)
    return dqkv, dg.to(g.dtype), None


fused_heads.register_autograd(_backward, setup_context=_keep)


@triton.jit
def normalize_heads(
    qkv, g, q, k, v, R, eps,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, PER_HEAD: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1)
    scale = tl.load(g + (h if PER_HEAD else 0)).to(tl.float32)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, WIDTH)
    there = (row[:, None] < R) & (col[None, :] < D)
    source = qkv + row[:, None] * (3 * H * D) + h * D + col[None, :]
    to = row[:, None] * (H * D) + h * D + col[None, :]
    x = tl.load(source, mask=there, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(x * x, axis=1))
    factor = tl.where(length > eps, scale / length, 0.0)
    tl.store(q + to, x * factor[:, None], mask=there)
    x = tl.load(source + H * D, mask=there, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(x * x, axis=1))
    factor = tl.where(length > eps, 1.0 / length, 0.0)
    tl.store(k + to, x * factor[:, None], mask=there)
    tl.store(v + to, tl.load(source + 2 * H * D, mask=there), mask=there)


@triton.jit
def normalize_heads_backward(
    dq, dk, dv, qkv, g, dqkv, parts, R, eps,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, PER_HEAD: tl.constexpr,
):  # fmt: skip
    h = tl.program_id(1)
    scale = tl.load(g + (h if PER_HEAD else 0)).to(tl.float32)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, WIDTH)
    there = (row[:, None] < R) & (col[None, :] < D)
    at = row[:, None] * (3 * H * D) + h * D + col[None, :]
    flat = row[:, None] * (H * D) + h * D + col[None, :]
    # y = g x / ‖x‖:  dx = g / ‖x‖ (dy − x̂ (x̂ · dy)),  dg = Σ x̂ · dy
    x = tl.load(qkv + at, mask=there, other=0.0).to(tl.float32)
    dy = tl.load(dq + flat, mask=there, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(x * x, axis=1))
    inverse = tl.where(length > eps, 1.0 / length, 0.0)
    unit = x * inverse[:, None]
    along = tl.sum(unit * dy, axis=1)
    dx = (scale * inverse)[:, None] * (dy - unit * along[:, None])
    tl.store(dqkv + at, dx, mask=there)
    tl.store(parts + h * tl.num_programs(0) + tl.program_id(0), tl.sum(along, axis=0))
    x = tl.load(qkv + at + H * D, mask=there, other=0.0).to(tl.float32)
    dy = tl.load(dk + flat, mask=there, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(x * x, axis=1))
    inverse = tl.where(length > eps, 1.0 / length, 0.0)
    unit = x * inverse[:, None]
    dx = inverse[:, None] * (dy - unit * tl.sum(unit * dy, axis=1)[:, None])
    tl.store(dqkv + at + H * D, dx, mask=there)
    tl.store(dqkv + at + 2 * H * D, tl.load(dv + flat, mask=there), mask=there)
