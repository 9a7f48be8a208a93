"""Attention over packed sentences straight from the projections: normalised, dropped out, added up at once.

Axes: R rows of the query buffer, Rk of the key buffer, H heads, D width of one head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qknorm.nn.spans import Spans, plain_span_attention
from qknorm.nn.triton_support import HAS_TRITON, transformed, triton_takes

if HAS_TRITON:
    from qknorm.nn.span_ops import fused_span_attention

MAX_WIDTH = 128
SEEDS = 2**31


def can_fuse_spans(x: Tensor, width: int) -> bool:
    """Whether the kernels take heads this wide on x's device, in its dtype (not under ``torch.vmap``)."""
    return triton_takes(x) and width <= MAX_WIDTH and not transformed(x)


def span_attention(
    q: Tensor,
    kv: Tensor | None,
    g: Tensor | None,
    spans: Spans,
    dropout_p: float = 0.0,
    scale: float = 1.0,
    eps: float = 0.0,
    bias: Tensor | None = None,
    seed: Tensor | None = None,
    unit_values: bool = False,
) -> Tensor:
    """softmax(scale · q kᵀ) v over each query's span, of heads as the projections give them; (R, H, D).

    On a GPU with Triton this is one kernel forward and two backward, elsewhere ``plain_span_attention``:
    the same function, dropout included.

    Args:
        q: (R, H, D) queries; or, with ``kv`` None, (R, 3H, D) queries, keys and values.
        kv: (Rk, 2H, D) keys and values.
        g: None, or 1 value or H: queries and keys are l2-normalised first, queries multiplied by g.
        spans: who sees what.
        dropout_p: on the attention weights.
        scale: multiplies the logits.
        eps: vectors shorter than this normalise to zero.
        bias: 3 · H · D values, which the projections have added to queries, keys and values without asking
            for their gradients: these are found here, where they cost least. They change nothing else.
        seed: one whole number below 2³¹, on the device, for dropout; drawn here otherwise.
        unit_values: whether values are l2-normalised too.
    """
    if kv is not None and kv.dtype != q.dtype:
        raise ValueError(f"q and kv must have one dtype, not {q.dtype} and {kv.dtype}")
    if dropout_p == 0.0:
        seed = None
    elif seed is None:
        seed = torch.randint(SEEDS, (1,), device=q.device)
    if can_fuse_spans(q, q.size(-1)):
        settings = dropout_p, scale, eps, bias, unit_values
        out: Tensor = fused_span_attention(q, kv, g, *spans, seed, *settings)[0]
        return out
    return plain_span_attention(q, kv, g, spans, seed, dropout_p, scale, eps, bias, unit_values)
