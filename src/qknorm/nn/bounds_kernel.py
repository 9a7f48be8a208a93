"""Where each row's sentence begins and ends, as a Triton kernel; for where Triton is.

Axes: R rows of a buffer, N places for sentences.
"""
# mypy: ignore-errors

import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

ROWS, PLACES = 32, 128


@triton.jit
def find_bounds(own, other, start, end, R, N, ROWS: tl.constexpr, PLACES: tl.constexpr):
    """First row and end, in ``other``, of the sentence each row of ``own`` belongs to; 0 if to none."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    sentence = tl.zeros((ROWS,), tl.int32)  # sentences that end at or before the row
    for at in range(0, N, PLACES):
        place = at + tl.arange(0, PLACES)
        ends = tl.load(own + 1 + place, mask=place < N, other=2147483647)
        sentence += tl.sum((row[:, None] >= ends[None, :]).to(tl.int32), axis=1)
    used = (row < R) & (row < tl.load(own + N))
    tl.store(start + row, tl.load(other + sentence, mask=used, other=0), mask=row < R)
    tl.store(end + row, tl.load(other + sentence + 1, mask=used, other=0), mask=row < R)


@triton_op("qknorm::bounds", mutates_args={})
def fused_bounds(own: Tensor, other: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """``plain_bounds`` of these cu_seqlens in one kernel."""
    start, end = own.new_empty(rows), own.new_empty(rows)
    if rows:
        wrap_triton(find_bounds)[(triton.cdiv(rows, ROWS),)](
            own, other, start, end, rows, own.size(0) - 1, ROWS, PLACES
        )
    return start, end
