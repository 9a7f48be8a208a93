"""Several processes train and translate as one does, and end with a sentence when one of them is killed."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from qknorm import Translator
from qknorm.config import dump_recipe, load_recipe
from qknorm.errors import UserError
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.tensors import load_tensors
from qknorm.training import Trainer, prepare, train
from qknorm.training.opening import check_size, open_run
from qknorm.workers import Workers
from support.processes import process_of, run_together, torchrun
from support.tiny import WORDS, tiny_recipe, write_corpus

STEADY = (
    *(f"model.{name}=0.0" for name in ("dropout", "attention_dropout", "ff_dropout", "word_dropout")),
    "training.epsilon=0.001",
)
"""No dropout, which differs from process to process; nor an ε with which Adam magnifies rounding."""


def alone(recipe, run):
    return train(recipe, run, device="cpu", progress=Progress(quiet=True), cache=run.parent / "cache")


def alike(one: Run, other: Run) -> None:
    """The same losses, weights and decisions, but for the order of sums."""
    rows, expected = one.history(), other.history()
    assert [(row["epoch"], row["step"], row["best"]) for row in rows] == [
        (row["epoch"], row["step"], row["best"]) for row in expected
    ]
    for key in ("train_loss", "train_perplexity", "gradient_norm", "dev_perplexity", "learning_rate"):
        assert [row[key] for row in rows] == pytest.approx([row[key] for row in expected], rel=1e-5), key
    for name in ("last_file", "best_file"):
        first, second = (load_tensors(getattr(run, name))[0] for run in (one, other))
        assert first.keys() == second.keys()
        for key in first.keys() - {"random.cpu"}:
            torch.testing.assert_close(first[key], second[key], rtol=1e-4, atol=1e-5, msg=key)


CHILD = """
import torch

from qknorm.config import load_recipe
from qknorm.training import Trainer, train
from qknorm.training.captured import CapturedStep
from qknorm.training.inputs import Room
from qknorm.training.step import Step
from qknorm.workers import Workers

update, done = Step.update, []

def flat(self):
    room = Room.of(self.prepared.encoded["train"], self.settings.batch_tokens)
    about = self.model, self.settings, self.device, self.averaging, self.workers
    source_subwords = torch.from_numpy(self.prepared.subwords.source_mask)
    return CapturedStep(*about, room, print, compiles=False, source_subwords=source_subwords)

def asking(self, batches, rate, step):
    done.append(rate)
    workers.stop_asked = len(done) == 5 and workers.rank == 1
    update(self, batches, rate, step)

with Workers.start("cpu") as workers:
    train(load_recipe("recipe.yaml"), "runs/tiny", workers=workers)
    recipe = load_recipe("dropout.yaml")
    train(recipe, "runs/whole", workers=workers)
    Step.update = asking
    assert train(recipe, "runs/stopped", workers=workers).interrupted and len(done) == 5
    Step.update = update
    assert not train(recipe, "runs/stopped", workers=workers).interrupted
    Trainer._make_step = flat
    train(load_recipe("recipe.yaml"), "runs/flat", workers=workers)
"""
"""Trains by two recipes, the second also with a stop that process 1 alone is asked for; then as GPUs do."""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with a corpus, and in `runs` what two processes trained on it.

    Three batches an update and seven an epoch: shares are uneven, and of each third update one process has
    no batch. Passes end in the middle of updates.
    """
    folder = tmp_path_factory.mktemp("home")
    settings = ("training.accumulate=3", "training.epoch_batches=7", "training.average=ema")
    settings += ("subwords.dropout=0.1", "training.backward=0.3", "training.backward_passes=2")
    text = write_corpus(folder / "text")
    for name, more in (("recipe", STEADY), ("dropout", ())):
        (folder / f"{name}.yaml").write_text(dump_recipe(tiny_recipe(text, *settings, *more)))
    first, second = run_together(folder, 2, "-c", CHILD)
    assert first.code == second.code == 0, first.err + second.err
    assert "parameters on 2 × cpu" in first.err and "epoch 3: update 9" in first.err
    assert (second.out, second.err) == ("", ""), "process 0 alone speaks"
    return folder


@pytest.mark.parametrize("run", ["tiny", "flat"])
def test_two_processes_train_as_one_does(home, run):
    one = alone(load_recipe(home / "recipe.yaml"), home / "alone")
    two = Run.open(home / "runs" / run)
    alike(two, one.run)
    assert two.scores() == one.scores and two.manifest()["machine"]["processes"] == 2
    for split in ("dev", "test"):
        assert two.hypotheses_file(split).read_bytes() == one.run.hypotheses_file(split).read_bytes()


def test_two_processes_train_several_models_as_one_does(tmp_path):
    more = ("training.members=2", "decoding.length_penalty_from_dev=true", "training.accumulate=2")
    recipe = tiny_recipe(write_corpus(tmp_path / "text"), *more, *STEADY)
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    words = ("-m", "qknorm", "train", "recipe.yaml", "--run-folder", "runs/two", "--device=cpu")
    first, second = run_together(tmp_path, 2, *words)
    assert first.code == second.code == 0, first.err + second.err
    assert first.err.count("parameters on 2 × cpu") == 2 and second.err == ""
    two, one = Run.open(tmp_path / "runs/two"), alone(recipe, tmp_path / "alone").run
    for pair in zip(two.members(), one.members(), strict=True):
        alike(*pair)
    assert two.scores() == one.scores() is not None
    assert two.recipe().decoding.length_penalty == one.recipe().decoding.length_penalty


def test_stopped_and_resumed_they_end_with_the_same_weights(home):
    whole, stopped = Run.open(home / "runs" / "whole"), Run.open(home / "runs" / "stopped")
    for name in ("last_file", "best_file"):
        first, second = (load_tensors(getattr(run, name))[0] for run in (whole, stopped))
        assert first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first), name
    assert whole.scores() == stopped.scores() is not None


def test_two_processes_translate_as_one_does(home):
    rng = np.random.default_rng(5)
    text = [" ".join(WORDS[i] for i in rng.integers(0, len(WORDS), rng.integers(0, 5))) for _ in range(2100)]
    (home / "input.src").write_text("".join(line + "\n" for line in text))
    options = ("--scores", "--beam=1", "--device=cpu")
    first, second = run_together(home, 2, "-m", "qknorm", "translate", "runs/tiny", "input.src", *options)
    assert first.code == second.code == 0 and second.out == "", first.err + second.err
    rows = [line.split("\t") for line in first.out.removesuffix("\n").split("\n")]
    assert [int(number) for number, _, _ in rows] == list(range(1, 2101))
    expected = [
        found[0] if found else None for found in Translator.load(home / "runs/tiny").stream(text, beam=1)
    ]
    assert [line for _, _, line in rows] == [found.text if found else "" for found in expected]
    scores = [found.score if found else 0.0 for found in expected]
    assert [float(score) for _, score, _ in rows] == pytest.approx(scores, abs=1e-4)


def test_a_killed_process_ends_the_run_and_one_process_goes_on(tmp_path):
    """Without a dev text, which process 0 splits off for both."""
    corpus = write_corpus(tmp_path / "text", train=80)
    for file in [*corpus.glob("dev.*"), *corpus.glob("test.*")]:
        file.unlink()
    long = ("training.accumulate=2", "training.max_epochs=100000", "data.dev_size=6", *STEADY)
    recipe = tiny_recipe(corpus, *long, "training.validate_bleu=false")
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    with torchrun(
        tmp_path, 2, "train", "recipe.yaml", "--run-folder", "runs/tiny", "--device=cpu"
    ) as launcher:
        assert launcher.stderr
        for line in launcher.stderr:
            if b" epoch 2: " in line:
                os.kill(process_of(launcher.pid, 1), signal.SIGKILL)
                break
        said = launcher.stderr.read().decode()
        assert launcher.wait(60) != 0
    command = "torchrun --nproc-per-node=2 -m qknorm train --run-folder runs/tiny"
    _, about = load_tensors(tmp_path / "runs/tiny/last.safetensors")
    step = about["state"]["step"]
    (sentence,) = [line for line in said.split("\n") if line.startswith("error: ")]
    assert sentence.startswith("error: One of the 2 processes has ended or cannot be reached (")
    # In an update that had begun, or in a validation: then the checkpoint before it stands.
    saved = f"Everything up to update {step} is saved; go on with: {command}"
    assert sentence.endswith((saved, f"Go on from the last checkpoint with: {command}")) and step >= 4
    ended = recipe.model_copy(update={"training": recipe.training.model_copy(update={"max_steps": step + 3})})
    went_on = alone(ended, tmp_path / "runs/tiny")
    assert went_on.state.step == step + 3 and went_on.scores is not None
    alike(went_on.run, alone(ended, tmp_path / "whole").run)


def test_each_process_and_update_draws_its_own_numbers(home, tmp_path):
    recipe, folder = load_recipe(home / "recipe.yaml"), Run.open(home / "runs/tiny")
    prepared = prepare(recipe, tmp_path, Progress(quiet=True), folder.subwords(), home / "cache")
    trainer = Trainer(folder, prepared, Workers(torch.device("cpu")), Progress(quiet=True))

    def drawn(rank: int, size: int, step: int) -> float:
        trainer.workers, trainer.state.step = Workers(torch.device("cpu"), rank, size), step
        trainer._draw_apart()
        return torch.rand(()).item()

    numbers = [drawn(rank, 2, step) for step in (1, 2) for rank in (0, 1)]
    assert len(set(numbers)) == 4
    assert [drawn(rank, 2, step) for step in (1, 2) for rank in (0, 1)] == numbers, "as a resume does"
    torch.manual_seed(3)
    one = torch.rand(()).item()
    torch.manual_seed(3)
    assert drawn(0, 1, 1) == one, "one process goes on with the numbers it has"


def test_more_processes_than_batches_of_an_update_are_refused(tmp_path):
    recipe = tiny_recipe(write_corpus(tmp_path), "training.accumulate=3")
    check_size(recipe, Workers(torch.device("cpu"), rank=2, size=3))
    with pytest.raises(
        UserError, match="training.accumulate=3; begin a run with --set training.accumulate=4"
    ):
        check_size(recipe, Workers(torch.device("cpu"), rank=0, size=4))


def test_all_processes_must_see_the_run_folder(tmp_path):
    recipe, second = tiny_recipe(write_corpus(tmp_path)), Workers(torch.device("cpu"), rank=1, size=2)
    with pytest.raises(UserError, match="Process 1 does not see .*run, .* a disk that all machines share"):
        open_run(recipe, Run(tmp_path / "run"), Progress(quiet=True), tmp_path / "cache", second)
    assert not (tmp_path / "run").exists()
