"""Text in, text out, from a run folder."""

import pytest
import torch

import qknorm
from qknorm import Translator
from qknorm.errors import UserError
from qknorm.progress import Progress
from qknorm.training import train
from qknorm.translation import translator as module
from support.tiny import tiny_recipe, write_corpus


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of the same subwords and one of others."""
    folder = tmp_path_factory.mktemp("runs")
    corpus = write_corpus(folder / "corpus", train=120)
    made = []
    for name, overrides in (
        ("a", ["training.max_epochs=6", "training.epoch_batches=12"]),
        ("b", ["model.d_ff=16"]),
        ("c", ["subwords.operations=12"]),
    ):
        recipe = tiny_recipe(corpus, *overrides)
        made.append(
            train(recipe, folder / name, device="cpu", progress=Progress(quiet=True), cache=folder).run
        )
    return [run.path for run in made]


def test_it_says_what_training_said(runs):
    """The hypotheses in the run folder come from the same code."""
    sources = (runs[0].parent / "corpus" / "test.src").read_text().split("\n")[:-1]
    said = (runs[0] / "hypotheses" / "test.txt").read_text().split("\n")[:-1]
    assert Translator.load(runs[0])(sources) == said
    assert any(said), "an untrained model would say nothing worth comparing"


def test_blank_lines_and_odd_ones(runs):
    translator = Translator.load(runs[0])
    lines = ["", "   ", "\t", "ano casa", "unknown ☃ words", "casa\u2028gato", "x" * 300]
    out = translator(lines)
    assert out[:3] == ["", "", ""] and len(out) == len(lines)
    assert out[3] == translator(["ano casa"])[0]
    assert translator([]) == []


def test_chunks_make_no_difference(runs, monkeypatch):
    translator = Translator.load(runs[0])
    sources = (runs[0].parent / "corpus" / "train.src").read_text().split("\n")[:30]
    whole = translator(sources)
    monkeypatch.setattr(module, "CHUNK", 7)
    assert translator(sources) == whole
    assert translator(sources, batch_tokens=40) == whole
    lazily = translator.stream(iter(sources))
    assert next(lazily)[0].text == whole[0]


def test_progress_is_told_within_a_chunk(runs, monkeypatch):
    """So that a long chunk on a slow machine is no silence; and it never goes back."""
    translator = Translator.load(runs[0])
    text = (runs[0].parent / "corpus" / "train.src").read_text().split("\n")[:38]
    sources = ["ano casa", "", *text, " ", ""]  # the last chunk has nothing to search for
    monkeypatch.setattr(module, "CHUNK", 20)
    told = []
    lazily = translator.stream(sources, batch_tokens=200, progress=told.append)
    next(lazily)
    assert told[-1] == 20 and len({*told}) > 2  # while the caller has seen one
    assert len(list(lazily)) == 41
    assert told == sorted(told) and told[-1] == 42


def test_nbest_scores_and_attention(runs):
    translator = Translator.load(runs[0])
    (found,) = translator.stream(["ano casa gato"], beam=3, nbest=3, attention=True)
    assert [t.score for t in found] == sorted((t.score for t in found), reverse=True)
    assert found[0].text == translator(["ano casa gato"], beam=3)[0]
    first = found[0]
    layers, heads, target, source = first.attention.shape
    assert (layers, heads, target) == (1, 2, len(first.pieces) + 1) and source >= 4
    (log_prob,) = translator.score(["ano casa gato"], [first.text])
    assert log_prob == pytest.approx(first.log_prob, abs=1e-4)


def test_another_precision(runs):
    """Rounded weights say the same of a model that is sure, with other scores; float32 is what is trained."""
    sources = (runs[0].parent / "corpus" / "test.src").read_text().split("\n")[:-1]
    whole, half = Translator.load(runs[0]), Translator.load(runs[0], dtype=torch.bfloat16)
    assert {weight.dtype for weight in half.models[0].parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in whole.models[0].parameters()} == {torch.float32}
    ours, theirs = (sum(t.score for (t,) in each.stream(sources)) for each in (half, whole))
    assert ours != theirs and ours == pytest.approx(theirs, rel=0.05)
    forced = half.score(sources, half(sources))
    assert forced == pytest.approx([t.log_prob for (t,) in half.stream(sources)], rel=0.05, abs=0.1)


def test_an_ensemble(runs):
    together = Translator.load(runs[:2])
    assert len(together.models) == 2 and len(together(["ano casa"])) == 1
    with pytest.raises(UserError, match="have different subwords and cannot translate together"):
        Translator.load([runs[0], runs[2]])


def test_wrong_use_is_named(runs, tmp_path):
    with pytest.raises(UserError, match="is not a run folder"):
        Translator.load(tmp_path)
    with pytest.raises(UserError, match="at least one run folder"):
        Translator.load([])
    with pytest.raises(UserError, match="nbest must be at most beam"):
        next(Translator.load(runs[0]).stream(["ano"], nbest=9))
    with pytest.raises(AttributeError, match="no attribute 'Translater'"):
        qknorm.Translater  # noqa: B018
