"""Training on a CUDA device: it learns, stops and goes on, and what it leaves behind works on a CPU."""

import signal

import pytest

from qknorm import Translator
from qknorm.data import lines
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.training import train
from qknorm.training.captured import CapturedStep
from support.tiny import tiny_recipe, write_corpus

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("gpu") / "corpus", train=80)


def run_on_gpu(recipe, folder):
    return train(recipe, folder, device="cuda", progress=Progress(quiet=True), cache=folder.parent / "cache")


def test_training_stops_and_goes_on(corpus, tmp_path, monkeypatch):
    """In float32 without dropout the stop changes nothing but the order of sums."""
    off = (f"model.{name}=0.0" for name in ("dropout", "attention_dropout", "ff_dropout", "word_dropout"))
    recipe = tiny_recipe(corpus, *off, "training.precision=float32", "training.average=ema")
    whole = run_on_gpu(recipe, tmp_path / "whole")
    update, seen = CapturedStep.update, []

    def interrupting(self, batches, rate, step):
        update(self, batches, rate, step)
        seen.append(step)
        if len(seen) == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(CapturedStep, "update", interrupting)
    stopped = run_on_gpu(recipe, tmp_path / "run")
    assert stopped.interrupted and stopped.state.step == 5
    monkeypatch.undo()
    went_on = run_on_gpu(recipe, tmp_path / "run")
    assert not went_on.interrupted and went_on.state.step == whole.state.step
    for a, b in zip(went_on.run.history(), whole.run.history(), strict=True):
        assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-4)
        assert a["dev_perplexity"] == pytest.approx(b["dev_perplexity"], rel=1e-3)


def test_a_cpu_starts_from_the_same_and_translates_alike(corpus, tmp_path):
    """Another device, the same recipe: the first epochs' losses agree, and so do translations in float32."""
    off = [f"model.{name}=0.0" for name in ("dropout", "attention_dropout", "ff_dropout", "word_dropout")]
    recipe = tiny_recipe(corpus, *off, "training.precision=float32")
    on_gpu = run_on_gpu(recipe, tmp_path / "gpu")
    on_cpu = train(
        recipe, tmp_path / "cpu", device="cpu", progress=Progress(quiet=True), cache=tmp_path / "cache"
    )
    first, other = on_gpu.run.history()[0], on_cpu.run.history()[0]
    assert first["train_loss"] == pytest.approx(other["train_loss"], rel=1e-3)
    assert {"ms_per_step", "tokens_per_second", "waiting_share", "elapsed"} <= set(first)
    text = list(lines(corpus / "test.src"))
    folder = Run.open(tmp_path / "gpu").path
    assert Translator.load(folder, "cuda")(text) == Translator.load(folder, "cpu")(text)


def test_bfloat16_learns(corpus, tmp_path):
    trained = run_on_gpu(tiny_recipe(corpus, "training.max_epochs=4"), tmp_path / "half")
    losses = [row["train_loss"] for row in trained.run.history()]
    assert losses[-1] < losses[0] and trained.state.skipped == 0


def test_models_that_translate_together(corpus, tmp_path):
    """Each is captured anew; what they say together a CPU says too."""
    off = [f"model.{name}=0.0" for name in ("dropout", "attention_dropout", "ff_dropout", "word_dropout")]
    recipe = tiny_recipe(corpus, *off, "training.precision=float32", "training.members=2")
    run = run_on_gpu(recipe, tmp_path / "two").run
    for seed, member in enumerate(run.members(), 1):
        alone = run_on_gpu(
            tiny_recipe(corpus, *off, "training.precision=float32", f"training.seed={seed}"),
            tmp_path / str(seed),
        )
        for mine, other in zip(member.history(), alone.run.history(), strict=True):
            assert mine["train_loss"] == pytest.approx(other["train_loss"], rel=1e-4)
    sources = list(lines(corpus / "test.src"))
    assert Translator.load(run.path, "cpu")(sources) == list(lines(run.hypotheses_file("test")))
