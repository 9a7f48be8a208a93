"""The search in slots of static shape, uncaptured, against the plain one."""

import copy
import dataclasses
import random
from itertools import chain

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from qknorm.ids import BOS, EOS, PAD
from qknorm.translation import SearchSettings, beam_search, static
from qknorm.translation.slots import Slots
from support.reverser import sentences
from support.slow_search import small_model

SOURCES = [[5, 6, 7], [8], [9, 4, 11, 10, 5], [], [7, 7]]


@pytest.fixture(scope="module")
def many():
    return [*sentences(70, seed=3), [], *sentences(12, seed=4, longest=45)]


def same(model, sources, settings, tolerance=1e-5):
    """Both ways find the same; returns it."""
    plain = beam_search(model, sources, settings, _static=False)
    slots = beam_search(model, sources, settings, _static=True)
    assert [[(h.ids, h.finished) for h in nbest] for nbest in slots] == [
        [(h.ids, h.finished) for h in nbest] for nbest in plain
    ]
    for ours, theirs in zip(slots, plain, strict=True):
        assert [h.log_prob for h in ours] == pytest.approx([h.log_prob for h in theirs], abs=tolerance)
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=tolerance)
    return slots


@pytest.mark.parametrize(
    ("beam", "nbest", "length_penalty", "max_extra"),
    [
        (1, 1, 0.6, 6),
        (4, 1, 0.6, 50),
        (4, 4, 0.6, 6),
        (4, 2, 0.0, 9),
        (3, 3, 2.0, 5),
        (5, 1, -0.5, 4),
        (4, 4, 0.6, 0),
    ],
)
def test_small_models_find_the_same(beam, nbest, length_penalty, max_extra):
    settings = SearchSettings(beam=beam, nbest=nbest, length_penalty=length_penalty, max_extra=max_extra)
    for seed in range(3):
        same(small_model(seed), SOURCES, settings, 1e-9)


@pytest.mark.parametrize(
    "made",
    [
        {"qk_norm": None},
        {"qk_norm": "rms", "qk_scale_per": "head", "fix_norm": False},
        {"qk_norm": "rms_across_heads", "norm_position": "post", "languages": 0},
        {"v_norm": True, "norm": "scale", "positions": "sine"},
        {"rotary": True},
        {"rotary": True, "qk_norm": None, "languages": 0},
    ],
)
def test_every_kind_of_model(made):
    same(small_model(1, **made), SOURCES, SearchSettings(nbest=4, max_extra=7), 1e-9)


@pytest.mark.parametrize(("batch_tokens", "slots", "nbest"), [(220, 4, 1), (500, 8, 4), (32768, 256, 2)])
def test_refilled_and_shrinking_slots(reverser, many, batch_tokens, slots, nbest):
    order = list(range(len(many)))
    random.Random(batch_tokens).shuffle(order)
    settings = SearchSettings(nbest=nbest, batch_tokens=batch_tokens)
    assert static.search_of(reverser).most_slots(reverser, settings, static.SOURCE_ROOMS[0]) == slots
    found = same(reverser, [many[i] for i in order], settings)
    assert len({len(nbest[0].ids) for nbest in found}) > 6  # so that sentences leave at different steps


def test_alone_is_as_in_company(reverser, many):
    settings = SearchSettings(nbest=2)
    together = beam_search(reverser, many[:20], settings, _static=True)
    alone = [beam_search(reverser, [source], settings, _static=True)[0] for source in many[:20]]
    assert [[h.ids for h in nbest] for nbest in together] == [[h.ids for h in nbest] for nbest in alone]


def test_stragglers_move_into_fewer_slots(reverser, many, monkeypatch):
    counts, step = [], Slots.step
    monkeypatch.setattr(
        Slots, "step", lambda self, model, count: (counts.append(count), step(self, model, count))
    )
    short = [source for source in many if 0 < len(source) < 30]
    same(reverser, short, SearchSettings())
    assert len({*counts}) > 1 and {*counts} <= {256, 64, 16, 4}
    assert counts[0] == 256 and counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("batch_tokens", [32768, 4 * 416, 900])
def test_short_sources_go_along_with_long_ones(reverser, many, monkeypatch, batch_tokens):
    """Where room costs memory alone; nothing else is found, and not with fewer slots."""
    settings = SearchSettings(batch_tokens=batch_tokens)
    search = static.search_of(reverser)
    apart = search._groups(reverser, settings, many)
    monkeypatch.setattr(static, "triton_takes", lambda x: True)
    joined = search._groups(reverser, settings, many)
    assert len(joined) == (1 if batch_tokens == 32768 else len(apart)) and len(apart) == 2
    assert [*chain(*joined.values())] == [*chain(*apart.values())]
    same(reverser, many, settings)


def test_cut_at_the_greatest_length():
    model = small_model(0)
    with torch.no_grad():
        model.embedding.bias[EOS] -= 30
    for max_extra in (0, 3, 14):  # with 14 there is room to the last position
        long = [4 + i % 8 for i in range(31)]
        found = same(model, [*SOURCES, long], SearchSettings(max_extra=max_extra, nbest=2), 1e-9)
        assert [len(nbest[0].ids) for nbest in found] == [n and n + max_extra for n in (3, 1, 5, 0, 2, 31)]
        assert not found[-1][0].finished


def test_a_translation_is_never_empty():
    model = small_model(0)
    with torch.no_grad():
        model.embedding.bias[EOS] += 30
    found = same(model, SOURCES, SearchSettings(), 1e-9)
    assert [len(nbest[0].ids) for nbest in found] == [1, 1, 1, 0, 1]


def test_special_and_foreign_subwords_are_never_produced():
    model = small_model(3)
    foreign = torch.zeros(12, dtype=torch.bool)
    foreign[[4, 6, 7]] = True
    with torch.no_grad():
        model.embedding.bias[[PAD, BOS]] += 20
        model.embedding.bias[EOS] -= 4
    model.register_buffer("target_subwords", ~foreign)
    found = same(model, SOURCES, SearchSettings(beam=8, nbest=8, max_extra=5), 1e-9)
    produced = {i for nbest in found for h in nbest for i in h.ids}
    assert produced and not produced & {PAD, BOS, EOS, 4, 6, 7}


def test_fewer_subwords_than_the_beam():
    same(small_model(0, vocab_size=5), [[4, 4]], SearchSettings(beam=50, nbest=50, max_extra=1), 1e-9)


def test_ties_go_to_the_lower_id():
    model = small_model(0)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    for penalty in (0.0, 0.6):
        same(model, [[5], [6, 7]], SearchSettings(beam=3, nbest=3, max_extra=2, length_penalty=penalty))


def test_what_has_no_room_goes_the_plain_way():
    model = small_model(0, dtype=torch.float32)
    with torch.no_grad():
        model.embedding.bias[EOS] += 3  # for the test to be short, its translation must be
    long = [4 + i % 8 for i in range(1500)]
    same(model, [SOURCES[0], long, *SOURCES[1:]], SearchSettings())
    search = static.search_of(model)
    assert search.fits(model, [5], SearchSettings())
    assert not search.fits(model, long, SearchSettings())
    assert not search.fits(model, [5], SearchSettings(max_extra=5000))
    assert not search.fits(model, [5], SearchSettings(batch_tokens=10))
    search.affordable = 1000
    assert not search.fits(model, [5], SearchSettings())
    same(model, SOURCES, SearchSettings(batch_tokens=10))


def test_progress_counts_every_sentence_once(reverser, many):
    calls = []
    settings = SearchSettings(batch_tokens=500)
    beam_search(reverser, many, settings, progress=lambda *c: calls.append(c), _static=True)
    done = [d for d, _ in calls]
    assert done == sorted({*done}) and len(done) > 3 and calls[-1] == (len(many), len(many))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_scores_in_float32(reverser, dtype):
    half = copy.deepcopy(reverser).to(dtype)
    found = beam_search(half, sentences(20, seed=9), _static=True)
    assert any(torch.tensor(h.log_prob).to(dtype).item() != h.log_prob for (h,) in found)


def test_what_is_kept_follows_the_weights():
    """Weights changed in place are read anew; weights that moved make everything anew."""
    model, other = (small_model(seed, dtype=torch.float32) for seed in (0, 1))
    sources, settings = SOURCES, SearchSettings(nbest=2, max_extra=6)
    before = same(model, sources, settings)
    slots = dict(static.search_of(model).slots)
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
            mine.copy_(theirs)
    assert same(model, sources, settings) != before
    same(model, sources, dataclasses.replace(settings, length_penalty=1.5))
    assert static.search_of(model).slots == slots
    model.double()
    same(model, sources, settings, 1e-9)
    assert static.search_of(model).slots != slots


def test_a_search_is_forgotten_with_its_model():
    model = small_model(0)
    beam_search(model, SOURCES, _static=True)
    before = len(static._SEARCHES)
    del model
    assert len(static._SEARCHES) == before - 1


def test_modes_come_back():
    model = small_model(0, dropout=0.3)
    model.train()
    same(model, SOURCES, SearchSettings(), 1e-9)
    assert model.training and model.decoder[0].ff.training


def test_a_step_looks_at_no_value():
    """What a capture needs: operations and shapes do not depend on what the tensors hold."""
    model = small_model(0)
    beam_search(model, SOURCES, _static=True)
    (slots,) = static.search_of(model).slots.values()
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        with pytest.raises(DataDependentOutputException):
            bool((~slots.over).any())  # so a step that looked would be found out
        slots.step(model, 4)
