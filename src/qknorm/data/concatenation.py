"""Sentences behind each other as one: an augmentation for little text (Nguyen, Murray & Chiang 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qknorm.data.sentences import EncodedPairs, Sentences, offsets_of


def concatenated(corpus: EncodedPairs, share: float, longest: int, seed: int | Sequence[int]) -> EncodedPairs:
    """A random share of the pairs two by two, one sentence behind the other on both sides, the rest alone.

    Args:
        corpus: N pairs.
        share: how many of them get a companion; the companions are drawn too.
        longest: couples with more subwords on a side stay apart.
        seed: the same one gives the same couples.
    """
    order = np.random.default_rng(seed).permutation(len(corpus))
    couples = round(share * len(corpus) / 2)
    first, second, alone = np.split(order, [couples, 2 * couples])
    sides = (corpus.source, corpus.target)
    fits = np.ones(couples, bool)
    for side in sides:
        fits &= side.lengths[first] + side.lengths[second] <= longest
    together = np.stack([first[fits], second[fits]], axis=1).ravel()  # first, second, first, second, …
    apart = np.concatenate([first[~fits], second[~fits], alone])
    return EncodedPairs(*(_joined(side, together, apart) for side in sides))


def _joined(side: Sentences, together: NDArray[np.int64], apart: NDArray[np.int64]) -> Sentences:
    """Neighbours of ``together`` as one sentence each, then those apart."""
    ids, lengths = side.take(np.concatenate([together, apart]))
    couples = lengths[: len(together)].reshape(-1, 2).sum(axis=1)
    return Sentences(ids, offsets_of(np.concatenate([couples, lengths[len(together) :]])))
