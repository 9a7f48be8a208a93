"""Sentences behind each other as one: on both sides the same, none lost, none too long."""

import numpy as np
import pytest

from qknorm.data.concatenation import concatenated
from qknorm.data.sentences import EncodedPairs, Sentences

COUNT = 41


@pytest.fixture
def corpus():
    """Pair n says n on both sides, at lengths drawn apart; one source is empty."""
    rng = np.random.default_rng(0)
    source, target = ([[n] * length for n, length in enumerate(rng.integers(1, 9, COUNT))] for _ in "st")
    source[5] = []
    return EncodedPairs(Sentences.of(source), Sentences.of(target))


def members(sentence):
    """Which pairs a sentence is made of, in its order."""
    return list(dict.fromkeys(sentence.tolist()))


@pytest.mark.parametrize("share", [0.0, 0.3, 2 / 3, 1.0])
def test_a_share_of_the_pairs_has_companions(corpus, share):
    made = concatenated(corpus, share, 100, [1, 2])
    couples = round(share * COUNT / 2)
    assert len(made) == COUNT - couples
    found = []
    for source, target in (made[i] for i in range(len(made))):
        names = members(target)
        assert members(source) == [n for n in names if n != 5], "both sides, in the same order"
        assert len(names) in (1, 2)
        for n in names:
            assert (source == n).sum() == len(corpus.source[n])
            assert (target == n).sum() == len(corpus.target[n])
        found.append(names)
    assert sum(len(names) == 2 for names in found) == couples
    assert sorted(n for names in found for n in names) == list(range(COUNT)), "each pair once"


def test_couples_come_from_the_seed_alone(corpus):
    a, b, c = (concatenated(corpus, 1.0, 100, seed) for seed in ([1, 2], [1, 2], [1, 3]))
    assert np.array_equal(a.source.ids, b.source.ids) and np.array_equal(a.target.offsets, b.target.offsets)
    assert not np.array_equal(a.source.ids, c.source.ids)


def test_couples_that_would_be_too_long_stay_apart(corpus):
    made = concatenated(corpus, 1.0, 9, 7)
    assert max(made.source.lengths.max(), made.target.lengths.max()) <= 9
    assert COUNT - COUNT // 2 < len(made) < COUNT
    assert sorted(n for i in range(len(made)) for n in members(made.target[i])) == list(range(COUNT))
    assert len(concatenated(corpus, 1.0, 1, 7)) == COUNT


def test_no_pairs_at_all():
    nothing = EncodedPairs(Sentences.of([]), Sentences.of([]))
    assert len(concatenated(nothing, 0.5, 10, 1)) == 0
