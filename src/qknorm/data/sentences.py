"""Sentences of ids in one flat array, and pairs of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")
Ids = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Sentences:
    """N sentences end to end: sentence i is `ids[offsets[i]:offsets[i + 1]]`, without BOS and EOS."""

    ids: Ids
    offsets: NDArray[np.int64]  # (N + 1,)

    @classmethod
    def of(cls, sentences: Iterable[Sequence[int]], dtype: np.dtype[Any] | type = np.int32) -> "Sentences":
        """From lists of ids."""
        lists = list(sentences)
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        ids = np.fromiter(chain.from_iterable(lists), dtype, int(lengths.sum()))
        return cls(ids, offsets_of(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Ids:
        if not 0 <= index < len(self):
            raise IndexError(f"sentence {index} of {len(self)}")
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(N,) subwords in each sentence."""
        return np.diff(self.offsets)

    def take(self, indices: NDArray[np.integer[Any]]) -> tuple[Ids, NDArray[np.int64]]:
        """The chosen sentences end to end, in the order asked, and their lengths."""
        starts = self.offsets[indices]
        lengths = self.offsets[indices + 1] - starts
        return self.ids[ranges(starts, lengths)], lengths

    def chosen(self, indices: NDArray[np.integer[Any]]) -> "Sentences":
        """The chosen sentences, in the order asked."""
        ids, lengths = self.take(indices)
        return Sentences(ids, offsets_of(lengths))


@dataclass(frozen=True)
class EncodedPairs:
    """Source and target sentences of the same number."""

    source: Sentences
    target: Sentences

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise ValueError(f"{len(self.source)} source and {len(self.target)} target sentences")

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Ids, Ids]:
        return self.source[index], self.target[index]

    def chosen(self, indices: NDArray[np.integer[Any]]) -> "EncodedPairs":
        """The chosen pairs, in the order asked."""
        return EncodedPairs(*(side.chosen(indices) for side in (self.source, self.target)))

    def turned(self) -> "EncodedPairs":
        """The same pairs the other way round."""
        return EncodedPairs(self.target, self.source)

    def lengths(self, side: Side) -> NDArray[np.int64]:
        """(N,) subwords in each sentence of a side."""
        return self.source.lengths if side == "source" else self.target.lengths

    def length_percentile(self, percent: float = 97.5) -> float:
        """The percentile of the lengths of all sentences of both sides: the paper's L at 97.5."""
        lengths = np.concatenate([self.source.lengths, self.target.lengths])
        return float(np.percentile(lengths, percent))


def offsets_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of a row of sentences begins, and where the last ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """start, start + 1, …, start + length − 1 for each pair, end to end."""
    offsets = offsets_of(lengths)
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
