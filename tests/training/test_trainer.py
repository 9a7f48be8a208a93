"""The training loop: it learns, goes on exactly after any interruption, and says what went wrong."""

import math
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qknorm.config import TrainingSettings, load_recipe
from qknorm.data import Batches
from qknorm.errors import UserError
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.tensors import load_tensors
from qknorm.training import prepare, train
from qknorm.training.averaging import Averaging
from qknorm.training.finish import finish
from qknorm.training.opening import code_hash
from qknorm.training.saver import Saver
from qknorm.training.step import Step
from qknorm.training.validation import validate
from qknorm.workers import Workers
from support.tiny import tiny_recipe, write_corpus

CHILD = """
import os, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[5])
from qknorm import tensors
from qknorm.progress import Progress
from qknorm.training import train
from qknorm.training.averaging import Averaging
from qknorm.training.finish import finish
from qknorm.training.step import Step
from qknorm.workers import Workers
from support.tiny import tiny_recipe

corpus, run, cache, kill = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
where, _, number = kill.partition(":")
count = 0

def dying(function, before):
    def wrapped(*args, **kwargs):
        global count
        count += 1
        if before and count == int(number):
            os.kill(os.getpid(), 9)
        result = function(*args, **kwargs)
        if not before and count == int(number):
            os.kill(os.getpid(), 9)
        return result
    return wrapped

if where == "update":
    Step.update = dying(Step.update, before=False)
elif where == "before-replace":
    tensors.os.replace = dying(os.replace, before=True)
elif where == "after-replace":
    tensors.os.replace = dying(os.replace, before=False)
elif where == "saving":
    tensors.save_file = dying(tensors.save_file, before=False)
recipe = tiny_recipe(corpus, *sys.argv[6:])
train(recipe, run, device="cpu", progress=Progress(quiet=True), cache=cache)
"""


def child(corpus, run, cache, kill, *overrides):
    tests = str(Path(__file__).parent.parent)
    asked = [sys.executable, "-c", CHILD, str(corpus), str(run), str(cache), kill, tests, *overrides]
    return subprocess.run(asked, capture_output=True, text=True)


def quiet_train(recipe, run, cache):
    return train(recipe, run, device="cpu", progress=Progress(quiet=True), cache=cache)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def finished(corpus, cache, tmp_path_factory):
    """An uninterrupted run."""
    run = tmp_path_factory.mktemp("whole") / "run"
    return quiet_train(tiny_recipe(corpus), run, cache)


def same_weights(a: Path, b: Path) -> bool:
    first, second = load_tensors(a)[0], load_tensors(b)[0]
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_a_run_folder_has_everything(finished, corpus):
    run = finished.run
    assert finished.state.finished == "all 3 epochs are done" and not finished.interrupted
    rows = run.history()
    assert [row["epoch"] for row in rows] == [1, 2, 3] and [row["step"] for row in rows] == [4, 8, 12]
    assert rows[-1]["train_loss"] < rows[0]["train_loss"]
    assert {"dev_bleu", "dev_perplexity", "learning_rate", "tokens_per_second", "waiting_share"} <= set(
        rows[0]
    )
    assert list(run.tensorboard.iterdir())
    test = (run.path / "hypotheses" / "test.txt").read_text().split("\n")
    assert len(test) == 9 and run.scores()["test"]["bleu_tokenized"] >= 0
    manifest = run.manifest()
    assert manifest["code_sha256"] == code_hash()
    assert manifest["seed"] == 1 and manifest["versions"]["torch"] == torch.__version__
    assert len(manifest["corpus"]) == 6 and manifest["facts"]["examples"] == 60
    assert manifest["facts"]["L"] == run.recipe().model.length > 2
    model = run.model()
    assert not model.training and model.settings == run.recipe().model


def test_the_end_is_told_of_the_best_weights_whatever_the_model_holds(finished, corpus, cache, tmp_path):
    folder = Run(shutil.copytree(finished.run.path, tmp_path / "run"))
    known = {split: folder.hypotheses_file(split).read_bytes() for split in ("dev", "test")}
    for file in (folder.scores_file, folder.hypotheses_file("dev"), folder.hypotheses_file("test")):
        file.unlink()
    prepared = prepare(folder.recipe(), tmp_path, Progress(quiet=True), folder.subwords(), cache)
    workers = Workers(torch.device("cpu"))
    begun = time.monotonic() - 1000
    scores = finish(folder, prepared, lambda: [folder.model()], Progress(quiet=True), workers, begun)
    assert 1000 <= folder.manifest()["seconds"] < 1100
    assert scores == finished.scores == folder.scores()
    assert known == {split: folder.hypotheses_file(split).read_bytes() for split in ("dev", "test")}
    folder.hypotheses_file("test").unlink()
    begun = time.monotonic()
    assert finish(folder, prepared, lambda: [folder.model()], Progress(quiet=True), workers, begun) == scores
    assert folder.manifest()["seconds"] >= 1000, "what is known is not measured anew"
    assert not folder.hypotheses_file("test").exists()


def test_seconds_from_the_command_to_the_scores_add_up_over_starts(corpus, cache, tmp_path):
    options = {"device": "cpu", "progress": Progress(quiet=True), "cache": cache}
    first = train(
        tiny_recipe(corpus, "training.max_epochs=1"), tmp_path, begun=time.monotonic() - 5000, **options
    )
    assert 5000 < first.run.history()[0]["elapsed"] < first.run.manifest()["seconds"] < 5100
    run = train(
        tiny_recipe(corpus, "training.max_epochs=2"), tmp_path, begun=time.monotonic() - 300, **options
    ).run
    earlier, later = (row["elapsed"] for row in run.history())
    assert 5000 < earlier < 5100 and 5300 < later < run.manifest()["seconds"] < 5400


def test_scores_are_known_before_the_last_checkpoint_is_waited_for(
    corpus, cache, tmp_path, monkeypatch, capsys
):
    run, seen = Run(tmp_path / "run"), []

    def wait(saver, path=None):
        if path is None:
            seen.append((run.scores_file.exists(), capsys.readouterr().err))

    monkeypatch.setattr(Saver, "wait", wait)
    recipe = tiny_recipe(corpus, "training.max_epochs=1")
    train(recipe, run.path, device="cpu", progress=Progress(), cache=cache)
    ((written, said),) = seen
    assert written and "\ntest: bleu_tokenized" in said


def test_the_same_seed_gives_the_same_weights_and_another_does_not(finished, corpus, cache, tmp_path):
    again = quiet_train(tiny_recipe(corpus), tmp_path / "again", cache)
    assert same_weights(again.run.last_file, finished.run.last_file)
    other = quiet_train(tiny_recipe(corpus, "training.seed=2"), tmp_path / "other", cache)
    assert not same_weights(other.run.last_file, finished.run.last_file)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kill",
    [
        "update:1",
        "update:6",
        "update:12",
        "saving:1",
        "before-replace:2",
        "saving:3",
        "after-replace:3",
        "before-replace:6",
        "after-replace:8",
    ],
)
def test_killed_anywhere_it_ends_with_the_same_weights(finished, corpus, cache, tmp_path, kill):
    run = tmp_path / "run"
    died = child(corpus, run, cache, kill)
    assert died.returncode == -signal.SIGKILL, died.stderr
    went_on = quiet_train(tiny_recipe(corpus), run, cache)
    assert went_on.state.finished == finished.state.finished
    for name in ("last_file", "best_file"):
        assert same_weights(getattr(went_on.run, name), getattr(finished.run, name)), name
    keys = ("epoch", "step", "train_loss", "dev_bleu", "dev_perplexity", "learning_rate")
    rows, expected = ([[row[k] for k in keys] for row in r.history()] for r in (went_on.run, finished.run))
    assert rows == expected
    assert went_on.scores == finished.scores


@pytest.mark.parametrize(
    ("average", "more"),
    [
        ("ema", "subwords.dropout=0.1"),
        ("last", "subwords.dropout=0.1"),
        ("ema", "training.batching=mixed"),
        ("ema", "training.optimizer=ademamix training.max_steps=9"),
        ("none", "training.backward=0.5 training.backward_passes=2"),
    ],
)
@pytest.mark.parametrize("stop", [3, 5])
def test_asked_to_stop_it_saves_and_goes_on_exactly(
    corpus, cache, tmp_path, monkeypatch, average, more, stop
):
    overrides = (f"training.average={average}", "training.accumulate=2", *more.split())
    recipe = tiny_recipe(corpus, *overrides)
    whole = quiet_train(recipe, tmp_path / "whole", cache)
    update, seen = Step.update, []

    def interrupting(self, batches, rate, step):
        update(self, batches, rate, step)
        seen.append(rate)
        if len(seen) == stop:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Step, "update", interrupting)
    stopped = quiet_train(recipe, tmp_path / "run", cache)
    assert stopped.interrupted and stopped.state.step == stop and stopped.scores is None
    monkeypatch.undo()
    went_on = quiet_train(recipe, tmp_path / "run", cache)
    assert not went_on.interrupted
    assert same_weights(went_on.run.last_file, whole.run.last_file)
    assert same_weights(went_on.run.best_file, whole.run.best_file)


def test_the_same_asking_heard_twice_is_one(corpus, cache, tmp_path, monkeypatch):
    """As `timeout` sends it; a Ctrl-C later than that stops at once."""
    update = Step.update

    def interrupting(self, batches, rate, step):
        update(self, batches, rate, step)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Step, "update", interrupting)
    stopped = quiet_train(tiny_recipe(corpus), tmp_path / "run", cache)
    assert stopped.interrupted and stopped.state.step == 1 and stopped.run.last_file.exists()
    monkeypatch.setattr("qknorm.training.stopping.ONE_ASKING", -1.0)
    with pytest.raises(KeyboardInterrupt):
        quiet_train(tiny_recipe(corpus), tmp_path / "run", cache)


def test_a_finished_run_is_left_as_it_is(finished, corpus, cache):
    before = finished.run.last_file.stat().st_mtime_ns
    again = quiet_train(tiny_recipe(corpus), finished.run.path, cache)
    assert again.scores == finished.scores and finished.run.last_file.stat().st_mtime_ns == before


def test_more_epochs_may_be_asked_for_other_shapes_may_not(corpus, cache, tmp_path):
    recipe = tiny_recipe(corpus, "training.max_epochs=1")
    quiet_train(recipe, tmp_path / "run", cache)
    with pytest.raises(UserError, match="(?s)begun with other settings.*model.d_ff: 32 → 64"):
        quiet_train(tiny_recipe(corpus, "model.d_ff=64"), tmp_path / "run", cache)
    with pytest.raises(UserError, match="training.seed: 1 → 7"):
        quiet_train(tiny_recipe(corpus, "training.seed=7"), tmp_path / "run", cache)
    assert load_recipe(tmp_path / "run" / "recipe.yaml").training.seed == 1


def test_a_finished_run_goes_on_when_more_is_asked_for(finished, corpus, cache, tmp_path):
    """One epoch, then three: the weights of three at once (the plateau schedule does not look ahead)."""
    short = quiet_train(tiny_recipe(corpus, "training.max_epochs=1"), tmp_path / "run", cache)
    assert short.state.finished == "all 1 epochs are done"
    longer = quiet_train(tiny_recipe(corpus), tmp_path / "run", cache)
    assert longer.state.finished == "all 3 epochs are done" and len(longer.run.history()) == 3
    assert same_weights(longer.run.last_file, finished.run.last_file)
    assert longer.scores == finished.scores and longer.run.recipe().training.max_epochs == 3


def test_another_test_set_is_scored_anew(cache, tmp_path):
    corpus = write_corpus(tmp_path / "corpus", seed=4)
    for side in ("src", "tgt"):
        (corpus / f"test.{side}").rename(tmp_path / f"later.{side}")
    recipe = tiny_recipe(corpus, "training.max_epochs=1")
    first = quiet_train(recipe, tmp_path / "run", cache)
    assert set(first.scores) == {"dev"}
    for side in ("src", "tgt"):
        (tmp_path / f"later.{side}").rename(corpus / f"test.{side}")
    again = quiet_train(recipe, tmp_path / "run", cache)
    assert set(again.scores) == {"dev", "test"} and again.scores["dev"] == first.scores["dev"]
    assert quiet_train(recipe, tmp_path / "run", cache).scores == again.scores


def test_changed_text_is_refused(cache, tmp_path):
    corpus = write_corpus(tmp_path / "corpus", seed=3)
    recipe = tiny_recipe(corpus, "training.max_epochs=1")
    quiet_train(recipe, tmp_path / "run", cache)
    dev = corpus / "dev.src"
    dev.write_text(dev.read_text().replace("casa", "gato") + "")
    with pytest.raises(UserError, match=r"The text of dev.source is not what .*run was trained on"):
        quiet_train(recipe, tmp_path / "run", cache)


@pytest.mark.parametrize("name", ["recipe.yaml", "subwords.json", "manifest.json", "last.safetensors"])
def test_altered_files_are_refused(finished, tmp_path, corpus, cache, name):
    run = tmp_path / "run"
    shutil.copytree(finished.run.path, run)
    file = run / name
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    with pytest.raises(UserError, match=name):
        quiet_train(tiny_recipe(corpus), run, cache)


def test_a_loss_that_is_not_finite_skips_the_update(corpus, cache, tmp_path, monkeypatch):
    loss, calls = Step.loss, []

    def poisoned(self, batch):
        calls.append(batch)
        found, nll = loss(self, batch)
        return (found * float("nan"), nll) if len(calls) == 4 else (found, nll)  # the first call is the trial

    monkeypatch.setattr(Step, "loss", poisoned)
    trained = quiet_train(tiny_recipe(corpus, "training.max_epochs=2"), tmp_path / "run", cache)
    assert trained.state.skipped == 1 and trained.state.bad_in_a_row == 0
    assert all(t.isfinite().all() for t in load_tensors(trained.run.last_file)[0].values())


def test_several_in_a_row_stop_with_a_diagnosis(corpus, cache, tmp_path, monkeypatch):
    loss, calls = Step.loss, []

    def poisoned(self, batch):
        calls.append(batch)
        found, nll = loss(self, batch)
        return (found * float("inf"), nll) if len(calls) > 7 else (found, nll)

    monkeypatch.setattr(Step, "loss", poisoned)
    recipe = tiny_recipe(corpus, "training.max_bad_steps=3")
    wanted = (
        r"3 updates in a row .* stopped at update 9.*Learning rate .*gradient norm .*largest attention logit"
    )
    with pytest.raises(UserError, match=wanted) as stopped:
        quiet_train(recipe, tmp_path / "run", cache)
    assert "last.safetensors, is intact" in str(stopped.value)
    tensors, about = load_tensors(tmp_path / "run" / "last.safetensors")
    assert about["state"]["step"] == 8 and all(t.isfinite().all() for t in tensors.values())


def test_too_large_a_batch_is_known_at_once(corpus, cache, tmp_path, monkeypatch):
    def too_much(self, batch):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(Step, "loss", too_much)
    with pytest.raises(UserError, match="largest batch does not fit .* training.batch_tokens lower"):
        quiet_train(tiny_recipe(corpus), tmp_path / "run", cache)


def test_no_sentence_fits(corpus, cache, tmp_path):
    with pytest.raises(UserError, match="No sentence fits training.batch_tokens=1"):
        quiet_train(tiny_recipe(corpus, "training.batch_tokens=1"), tmp_path / "run", cache)


def test_accumulated_batches_are_one_update(corpus, cache, tmp_path):
    """Two batches together give the gradient of their joint mean loss."""
    recipe = tiny_recipe(
        corpus,
        "model.dropout=0.0",
        "model.attention_dropout=0.0",
        "model.ff_dropout=0.0",
        "model.word_dropout=0.0",
    )
    ready = prepare(recipe, tmp_path, Progress(quiet=True), cache=cache)
    batches = Batches(ready.encoded["train"], 80, 1)
    pair = [batches.batch(0), batches.batch(len(batches) - 1)]
    from qknorm.run import build_model

    torch.manual_seed(0)
    model = build_model(ready.recipe, ready.subwords)
    step = Step(model, recipe.training, torch.device("cpu"), Averaging(recipe.training, model))
    joint = sum(step.loss(step.inputs(b))[0] for b in pair) / sum(b.target_tokens for b in pair)
    grads = torch.autograd.grad(joint, step.parameters)
    norm = torch.stack([g.norm() for g in grads]).norm().item()
    step.update(pair, 1e-3, 1)
    (outcome,) = step.outcomes()
    assert outcome.gradient_norm == pytest.approx(norm, rel=1e-5) and outcome.finite


def test_without_dev_some_of_train_is_set_aside(cache, tmp_path):
    folder = write_corpus(tmp_path / "corpus", train=80)
    for name in ("dev", "test"):
        for side in ("src", "tgt"):
            (folder / f"{name}.{side}").unlink()
    recipe = tiny_recipe(folder, "data.dev_size=6")
    ready = prepare(recipe, tmp_path / "data", Progress(quiet=True), cache=cache)
    dev, rest = ready.encoded["dev"], ready.encoded["train"]
    assert len(dev) == 6 and 60 <= len(rest) <= 74 and "test" not in ready.files
    held = set((tmp_path / "data" / "dev.source").read_text().split("\n")) - {""}
    assert not held & set((tmp_path / "data" / "train.source").read_text().split("\n"))
    again = prepare(recipe, tmp_path / "data2", Progress(quiet=True), cache=cache)
    assert again.hashes() == ready.hashes()
    with pytest.raises(UserError, match="too few to split 500 off"):
        prepare(
            tiny_recipe(folder, "data.dev_size=500"), tmp_path / "data", Progress(quiet=True), cache=cache
        )


def test_the_hash_of_code_knows_names_and_contents(tmp_path):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "a.py").write_text("x = 1\n")
    (tmp_path / "b.py").write_text("")
    before = code_hash(tmp_path)
    (tmp_path / "room" / "note.txt").write_text("not code")
    assert code_hash(tmp_path) == before
    (tmp_path / "room" / "a.py").write_text("x = 2\n")
    changed = code_hash(tmp_path)
    (tmp_path / "room" / "a.py").write_text("x = 1\n")
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    assert len({before, changed, code_hash(tmp_path)}) == 3


@pytest.mark.parametrize(("decay", "every"), [(0.5, 1), (0.99, 1), (0.999, 10), (0.9999, 100)])
def test_the_running_mean_keeps_its_share_whether_it_moves_at_each_update_or_now_and_then(decay, every):
    averaging = Averaging(TrainingSettings(average="ema", ema_decay=decay), torch.nn.Linear(1, 1))
    steps = range(200_000, 201_000)
    weights = [averaging.weight(step) for step in steps]
    assert math.prod(1 - weight for weight in weights) == pytest.approx(decay ** len(steps))
    assert [step for step, weight in zip(steps, weights, strict=True) if weight] == list(steps[::every])
    assert averaging.weight(1) == 1 - 2 / 11  # at first it follows quickly


def test_ema_and_last_average_the_weights(corpus, cache, tmp_path):
    ready = prepare(tiny_recipe(corpus), tmp_path, Progress(quiet=True), cache=cache)
    from qknorm.run import build_model

    model = build_model(ready.recipe, ready.subwords)
    weight = model.embedding.weight
    last = Averaging(tiny_recipe(corpus, "training.average=last", "training.average_last=2").training, model)
    ema = Averaging(tiny_recipe(corpus, "training.average=ema", "training.ema_decay=0.5").training, model)
    start = weight.detach().clone()
    for value in (1.0, 2.0, 4.0):
        with torch.no_grad():
            weight.fill_(value)
        last.after_epoch(), ema.after_update(10**6)
    with last.swapped_in():
        assert (weight == 3.0).all(), "the mean of the last two"
    with ema.swapped_in():
        assert torch.allclose(weight, start / 8 + 1 / 8 + 2 / 4 + 4 / 2)
    assert (weight == 4.0).all(), "and the model's own come back"


def test_a_run_folder_that_is_none(tmp_path):
    with pytest.raises(UserError, match=r"is not a run folder .* `qknorm train`"):
        Run.open(tmp_path)


def test_logits_that_run_away_are_told_once(corpus, cache, tmp_path, capsys, monkeypatch):
    largest = iter([40.0, 852.4, 41010.3])

    def validated(*args):
        return replace(validate(*args), max_logit=next(largest))

    monkeypatch.setattr("qknorm.training.trainer.validate", validated)
    settings = ("model.qk_norm=null", "training.epoch_batches=1", "training.max_steps=3")
    train(tiny_recipe(corpus, *settings), tmp_path / "run", device="cpu", progress=Progress(), cache=cache)
    said = [line for line in capsys.readouterr().err.splitlines() if "logit" in line]
    assert len(said) == 1
    assert (
        "warning: The largest attention logit has reached 852." in said[0] and "model.qk_norm=l2" in said[0]
    )


def test_how_long_it_will_take_is_told_where_the_end_is_known(corpus, cache, tmp_path, capsys):
    steps = "training.max_epochs=9", "training.max_steps=10", "training.schedule=linear"
    run = train(tiny_recipe(corpus, *steps), tmp_path / "run", device="cpu", cache=cache).run
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch ")]
    assert [row["step"] for row in run.history()] == [4, 8, 10]
    assert [bool(re.search(r" tokens/s, \d:\d\d left$", line)) for line in told] == [True, True, False]
    train(tiny_recipe(corpus), tmp_path / "open end", device="cpu", cache=cache)
    assert " left" not in capsys.readouterr().err


def test_settings_without_effect_are_named(corpus, cache, tmp_path, capsys):
    recipe = tiny_recipe(corpus, "training.backward_passes=3", "training.max_steps=1")
    train(recipe, tmp_path / "run", device="cpu", progress=Progress(), cache=cache)
    said = "warning: training.backward_passes=3 has no effect, since training.backward is 0.0."
    assert said in capsys.readouterr().err
