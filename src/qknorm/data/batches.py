"""Token batches: sentences of like length together, each batch of about the same number of tokens.

Axes: B sentences, S source positions, T target positions.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qknorm.data.sentences import EncodedPairs, Ids, Sentences
from qknorm.ids import BOS, EOS, PAD

Rows = NDArray[np.int64]
_FEWEST_TOKENS = 8  # of the budget that a mixed batch spends on a sentence, on average

_BATCH_COST = 0.25  # what a batch more weighs, in budgets of positions, against the padding it saves
_PLACES = 8192  # about as many places between sentences are weighed as ends of a batch


class Batch(NamedTuple):
    """Pairs padded to one length a side."""

    source: Rows  # (B, S) ids EOS PAD…
    target_in: Rows  # (B, T) BOS ids PAD…
    target_out: Rows  # (B, T) ids EOS PAD…
    indices: Rows  # (B,) places in the corpus
    source_tokens: int
    """Source positions that are not padding, EOS included."""
    target_tokens: int
    backward: bool = False
    """Whether this is translating the other way: ``source`` is what the corpus has as target."""


class SourceBatch(NamedTuple):
    """Sentences to translate, padded to one length."""

    source: Rows  # (B, S) ids EOS PAD…
    indices: Rows  # (B,) places in the list given


class Fullness(NamedTuple):
    """The share of positions that are not padding."""

    budget: float
    """Of sentences × longest side, the share that the longer side of each sentence fills."""
    source: float
    target: float
    both: float


class Batches:
    """The batches of a corpus: cut once, in another order each pass.

    Sentences are sorted by their longer side; within an even length from those with the shorter source to
    those with the shorter target, within an odd one back again, so that neighbours are alike on both sides.
    They are cut where that leaves the fewest positions in few batches, sentences × longest side at most the
    budget. Lengths count EOS (or BOS), which every sentence has on each side.
    """

    def __init__(self, corpus: EncodedPairs, budget: int, seed: int) -> None:
        self.corpus = corpus
        self.budget = budget
        self.seed = seed
        source, target = corpus.source.lengths + 1, corpus.target.lengths + 1
        longest = np.maximum(source, target)
        turned = np.where(longest % 2 == 0, source - target, target - source)
        order = np.lexsort((turned, longest))  # a stable sort: ties stay in the corpus's order
        self._order = order[longest[order] <= budget]
        self.dropped = len(order) - len(self._order)
        """Sentences longer than the budget, which are in no batch."""
        self._longest = longest[self._order]
        self._cuts = _best_cuts(source[self._order], target[self._order], budget)

    def __len__(self) -> int:
        return len(self._cuts) - 1

    @cached_property
    def target_tokens(self) -> Rows:
        """(batches,) the target tokens of each, EOS included."""
        lengths = self.corpus.target.lengths[self._order] + 1
        starts = self._cuts[:-1]
        return np.add.reduceat(lengths, starts) if len(starts) else starts

    def pass_order(self, pass_number: int) -> Rows:
        """The numbers of all batches in the order of this pass, from the seed and the pass alone."""
        return np.random.default_rng([self.seed, pass_number]).permutation(len(self))

    def batch(self, number: int) -> Batch:
        """Batch `number` of `len(self)`, padded."""
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number} of {len(self)}")
        indices = self._order[self._cuts[number] : self._cuts[number + 1]]
        source = _padded(*self.corpus.source.take(indices), after=EOS)
        target = self.corpus.target.take(indices)
        target_out = _padded(*target, after=EOS)
        target_in = np.where(target_out == EOS, PAD, target_out)
        target_in = np.concatenate([np.full((len(indices), 1), BOS), target_in[:, :-1]], axis=1)
        return Batch(
            source,
            target_in,
            target_out,
            indices,
            source_tokens=int(np.count_nonzero(source != PAD)),
            target_tokens=int(np.count_nonzero(target_out != PAD)),
        )

    def fullness(self) -> Fullness:
        """How little of all batches is padding."""
        source, target = (side.lengths[self._order] + 1 for side in (self.corpus.source, self.corpus.target))
        cells_source, cells_target = self._cells(source).sum(), self._cells(target).sum()
        return Fullness(
            budget=float(self._longest.sum() / self._cells(self._longest).sum()),
            source=float(source.sum() / cells_source),
            target=float(target.sum() / cells_target),
            both=float((source.sum() + target.sum()) / (cells_source + cells_target)),
        )

    def largest(self) -> Batch:
        """The batch with the most positions of both sides: if it fits in memory, all do."""
        source, target = self.corpus.source.lengths + 1, self.corpus.target.lengths + 1
        cells = self._cells(source[self._order]) + self._cells(target[self._order])
        return self.batch(int(cells.argmax()))

    def _cells(self, lengths: Rows) -> Rows:
        """Sentences × longest of each batch, for lengths in the order of the batches."""
        starts = self._cuts[:-1]
        return np.diff(self._cuts) * (np.maximum.reduceat(lengths, starts) if len(starts) else starts)


class MixedBatches(Batches):
    """The batches of one pass: sentences of any length together, at random, at most the budget a side.

    They suit flat buffers, which have no padding between sentences. Padded they take more than the budget.
    """

    def __init__(self, corpus: EncodedPairs, budget: int, seed: int, pass_number: int) -> None:
        self.corpus = corpus
        self.budget = budget
        self.seed = seed
        source, target = corpus.source.lengths + 1, corpus.target.lengths + 1
        longest = np.maximum(source, target)
        order = np.random.default_rng([seed, pass_number]).permutation(len(longest))
        self._order = order[longest[order] <= budget]
        self.dropped = len(order) - len(self._order)
        self._longest = longest[self._order]
        self._cuts = _random_cuts(source[self._order], target[self._order], budget)

    def pass_order(self, pass_number: int) -> Rows:
        return np.arange(len(self))

    def fullness(self) -> Fullness:
        """How much of flat buffers of the budget is used, each side's and the fuller one's."""
        sides = (side.lengths[self._order] + 1 for side in (self.corpus.source, self.corpus.target))
        source, target = (np.add.reduceat(side, self._cuts[:-1]) / self.budget for side in sides)
        return Fullness(
            budget=float(np.maximum(source, target).mean()),
            source=float(source.mean()),
            target=float(target.mean()),
            both=float((source.mean() + target.mean()) / 2),
        )


class BothWays(Batches):
    """The batches of one pass in both directions, at random among each other."""

    def __init__(self, forward: Batches, backward: Batches) -> None:
        """``backward`` is of pairs that are turned round."""
        self._ways = (forward, backward)
        self.budget = forward.budget
        self.seed = forward.seed
        self.dropped = forward.dropped + backward.dropped

    def __len__(self) -> int:
        return sum(map(len, self._ways))

    @cached_property
    def target_tokens(self) -> Rows:
        return np.concatenate([way.target_tokens for way in self._ways])

    def batch(self, number: int) -> Batch:
        forward, backward = self._ways
        if number < len(forward):
            return forward.batch(number)
        return backward.batch(number - len(forward))._replace(backward=True)

    def fullness(self) -> Fullness:
        """The mean over all batches."""
        shares = np.array([way.fullness() for way in self._ways if len(way)])
        weights = [len(way) for way in self._ways if len(way)]
        return Fullness(*np.average(shares, axis=0, weights=weights).tolist())

    def largest(self) -> Batch:
        found = [way.largest() for way in self._ways if len(way)]
        return max(found, key=lambda batch: batch.source.size + batch.target_in.size)


def most_sentences(budget: int) -> int:
    """How many sentences a mixed batch of this budget has at the most."""
    return max(1, budget // _FEWEST_TOKENS)


def for_translation(sources: Sequence[Sequence[int]], budget: int) -> Iterator[SourceBatch]:
    """Every sentence once, those of like length together, sentences × longest ≤ budget, longest first.

    A sentence longer than the budget is a batch of its own. `indices` put the results back in order.
    """
    sentences = Sentences.of(sources)
    lengths = sentences.lengths + 1
    order = np.argsort(lengths, kind="stable")
    cuts = _cut(lengths[order], budget)
    for start, stop in zip(cuts[-2::-1].tolist(), cuts[:0:-1].tolist(), strict=True):
        indices = order[start:stop]
        yield SourceBatch(_padded(*sentences.take(indices), after=EOS), indices)


def _cut(longest: Rows, budget: int) -> Rows:
    """Where batches begin and end among sentences from short to long; one over the budget stands alone."""
    cuts = [0]
    while (start := cuts[-1]) < len(longest):
        most = max(1, budget // int(longest[start]))
        cells = np.arange(1, most + 1)[: len(longest) - start] * longest[start : start + most]
        cuts.append(start + max(1, int(np.searchsorted(cells, budget, side="right"))))
    return np.array(cuts, dtype=np.int64)


def _random_cuts(source: Rows, target: Rows, budget: int) -> Rows:
    """Where batches end among sentences in any order: as late as the budget of each side allows."""
    ends = [np.concatenate([[0], side.cumsum()]) for side in (source, target)]
    cuts, most = [0], most_sentences(budget)
    while (start := cuts[-1]) < len(source):
        fits = min(int(np.searchsorted(end, end[start] + budget, side="right")) - 1 for end in ends)
        cuts.append(min(fits, start + most))
    return np.array(cuts, dtype=np.int64)


def _best_cuts(source: Rows, target: Rows, budget: int) -> Rows:
    """The cuts with the fewest positions on both sides, each batch weighing `_BATCH_COST` budgets more.

    The shortest way from the first place to the last, over a grid of places and the cuts of `_cut`: from any
    place the next of those is within a batch, so there is always a way.
    """
    longest = np.maximum(source, target)
    if not len(longest):
        return np.zeros(1, dtype=np.int64)
    grid = np.arange(0, len(longest), max(1, len(longest) // _PLACES))
    places = np.union1d(grid, _cut(longest, budget))
    wide_source, wide_target = (np.maximum.reduceat(side, places[:-1]) for side in (source, target))
    within = np.searchsorted(places, places[:-1] + budget // longest[places[:-1]], side="right")
    cost = np.full(len(places), np.inf)
    cost[0] = 0
    before = np.zeros(len(places), dtype=np.int64)
    for start, stop in enumerate(within.tolist()):
        sentences = places[start + 1 : stop] - places[start]
        here, there = (np.maximum.accumulate(wide[start : stop - 1]) for wide in (wide_source, wide_target))
        new = cost[start] + sentences * (here + there) + _BATCH_COST * budget
        better = (sentences * np.maximum(here, there) <= budget) & (new < cost[start + 1 : stop])
        cost[start + 1 : stop][better] = new[better]
        before[start + 1 : stop][better] = start
    chosen = [len(places) - 1]
    while chosen[-1]:
        chosen.append(int(before[chosen[-1]]))
    return places[chosen[::-1]]


def _padded(ids: Ids, lengths: Rows, after: int) -> Rows:
    """(B, L + 1) sentences given end to end, one a row, each followed by `after` and then padding."""
    columns = np.arange(int(lengths.max(initial=0)) + 1)
    rows = np.full((len(lengths), len(columns)), PAD, dtype=np.int64)
    rows[columns < lengths[:, None]] = ids
    rows[np.arange(len(lengths)), lengths] = after
    return rows
