"""Batches by length keep their promises for any lengths."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from qknorm.translation.batches import by_length, pad


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40))), st.integers(1, 300))
def test_every_sentence_once_within_the_budget_longest_first(lengths, budget):
    batches = by_length(lengths, lambda count, longest: count * sum(longest), budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = [max(lengths[i][side] for i in batch) for side in (0, 1)]
        assert len(batch) == 1 or len(batch) * sum(longest) <= budget
    order = [lengths[i] for batch in batches for i in batch]
    assert order == sorted(lengths, reverse=True)


def test_batches_are_as_full_as_the_budget_allows():
    assert by_length([(3,), (3,), (3,), (2,)], lambda n, longest: n * longest[0], 6) == [[0, 1], [2, 3]]


def test_pad():
    assert pad([[5, 6], [7]], torch.device("cpu")).tolist() == [[5, 6], [7, 0]]
