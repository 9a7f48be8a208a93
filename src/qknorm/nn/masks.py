"""The masks of ``torch.nn.MultiheadAttention``, made one.

Axes: B batch, H heads, T query positions, S key positions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from qknorm.nn.functional import add_causal


def merge_masks(
    q: Tensor,
    k: Tensor,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    is_causal: bool,
    need_weights: bool,
    offset: int,
    extra: int,
) -> tuple[Tensor | None, bool]:
    """torch.nn.MultiheadAttention's masks as one of ``attention``'s, and what is left of is_causal.

    Args:
        q: (B, H, T, D) queries.
        k: (B, H, S, D) keys, those of earlier calls and appended ones included.
        key_padding_mask: (B, S − extra).
        attn_mask: (T, S − extra), (B · H, T, S − extra) or (B, 1, T, S − extra).
        is_causal: query t sees keys 0…t + offset; beside a mask, a promise that this is what the mask says.
        need_weights: whether the weights are written out, with a mask for what is causal too.
        offset: how many keys came before this call.
        extra: how many keys at the end were appended by the module, open to all.
    """
    B, H, T, S = *q.shape[:3], k.size(2)
    if is_causal and attn_mask is not None:
        # As in PyTorch, is_causal beside a mask is a promise that the mask is the causal one.
        if key_padding_mask is None and not need_weights and not extra and not offset:
            attn_mask = None
        else:
            is_causal = False
    merged: Tensor | None = None
    if attn_mask is not None:
        merged = _allowed("attn_mask", attn_mask, q.dtype)
        shapes = {2: (T, S - extra), 3: (B * H, T, S - extra), 4: (B, 1, T, S - extra)}
        if merged.shape != shapes.get(merged.dim()):
            listed = " or ".join(str(shape) for shape in shapes.values())
            raise ValueError(f"attn_mask must be {listed}, not {tuple(merged.shape)}")
        merged = merged.view(B, H, T, S - extra) if merged.dim() == 3 else merged
    if key_padding_mask is not None:
        padding = _allowed("key_padding_mask", key_padding_mask, q.dtype)
        if padding.shape != (B, S - extra):
            raise ValueError(f"key_padding_mask must be ({B}, {S - extra}), not {tuple(padding.shape)}")
        merged = _both(merged, padding[:, None, None, :])
    if merged is not None and extra:
        merged = F.pad(merged, (0, extra), value=True if merged.dtype == torch.bool else 0.0)
    if is_causal and (offset or extra):
        if offset and T == 1:
            return merged, False  # the newest query sees everything there is
        causal = add_causal(None, T, S - extra, q.device, offset)
        merged = _both(merged, F.pad(causal, (0, extra), value=True))
        is_causal = False
    return merged, is_causal


def _allowed(name: str, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """PyTorch's "True: look away" to "True: look"; additive masks stay, in the queries' dtype."""
    if mask.dtype == torch.bool:
        return ~mask
    if not mask.is_floating_point():
        raise ValueError(f"{name} must be boolean or floating point, not {mask.dtype}")
    return mask.to(dtype)


def _both(a: Tensor | None, b: Tensor) -> Tensor:
    """Two masks as one; additive if either is."""
    if a is None:
        return b
    if a.dtype == b.dtype:
        return a & b if a.dtype == torch.bool else a + b
    added, allowed = (b, a) if a.dtype == torch.bool else (a, b)
    return torch.where(allowed, added, -torch.inf)
