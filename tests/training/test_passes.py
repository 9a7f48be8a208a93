"""Passes over the training text: which are cut with BPE-dropout, and batches made ahead."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from qknorm.config import TrainingSettings
from qknorm.data import EncodedPairs
from qknorm.data.sentences import Sentences
from qknorm.training.passes import Passes
from qknorm.workers import Workers

WORKERS = Workers(torch.device("cpu"))


def text(value: int, other: int | None = None) -> EncodedPairs:
    """Six pairs that say nothing but ``value``, or ``other`` on the target side."""
    sides = (
        Sentences.of([[said] * length for length in (2, 5, 3, 3, 4, 2)])
        for said in (value, value if other is None else other)
    )
    return EncodedPairs(*sides)


class Dropout:
    """In place of ``BpeDropout``: pass n says 100 + n."""

    def pairs(self, number: int) -> EncodedPairs:
        return text(100 + number)


def said(passes: Passes, number: int) -> set[int]:
    batches = passes.batches(number)
    return {int(batches.batch(place).source[0, 0]) for place in range(len(batches))}


@pytest.mark.parametrize("batching", ["by_length", "mixed"])
@pytest.mark.parametrize("limit", [None, 2])
def test_passes_with_dropout_come_first(batching, limit):
    settings = TrainingSettings(batch_tokens=12, batching=batching)
    passes = Passes(text(7), Dropout(), settings, WORKERS, limit)
    expected = [{100}, {101}, {102} if limit is None else {7}, {103} if limit is None else {7}]
    assert [said(passes, number) for number in range(4)] == expected
    again = Passes(text(7), Dropout(), settings, WORKERS, limit)
    assert said(again, 3) == expected[3], "a pass depends on its number alone"


@pytest.mark.parametrize("batching", ["by_length", "mixed"])
def test_every_pass_has_every_sentence_once(batching):
    settings = TrainingSettings(batch_tokens=12, batching=batching)
    batches = Passes(text(7), None, settings, WORKERS).batches(5)
    found = np.concatenate([batches.batch(place).indices for place in range(len(batches))])
    assert sorted(found.tolist()) == list(range(6))


@pytest.mark.parametrize("batching", ["by_length", "mixed"])
@pytest.mark.parametrize("limit", [None, 2])
def test_passes_with_couples_come_first(batching, limit):
    """Of six pairs all have a companion: three sentences a pass, other ones in the next."""
    settings = TrainingSettings(batch_tokens=12, batching=batching, concatenate=1.0, concatenate_passes=limit)
    passes = Passes(text(7), Dropout(), settings, WORKERS, 1)
    counts = [len(passes.batches(number).corpus) for number in range(4)]
    assert counts == ([3] * 4 if limit is None else [3, 3, 6, 6])
    assert [said(passes, number) for number in (0, 1)] == [{100}, {7}]
    again = Passes(text(7), Dropout(), settings, WORKERS, 1)
    ids = [each.batches(1).corpus.source.offsets.tolist() for each in (passes, again)]
    assert ids[0] == ids[1], "a pass depends on its number alone"
    batches = passes.batches(0)
    assert sum(int(batches.batch(place).source_tokens) for place in range(len(batches))) == 19 + 3


@pytest.mark.parametrize("batching", ["by_length", "mixed"])
@pytest.mark.parametrize("limit", [None, 6])
def test_passes_with_both_directions_come_first(batching, limit):
    """Of six pairs two are turned round, without dropout, other ones each pass; each pair is there once."""
    settings = TrainingSettings(batch_tokens=12, batching=batching, backward=1 / 3, backward_passes=limit)
    made = [Passes(text(7, 9), Dropout(), settings, WORKERS) for _ in range(2)]
    lengths = set()
    for number in range(8):
        batches, again = (passes.batches(number) for passes in made)
        order = batches.pass_order(number)
        found = [batches.batch(place) for place in order]
        turned = [batch for batch in found if batch.backward]
        assert sum(len(batch.source) for batch in found) == 6
        assert sum(len(batch.source) for batch in turned) == (2 if limit is None or number < limit else 0)
        for batch in found:
            first = batch.source[0, 0], batch.target_out[0, 0]
            assert first == ((9, 7) if batch.backward else (100 + number, 100 + number))
        assert sum(batch.target_tokens for batch in found) == 19 + 6
        assert batches.target_tokens[order].tolist() == [batch.target_tokens for batch in found]
        for place in order:  # a pass depends on its number alone
            np.testing.assert_array_equal(again.batch(place).source, batches.batch(place).source)
        if turned:
            lengths.add(tuple(sorted(n for batch in turned for n in (batch.source == 9).sum(1).tolist())))
    assert len(lengths) > 1


def test_batches_of_both_directions_know_their_largest_and_how_full_they_are():
    settings = TrainingSettings(batch_tokens=12, backward=0.5)
    batches = Passes(text(7, 9), None, settings, WORKERS).batches(0)
    found = [batches.batch(place) for place in range(len(batches))]
    largest = batches.largest()
    sizes = [batch.source.size + batch.target_in.size for batch in found]
    assert largest.source.size + largest.target_in.size == max(sizes)
    assert largest.backward or not found[int(np.argmax(sizes))].backward
    assert batches.fullness().both == pytest.approx(
        np.average(
            [way.fullness().both for way in batches._ways], weights=[len(way) for way in batches._ways]
        )
    )
    assert batches.dropped == 0


@pytest.mark.parametrize("batching", ["by_length", "mixed"])
@pytest.mark.parametrize("share", [0.1, 0.95])
def test_a_direction_may_be_left_without_a_sentence(batching, share):
    settings = TrainingSettings(batch_tokens=64, batching=batching, backward=share, concatenate=0.5)
    side = Sentences.of([[5, 6, 7]])
    batches = Passes(EncodedPairs(side, side), None, settings, WORKERS).batches(0)
    (place,) = batches.pass_order(0)
    assert batches.batch(place).backward == (share > 0.5)
    assert batches.target_tokens.tolist() == [4] and batches.largest().source_tokens == 4
    assert 0 < batches.fullness().both <= 1
