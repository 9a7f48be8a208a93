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
    """Tensors of one batch; with packings all are flat, else (B, S) or (B, T).

    A batch may be there several times over, one copy after the other, for R-Drop: in all but ``wanted``.
    """

    source: Tensor
    given: Tensor  # BOS, then the target's subwords
    wanted: Tensor  # the target's subwords, then EOS; PAD where nothing is wanted
    source_packing: Packing | None = None
    target_packing: Packing | None = None
    backward: bool = False
    """Whether the languages are the other way round."""


def padded_inputs(batch: Batch, device: torch.device, copies: int = 1) -> Inputs:
    def sent(ids: NDArray[np.int64], times: int) -> Tensor:
        return torch.from_numpy(np.tile(ids, (times, 1))).to(device, non_blocking=True)

    source, given = (sent(ids, copies) for ids in (batch.source, batch.target_in))
    return Inputs(source, given, sent(batch.target_out, 1), backward=batch.backward)


class Room(NamedTuple):
    """The fixed size of flat buffers."""

    rows: int
    """Of one copy of a batch."""
    places: int
    longest: int
    """Positions of the longest sentence there can be."""
    copies: int = 1

    @classmethod
    def of(cls, corpus: EncodedPairs, budget: int, mixed: bool = False, copies: int = 1) -> Room:
        """Room for every batch of this budget, also where BPE-dropout makes sentences longer."""
        rows = -(-budget // ALIGN) * ALIGN
        if mixed:
            return cls(rows, most_sentences(budget), rows, copies)
        longest = np.maximum(corpus.source.lengths, corpus.target.lengths) + 1
        return cls(rows, max(1, budget // int(longest.min(initial=budget))), rows, copies)

    @property
    def size(self) -> int:
        """Numbers in all buffers of a batch together."""
        return sum(self._sizes())

    def pack(self, batch: Batch, out: NDArray[np.int32]) -> None:
        """Write a batch into ``out``, (size,): source, given, wanted, and where sentences begin and end.

        What a copy leaves of its rows is a sentence of padding, so that the next one begins where it should.
        """
        out[:] = PAD
        source, target = batch.source != PAD, batch.target_out != PAD
        *texts, source_bounds, target_bounds = np.split(out, np.cumsum(self._sizes())[:-1])
        for text, values, there in zip(
            texts, (batch.source, batch.target_in, batch.target_out), (source, target, target), strict=True
        ):
            flat = values[there]
            if len(flat) > self.rows or len(values) > self.places:
                raise ValueError(f"a batch of {values.shape} does not fit into {self}")
            text.reshape(-1, self.rows)[:, : len(flat)] = flat
        for bounds, there in ((source_bounds, source), (target_bounds, target)):
            ends = there.sum(axis=1).cumsum()
            starts = np.arange(self.copies)[:, None] * self.rows  # of copies
            all_ends = np.hstack([starts, starts + ends]).ravel()
            bounds[: len(all_ends)] = all_ends
            bounds[len(all_ends) :] = all_ends[-1]

    def unpack(self, flat: Tensor) -> Inputs:
        """Views into a tensor that ``pack`` has filled."""
        source, given, wanted, *bounds = torch.split(flat, self._sizes())
        source_packing, target_packing = (Packing(b, self.longest) for b in bounds)
        return Inputs(source, given, wanted, source_packing, target_packing)

    def _sizes(self) -> list[int]:
        """Of source, given, wanted, and the bounds of source and target."""
        rows, bounds = self.copies * self.rows, self.copies * (self.places + 1)
        return [rows, rows, self.rows, bounds, bounds]
