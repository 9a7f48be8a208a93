"""The smoothed loss over whole rows of logits in one kernel, which leaves their gradient in their place.

Rows of logits are filled up to a multiple of ``ALIGN``: only then do products and kernels read and write
whole blocks of memory. What a row has past its A logits ends as zeros of the gradient.

Axes: R target positions, E model width, A subwords that the target side has, W = A and what fills up a row.
"""
# mypy: ignore-errors

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from qknorm.nn.residual_ops import column_sums

ALIGN = 64
STRIP, WARPS = 1024, 4
"""Logits that a program looks at together, and with how many warps."""


@triton.jit
def smooth_rows(
    logits, bias, wanted, real, loss, nll, A, W,
    smoothing: tl.constexpr, HAS_BIAS: tl.constexpr, STRIP: tl.constexpr, STRIPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    place = logits + row.to(tl.int64) * W
    target = tl.load(wanted + row)
    counts = tl.load(real + row) != 0
    top = tl.full((STRIP,), float("-inf"), tl.float32)
    total = tl.zeros((STRIP,), tl.float32)  # of exp(x − top), lane by lane
    plain = tl.zeros((STRIP,), tl.float32)
    right = tl.zeros((STRIP,), tl.float32)
    for turn in range(STRIPS):
        col = turn * STRIP + tl.arange(0, STRIP)
        x = strip_of(place, bias, col, A, W, HAS_BIAS)
        there = col < A
        new_top = tl.maximum(top, x)
        level = tl.where(new_top > float("-inf"), new_top, 0.0)
        total = total * tl.exp(top - level) + tl.exp(x - level)
        top = new_top
        plain += tl.where(there, x, 0.0)
        right += tl.where(col == target, x, 0.0)
    highest = tl.max(top, axis=0)
    norm = tl.log(tl.sum(total * tl.exp(top - highest), axis=0)) + highest
    mean, chosen = tl.sum(plain, axis=0) / A, tl.sum(right, axis=0)
    chosen = tl.where(target < 0, float("-inf"), chosen)
    tl.store(nll + row, tl.where(counts, norm - chosen, 0.0))
    tl.store(loss + row, tl.where(counts, norm - (1 - smoothing) * chosen - smoothing * mean, 0.0))
    for turn in range(STRIPS):
        col = turn * STRIP + tl.arange(0, STRIP)
        # d loss / d logits = p − (1 − ε) · wanted − ε / A
        p = tl.exp(strip_of(place, bias, col, A, W, HAS_BIAS) - norm)
        gradient = p - smoothing / A - tl.where(col == target, 1 - smoothing, 0.0)
        tl.store(place + col, tl.where(counts & (col < A), gradient, 0.0), mask=col < W)


@triton.jit
def smooth_pairs(
    logits, bias, wanted, real, loss, nll, R, A, W,
    smoothing: tl.constexpr, agreement: tl.constexpr,
    HAS_BIAS: tl.constexpr, STRIP: tl.constexpr, STRIPS: tl.constexpr,
):  # fmt: skip
    """``smooth_rows`` of the two passes over a position, R rows apart, which also draw to each other."""
    row = tl.program_id(0)
    first, second = logits + row.to(tl.int64) * W, logits + (row.to(tl.int64) + R) * W
    target = tl.load(wanted + row)
    counts = tl.load(real + row) != 0
    low = float("-inf")
    top_x, top_y = tl.full((STRIP,), low, tl.float32), tl.full((STRIP,), low, tl.float32)
    total_x, total_y = tl.zeros((STRIP,), tl.float32), tl.zeros((STRIP,), tl.float32)
    apart_x, apart_y = tl.zeros((STRIP,), tl.float32), tl.zeros((STRIP,), tl.float32)  # of exp · (x − y)
    plain = tl.zeros((STRIP,), tl.float32)  # of both
    right = tl.zeros((STRIP,), tl.float32)
    for turn in range(STRIPS):
        col = turn * STRIP + tl.arange(0, STRIP)
        there = col < A
        x, y = strip_of(first, bias, col, A, W, HAS_BIAS), strip_of(second, bias, col, A, W, HAS_BIAS)
        apart = tl.where(there, x - y, 0.0)
        new_x, new_y = tl.maximum(top_x, x), tl.maximum(top_y, y)
        level_x, level_y = tl.where(new_x > low, new_x, 0.0), tl.where(new_y > low, new_y, 0.0)
        fall_x, fall_y = tl.exp(top_x - level_x), tl.exp(top_y - level_y)
        p, q = tl.exp(x - level_x), tl.exp(y - level_y)
        total_x, total_y = total_x * fall_x + p, total_y * fall_y + q
        apart_x, apart_y = apart_x * fall_x + p * apart, apart_y * fall_y + q * apart
        top_x, top_y = new_x, new_y
        plain += tl.where(there, x + y, 0.0)
        right += tl.where(col == target, x + y, 0.0)
    high_x, high_y = tl.max(top_x, axis=0), tl.max(top_y, axis=0)
    fall_x, fall_y = tl.exp(top_x - high_x), tl.exp(top_y - high_y)
    sum_x, sum_y = tl.sum(total_x * fall_x, axis=0), tl.sum(total_y * fall_y, axis=0)
    norm_x, norm_y = tl.log(sum_x) + high_x, tl.log(sum_y) + high_y
    between = norm_y - norm_x
    kl_x = tl.sum(apart_x * fall_x, axis=0) / sum_x + between  # KL(p, q)
    kl_y = -tl.sum(apart_y * fall_y, axis=0) / sum_y - between  # KL(q, p)
    norm = (norm_x + norm_y) / 2
    chosen = tl.where(target < 0, low, tl.sum(right, axis=0) / 2)
    smooth = norm - (1 - smoothing) * chosen - smoothing * tl.sum(plain, axis=0) / (2 * A)
    tl.store(nll + row, tl.where(counts, norm - chosen, 0.0))
    tl.store(loss + row, tl.where(counts, smooth + agreement / 4 * (kl_x + kl_y), 0.0))
    for turn in range(STRIPS):
        col = turn * STRIP + tl.arange(0, STRIP)
        x = strip_of(first, bias, col, A, W, HAS_BIAS) - norm_x
        y = strip_of(second, bias, col, A, W, HAS_BIAS) - norm_y
        p, q = tl.exp(x), tl.exp(y)
        aim = smoothing / A + tl.where(col == target, 1 - smoothing, 0.0)
        dx = (p - aim) / 2 + agreement / 4 * (p * (x - y - kl_x) + p - q)
        dy = (q - aim) / 2 + agreement / 4 * (q * (y - x - kl_y) + q - p)
        tl.store(first + col, tl.where(counts & (col < A), dx, 0.0), mask=col < W)
        tl.store(second + col, tl.where(counts & (col < A), dy, 0.0), mask=col < W)


@triton.jit
def strip_of(place, bias, col, A, W, HAS_BIAS: tl.constexpr):
    """Some logits of a row, −∞ past the last."""
    x = tl.load(place + col, mask=col < W, other=0.0).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias + col, mask=col < W, other=0.0).to(tl.float32)
    return tl.where(col < A, x, float("-inf"))


@triton_op("qknorm::smoothed_loss", mutates_args={})
def fused_smoothed_loss(
    h: Tensor,
    table: Tensor,
    bias: Tensor | None,
    wanted: Tensor,
    real: Tensor,
    smoothing: float,
    agreement: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Summed loss and negative log-likelihood, and the loss's gradients by h, table and bias.

    Args:
        h: (R, E) hidden states; with an agreement (2 R, E), of two passes.
        table: (A, E) output rows, of h's dtype.
        bias: (A,) output biases.
        wanted: (R,) rows of the table; −1 for none, which costs infinity.
        real: (R,) False for positions that do not count.
        smoothing: ε.
        agreement: α of R-Drop, as ``loss_over`` has it.
    """
    R, A = wanted.size(0), table.size(0)
    W = triton.cdiv(A, ALIGN) * ALIGN
    if W > A:
        table = F.pad(table, (0, 0, 0, W - A))
        bias = None if bias is None else F.pad(bias, (0, W - A))
    logits = h @ table.T  # (R, W)
    loss, nll = (h.new_empty(R, dtype=torch.float32) for _ in range(2))
    shape = bias is not None, STRIP, triton.cdiv(W, STRIP)
    tensors = logits, logits if bias is None else bias, wanted, real, loss, nll
    if R and agreement:
        wrap_triton(smooth_pairs)[(R,)](*tensors, R, A, W, smoothing, agreement, *shape, num_warps=WARPS)
    elif R:
        wrap_triton(smooth_rows)[(R,)](*tensors, A, W, smoothing, *shape, num_warps=WARPS)
    dbias = h.new_zeros(0 if bias is None else A, dtype=torch.float32)
    if bias is not None and R:
        dbias = column_sums(logits)[:A]
    return loss.sum(), nll.sum(), logits @ table, (logits.T @ h)[:A], dbias


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[2:])
    ctx.has_bias = inputs[2] is not None
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # no zeros for what has no gradient


def _backward(ctx: Any, up: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    dh, dtable, dbias = ctx.saved_tensors
    return dh * up, dtable * up, dbias * up if ctx.has_bias else None, *[None] * 4


fused_smoothed_loss.register_autograd(_backward, setup_context=_keep)
