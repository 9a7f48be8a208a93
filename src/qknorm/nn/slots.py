"""Attention while decoding over buffers that never move, for a step that is captured once and replayed.

A slot holds one sentence and its K hypotheses. The keys of all its hypotheses, past and present, stay where
they were written; a table of ancestors says which of them a hypothesis descends from.

Axes: B slots, K hypotheses of a slot, H heads, D width of one head, T target positions there is room for,
S source positions there is room for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qknorm.nn.triton_support import HAS_TRITON, triton_takes

if HAS_TRITON:
    from qknorm.nn.slot_kernels import fused_cross_attention, fused_own_attention


@dataclass
class Sight:
    """What each hypothesis may look at in one step; the same for all layers."""

    positions: Tensor  # (B,) where the newest keys go; all up to it may be looked at
    ancestors: Tensor  # (B, K, T) int32: the hypothesis whose key at a position is hypothesis k's own
    lengths: Tensor  # (B,) positions of the source
    own_mask: Tensor | None = None  # (B, 1, K, T × K), added to the logits; the kernel needs none
    source_mask: Tensor | None = None  # (B, 1, 1, S)

    def mask(self, x: Tensor, source_room: int) -> None:
        """Make the masks, in the dtype of x, where the kernel does not take tensors like x."""
        if triton_takes(x):
            return
        B, K, T = self.ancestors.shape
        slots = torch.arange(K, device=x.device, dtype=torch.int32)
        past = torch.arange(T, device=x.device) <= self.positions[:, None]  # (B, T)
        seen = (self.ancestors[..., None] == slots) & past[:, None, :, None]  # (B, K, T, K)
        self.own_mask = _added(seen.view(B, 1, K, T * K), x.dtype)
        there = torch.arange(source_room, device=x.device) < self.lengths[:, None]
        self.source_mask = _added(there[:, None, None, :], x.dtype)


@dataclass
class SlotSelfCache:
    """Keys and values of the hypotheses' own positions."""

    keys: Tensor  # (B, H, T, K, D)
    values: Tensor
    sight: Sight

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Write the newest keys and values, then look; q, k, v and the result are (B, K, H, D)."""
        sight = self.sight
        if sight.own_mask is None:
            return fused_own_attention(
                q, k, v, self.keys, self.values, sight.ancestors, sight.positions, scale
            )
        B, K, H, D = k.shape
        at = sight.positions.view(B, 1, 1, 1, 1).expand(B, H, 1, K, D)
        self.keys.scatter_(2, at, k.transpose(1, 2).unsqueeze(2))
        self.values.scatter_(2, at, v.transpose(1, 2).unsqueeze(2))
        return _attend(q, self.keys.flatten(2, 3), self.values.flatten(2, 3), sight.own_mask, scale)


@dataclass
class SlotCrossCache:
    """Keys and values of the source, which all hypotheses of a slot share."""

    keys: Tensor  # (B, H, S, D)
    values: Tensor
    sight: Sight

    def fill(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Put (slots, H, ≤ S, D) keys and values of new sentences into these slots."""
        self.keys[slots, :, : k.size(2)] = k
        self.values[slots, :, : v.size(2)] = v

    def attend(self, q: Tensor, scale: float) -> Tensor:
        """(B, K, H, D) queries to outputs."""
        if self.sight.source_mask is None:
            return fused_cross_attention(q, self.keys, self.values, self.sight.lengths, scale)
        return _attend(q, self.keys, self.values, self.sight.source_mask, scale)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask, scale=scale)
    return out.transpose(1, 2)  # (B, K, H, D)


def _added(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask that is added: 0 where a query may look, −∞ elsewhere."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, -torch.inf)
