"""The kernels of attention over spans as operations that PyTorch can differentiate and compile.

Axes: R rows of the query buffer, Rk of the key buffer, H heads, D width of one head.
"""
# mypy: ignore-errors

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.library import triton_op, wrap_triton

from qknorm.nn.aside import current_aside, do_aside
from qknorm.nn.residual_ops import added_up, column_sums
from qknorm.nn.span_kernels import attend, differentiate_keys, differentiate_queries
from qknorm.nn.spans import Spans, plain_span_attention


class Tile(NamedTuple):
    """How much a program works on, and with what."""

    rows: int  # of queries
    keys: int
    warps: int
    stages: int


TILES = {
    "forward": Tile(64, 32, 4, 1),
    "queries": Tile(32, 32, 4, 1),  # backward, one program for a tile of queries
    "keys": Tile(32, 32, 4, 1),  # backward, one program for a tile of keys and values
}
WIDE_TILES = dict.fromkeys(TILES, Tile(32, 32, 8, 1))
"""For float32, whose products run outside the tensor cores and want room."""


@triton_op("qknorm::span_attention", mutates_args={})
def fused_span_attention(
    q: Tensor, kv: Tensor | None, g: Tensor | None,
    key_start: Tensor, key_end: Tensor, query_start: Tensor, query_end: Tensor, seed: Tensor | None,
    dropout_p: float, scale: float, eps: float, bias: Tensor | None = None, unit_values: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """``plain_span_attention`` in one kernel, and the base-2 logarithm of each softmax's sum, (H, R)."""
    q, kv, H, shape = _prepare(q, kv, g, seed, unit_values)
    numbers = _numbers(dropout_p, scale, eps)
    R, D, tile = q.size(0), q.size(2), _tile("forward", q)
    out = q.new_empty(R, H, D)
    lse = q.new_empty(H, R, dtype=torch.float32)
    if R:
        wrap_triton(attend)[(triton.cdiv(R, tile.rows), H)](
            q, kv, q if g is None else g, key_start, key_end, key_start if seed is None else seed, out, lse,
            R, *numbers, *shape, tile.rows, tile.keys,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    return out, lse


@triton_op("qknorm::span_attention_backward", mutates_args={})
def fused_span_attention_backward(
    dout: Tensor, out: Tensor, lse: Tensor, q: Tensor, kv: Tensor | None, g: Tensor | None,
    key_start: Tensor, key_end: Tensor, query_start: Tensor, query_end: Tensor, seed: Tensor | None,
    dropout_p: float, scale: float, eps: float, unit_values: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q and kv (empty where kv is None); and (…, H) parts of g's, to be added up."""
    crossing = kv is not None
    q, kv, H, shape = _prepare(q, kv, g, seed, unit_values)
    numbers = _numbers(dropout_p, scale, eps)
    dout = dout.contiguous()
    R, Rk = q.size(0), kv.size(0)
    tile, key_tile = _tile("queries", q), _tile("keys", q)
    programs = triton.cdiv(R, tile.rows)
    dq = torch.empty_like(q)
    dkv = torch.empty_like(kv) if crossing else dq
    delta = torch.empty_like(lse)
    parts = lse.new_empty(programs, H)
    gain = q if g is None else g
    seed = key_start if seed is None else seed
    if R:
        wrap_triton(differentiate_queries)[(programs, H)](
            q, kv, gain, key_start, key_end, seed, out, lse, dout, dq, delta, parts,
            R, *numbers, *shape, tile.rows, tile.keys,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    if Rk:
        wrap_triton(differentiate_keys)[(triton.cdiv(Rk, key_tile.keys), H)](
            q, kv, gain, key_start, key_end, query_start, query_end, seed, lse, dout, delta, dkv,
            R, Rk, *numbers, *shape, key_tile.rows, key_tile.keys,
            num_warps=key_tile.warps, num_stages=key_tile.stages,
        )  # fmt: skip
    return dq, dkv if crossing else q.new_empty(0), parts


@triton_op("qknorm::span_attention_sums", mutates_args={})
def fused_span_attention_sums(
    dq: Tensor, dkv: Tensor, parts: Tensor, g: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradients of g (its sum, if it has one value) and bias; empty where there is none.

    Of what ``fused_span_attention_backward`` gives.
    """
    dg = parts.new_empty(0) if g is None else added_up(parts, tail=parts.size(1) if g.numel() == 1 else 0)
    dbias = parts.new_empty(0) if bias is None else torch.empty_like(bias)
    if bias is not None:
        sides = (dq, dkv) if dkv.dim() == 3 else (dq,)
        places = dbias.split([side[0].numel() for side in sides])
        for side, place in zip(sides, places, strict=True):
            column_sums(side.flatten(1), place)
    return dg, dbias


def _prepare(
    q: Tensor, kv: Tensor | None, g: Tensor | None, seed: Tensor | None, unit_values: bool
) -> tuple[Any, ...]:
    """The projections, H, and what the kernels are compiled for."""
    H = q.size(1) // 3 if kv is None else q.size(1)
    D = q.size(2)
    q = q.contiguous()
    kv = q if kv is None else kv.contiguous()
    width = max(16, triton.next_power_of_2(D))
    per_head = g is not None and g.numel() > 1
    kinds = g is not None, per_head, unit_values, seed is not None
    return q, kv, H, (H, D, width, q.size(1), kv.size(1), *kinds)


def _numbers(dropout_p: float, scale: float, eps: float) -> tuple[int, float, float, float]:
    """How many of 2²⁴ weights to drop and what to multiply the others by; the rest as it is."""
    return int(dropout_p * 2**24), 1.0 / (1.0 - dropout_p), scale, eps


def _tile(name: str, q: Tensor) -> Tile:
    return (WIDE_TILES if q.dtype == torch.float32 else TILES)[name]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.dropout_p, ctx.scale, ctx.eps, bias, ctx.unit_values = inputs
    ctx.save_for_backward(*output, *tensors, bias)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # no zeros for what has no gradient
    ctx.aside = current_aside()


def _backward(ctx: Any, dout: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    out, lse, q, kv, g, *spans, seed, bias = ctx.saved_tensors
    settings = ctx.dropout_p, ctx.scale, ctx.eps, bias, ctx.unit_values
    if torch.is_grad_enabled():  # somebody differentiates this gradient: use operations that allow it
        inputs = q, kv, g, bias
        wanted = [x for x in inputs if x is not None and x.requires_grad]
        again = plain_span_attention(q, kv, g, Spans(*spans), seed, *settings)
        found = iter(torch.autograd.grad(again, wanted, dout, create_graph=True))
        *grads, dbias = [next(found) if x is not None and x.requires_grad else None for x in inputs]
        return (*grads, *[None] * 8, dbias, None)
    numbers = ctx.dropout_p, ctx.scale, ctx.eps, ctx.unit_values
    dq, dkv, parts = fused_span_attention_backward(dout, out, lse, q, kv, g, *spans, seed, *numbers)

    def sums() -> tuple[Tensor, Tensor]:
        dg, dbias = fused_span_attention_sums(dq, dkv, parts, g, bias)
        return dg if g is None else dg.to(g.dtype), dbias

    dg, dbias = do_aside(ctx.aside, sums, dq, dkv, parts)
    dg, dbias = None if g is None else dg, None if bias is None else dbias
    return (dq, None if kv is None else dkv, dg, *[None] * 8, dbias, None)


fused_span_attention.register_autograd(_backward, setup_context=_keep)
