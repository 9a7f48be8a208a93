"""Where each row's sentence begins and ends, as a Triton kernel; for where Triton is.

Axes: R rows of a buffer, N places for sentences.
"""
# mypy: ignore-errors

import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

ROWS = 128


@triton.jit
def find_bounds(own, other, start, end, R, N, HALVINGS: tl.constexpr, ROWS: tl.constexpr):
    """First row and end, in ``other``, of the sentence each row of ``own`` belongs to; 0 if to none."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    sentence = tl.zeros((ROWS,), tl.int32)  # sentences that end at or before the row: so many, or …
    most = tl.zeros((ROWS,), tl.int32) + N  # … up to so many
    for _ in range(HALVINGS):
        middle = (sentence + most) // 2
        left = sentence < most
        before = left & (row >= tl.load(own + 1 + middle, mask=left, other=0))
        sentence = tl.where(before, middle + 1, sentence)
        most = tl.where(before, most, middle)
    used = (row < R) & (row < tl.load(own + N))
    tl.store(start + row, tl.load(other + sentence, mask=used, other=0), mask=row < R)
    tl.store(end + row, tl.load(other + sentence + 1, mask=used, other=0), mask=row < R)


@triton_op("qknorm::bounds", mutates_args={})
def fused_bounds(own: Tensor, other: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """``plain_bounds`` of these cu_seqlens in one kernel."""
    start, end = own.new_empty(rows), own.new_empty(rows)
    if rows:
        wrap_triton(find_bounds)[(triton.cdiv(rows, ROWS),)](
            own, other, start, end, rows, own.size(0) - 1, own.size(0).bit_length(), ROWS
        )
    return start, end
