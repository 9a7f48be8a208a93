"""Attention in which each query looks at one run of neighbouring keys: packed sentences, in one kernel.

Self-attention, causal attention and attention to another buffer's sentences all have this form, over
buffers that know nothing of sentences. The plain functions here say what the kernels compute.

Axes: R rows of the query buffer, Rk of the key buffer, H heads, D width of one head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qknorm.nn.dropout import scramble, stays
from qknorm.nn.functional import l2_normalize
from qknorm.nn.packed import Packing
from qknorm.nn.triton_support import HAS_TRITON, transformed, triton_works

if HAS_TRITON:
    from qknorm.nn.bounds_kernel import fused_bounds


class Spans(NamedTuple):
    """Query r sees keys key_start[r] … key_end[r] − 1; an empty span marks unused room.

    The last two say the same from the keys' side: no query outside query_start[s] … query_end[s] − 1
    sees key s. A row between two used ones must not be unused room.
    """

    key_start: Tensor  # (R,) int32, as the others
    key_end: Tensor  # (R,)
    query_start: Tensor  # (Rk,)
    query_end: Tensor  # (Rk,)


def find_spans(
    packing: Packing,
    rows: int,
    key_packing: Packing | None = None,
    key_rows: int | None = None,
    is_causal: bool = False,
) -> Spans:
    """What each row of packed sentences sees; ``key_packing`` and ``key_rows`` for cross-attention.

    Layers with the same packings can share the result.
    """
    if key_packing is None or key_packing is packing:
        start, end = bounds(packing, packing, rows)
        if not is_causal:
            return Spans(start, end, start, end)
        row = torch.arange(rows, device=start.device, dtype=torch.int32)
        used = start < end
        return Spans(start, torch.where(used, row + 1, 0), torch.where(used, row, 0), end)
    if is_causal:
        raise ValueError("is_causal needs queries and keys of the same sentences: leave key_packing out")
    if key_rows is None:
        raise ValueError("key_packing needs key_rows: how many rows the keys' buffer has")
    return Spans(*bounds(packing, key_packing, rows), *bounds(key_packing, packing, key_rows))


def places(spans: Spans) -> Tensor:
    """(R,) the position of each row in its sentence, of spans of self-attention; 0 in unused room."""
    row = torch.arange(spans.key_start.size(0), device=spans.key_start.device, dtype=torch.int32)
    return torch.where(spans.key_start < spans.key_end, row - spans.key_start, 0)


def bounds(own: Packing, other: Packing, rows: int) -> tuple[Tensor, Tensor]:
    """(rows,) first row and end, in ``other``, of the sentence each row of ``own`` belongs to."""
    here = own.cu_seqlens
    if not torch.compiler.is_compiling() and not transformed(here) and triton_works(here):
        start, end = fused_bounds(here, other.cu_seqlens, rows)
        return start, end
    return plain_bounds(own, other, rows)


def plain_bounds(own: Packing, other: Packing, rows: int) -> tuple[Tensor, Tensor]:
    sentence, used = own.place(rows)[0], own.used(rows)
    cu_seqlens = other.cu_seqlens
    return torch.where(used, cu_seqlens[sentence], 0), torch.where(used, cu_seqlens[sentence + 1], 0)


def plain_span_attention(
    q: Tensor,
    kv: Tensor | None,
    g: Tensor | None,
    spans: Spans,
    seed: Tensor | None,
    dropout_p: float,
    scale: float,
    eps: float,
    bias: Tensor | None = None,
    unit_values: bool = False,
) -> Tensor:
    """``span_attention`` written out over all R × Rk pairs; ``seed`` None is no dropout."""
    q, k, v = q.chunk(3, dim=1) if kv is None else (q, *kv.chunk(2, dim=1))
    if bias is not None:
        nothing = (bias - bias.detach()).view(3, *q.shape[1:])
        q, k, v = ((x + b).to(x.dtype) for x, b in zip((q, k, v), nothing, strict=True))
    used_q = (spans.key_start < spans.key_end)[:, None, None]
    used_k = (spans.query_start < spans.query_end)[:, None, None]
    q, k, v = torch.where(used_q, q, 0.0), torch.where(used_k, k, 0.0), torch.where(used_k, v, 0.0)
    if g is not None:
        q, k = l2_normalize(q, g[:, None], eps), l2_normalize(k, eps=eps)
    if unit_values:
        v = l2_normalize(v, eps=eps)
    wide = torch.promote_types(q.dtype, torch.float32)
    logits = torch.einsum("rhd,shd->hrs", q.to(wide), k.to(wide)) * scale
    key = torch.arange(k.size(0), device=k.device)
    seen = (key >= spans.key_start[:, None]) & (key < spans.key_end[:, None])  # (R, Rk)
    weights = logits.masked_fill(~seen, torch.finfo(wide).min).softmax(-1)
    weights = torch.where(seen, weights, 0.0)  # rows that see nothing
    if seed is not None:
        kept = keep_mask(seed, q.size(1), q.size(0), k.size(0), dropout_p)
        weights = torch.where(kept, weights / (1.0 - dropout_p), 0.0)
    return torch.einsum("hrs,shd->rhd", weights, v.to(wide)).to(v.dtype)


def keep_mask(seed: Tensor, heads: int, rows: int, keys: int, dropout_p: float) -> Tensor:
    """(H, R, Rk) which weights the kernels' dropout keeps: a hash of seed, head, query row and key row.

    Wraps around at 32 bits, as the kernels do; their factors less 2³², which a compiler can take for int32.
    """
    head, row, key = (torch.arange(n, device=seed.device, dtype=torch.int32) for n in (heads, rows, keys))
    state = scramble(seed.int() + head * -0x61C88647)  # 0x9E3779B9
    state = scramble(state[:, None] + row * -0x7A143589)  # 0x85EBCA77
    return stays(scramble(state[:, :, None] + key * -0x3D4D51C3), dropout_p)  # 0xC2B2AE3D
