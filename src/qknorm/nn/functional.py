"""Equations (2)-(5) of the paper as functions on tensors.

Axes: B batch, H heads, T query positions, S key positions, D width of one head.
Masks follow ``scaled_dot_product_attention``: a boolean mask says True where a query may look,
a floating one is added to the logits.
"""

from __future__ import annotations

import math
from typing import Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from qknorm.nn.dropout import dropout, on_cpu

ZERO_NORM = 1e-12
"""A vector shorter than this has no direction: it normalises to zero, and so does its gradient."""


def initial_scale(length: float) -> float:
    """Where g starts: log2(L² − L), equation (3); L is a typical long sequence (97.5th percentile)."""
    if not (math.isfinite(length) and length >= 2):
        raise ValueError(f"length must be a finite number of at least 2 (log2(L² - L)), not {length!r}")
    return math.log2(length * length - length)


def l2_normalize(x: Tensor, scale: Tensor | float | None = None, eps: float = ZERO_NORM) -> Tensor:
    """x / ‖x‖ along the last axis, times ``scale`` (which must broadcast over that axis); equation (2).

    Computed in float32 for half-precision inputs. Vectors shorter than ``eps`` give zeros with zero
    gradients, where x / max(‖x‖, eps) would hand back gradients multiplied by 1 / eps.
    """
    wide = widen(x)
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    length = length.masked_fill(length <= eps, torch.inf)  # x / inf = 0, and so is every gradient
    factor: Tensor = (1.0 if scale is None else scale) / length
    return (wide * factor).to(x.dtype)


def plain_heads(qkv: Tensor, g: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """g · q̂, k̂ and v, each (…, H, D), of (…, 3H, D) as one projection gives them; g has 1 value or H."""
    H = qkv.size(-2) // 3
    both = F.pad(g.expand(H), (0, H), value=1.0)  # queries times g, keys times 1
    q, k = l2_normalize(qkv.narrow(-2, 0, 2 * H), both.unsqueeze(-1), eps).chunk(2, dim=-2)
    return q, k, qkv.narrow(-2, 2 * H, H)


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = ...,
    is_causal: bool = ...,
    dropout_p: float = ...,
    need_weights: Literal[False] = ...,
    scale: float = ...,
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = ...,
    is_causal: bool = ...,
    dropout_p: float = ...,
    *,
    need_weights: Literal[True],
    scale: float = ...,
) -> tuple[Tensor, Tensor]: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = ...,
    is_causal: bool = ...,
    dropout_p: float = ...,
    need_weights: bool = ...,
    scale: float = ...,
) -> Tensor | tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    need_weights: bool = False,
    scale: float = 1.0,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale · q kᵀ + mask) v, with what the caller has already done to q and k.

    ``need_weights=False`` is the fused kernel; ``True`` writes the softmax out and returns
    ``(output, weights)``, the weights after dropout, as ``torch.nn.MultiheadAttention`` does. A mask
    and ``is_causal`` may be given together. Rows that may look nowhere give zeros.
    """
    # With dropout there is no fused kernel on a CPU: PyTorch writes it out as well, and drops more slowly.
    written_out = need_weights or (dropout_p > 0.0 and on_cpu(q))
    if is_causal and (attn_mask is not None or written_out):
        attn_mask = add_causal(attn_mask, q.size(-2), k.size(-2), q.device)
        is_causal = False
    seeing = None
    if attn_mask is not None:
        attn_mask, seeing = _open_blind_rows(attn_mask, q.dtype)

    if written_out:
        weights = attention_weights(q, k, attn_mask, scale)
        if seeing is not None:
            weights = torch.where(seeing, weights, 0.0)
        if not need_weights:
            return dropout(weights, dropout_p) @ v
        weights = F.dropout(weights, dropout_p) if dropout_p > 0.0 else weights  # draws as torch's module
        return weights @ v, weights

    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=attn_mask, is_causal=is_causal, dropout_p=dropout_p, scale=scale
    )
    return out if seeing is None else torch.where(seeing, out, 0.0)


def attention_weights(q: Tensor, k: Tensor, attn_mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """softmax(scale · q kᵀ + mask), the softmax in float32, returned in q's dtype."""  # (B, H, T, S)
    return attention_logits(q, k, attn_mask, scale).softmax(dim=-1).to(q.dtype)


def attention_logits(q: Tensor, k: Tensor, attn_mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """scale · q kᵀ + mask, at least float32: what the softmax is taken of."""  # (B, H, T, S)
    logits = widen(q @ k.transpose(-2, -1))
    if scale != 1.0:
        logits = logits * scale
    if attn_mask is None:
        return logits
    if attn_mask.dtype == torch.bool:
        return logits.masked_fill(~attn_mask, -torch.inf)
    return logits + attn_mask


def qk_norm_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: Tensor | float,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    need_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(g · q̂ k̂ᵀ) v: query-key normalised attention, equation (5).

    Args:
        q: (…, H, T, D) queries.
        k: (…, H, S, D) keys.
        v: (…, H, S, Dv) values.
        scale: g, a number, a scalar tensor, or one value per head (H).
        attn_mask: broadcasts to (…, H, T, S); True where a query may look, or added to the logits.
        is_causal: query t sees keys 0…t; may be combined with a mask.
        dropout_p: on the attention weights.
        need_weights: also return the weights, as ``(output, weights)``.
    """
    _check_qkv(q, k, v)
    q = l2_normalize(q, _scale_over_heads(scale, q))  # (2), and g of (5)
    k = l2_normalize(k)
    return attention(q, k, v, attn_mask, is_causal, dropout_p, need_weights)


def add_causal(
    attn_mask: Tensor | None, queries: int, keys: int, device: torch.device, offset: int = 0
) -> Tensor:
    """``attn_mask`` and "query t sees keys 0…t + offset" as one mask that broadcasts to (…, T, S)."""
    causal = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(offset)
    if attn_mask is None:
        return causal
    if attn_mask.dtype == torch.bool:
        return attn_mask & causal
    return attn_mask.masked_fill(~causal, -torch.inf)


def _open_blind_rows(attn_mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Let rows that may look nowhere look everywhere, and say which rows could see before.

    Kernels differ in what they make of such rows, some NaN; the caller sets their output to zero.
    """
    if attn_mask.dtype == torch.bool:
        seeing = attn_mask.any(dim=-1, keepdim=True)
        return attn_mask | ~seeing, seeing
    attn_mask = attn_mask.to(dtype)  # before looking: float16 turns -1e9 into -inf
    seeing = (attn_mask > -torch.inf).any(dim=-1, keepdim=True)
    return torch.where(seeing, attn_mask, 0.0), seeing


def widen(x: Tensor) -> Tensor:
    """Half precision to float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _scale_over_heads(scale: Tensor | float, q: Tensor) -> Tensor | float:
    if not isinstance(scale, Tensor) or scale.numel() == 1:
        return scale
    if q.dim() < 3 or scale.shape != (q.size(-3),):
        heads = q.size(-3) if q.dim() >= 3 else "no head axis"
        raise ValueError(
            f"scale must be a number or have one value per head ({heads}), not shape {tuple(scale.shape)}"
        )
    return scale.view(-1, 1, 1)


def _check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() < 2:
            raise ValueError(f"{name} must be at least 2-D, (…, positions, width), not {tuple(x.shape)}")
    if q.size(-1) != k.size(-1):
        raise ValueError(f"q and k must have one width, not {q.size(-1)} (q) and {k.size(-1)} (k)")
    if k.size(-2) != v.size(-2):
        raise ValueError(f"k and v must have one length, not {k.size(-2)} (k) and {v.size(-2)} (v)")
