"""The search against slow searches without caches or batches, and its promises."""

import copy
import dataclasses
import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from qknorm.ids import BOS, EOS, PAD
from qknorm.model import Transformer
from qknorm.translation import SearchSettings, beam_search, cross_attention, force_score
from qknorm.translation.continuations import best_continuations
from support.reverser import sentences, trained_reverser
from support.slow_search import beam, exhaustive, greedy, small_model

SOURCES = [[5, 6, 7], [8], [9, 4, 11, 10, 5], [7, 7]]


def found(results):
    return [[(tuple(h.ids), h.finished) for h in nbest] for nbest in results]


def numbers(results):
    return [x for nbest in results for h in nbest for x in (h.score, h.log_prob)]


@pytest.mark.parametrize("seed", range(6))
def test_beam_1_is_greedy(seed):
    model = small_model(seed)
    settings = SearchSettings(beam=1, max_extra=6)
    for source, (best,) in zip(SOURCES, beam_search(model, SOURCES, settings), strict=True):
        assert (best.ids, best.finished) == greedy(model, source, len(source) + 6)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0, -0.5])
@pytest.mark.parametrize("beam_size", [2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_beam_is_that_of_the_slow_search(seed, beam_size, length_penalty):
    model = small_model(seed)
    settings = SearchSettings(beam=beam_size, length_penalty=length_penalty, max_extra=4, nbest=beam_size)
    for source, nbest in zip(SOURCES, beam_search(model, SOURCES, settings), strict=True):
        expected = beam([model], source, settings)
        assert [tuple(h.ids) for h in nbest] == [ids for ids, _, _ in expected]
        assert [h.score for h in nbest] == pytest.approx([score for _, score, _ in expected], abs=1e-9)
        assert [h.log_prob for h in nbest] == pytest.approx([p for _, _, p in expected], abs=1e-9)


def test_ensemble_is_that_of_the_slow_search():
    models = [small_model(0), small_model(1, d_model=24), small_model(2, qk_norm=None)]
    settings = SearchSettings(max_extra=3, nbest=4)
    for source, nbest in zip(SOURCES, beam_search(models, SOURCES, settings), strict=True):
        expected = beam(models, source, settings)
        assert [tuple(h.ids) for h in nbest] == [ids for ids, _, _ in expected]
        assert [h.log_prob for h in nbest] == pytest.approx([p for _, _, p in expected], abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_optimum(seed):
    model = small_model(seed, vocab_size=7)
    settings = SearchSettings(beam=200, max_extra=2, nbest=20)
    (nbest,) = beam_search(model, [[5, 6]], settings)
    expected = exhaustive([model], [5, 6], settings, vocab_size=7)[:20]
    assert [tuple(h.ids) for h in nbest] == [ids for ids, _, _ in expected]
    assert [h.score for h in nbest] == pytest.approx([score for _, score, _ in expected], abs=1e-9)


@pytest.mark.parametrize("length_penalty", [0.6, 2.0, -0.5])
def test_stopping_early_for_one_loses_nothing(length_penalty):
    for seed in range(12):
        model = small_model(seed)
        settings = SearchSettings(length_penalty=length_penalty, max_extra=9)
        one = beam_search(model, SOURCES, settings)
        many = beam_search(model, SOURCES, dataclasses.replace(settings, nbest=4))
        assert found(one) == [nbest[:1] for nbest in found(many)]


def test_nbest_is_distinct_sorted_and_no_longer_than_asked(reverser):
    for nbest in beam_search(reverser, sentences(60, seed=2), SearchSettings(nbest=3)):
        assert 1 <= len(nbest) <= 3
        assert len({tuple(h.ids) for h in nbest}) == len(nbest)
        assert [h.score for h in nbest] == sorted((h.score for h in nbest), reverse=True)


@pytest.fixture(scope="module")
def one_by_one(reverser):
    """Sentences, and what is found for each when it is alone."""
    sources = [*sentences(40, seed=3), [], *sentences(6, seed=4, longest=30)]
    return sources, [beam_search(reverser, [source], SearchSettings(nbest=4))[0] for source in sources]


@pytest.mark.parametrize("batch_tokens", [700, 3000, 100_000])
def test_results_do_not_depend_on_the_batch(reverser, one_by_one, batch_tokens):
    sources, alone = one_by_one
    assert sum(nbest[0].finished for nbest in alone) > 30
    assert len({len(nbest[0].ids) for nbest in alone}) > 6  # so that sentences leave at different steps
    order = list(range(len(sources)))
    random.Random(batch_tokens).shuffle(order)
    settings = SearchSettings(nbest=4, batch_tokens=batch_tokens)
    shuffled = beam_search(reverser, [sources[i] for i in order], settings)
    expected = [alone[i] for i in order]
    assert found(shuffled) == found(expected)
    assert numbers(shuffled) == pytest.approx(numbers(expected), abs=1e-4)


def test_the_trained_model_reverses(reverser):
    sources = sentences(200, seed=5)
    right = sum(
        h.ids == source[::-1] for source, (h,) in zip(sources, beam_search(reverser, sources), strict=True)
    )
    assert right > 150


def test_forced_log_prob_is_the_search_s(reverser):
    sources = [*sentences(30, seed=6), []]
    for models in (reverser, [reverser, trained_reverser(40, seed=1)]):
        results = beam_search(models, sources, SearchSettings(nbest=2))
        flat = [(s, h) for s, nbest in zip(sources, results, strict=True) for h in nbest if h.finished]
        forced = force_score(models, [s for s, _ in flat], [h.ids for _, h in flat])
        assert [f.log_prob for f in forced] == pytest.approx([h.log_prob for _, h in flat], abs=1e-4)


def test_score_is_the_papers():
    settings = SearchSettings(length_penalty=0.6)
    ((best,),) = beam_search(small_model(0), [[5, 6, 7]], settings)
    assert best.finished
    assert best.score == pytest.approx(best.log_prob / ((5 + len(best.ids) + 1) / 6) ** 0.6)


def test_special_and_foreign_subwords_are_never_produced():
    model = small_model(3)
    foreign = torch.zeros(12, dtype=torch.bool)
    foreign[[4, 6, 7]] = True
    with torch.no_grad():
        model.embedding.bias[[PAD, BOS]] += 20
        model.embedding.bias[EOS] -= 4
    model.register_buffer("target_subwords", ~foreign)
    results = beam_search(model, SOURCES, SearchSettings(beam=8, nbest=8, max_extra=5))
    produced = {i for nbest in results for h in nbest for i in h.ids}
    assert produced and not produced & {PAD, BOS, EOS, 4, 6, 7}


def test_a_translation_is_never_empty():
    model = small_model(0)
    with torch.no_grad():
        model.embedding.bias[EOS] += 30
    assert [len(nbest[0].ids) for nbest in beam_search(model, SOURCES)] == [1, 1, 1, 1]


def test_cut_at_the_greatest_length():
    model = small_model(0)
    with torch.no_grad():
        model.embedding.bias[EOS] -= 30
    for source, nbest in zip(
        SOURCES, beam_search(model, SOURCES, SearchSettings(max_extra=3, nbest=2)), strict=True
    ):
        assert [h.finished for h in nbest] == [False, False]
        assert [len(h.ids) for h in nbest] == [len(source) + 3] * 2
        factor = ((5 + len(source) + 3) / 6) ** 0.6
        assert [h.score for h in nbest] == pytest.approx([h.log_prob / factor for h in nbest])


def test_fewer_subwords_than_the_beam():
    model = small_model(0, vocab_size=5)
    (nbest,) = beam_search(model, [[4, 4]], SearchSettings(beam=50, nbest=50, max_extra=1))
    assert {tuple(h.ids) for h in nbest} == {(1,), (4,), (1, 1), (1, 4), (4, 1), (4, 4)}
    assert all(math.isfinite(h.score) for h in nbest)


def test_ties_go_to_the_lower_id():
    model = small_model(0)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    (nbest,) = beam_search(model, [[5]], SearchSettings(beam=3, nbest=3, max_extra=1, length_penalty=0.0))
    assert [h.ids for h in nbest] == [[1], [4], [5]]


def test_empty_sources_do_not_run_the_model(monkeypatch):
    model = small_model(0)
    monkeypatch.setattr(Transformer, "start", None)
    assert beam_search(model, []) == []
    ((nothing,), (again,)) = beam_search(model, [[], []])
    assert (nothing.ids, nothing.score, nothing.log_prob, nothing.finished) == ([], 0.0, 0.0, True)
    assert again == nothing


def test_attention_of_what_was_found(reverser):
    sources = [*sentences(6, seed=7), []]
    results = beam_search(reverser, sources, SearchSettings(nbest=2, batch_tokens=500), need_weights=True)
    plain = beam_search(reverser, sources, SearchSettings(nbest=2))
    assert found(results) == found(plain)
    for source, nbest in zip(sources, results, strict=True):
        for hypothesis in nbest:
            (alone,) = cross_attention(reverser, [source], [hypothesis.ids])
            torch.testing.assert_close(hypothesis.attention, alone)
            if source:
                assert alone.shape == (2, 2, len(hypothesis.ids) + 1, len(source) + 1)


def test_modes_come_back_and_no_gradients():
    model = small_model(0, dropout=0.3)
    model.train()
    model.encoder.eval()
    first = beam_search(model, SOURCES, need_weights=True)
    assert found(first) == found(beam_search(model, SOURCES))
    assert model.training and model.decoder.training and not model.encoder[0].ff.training
    assert not first[0][0].attention.requires_grad
    with pytest.raises(IndexError):
        beam_search(BrokenModel(), [[4]])
    assert BrokenModel.made.training


class BrokenModel(Transformer):
    """Fails at its first step."""

    made = None

    def __init__(self):
        super().__init__(8, small_model(0).settings)
        BrokenModel.made = self

    def step(self, *args, **kwargs):
        raise IndexError


def test_progress_counts_every_sentence_once(reverser):
    calls = []
    sources = [*sentences(30, seed=8), []]
    beam_search(reverser, sources, SearchSettings(batch_tokens=2000), progress=lambda *c: calls.append(c))
    done = [d for d, _ in calls]
    assert done == sorted(set(done)) and done[-1] == 31
    assert {total for _, total in calls} == {31}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models_score_in_float32(reverser, dtype):
    half = copy.deepcopy(reverser).to(dtype)
    sources = sentences(20, seed=9)
    results = beam_search(half, sources)
    forced = force_score(half, sources, [nbest[0].ids for nbest in results])
    for (best,), f in zip(results, forced, strict=True):
        assert best.log_prob == pytest.approx(f.log_prob, rel=0.05, abs=0.1)
    assert any(torch.tensor(best.log_prob).to(dtype).item() != best.log_prob for (best,) in results)


def test_a_5000_subword_source_is_translated():
    model = small_model(0, dtype=torch.float32)
    with torch.no_grad():
        model.embedding.bias[EOS] += 3  # for the test to be short, its translation must be
    long = [4 + i % 8 for i in range(5000)]
    first, found_for_long, *rest = beam_search(model, [SOURCES[0], long, *SOURCES[1:]])
    assert found([first, *rest]) == found(beam_search(model, SOURCES))
    assert found_for_long[0].finished


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 300), st.integers(1, 7), st.integers(0, 1000))
def test_best_continuations_are_the_first_of_a_stable_sort(batch, width, vocab, count, seed):
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randint(-3, 4, (batch, width, vocab), generator=rng).float()  # many ties
    scores[torch.rand(scores.shape, generator=rng) < 0.1] = -torch.inf
    offset = torch.randint(-2, 3, (batch, width), generator=rng).float()
    values, hypotheses, ids = best_continuations(scores, offset, count)
    whole = (scores + offset[:, :, None]).flatten(1).sort(dim=1, descending=True, stable=True)
    n = min(count, width * vocab)
    assert torch.equal(values, whole.values[:, :n])
    finite = values > -torch.inf
    assert torch.equal((hypotheses * vocab + ids)[finite], whole.indices[:, :n][finite])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"beam": 0}, "beam must be at least 1"),
        ({"nbest": 5}, "nbest must be at most beam"),
        ({"max_extra": -1}, "max_extra must be at least 0"),
        ({"batch_tokens": 0}, "batch_tokens must be at least 1"),
    ],
)
def test_settings_are_checked(wrong, said):
    with pytest.raises(ValueError, match=said):
        SearchSettings(**wrong)


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="source 1 has ids from 4 to 12"):
        beam_search(small_model(0), [[4], [4, 12]])
    with pytest.raises(ValueError, match="source 0 has ids from 0 to 4"):
        beam_search(small_model(0), [[4, 0]])
    with pytest.raises(ValueError, match=r"one vocabulary; theirs have \[12, 13\] subwords"):
        beam_search([small_model(0), small_model(0, vocab_size=13)], [[4]])
    with pytest.raises(ValueError, match="at least one model"):
        beam_search([], [[4]])
    with pytest.raises(ValueError, match="need_weights goes with one model"):
        beam_search([small_model(0), small_model(1)], [[4]], need_weights=True)
