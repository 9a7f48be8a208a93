"""What a head does, in numbers: measures of attention weights after Clark et al. (2019).

Axes: B sentences, L layers, H heads, T positions that look, S positions looked at, M measures.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qknorm.nn.diagnostics import SATURATED

MEASURES = {
    "entropy": "mean entropy of a row's weights, in nats",
    "saturated": f"share of rows with a weight above {SATURATED}: winner takes all",
    "distance": "mean distance looked over, in subwords",
    "previous": "weight on the position before",
    "same": "weight on the same position",
    "next": "weight on the position after",
    "ends": "weight on the end of the sentence (in the decoder, on its start)",
    "punctuation": "weight on punctuation",
}
"""Every measure and what it says. Positions are those of the inputs: the decoder's "same" is the newest token
it knows, and in cross-attention "same" compares the place in the translation with that in the source. Rows
that may look at one position only are left out."""


class Sight(NamedTuple):
    """What the rows of a batch may look at, and what stands there."""

    choice: Tensor  # (B, T) True for rows of a sentence that see at least two positions
    open: Tensor  # (B, T, S) True where a row may look
    ends: Tensor  # (B, S) True at the end of the sentence; in the decoder at its start
    punctuation: Tensor  # (B, S)

    @classmethod
    def of(cls, rows: Tensor, keys: Tensor, ends: Tensor, punctuation: Tensor, causal: bool) -> Sight:
        """From which (B, T) rows and (B, S) keys are no padding."""
        open_ = rows[:, :, None] & keys[:, None, :]
        if causal:
            open_ = open_.tril()
        return cls(open_.sum(-1) >= 2, open_, ends, punctuation)

    @property
    def rows(self) -> Tensor:
        """How many rows are counted."""
        return self.choice.sum()

    def even(self) -> Tensor:
        """(B, 1, 1, T, S) weights of a head that looks everywhere it may, evenly."""
        weights = self.open.float() / self.open.sum(-1, keepdim=True).clamp(min=1)
        return weights[:, None, None]


def measure_sums(weights: Tensor, sight: Sight) -> Tensor:
    """(M, L, H) each measure summed over rows, of weights (B, L, H, T, S)."""
    T, S = weights.shape[-2:]
    weights = weights.float()
    offset = torch.arange(S, device=weights.device) - torch.arange(T, device=weights.device)[:, None]  # j − i
    places = torch.stack([offset.abs(), offset == -1, offset == 0, offset == 1]).float()  # (4, T, S)
    marked = torch.stack([sight.ends, sight.punctuation]).float()  # (2, B, S)
    found = torch.cat(
        [
            torch.special.entr(weights).sum(-1)[None],
            (weights.amax(-1) > SATURATED).float()[None],
            torch.einsum("blhts,mts->mblht", weights, places),
            torch.einsum("blhts,mbs->mblht", weights, marked),
        ]
    )  # (M, B, L, H, T)
    counted = sight.choice[None, :, None, None, :]
    return torch.where(counted, found, 0.0).double().sum(dim=(1, 4))
