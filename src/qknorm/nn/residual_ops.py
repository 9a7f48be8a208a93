"""The kernels between products as operations that PyTorch can differentiate.

Axes: R rows, E width.
"""
# mypy: ignore-errors

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.library import triton_op, wrap_triton

from qknorm.nn.aside import current_aside, do_aside
from qknorm.nn.residual_kernels import (
    add_up_join,
    add_up_parts,
    add_up_rows,
    join_rows,
    part_rows,
    rectify,
    rectify_backward,
)

MOST = 2**31 - 1
"""Values in a tensor: kernels other than those of plain sums count in 32 bits."""


class Shape(NamedTuple):
    """How much a program takes, and with how many warps."""

    values: int  # of a tile, which has whole rows or ``columns``
    columns: int
    rounds: int
    warps: int


SHAPES = {
    "join": Shape(2048, 0, 1, 4),
    "part": Shape(2048, 0, 1, 4),
    "join sums": Shape(4096, 64, 1, 4),
    "relu": Shape(2048, 256, 1, 4),
    "relu backward": Shape(2048, 64, 4, 4),
    "sums": Shape(4096, 64, 1, 4),
    "words": Shape(2048, 0, 1, 4),
}
"""The fastest of those tried on an H200; for words no other was tried."""
SUM_STRIP, SUM_COLUMNS = 64, 16


@triton_op("qknorm::join_norm", mutates_args={})
def fused_join_norm(
    x: Tensor, y: Tensor | None, bias: Tensor | None, weight: Tensor | None, shift: Tensor | None,
    seed: Tensor | None, dropout_p: float, eps: float, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """x + dropout(y + bias) (empty where y is None), its norm in ``dtype``, and what backward needs of it.

    ``shift`` None is ScaleNorm, ``weight`` None no norm.
    """
    check_count(x)
    x, y = x.contiguous(), None if y is None else y.contiguous()
    R, E = x.shape
    z = x.new_empty(0) if y is None else torch.empty_like(x)
    h = torch.empty_like(x, dtype=dtype)
    centre = x.new_empty(R if shift is not None else 0, dtype=torch.float32)
    inverse = x.new_empty(R if weight is not None else 0, dtype=torch.float32)
    rows, width, warps = whole_rows("join", x)
    if R:
        wrap_triton(join_rows)[(triton.cdiv(R, rows),)](
            x, x if y is None else y, x if bias is None else bias, x if seed is None else seed,
            x if weight is None else weight, x if shift is None else shift, z, h, centre, inverse,
            R, E, *dropout_numbers(dropout_p), eps,
            y is not None, bias is not None, y is not None and seed is not None,
            weight is not None, shift is not None, rows, width, num_warps=warps,
        )  # fmt: skip
    return z, h, centre, inverse


@triton_op("qknorm::join_norm_backward", mutates_args={})
def fused_join_norm_backward(
    dz: Tensor | None, dh: Tensor, z: Tensor, centre: Tensor, inverse: Tensor, weight: Tensor | None,
    seed: Tensor | None, dropout_p: float, y_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of x and y."""
    R, E = z.shape
    dz, dh = None if dz is None else dz.contiguous(), dh.contiguous()
    dx = torch.empty_like(z)
    dy = z.new_empty(0) if y_dtype is None else torch.empty_like(z, dtype=y_dtype)
    rows, width, warps = whole_rows("part", z)
    has_y, centred = y_dtype is not None, centre.numel() > 0
    if R:
        wrap_triton(part_rows)[(triton.cdiv(R, rows),)](
            dh if dz is None else dz, dh, z, centre, inverse, z if seed is None else seed,
            z if weight is None else weight, dx, dy,
            R, E, *dropout_numbers(dropout_p), dz is not None, has_y, has_y and seed is not None,
            weight is not None, centred, rows, width, num_warps=warps,
        )  # fmt: skip
    return dx, dy


@triton_op("qknorm::join_norm_sums", mutates_args={})
def fused_join_norm_sums(dh: Tensor, z: Tensor, centre: Tensor, inverse: Tensor, dy: Tensor) -> Tensor:
    """(3, E) the gradients of weight, shift and bias; dy is empty where there is no y."""
    R, E = z.shape
    grid, rows, columns, rounds, warps = _tiles("join sums", z)
    parts = z.new_empty(grid[0], 3 * E, dtype=torch.float32)
    if R:
        wrap_triton(add_up_join)[grid](
            dh.contiguous(), z, centre, inverse, dy, parts, R, E,
            dy.numel() > 0, inverse.numel() > 0, centre.numel() > 0, rows, columns, rounds, num_warps=warps,
        )  # fmt: skip
    return added_up(parts).view(3, E)


@triton_op("qknorm::relu_dropout", mutates_args={})
def fused_relu_dropout(u: Tensor, bias: Tensor | None, seed: Tensor | None, dropout_p: float) -> Tensor:
    """dropout(relu(u + bias))."""
    check_count(u)
    R, E = u.shape
    u = u.contiguous()
    v = torch.empty_like(u)
    if R:
        grid, rows, columns, _, warps = _tiles("relu", u)
        wrap_triton(rectify)[grid](
            u, u if bias is None else bias, u if seed is None else seed, v, R, E,
            *dropout_numbers(dropout_p), bias is not None, seed is not None, rows, columns, num_warps=warps,
        )  # fmt: skip
    return v


@triton_op("qknorm::relu_dropout_backward", mutates_args={})
def fused_relu_dropout_backward(dv: Tensor, v: Tensor, boost: float) -> tuple[Tensor, Tensor]:
    """The gradient of u; and parts whose ``fused_sums`` are the gradient of bias."""
    R, E = v.shape
    dv, du = dv.contiguous(), torch.empty_like(v)
    grid, rows, columns, rounds, warps = _tiles("relu backward", v)
    parts = v.new_empty(grid[0], E, dtype=torch.float32)
    if R:
        wrap_triton(rectify_backward)[grid](
            dv, v, du, parts, R, E, boost, rows, columns, rounds, num_warps=warps
        )
    return du, parts


@triton_op("qknorm::sums", mutates_args={})
def fused_sums(parts: Tensor) -> Tensor:
    """``added_up`` as an operation."""
    return added_up(parts)


def added_up(parts: Tensor, tail: int = 0, out: Tensor | None = None) -> Tensor:
    """(C,) sums over the rows of (N, C), into ``out`` if given; the last ``tail`` columns add up to one."""
    C = parts.size(1) - tail
    out = parts.new_empty(C + (tail > 0)) if out is None else out
    wrap_triton(add_up_parts)[(triton.cdiv(C, SUM_COLUMNS) + (tail > 0),)](
        parts, out, C, parts.size(0), tail, SUM_STRIP, SUM_COLUMNS
    )
    return out


def column_sums(x: Tensor, out: Tensor | None = None) -> Tensor:
    """(C,) sums over the rows of a contiguous (R, C), in float32 or into ``out``."""
    R, C = x.shape
    grid, rows, columns, rounds, warps = _tiles("sums", x)
    parts = x.new_empty(grid[0], C, dtype=torch.float32)
    wrap_triton(add_up_rows)[grid](x, parts, R, C, rows, columns, rounds, num_warps=warps)
    return added_up(parts, out=out)


def whole_rows(name: str, x: Tensor) -> tuple[int, int, int]:
    """Rows of a tile, their width, and warps."""
    shape, width = SHAPES[name], triton.next_power_of_2(x.size(1))
    return max(1, shape.values // width), width, shape.warps


def _tiles(name: str, x: Tensor) -> tuple[tuple[int, int], int, int, int, int]:
    """The grid of programs, and rows, columns, rounds and warps of each."""
    shape = SHAPES[name]
    rows = shape.values // shape.columns
    grid = triton.cdiv(x.size(0), rows * shape.rounds), triton.cdiv(x.size(1), shape.columns)
    return grid, rows, shape.columns, shape.rounds, shape.warps


def check_count(x: Tensor) -> None:
    if x.numel() > MOST:
        raise ValueError(f"the kernels take at most {MOST:,} values in a tensor, not {tuple(x.shape)}")


def dropout_numbers(dropout_p: float) -> tuple[int, float]:
    return int(dropout_p * 2**24), 1.0 / (1.0 - dropout_p)


def _keep_join(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, y, bias, weight, shift, seed, ctx.dropout_p, _, _ = inputs
    z, _, centre, inverse = output
    ctx.save_for_backward(x if y is None else z, centre, inverse, weight, seed)
    ctx.y_dtype = None if y is None else y.dtype
    ctx.has_weight, ctx.has_bias, ctx.has_shift = weight is not None, bias is not None, shift is not None
    ctx.aside = current_aside()
    ctx.mark_non_differentiable(centre, inverse)
    ctx.set_materialize_grads(False)


def _join_backward(ctx: Any, dz: Tensor | None, dh: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    z, centre, inverse, weight, seed = ctx.saved_tensors
    dh = torch.zeros_like(z) if dh is None else dh
    dz = None if ctx.y_dtype is None else dz  # of the empty tensor that stands for x itself
    settings = weight, seed, ctx.dropout_p, ctx.y_dtype
    dx, dy = fused_join_norm_backward(dz, dh, z, centre, inverse, *settings)
    if not (ctx.has_weight or ctx.has_bias):
        return dx, None if ctx.y_dtype is None else dy, *[None] * 7

    def sums() -> tuple[Tensor, ...]:
        dweight, dshift, dbias = fused_join_norm_sums(dh, z, centre, inverse, dy)
        return dweight if ctx.has_shift else dweight.sum().view(1), dshift, dbias

    dweight, dshift, dbias = do_aside(ctx.aside, sums, dh, z, centre, inverse, dy)
    dweight = dweight if ctx.has_weight else None
    dshift, dbias = dshift if ctx.has_shift else None, dbias if ctx.has_bias else None
    return dx, None if ctx.y_dtype is None else dy, dbias, dweight, dshift, *[None] * 4


def _keep_relu(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, bias, _, dropout_p = inputs
    ctx.save_for_backward(output)
    ctx.boost = 1.0 / (1.0 - dropout_p)
    ctx.has_bias = bias is not None
    ctx.aside = current_aside()


def _relu_backward(ctx: Any, dv: Tensor) -> tuple[Tensor | None, ...]:
    (v,) = ctx.saved_tensors
    du, parts = fused_relu_dropout_backward(dv, v, ctx.boost)
    dbias = do_aside(ctx.aside, lambda: fused_sums(parts), parts) if ctx.has_bias else None
    return du, dbias, None, None


fused_join_norm.register_autograd(_join_backward, setup_context=_keep_join)
fused_relu_dropout.register_autograd(_relu_backward, setup_context=_keep_relu)
