"""BPE-dropout: another segmentation of the training text each pass, the same for the same seed and pass.

HF `tokenizers` can drop merges but not from a seed. So each distinct word gets, once, a pool of
segmentations drawn from a seed, larger for frequent words; a pass then only picks one for every
occurrence, which numpy does for millions of words in a second or two.
"""

from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qknorm.data import text
from qknorm.data.sentences import SIDES, EncodedPairs, Sentences, Side, offsets_of
from qknorm.data.subwords import Subwords

SMALLEST_POOL, LARGEST_POOL = 8, 64
_CHUNK = 1 << 20  # words picked at a time
_POOLS, _PASSES = 0, 1  # what a stream of random numbers is for


class BpeDropout:
    """Training text that is segmented afresh each pass."""

    def __init__(
        self,
        source: str | Path,
        target: str | Path,
        subwords: Subwords,
        rate: float,
        seed: int,
        sides: Collection[Side] = SIDES,
        least: int = 0,
    ) -> None:
        """Read the usable pairs of two files. `rate` is the chance of a merge being skipped (usual: 0.1).

        Sides that are not in `sides` are segmented as ever, and so are words that stand on their side fewer
        than `least` times.
        """
        if not 0 <= rate < 1:
            raise ValueError(f"a dropout rate is at least 0 and under 1, not {rate}")
        readers = {side: _Reader(subwords) for side in SIDES}
        for _, *lines in text.pairs(source, target):
            for side, line in zip(SIDES, lines, strict=True):
                readers[side].add(line)
        self._sides = [
            _Side(readers[side], subwords, side, rate if side in sides else 0.0, least, [seed, place])
            for place, side in enumerate(SIDES)
        ]

    def pairs(self, pass_number: int) -> EncodedPairs:
        """All pairs as segmented in this pass, in the order of the files."""
        source, target = (side.sentences(pass_number) for side in self._sides)
        return EncodedPairs(source, target)


class _Numbers(dict[str, int]):
    """Words numbered in the order they are met."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


class _Reader:
    """Lines as numbers of distinct words."""

    def __init__(self, subwords: Subwords) -> None:
        self.numbers = _Numbers()
        self._subwords = subwords
        self._rows: list[NDArray[np.int32]] = []

    def add(self, line: str) -> None:
        words = self._subwords.words(line)
        self._rows.append(np.fromiter(map(self.numbers.__getitem__, words), np.int32, len(words)))

    def words(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The number of every word in the text, and where each line begins."""
        lengths = np.fromiter(map(len, self._rows), np.int64, len(self._rows))
        return np.concatenate([np.empty(0, np.int32), *self._rows]), offsets_of(lengths)


class _Side:
    """The words of one side and the pool each has."""

    def __init__(
        self, reader: _Reader, subwords: Subwords, side: Side, rate: float, least: int, seeds: list[int]
    ) -> None:
        self._seeds = seeds
        self._words, self._lines = reader.words()
        vocabulary = list(reader.numbers)
        counts = np.bincount(self._words, minlength=len(vocabulary))
        rare = counts < least
        self._pool_sizes = np.clip(counts, SMALLEST_POOL, LARGEST_POOL)
        self._pool_sizes[rare | (rate == 0)] = 1
        self._pool_starts = np.empty(len(vocabulary), np.int64)
        generator = np.random.default_rng([*seeds, _POOLS, 0])
        ids, lengths = [], [np.empty(0, np.int64)]
        for numbers, chance in ((np.flatnonzero(~rare), rate), (np.flatnonzero(rare), 0.0)):
            sizes = self._pool_sizes[numbers]
            pool = subwords.dropout([vocabulary[n] for n in numbers], side, sizes, chance, generator)
            self._pool_starts[numbers] = sum(map(len, lengths)) + offsets_of(sizes)[:-1]
            ids.append(pool.ids.astype(subwords.dtype))
            lengths.append(pool.lengths)
        self._pool = Sentences(np.concatenate(ids), offsets_of(np.concatenate(lengths)))

    def sentences(self, pass_number: int) -> Sentences:
        generator = np.random.default_rng([*self._seeds, _PASSES, pass_number])
        ids, lengths = [np.empty(0, self._pool.ids.dtype)], [np.empty(0, np.int64)]
        for start in range(0, len(self._words), _CHUNK):
            words = self._words[start : start + _CHUNK]
            choice = self._pool_starts[words] + generator.integers(0, self._pool_sizes[words])
            chosen, sizes = self._pool.take(choice)
            ids.append(chosen)
            lengths.append(sizes)
        word_offsets = offsets_of(np.concatenate(lengths))
        return Sentences(np.concatenate(ids), word_offsets[self._lines])
