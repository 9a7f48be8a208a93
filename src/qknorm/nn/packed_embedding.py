"""Words of packed sentences to rows of the model's width, with positions, word dropout and dropout.

On a GPU with Triton each function here is one kernel each way; the plain ones beside them say what these
compute.

Axes: R rows of a buffer, E width, V subwords, A of them that the output has.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from qknorm.nn.dropout import scramble, stays
from qknorm.nn.functional import l2_normalize
from qknorm.nn.residual import MAX_WIDTH, seeded_dropout
from qknorm.nn.spans import Spans, places
from qknorm.nn.triton_support import HAS_TRITON, transformed, triton_works

if HAS_TRITON:
    from qknorm.nn.embedding_kernels import fused_embed_rows, fused_output_rows


class Wording(NamedTuple):
    """How words become rows."""

    unit: bool
    """Whether they have unit length before they are scaled."""
    scale: float
    word_dropout: float
    dropout: float
    pad: int
    """The subword that word dropout leaves alone."""
    unknown: int
    """What it puts in place of others."""


def can_fuse_embedding(weight: Tensor) -> bool:
    """Whether the kernels take rows of this table."""
    if torch.compiler.is_compiling() or transformed(weight):
        return False
    return weight.dtype == torch.float32 and weight.size(1) <= MAX_WIDTH and triton_works(weight)


def embed_rows(
    ids: Tensor,
    spans: Spans,
    weight: Tensor,
    positions: Tensor,
    language: Tensor | None,
    seeds: Tensor | None,
    wording: Wording,
) -> Tensor:
    """dropout(scale · word + position + language), (R, E).

    Args:
        ids: (R,) subwords.
        spans: of self-attention, causal or not: they say where a row's sentence begins.
        weight: (V, E).
        positions: (longest, E).
        language: (E,) added to all rows.
        seeds: two whole numbers below 2³¹, on the device, that decide which words become unknown and which
            values are dropped. None: nothing is.
    """
    if can_fuse_embedding(weight):
        starts = spans.key_start, spans.key_end
        rows: Tensor = fused_embed_rows(ids, *starts, weight, positions, language, seeds, *wording)
        return rows
    return plain_embed_rows(ids, spans, weight, positions, language, seeds, wording)


def plain_embed_rows(
    ids: Tensor,
    spans: Spans,
    weight: Tensor,
    positions: Tensor,
    language: Tensor | None,
    seeds: Tensor | None,
    wording: Wording,
) -> Tensor:
    row = torch.arange(ids.size(0), device=ids.device, dtype=torch.int32)
    if seeds is not None and wording.word_dropout > 0.0:
        kept = stays(scramble(scramble(seeds[:1].int()) ^ row), wording.word_dropout)
        ids = torch.where(kept | (ids == wording.pad), ids, wording.unknown)
    words = F.embedding(ids, weight)
    words = l2_normalize(words, wording.scale) if wording.unit else words * wording.scale
    x = words + F.embedding(places(spans), positions)
    if language is not None:
        x = x + language
    return seeded_dropout(x, wording.dropout, None if seeds is None or wording.dropout == 0.0 else seeds[1:])


def output_rows(weight: Tensor, ids: Tensor | None, unit: bool, dtype: torch.dtype) -> Tensor:
    """(A, E) rows of some subwords, each there once, or of all, in ``dtype``; of unit length if ``unit``."""
    if can_fuse_embedding(weight):
        rows: Tensor = fused_output_rows(weight, ids, unit, dtype)
        return rows
    return plain_output_rows(weight, ids, unit, dtype)


def plain_output_rows(weight: Tensor, ids: Tensor | None, unit: bool, dtype: torch.dtype) -> Tensor:
    table = l2_normalize(weight) if unit else weight
    return (table if ids is None else table.index_select(0, ids)).to(dtype)
