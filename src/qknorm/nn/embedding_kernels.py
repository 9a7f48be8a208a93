"""Packed rows from words, and the output projection's rows, as Triton kernels; for where Triton is.

Axes: R rows of a buffer, E width, V subwords, A of them that the output has. Places in tensors are counted in
32 bits.
"""
# mypy: ignore-errors

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from qknorm.nn.functional import ZERO_NORM
from qknorm.nn.residual_kernels import stays
from qknorm.nn.residual_ops import added_up, check_count, dropout_numbers, whole_rows


@triton.jit
def embed_rows(
    ids, start, end, weight, positions, language, seeds, x, R, E,
    scale: tl.constexpr, word_drop: tl.constexpr, drop: tl.constexpr, boost: tl.constexpr,
    eps: tl.constexpr, PAD: tl.constexpr, UNK: tl.constexpr, UNIT: tl.constexpr,
    HAS_LANGUAGE: tl.constexpr, WORD_DROPOUT: tl.constexpr, DROPOUT: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """x = dropout(scale · word + position + language)."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, WIDTH)
    there = (row < R)[:, None] & (col < E)[None, :]
    at = row[:, None] * E + col[None, :]
    word = words(ids, seeds, row, R, word_drop, PAD, UNK, WORD_DROPOUT)
    value, _ = word_rows(weight, word, col, there, E, eps, UNIT)
    value *= scale
    first = tl.load(start + row, mask=row < R, other=0)
    used = first < tl.load(end + row, mask=row < R, other=0)
    place = tl.where(used, row - first, 0)
    value += tl.load(positions + place[:, None] * E + col[None, :], mask=there, other=0.0)
    if HAS_LANGUAGE:
        value += tl.load(language + col, mask=col < E, other=0.0)[None, :]
    if DROPOUT:
        value = tl.where(stays(seeds + 1, at, drop), value * boost, 0.0)
    tl.store(x + at, value, mask=there)


@triton.jit
def embed_rows_backward(
    dx, ids, weight, seeds, dweight, parts, R, E,
    scale: tl.constexpr, word_drop: tl.constexpr, drop: tl.constexpr, boost: tl.constexpr,
    eps: tl.constexpr, PAD: tl.constexpr, UNK: tl.constexpr, UNIT: tl.constexpr,
    HAS_LANGUAGE: tl.constexpr, WORD_DROPOUT: tl.constexpr, DROPOUT: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Adds words' gradients to ``dweight``; the language's, (E,), go into a program's row of ``parts``."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, WIDTH)
    there = (row < R)[:, None] & (col < E)[None, :]
    at = row[:, None] * E + col[None, :]
    up = tl.load(dx + at, mask=there, other=0.0).to(tl.float32)
    if DROPOUT:
        up = tl.where(stays(seeds + 1, at, drop), up * boost, 0.0)
    if HAS_LANGUAGE:
        tl.store(parts + tl.program_id(0) * E + col, tl.sum(up, axis=0), mask=col < E)
    word = words(ids, seeds, row, R, word_drop, PAD, UNK, WORD_DROPOUT)
    value, inverse = word_rows(weight, word, col, there, E, eps, UNIT)
    up = through_unit(up * scale, value, inverse, UNIT)
    tl.atomic_add(dweight + word[:, None] * E + col[None, :], up, mask=there, sem="relaxed")


@triton.jit
def output_rows(
    weight, ids, out, A, E, eps: tl.constexpr, UNIT: tl.constexpr, HAS_IDS: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Rows of some subwords, or of all."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, WIDTH)
    there = (row < A)[:, None] & (col < E)[None, :]
    word = tl.load(ids + row, mask=row < A, other=0).to(tl.int32) if HAS_IDS else row
    value, _ = word_rows(weight, word, col, there, E, eps, UNIT)
    tl.store(out + row[:, None] * E + col[None, :], value, mask=there)


@triton.jit
def output_rows_backward(
    drows, weight, ids, dweight, A, E, eps: tl.constexpr, UNIT: tl.constexpr, HAS_IDS: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The gradient of the weight's rows of these subwords, each of which is there once."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, WIDTH)
    there = (row < A)[:, None] & (col < E)[None, :]
    word = tl.load(ids + row, mask=row < A, other=0).to(tl.int32) if HAS_IDS else row
    value, inverse = word_rows(weight, word, col, there, E, eps, UNIT)
    up = tl.load(drows + row[:, None] * E + col[None, :], mask=there, other=0.0).to(tl.float32)
    up = through_unit(up, value, inverse, UNIT)
    tl.store(dweight + word[:, None] * E + col[None, :], up, mask=there)


@triton.jit
def words(
    ids, seeds, row, R, drop: tl.constexpr, PAD: tl.constexpr, UNK: tl.constexpr, DROPOUT: tl.constexpr
):
    """The subword of each row, unknown where word dropout strikes."""
    word = tl.load(ids + row, mask=row < R, other=PAD).to(tl.int32)
    if DROPOUT:
        word = tl.where(stays(seeds, row, drop) | (word == PAD), word, UNK)
    return word


@triton.jit
def word_rows(weight, word, col, there, E, eps: tl.constexpr, UNIT: tl.constexpr):
    """Rows of a table, of unit length if UNIT; and what they were multiplied by for that."""
    value = tl.load(weight + word[:, None] * E + col[None, :], mask=there, other=0.0).to(tl.float32)
    length = tl.sqrt(tl.sum(value * value, axis=1))
    inverse = tl.where(length > eps, 1.0 / length, 0.0)
    if UNIT:
        value *= inverse[:, None]
    return value, inverse


@triton.jit
def through_unit(up, unit, inverse, UNIT: tl.constexpr):
    """The gradient of rows, of that of their unit rows."""
    if UNIT:
        up = inverse[:, None] * (up - unit * tl.sum(up * unit, axis=1)[:, None])
    return up


@triton_op("qknorm::embed_rows", mutates_args={})
def fused_embed_rows(
    ids: Tensor, start: Tensor, end: Tensor, weight: Tensor, positions: Tensor, language: Tensor | None,
    seeds: Tensor | None, unit: bool, scale: float, word_dropout: float, dropout: float,
    pad: int, unknown: int,
) -> Tensor:  # fmt: skip
    """``plain_embed_rows`` in one kernel."""
    R, E = ids.size(0), weight.size(1)
    x = weight.new_empty(R, E)
    check_count(weight)
    check_count(x)
    if R:
        rows, width, warps = whole_rows("words", weight)
        wrap_triton(embed_rows)[(triton.cdiv(R, rows),)](
            ids, start, end, weight, positions, weight if language is None else language,
            ids if seeds is None else seeds, x, R, E,
            *_constants(language, seeds, unit, scale, word_dropout, dropout, pad, unknown),
            rows, width, num_warps=warps,
        )  # fmt: skip
    return x


@triton_op("qknorm::embed_rows_backward", mutates_args={})
def fused_embed_rows_backward(
    dx: Tensor, ids: Tensor, weight: Tensor, language: Tensor | None, seeds: Tensor | None,
    unit: bool, scale: float, word_dropout: float, dropout: float, pad: int, unknown: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of weight and language (empty where there is none)."""
    R, E = dx.shape
    rows, width, warps = whole_rows("words", weight)
    programs = triton.cdiv(R, rows)
    dweight = torch.zeros_like(weight)
    parts = weight.new_empty(programs if language is not None else 0, E)
    if R:
        wrap_triton(embed_rows_backward)[(programs,)](
            dx.contiguous(), ids, weight, ids if seeds is None else seeds, dweight, parts, R, E,
            *_constants(language, seeds, unit, scale, word_dropout, dropout, pad, unknown),
            rows, width, num_warps=warps,
        )  # fmt: skip
    return dweight, weight.new_empty(0) if language is None else added_up(parts)


@triton_op("qknorm::output_rows", mutates_args={})
def fused_output_rows(weight: Tensor, ids: Tensor | None, unit: bool, dtype: torch.dtype) -> Tensor:
    """(A, E) rows of some subwords, or of all, in ``dtype``."""
    A, E = weight.size(0) if ids is None else ids.size(0), weight.size(1)
    check_count(weight)
    out = weight.new_empty(A, E, dtype=dtype)
    if A:
        rows, width, warps = whole_rows("words", weight)
        wrap_triton(output_rows)[(triton.cdiv(A, rows),)](
            weight, weight if ids is None else ids, out, A, E, ZERO_NORM, unit, ids is not None,
            rows, width, num_warps=warps,
        )  # fmt: skip
    return out


@triton_op("qknorm::output_rows_backward", mutates_args={})
def fused_output_rows_backward(drows: Tensor, weight: Tensor, ids: Tensor | None, unit: bool) -> Tensor:
    """The gradient of weight."""
    A, E = drows.shape
    dweight = torch.empty_like(weight) if ids is None else torch.zeros_like(weight)
    if A:
        rows, width, warps = whole_rows("words", weight)
        wrap_triton(output_rows_backward)[(triton.cdiv(A, rows),)](
            drows.contiguous(), weight, weight if ids is None else ids, dweight, A, E, ZERO_NORM, unit,
            ids is not None, rows, width, num_warps=warps,
        )  # fmt: skip
    return dweight


def _constants(language: Tensor | None, seeds: Tensor | None, *settings: Any) -> tuple[Any, ...]:
    """What the kernels of words are compiled for; ``settings`` as ``Wording`` has them."""
    unit, scale, word_dropout, dropout, pad, unknown = settings
    dropped = int(word_dropout * 2**24), *dropout_numbers(dropout)
    drops = seeds is not None
    has = language is not None, drops and word_dropout > 0.0, drops and dropout > 0.0
    return scale, *dropped, ZERO_NORM, pad, unknown, unit, *has


def _keep_embed(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ids, _, _, weight, _, language, seeds, *ctx.settings = inputs
    ctx.save_for_backward(ids, weight, language, seeds)


def _embed_backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
    ids, weight, language, seeds = ctx.saved_tensors
    dweight, dlanguage = fused_embed_rows_backward(dx, ids, weight, language, seeds, *ctx.settings)
    return None, None, None, dweight, None, None if language is None else dlanguage, *[None] * 7


def _keep_output(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    weight, ids, ctx.unit, _ = inputs
    ctx.save_for_backward(weight, ids)


def _output_backward(ctx: Any, drows: Tensor) -> tuple[Tensor | None, ...]:
    weight, ids = ctx.saved_tensors
    return fused_output_rows_backward(drows, weight, ids, ctx.unit), None, None, None


fused_embed_rows.register_autograd(_embed_backward, setup_context=_keep_embed)
fused_output_rows.register_autograd(_output_backward, setup_context=_keep_output)
