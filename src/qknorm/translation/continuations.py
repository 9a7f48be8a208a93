"""The best ways to go on from the hypotheses of a sentence.

Axes: B sentences, K hypotheses of a sentence, V subwords.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64
"""Scores are looked through by the greatest of each block of this many; any size gives the same result."""


def best_continuations(scores: Tensor, offset: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The greatest ``count`` of scores (B, K, V) + offset (B, K) of each sentence, greatest first.

    Returns (B, count) values, hypotheses and ids; fewer where K × V is less. Of equal values the one with
    the lower hypothesis, then the lower id, comes first. The greatest ``count`` lie in the ``count``
    blocks that have the greatest maxima, so only those are sorted.
    """
    B, K, V = scores.shape
    whole = V // BLOCK * BLOCK
    maxima = scores[:, :, :whole].view(B, K, whole // BLOCK, BLOCK).amax(dim=3)
    if whole < V:
        maxima = torch.cat([maxima, scores[:, :, whole:].amax(dim=2, keepdim=True)], dim=2)
    blocks = maxima.size(2)
    ranked = (maxima + offset[:, :, None]).flatten(1).sort(dim=1, descending=True, stable=True).indices
    picked = ranked[:, :count].sort(dim=1).values  # in order of hypothesis and id, for the ties
    hypotheses = (picked // blocks)[:, :, None].expand(-1, -1, BLOCK).flatten(1)
    ids = ((picked % blocks * BLOCK)[:, :, None] + torch.arange(BLOCK, device=scores.device)).flatten(1)
    flat = hypotheses * V + ids.clamp(max=V - 1)
    values = scores.flatten(1).gather(1, flat) + offset.gather(1, hypotheses)
    values = values.masked_fill(ids >= V, -torch.inf)
    best = values.sort(dim=1, descending=True, stable=True).indices[:, : min(count, K * V)]
    return values.gather(1, best), hypotheses.gather(1, best), ids.clamp(max=V - 1).gather(1, best)
