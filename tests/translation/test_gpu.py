"""On a CUDA device: the captured search finds what the uncaptured and the plain ones find."""

import copy

import pytest
import torch

from qknorm.ids import EOS
from qknorm.model import ModelSettings, Transformer
from qknorm.translation import SearchSettings, beam_search, force_score, static
from support.reverser import sentences
from support.slow_search import small_model

pytestmark = pytest.mark.gpu
CUDA = "cuda"


@pytest.fixture(scope="module")
def model(reverser):
    return copy.deepcopy(reverser).to(CUDA)


@pytest.fixture(scope="module")
def many():
    return [*sentences(300, seed=3), [], *sentences(30, seed=4, longest=45)]


def same(model, sources, settings, tolerance=1e-4):
    """Captured, uncaptured and plain searches agree; returns what they find."""
    plain = beam_search(model, sources, settings, _static=False)
    search = static.search_of(model)
    captured = beam_search(model, sources, settings)
    longest = max(map(len, sources))  # shorter ones may go along with it
    shape = search._shape(model, settings, static.source_room(longest))
    assert shape in {captured_shape for captured_shape, _ in search.graphs}
    search.captured = False
    uncaptured = beam_search(model, sources, settings)
    search.captured = True
    for found in (captured, uncaptured):
        assert [[(h.ids, h.finished) for h in nbest] for nbest in found] == [
            [(h.ids, h.finished) for h in nbest] for nbest in plain
        ]
        for ours, theirs in zip(found, plain, strict=True):
            assert [h.log_prob for h in ours] == pytest.approx([h.log_prob for h in theirs], abs=tolerance)
            assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=tolerance)
    return captured


@pytest.mark.parametrize(
    "settings",
    [
        SearchSettings(),
        SearchSettings(beam=1),
        SearchSettings(nbest=4, batch_tokens=500),
        SearchSettings(nbest=2, length_penalty=2.0, max_extra=9, batch_tokens=220),
    ],
)
def test_captured_is_plain(model, many, settings):
    same(model, many, settings)


@pytest.mark.parametrize(
    "made", [{}, {"qk_norm": None}, {"qk_norm": "rms"}, {"v_norm": True}, {"rotary": True}]
)
def test_in_float64_too(made):
    sources = [[5, 6, 7], [8], [9, 4, 11, 10, 5], [], [7, 7]]
    same(small_model(0, **made).to(CUDA), sources, SearchSettings(nbest=4, max_extra=6), 1e-9)


def test_without_the_kernel(model, many, monkeypatch):
    monkeypatch.setattr("qknorm.nn.slots.triton_takes", lambda x: False)
    same(copy.deepcopy(model), many, SearchSettings(nbest=2))


def test_a_step_does_not_wait_for_the_device(model, many, monkeypatch):
    """Uncaptured, as a capture would refuse to wait."""
    step = static.Slots.step

    def strict(*args):
        torch.cuda.set_sync_debug_mode("error")
        try:
            step(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(static.Slots, "step", strict)
    monkeypatch.setattr(static.search_of(model), "captured", False)
    assert len(beam_search(model, many)) == len(many)


def test_graphs_are_captured_once_and_follow_the_weights(many):
    torch.manual_seed(0)
    settings = ModelSettings(d_model=64, d_ff=128, heads=4, encoder_layers=2, decoder_layers=2)
    model = Transformer(200, settings).to(CUDA)
    with torch.no_grad():
        model.embedding.bias.normal_()
        model.embedding.bias[EOS] += 2
    first = same(model, many, SearchSettings())
    graphs = dict(static.search_of(model).graphs)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    second = same(model, many, SearchSettings(length_penalty=1.0))
    assert [n[0].log_prob for n in second] != [n[0].log_prob for n in first]
    assert static.search_of(model).graphs == graphs
    model.cpu()
    model.to(CUDA)
    third = beam_search(model, many, SearchSettings(length_penalty=1.0))
    assert [n[0].ids for n in third] == [n[0].ids for n in second]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(model, many, dtype):
    half = copy.deepcopy(model).to(dtype)
    found = beam_search(half, many)
    assert static.search_of(half).graphs
    forced = force_score(half, many, [nbest[0].ids for nbest in found])
    for (best,), f in zip(found, forced, strict=True):
        if best.finished:
            assert best.log_prob == pytest.approx(f.log_prob, rel=0.05, abs=0.15)


def test_under_autocast_the_plain_way_is_taken(many):
    model = small_model(0, dtype=torch.float32).to(CUDA)
    with torch.autocast(CUDA, torch.bfloat16):
        beam_search(model, [[5, 6]])
    assert not static.search_of(model).graphs
