"""Sentences that wait for slots, the next of them encoded ahead.

Axes: R sentences, H heads, S source positions, D width of one head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from qknorm.ids import EOS
from qknorm.model import Transformer
from qknorm.translation.batches import pad


@dataclass
class Encoded:
    """The keys and values that decoder layers have of some sources."""

    lengths: list[int]
    layers: list[tuple[Tensor, Tensor]]  # (R, H, S, D) each

    @classmethod
    def of(cls, model: Transformer, sources: Sequence[Sequence[int]]) -> Encoded:
        """Encode sources, given without EOS."""
        memory, _ = model.encode(pad([[*source, EOS] for source in sources], model.embedding.weight.device))
        layers = [layer.cross_attn.keys_and_values(memory) for layer in model.decoder]  # type: ignore[operator, union-attr]
        return cls([len(source) for source in sources], layers)

    def split(self, n: int) -> tuple[Encoded, Encoded]:
        """The first n sentences, and the others."""
        first = Encoded(self.lengths[:n], [(k[:n], v[:n]) for k, v in self.layers])
        return first, Encoded(self.lengths[n:], [(k[n:], v[n:]) for k, v in self.layers])


class Waiting:
    """A queue of sources."""

    def __init__(self, model: Transformer, sources: Sequence[Sequence[int]]) -> None:
        self.model = model
        self.sources = sources
        self.begun = 0  # how many were taken
        self.ahead = Encoded([], [])  # the next ones

    def __len__(self) -> int:
        return len(self.sources) - self.begun

    def encode(self, n: int) -> None:
        """Encode the next n, if none are encoded yet."""
        if not self.ahead.lengths and len(self):
            self.ahead = Encoded.of(self.model, self.sources[self.begun : self.begun + n])

    def take(self, n: int) -> tuple[list[int], Encoded]:
        """At most n of the next ones, their numbers first; some of them at least, if any wait."""
        self.encode(n)
        first, self.ahead = self.ahead.split(n)
        self.begun += len(first.lengths)
        return list(range(self.begun - len(first.lengths), self.begun)), first
