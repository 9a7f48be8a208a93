"""Token batches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qknorm.data.batches import Batch, Batches, MixedBatches, for_translation, most_sentences
from qknorm.data.sentences import EncodedPairs, Sentences
from qknorm.ids import BOS, EOS, PAD

Lengths = list[tuple[int, int]]
corpora = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=60)


def corpus_of(lengths: Lengths) -> EncodedPairs:
    """Ids that tell place and position, so that no two sentences are alike."""
    source = [[100 * i + j + 10 for j in range(s)] for i, (s, _) in enumerate(lengths)]
    target = [[100 * i + j + 50 for j in range(t)] for i, (_, t) in enumerate(lengths)]
    return EncodedPairs(Sentences.of(source), Sentences.of(target))


def _all(batches: Batches) -> list[Batch]:
    return [batches.batch(number) for number in range(len(batches))]


@pytest.fixture(scope="module")
def corpus() -> EncodedPairs:
    generator = np.random.default_rng(5)
    source = generator.integers(0, 40, 500)
    target = np.maximum(0, source + generator.integers(-4, 5, 500))
    return corpus_of(list(zip(source.tolist(), target.tolist(), strict=True)))


@settings(deadline=None)
@given(corpora, st.integers(1, 40))
def test_every_sentence_that_fits_is_in_one_batch_under_budget(lengths: Lengths, budget: int) -> None:
    corpus = corpus_of(lengths)
    batches = Batches(corpus, budget, seed=1)
    seen: list[int] = []
    for number in range(len(batches)):
        batch = batches.batch(number)
        assert len(batch.indices) * max(batch.source.shape[1], batch.target_in.shape[1]) <= budget
        seen += batch.indices.tolist()
    fitting = [i for i, pair in enumerate(lengths) if max(pair) + 1 <= budget]
    assert sorted(seen) == fitting
    assert batches.dropped == len(lengths) - len(fitting)


@settings(deadline=None)
@given(corpora)
def test_rows_are_the_sentences(lengths: Lengths) -> None:
    corpus = corpus_of(lengths)
    batches = Batches(corpus, 50, seed=1)
    for number in range(len(batches)):
        batch = batches.batch(number)
        expected = [(corpus[i][0].tolist(), corpus[i][1].tolist()) for i in batch.indices]
        wide = max(len(s) for s, _ in expected) + 1
        assert batch.source.tolist() == [[*s, EOS] + [PAD] * (wide - len(s) - 1) for s, _ in expected]
        wide = max(len(t) for _, t in expected) + 1
        assert batch.target_in.tolist() == [[BOS, *t] + [PAD] * (wide - len(t) - 1) for _, t in expected]
        assert batch.target_out.tolist() == [[*t, EOS] + [PAD] * (wide - len(t) - 1) for _, t in expected]
        assert batch.source_tokens == sum(len(s) + 1 for s, _ in expected)
        assert batch.target_tokens == sum(len(t) + 1 for _, t in expected) == batches.target_tokens[number]
        assert {array.dtype for array in batch[:4]} == {np.dtype(np.int64)}  # type: ignore[union-attr]


@settings(deadline=None)
@given(corpora, st.integers(13, 40))
def test_no_cut_of_the_same_order_has_less_padding_in_as_few_batches(lengths: Lengths, budget: int) -> None:
    """The best of all cuts, found sentence by sentence; a batch weighs a quarter of the budget."""
    batches = _all(Batches(corpus_of(lengths), budget, seed=1))
    ordered = [lengths[i] for batch in batches for i in batch.indices]
    best = [0.0]
    for stop in range(1, len(ordered) + 1):
        costs = []
        for start in range(stop):
            source, target = (max(side) + 1 for side in zip(*ordered[start:stop], strict=True))
            if (stop - start) * max(source, target) <= budget:
                costs.append(best[start] + (stop - start) * (source + target) + budget / 4)
        best.append(min(costs))
    found = sum(b.source.size + b.target_in.size + budget / 4 for b in batches)
    assert found == pytest.approx(best[-1])


def test_a_grid_of_places_is_no_worse_than_cutting_at_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large corpora are cut at some of the places only, among them those of the simple cut."""
    generator = np.random.default_rng(2)
    lengths = [tuple(pair) for pair in generator.poisson(9, (2000, 2)).tolist()]
    exact = _all(Batches(corpus_of(lengths), 300, seed=1))
    monkeypatch.setattr("qknorm.data.batches._PLACES", 50)
    coarse = _all(Batches(corpus_of(lengths), 300, seed=1))
    monkeypatch.setattr("qknorm.data.batches._PLACES", 1)
    simple = _all(Batches(corpus_of(lengths), 300, seed=1))
    exact_cost, coarse_cost, simple_cost = (
        sum(b.source.size + b.target_in.size + 75 for b in batches) for batches in (exact, coarse, simple)
    )
    assert exact_cost < coarse_cost < simple_cost
    assert all(len(b.indices) * max(b.source.shape[1], b.target_in.shape[1]) <= 300 for b in coarse)
    assert sorted(i for b in coarse for i in b.indices.tolist()) == list(range(2000))


def test_sentences_are_sorted_by_longest_side_then_difference_to_and_fro_then_place() -> None:
    lengths = [(3, 5), (5, 3), (2, 2), (5, 5), (3, 5), (5, 4), (4, 5), (1, 2), (6, 6), (2, 6), (6, 5)]
    batches = Batches(corpus_of(lengths), 1000, seed=1)
    assert len(batches) == 1
    assert batches.batch(0).indices.tolist() == [2, 7, 0, 4, 6, 3, 5, 1, 10, 8, 9]


def test_passes_are_reshuffled_from_seed_and_number(corpus: EncodedPairs) -> None:
    batches = Batches(corpus, 200, seed=7)
    first = batches.pass_order(0)
    assert sorted(first.tolist()) == list(range(len(batches)))
    assert first.tolist() != batches.pass_order(1).tolist()
    assert first.tolist() == Batches(corpus, 200, seed=7).pass_order(0).tolist()
    assert first.tolist() != Batches(corpus, 200, seed=8).pass_order(0).tolist()


def test_fullness_counts_cells(corpus: EncodedPairs) -> None:
    batches = Batches(corpus, 200, seed=1)
    all_batches = [batches.batch(k) for k in range(len(batches))]
    source = sum(b.source_tokens for b in all_batches) / sum(b.source.size for b in all_batches)
    target = sum(b.target_tokens for b in all_batches) / sum(b.target_out.size for b in all_batches)
    both = sum(b.source_tokens + b.target_tokens for b in all_batches) / sum(
        b.source.size + b.target_out.size for b in all_batches
    )
    longest = np.maximum(corpus.lengths("source"), corpus.lengths("target")) + 1
    cells = sum(len(b.indices) * max(b.source.shape[1], b.target_out.shape[1]) for b in all_batches)
    assert batches.fullness() == pytest.approx((longest.sum() / cells, source, target, both))


def test_largest_has_the_most_cells(corpus: EncodedPairs) -> None:
    batches = Batches(corpus, 200, seed=1)
    sizes = [b.source.size + b.target_in.size for b in map(batches.batch, range(len(batches)))]
    largest = batches.largest()
    assert largest.source.size + largest.target_in.size == max(sizes)


def test_numbers_out_of_range_are_refused(corpus: EncodedPairs) -> None:
    batches = Batches(corpus, 200, seed=1)
    for number in (-1, len(batches)):
        with pytest.raises(IndexError):
            batches.batch(number)


def test_a_corpus_without_a_sentence_that_fits_has_no_batch() -> None:
    batches = Batches(corpus_of([(5, 5), (9, 1)]), 4, seed=1)
    assert len(batches) == 0 and batches.dropped == 2 and len(batches.pass_order(0)) == 0


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), max_size=50), st.integers(1, 60))
def test_translation_loses_nothing(lengths: list[int], budget: int) -> None:
    sources = [[100 * i + j + 10 for j in range(length)] for i, length in enumerate(lengths)]
    back: dict[int, list[int]] = {}
    for batch in for_translation(sources, budget):
        assert batch.source.size <= budget or len(batch.indices) == 1
        for index, row in zip(batch.indices.tolist(), batch.source.tolist(), strict=True):
            end = row.index(EOS)
            assert all(cell == PAD for cell in row[end + 1 :]) and index not in back
            back[index] = row[:end]
    assert [back[i] for i in range(len(sources))] == sources


def test_translation_groups_like_lengths_longest_first() -> None:
    lengths = [1, 9, 2, 8, 1]
    batches = list(for_translation([[5] * n for n in lengths], 20))
    assert [b.indices.tolist() for b in batches] == [[3, 1], [0, 4, 2]]


@settings(deadline=None)
@given(corpora, st.integers(1, 200), st.integers(0, 3))
def test_mixed_batches_have_every_sentence_once_under_the_budget_of_each_side(
    lengths: Lengths, budget: int, number: int
) -> None:
    batches = MixedBatches(corpus_of(lengths), budget, 1, number)
    seen: list[int] = []
    for batch in _all(batches):
        assert max(batch.source_tokens, batch.target_tokens) <= budget
        assert 1 <= len(batch.indices) <= most_sentences(budget)
        seen += batch.indices.tolist()
    fitting = [i for i, pair in enumerate(lengths) if max(pair) < budget]
    assert sorted(seen) == fitting and batches.dropped == len(lengths) - len(fitting)
    assert batches.target_tokens.tolist() == [batch.target_tokens for batch in _all(batches)]


def test_mixed_batches_are_drawn_anew_each_pass_from_the_seed(corpus: EncodedPairs) -> None:
    first, again, second, other = (
        [batch.indices.tolist() for batch in _all(MixedBatches(corpus, 300, seed, number))]
        for seed, number in ((1, 0), (1, 0), (1, 1), (2, 0))
    )
    assert first == again and first != second and first != other
    lengths = corpus.source.lengths
    assert (
        np.mean([lengths[batch].std() for batch in first]) > 8
    )  # of all lengths, where sorted ones are alike


def test_mixed_batches_fill_flat_buffers(corpus: EncodedPairs) -> None:
    full = MixedBatches(corpus, 1000, 1, 0).fullness()
    assert full.budget > 0.9 and full.budget >= max(full.source, full.target) >= full.both
    batches = _all(MixedBatches(corpus, 1000, 1, 0))
    assert full.source == pytest.approx(np.mean([batch.source_tokens for batch in batches]) / 1000)
