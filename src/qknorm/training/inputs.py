"""What the model gets of a batch: padded rows, or flat buffers of one fixed size with no padding between.

A batch of sentences × longest side ≤ budget never has more than budget subwords on a side, so buffers of
that size take every batch, and one compiled, captured step serves them all.

Axes: B sentences, S source and T target positions; R rows of a buffer, N places for sentences.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qknorm.data import Batch, EncodedPairs
from qknorm.data.batches import most_sentences
from qknorm.ids import PAD
from qknorm.nn import Packing

ALIGN = 128
"""Buffers have a multiple of so many rows: whole tiles for the GPU's products."""


class Inputs(NamedTuple):
    """Tensors of one batch; with packings all three are flat, (R,), else (B, S) or (B, T)."""

    source: Tensor
    given: Tensor  # BOS, then the target's subwords
    wanted: Tensor  # the target's subwords, then EOS; PAD where nothing is wanted
    source_packing: Packing | None = None
    target_packing: Packing | None = None


def padded_inputs(batch: Batch, device: torch.device) -> Inputs:
    def sent(ids: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(ids).to(device, non_blocking=True)

    return Inputs(sent(batch.source), sent(batch.target_in), sent(batch.target_out))


class Room(NamedTuple):
    """The fixed size of flat buffers."""

    rows: int
    places: int
    longest: int
    """Positions of the longest sentence there can be."""

    @classmethod
    def of(cls, corpus: EncodedPairs, budget: int, mixed: bool = False) -> Room:
        """Room for every batch of this budget, also where BPE-dropout makes sentences longer."""
        rows = -(-budget // ALIGN) * ALIGN
        if mixed:
            return cls(rows, most_sentences(budget), rows)
        longest = np.maximum(corpus.source.lengths, corpus.target.lengths) + 1
        return cls(rows, max(1, budget // int(longest.min(initial=budget))), rows)

    @property
    def size(self) -> int:
        """Numbers in all buffers of a batch together."""
        return 3 * self.rows + 2 * (self.places + 1)

    def pack(self, batch: Batch, out: NDArray[np.int32]) -> None:
        """Write a batch into ``out``, (size,): source, given, wanted, and where sentences begin and end."""
        out[:] = PAD
        source, target = batch.source != PAD, batch.target_out != PAD
        for place, (values, there) in enumerate(
            ((batch.source, source), (batch.target_in, target), (batch.target_out, target))
        ):
            flat = values[there]
            if len(flat) > self.rows or len(values) > self.places:
                raise ValueError(f"a batch of {values.shape} does not fit into {self}")
            out[place * self.rows : place * self.rows + len(flat)] = flat
        for place, there in enumerate((source, target)):
            start = 3 * self.rows + place * (self.places + 1)
            ends = there.sum(axis=1).cumsum()
            out[start] = 0
            out[start + 1 : start + 1 + len(ends)] = ends
            out[start + 1 + len(ends) : start + 1 + self.places] = ends[-1]

    def unpack(self, flat: Tensor) -> Inputs:
        """Views into a tensor that ``pack`` has filled."""
        source, given, wanted = (flat[i * self.rows : (i + 1) * self.rows] for i in range(3))
        bounds = flat[3 * self.rows :].view(2, self.places + 1)
        return Inputs(
            source, given, wanted, Packing(bounds[0], self.longest), Packing(bounds[1], self.longest)
        )
