"""The smoothed loss over whole rows of logits in one kernel, which leaves their gradient in their place.

Axes: R target positions, E model width, A subwords that the target side has.
"""
# mypy: ignore-errors

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

MOST_SUBWORDS = 1 << 16
"""A row of logits is held in registers; longer ones do not fit."""
SUM_ROWS, SUM_COLUMNS = 512, 128
"""What one program of ``add_up_columns`` takes."""


@triton.jit
def smooth_rows(
    logits, bias, wanted, real, loss, nll, A, smoothing, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    there = col < A
    place = logits + row.to(tl.int64) * A + col
    x = tl.load(place, mask=there, other=0.0).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias + col, mask=there, other=0.0).to(tl.float32)
    target = tl.load(wanted + row)
    counts = tl.load(real + row) != 0
    mean = tl.sum(tl.where(there, x, 0.0), axis=0) / A
    right = tl.sum(tl.where(col == target, x, 0.0), axis=0)
    right = tl.where(target < 0, float("-inf"), right)
    x = tl.where(there, x, float("-inf"))
    top = tl.max(x, axis=0)
    p = tl.exp(x - top)
    total = tl.sum(p, axis=0)
    norm = tl.log(total) + top
    tl.store(nll + row, tl.where(counts, norm - right, 0.0))
    tl.store(loss + row, tl.where(counts, norm - (1 - smoothing) * right - smoothing * mean, 0.0))
    # d loss / d logits = p − (1 − ε) · wanted − ε / A
    gradient = p / total - smoothing / A - tl.where(col == target, 1 - smoothing, 0.0)
    tl.store(place, tl.where(counts, gradient, 0.0), mask=there)


@triton.jit
def add_up_columns(x, parts, R, A, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STRIP: tl.constexpr):
    col = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((STRIP, COLUMNS), tl.float32)
    for at in range(0, ROWS, STRIP):
        row = tl.program_id(1) * ROWS + at + tl.arange(0, STRIP)
        there = (row < R)[:, None] & (col < A)[None, :]
        total += tl.load(x + row.to(tl.int64)[:, None] * A + col[None, :], mask=there, other=0.0).to(
            tl.float32
        )
    tl.store(parts + tl.program_id(1) * A + col, tl.sum(total, axis=0), mask=col < A)


@triton_op("qknorm::smoothed_loss", mutates_args={})
def fused_smoothed_loss(
    h: Tensor, table: Tensor, bias: Tensor | None, wanted: Tensor, real: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Summed loss and negative log-likelihood, and the loss's gradients by h, table and bias.

    Args:
        h: (R, E) hidden states.
        table: (A, E) output rows, of h's dtype.
        bias: (A,) output biases.
        wanted: (R,) rows of the table; −1 for none, which costs infinity.
        real: (R,) False for positions that do not count.
        smoothing: ε.
    """
    R, A = h.size(0), table.size(0)
    logits = h @ table.T
    loss, nll = (h.new_empty(R, dtype=torch.float32) for _ in range(2))
    block = triton.next_power_of_2(A)
    if R:
        wrap_triton(smooth_rows)[(R,)](
            logits, logits if bias is None else bias, wanted, real, loss, nll, A, smoothing,
            bias is not None, block, num_warps=min(max(block // 1024, 4), 16),
        )  # fmt: skip
    dbias = h.new_zeros(0, dtype=torch.float32)
    if bias is not None:
        parts = h.new_zeros(triton.cdiv(R, SUM_ROWS), A, dtype=torch.float32)
        if R:
            wrap_triton(add_up_columns)[(triton.cdiv(A, SUM_COLUMNS), parts.size(0))](
                logits, parts, R, A, SUM_ROWS, SUM_COLUMNS, 32
            )
        dbias = parts.sum(0)
    return loss.sum(), nll.sum(), logits @ table, logits.T @ h, dbias


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[2:])
    ctx.has_bias = inputs[2] is not None
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx: Any, up: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    dh, dtable, dbias = ctx.saved_tensors
    return (
        (dh * up).to(dh.dtype),
        (dtable * up).to(dh.dtype),
        dbias * up if ctx.has_bias else None,
        *[None] * 3,
    )


fused_smoothed_loss.register_autograd(_backward, setup_context=_keep)
