"""Several models of one run: each is the one its seed gives, and together they are an ensemble of them."""

from __future__ import annotations

import re
import shutil
import signal

import pytest

from qknorm.config import load_recipe
from qknorm.data import lines
from qknorm.errors import UserError
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.training import Trainer, train
from qknorm.training.step import Step
from qknorm.translation.translator import Translator
from support.tiny import same_weights, tiny_recipe, write_corpus


def quiet_train(recipe, run, cache):
    return train(recipe, run, device="cpu", progress=Progress(quiet=True), cache=cache)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def three(corpus, cache, tmp_path_factory):
    """Three models of seeds 4, 5 and 6."""
    run = tmp_path_factory.mktemp("three") / "run"
    return quiet_train(tiny_recipe(corpus, "training.members=3", "training.seed=4"), run, cache)


def test_each_model_is_the_one_its_seed_gives(three, corpus, cache, tmp_path):
    for number, member in enumerate(three.run.members(), 1):
        seed = 3 + number
        alone = quiet_train(tiny_recipe(corpus, f"training.seed={seed}"), tmp_path / str(seed), cache)
        for which in ("best_file", "last_file"):
            assert same_weights(member, alone.run, which), f"seed {seed}"
        rows, expected = (
            [[row[key] for key in ("step", "train_loss", "dev_bleu")] for row in run.history()]
            for run in (member, alone.run)
        )
        assert rows == expected
        assert member.manifest()["seed"] == seed and member.recipe().training.seed == seed
    assert [member.path for member in three.run.members()] == [
        three.run.path,
        three.run.path / "members" / "2",
        three.run.path / "members" / "3",
    ]


def test_scores_are_those_of_all_together(three, corpus):
    alone = [Translator.load(member.path, "cpu") for member in three.run.members()[1:]]
    assert [len(each.models) for each in alone] == [1, 1], "a member is a run like any other"
    together = Translator.load(three.run.path, "cpu")
    assert len(together.models) == 3
    for split in ("dev", "test"):
        said = together(lines(corpus / f"{split}.src"))
        assert said == list(lines(three.run.hypotheses_file(split)))
    assert three.scores == three.run.scores() and set(three.scores) == {"dev", "test"}
    assert all(member.scores() is None for member in three.run.members()[1:]), "test is scored once"
    sources, targets = (list(lines(corpus / f"test.{side}")) for side in ("src", "tgt"))
    by_hand = Translator(
        [member.model() for member in three.run.members()], together.subwords, together.decoding
    )
    assert together.score(sources, targets) == by_hand.score(sources, targets)
    assert together.score(sources, targets) != alone[0].score(sources, targets)


def test_the_first_one_only(three):
    assert len(Translator.load(three.run.path, "cpu", together=False).models) == 1


@pytest.mark.parametrize("stop", [5, 12, 14])
def test_asked_to_stop_it_goes_on_with_the_model_under_way(
    corpus, cache, tmp_path, monkeypatch, stop, capsys
):
    """Of 2 × 12 updates: in the first model, at its end, and in the second."""
    recipe = tiny_recipe(corpus, "training.members=2")
    whole = quiet_train(recipe, tmp_path / "whole", cache)
    update, seen = Step.update, []

    def interrupting(self, batches, rate, step):
        update(self, batches, rate, step)
        seen.append(step)
        if len(seen) == stop:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "update", interrupting)
        stopped = train(recipe, tmp_path / "run", device="cpu", progress=Progress(), cache=cache)
    assert len(seen) == stop and stopped.interrupted and stopped.scores is None
    told = re.findall(r"Go on with: (.*)", capsys.readouterr().err)
    assert told == [f"qknorm train --run {tmp_path / 'run'}"]
    went_on = quiet_train(recipe, tmp_path / "run", cache)
    assert not went_on.interrupted and went_on.scores == whole.scores
    for mine, other in zip(went_on.run.members(), whole.run.members(), strict=True):
        assert same_weights(mine, other) and same_weights(mine, other, "last_file")


def test_asked_to_stop_in_the_last_update_of_one_the_next_is_not_begun(corpus, cache, tmp_path, monkeypatch):
    recipe = tiny_recipe(corpus, "training.members=2")
    validate, count = Trainer._validate, []

    def interrupting(self):
        count.append(1)
        if len(count) == 3:
            signal.raise_signal(signal.SIGINT)
        return validate(self)

    monkeypatch.setattr(Trainer, "_validate", interrupting)
    stopped = quiet_train(recipe, tmp_path, cache)
    assert stopped.interrupted and stopped.scores is None and len(count) == 3
    assert not (tmp_path / "members").exists()


def test_a_finished_run_takes_more_models_or_fewer(three, corpus, cache, tmp_path):
    def asked(members):
        return tiny_recipe(corpus, f"training.members={members}", "training.seed=4")

    alone = quiet_train(asked(1), tmp_path / "run", cache)
    grown = quiet_train(asked(3), tmp_path / "run", cache)
    assert grown.scores == three.scores and grown.run.recipe().training.members == 3
    assert all(same_weights(*pair) for pair in zip(grown.run.members(), three.run.members(), strict=True))
    again = quiet_train(asked(3), tmp_path / "run", cache)
    assert again.scores == three.scores
    fewer = quiet_train(asked(1), tmp_path / "run", cache)
    assert fewer.scores == alone.scores
    assert list(lines(fewer.run.hypotheses_file("dev"))) == list(lines(alone.run.hypotheses_file("dev")))


def test_more_epochs_are_for_all(three, corpus, cache, tmp_path):
    short = ("training.members=3", "training.seed=4", "training.max_epochs=1")
    quiet_train(tiny_recipe(corpus, *short), tmp_path / "run", cache)
    longer = quiet_train(tiny_recipe(corpus, *short[:2]), tmp_path / "run", cache)
    assert longer.scores == three.scores
    assert [len(member.history()) for member in longer.run.members()] == [3, 3, 3]


def test_all_learn_from_the_same_text_where_dev_was_split_off(cache, tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    named = {f"train_{side}": corpus / f"train.{end}" for side, end in (("source", "src"), ("target", "tgt"))}
    changes = [f"data.{key}={path}" for key, path in named.items()]
    cleared = ["data.folder=null", "data.source=null", "data.target=null"]
    recipe = tiny_recipe(corpus, "training.members=2", "training.max_epochs=1", *cleared, *changes)
    run = quiet_train(recipe, tmp_path / "run", cache).run
    first, second = run.members()
    assert first.manifest()["corpus"] == second.manifest()["corpus"]
    assert second.text_files("dev") == first.text_files("dev")
    assert first.subwords_file.read_bytes() == second.subwords_file.read_bytes()


def test_moved_and_gone_on_with(corpus, cache, tmp_path):
    """Paths that a member has come from the run it belongs to."""
    recipe = tiny_recipe(corpus, "training.members=2", "training.max_epochs=1")
    run = quiet_train(recipe, tmp_path / "here", cache).run
    moved = Run(shutil.move(run.path, tmp_path / "there"))
    longer = tiny_recipe(corpus, "training.members=2", "training.max_epochs=2")
    went_on = quiet_train(longer, moved.path, cache)
    assert [len(member.history()) for member in went_on.run.members()] == [2, 2]


def test_a_moved_member_has_its_text(cache, tmp_path):
    """Dev that was split off lies in the run it belongs to."""
    corpus = write_corpus(tmp_path / "corpus")
    changes = [
        f"data.train_{side}={corpus}/train.{end}" for side, end in (("source", "src"), ("target", "tgt"))
    ]
    cleared = ["data.folder=null", "data.source=null", "data.target=null"]
    recipe = tiny_recipe(corpus, "training.members=2", "training.max_epochs=1", *cleared, *changes)
    run = quiet_train(recipe, tmp_path / "here", cache).run
    moved = Run(shutil.move(run.path, tmp_path / "there"))
    assert moved.member(2).checked_text("dev") == moved.checked_text("dev")
    assert moved.path in moved.checked_text("dev")[0].parents


def test_a_model_under_way_does_not_translate_yet(corpus, cache, tmp_path, monkeypatch):
    one = quiet_train(tiny_recipe(corpus), tmp_path / "run", cache).run
    said = Translator.load(one.path, "cpu")(lines(corpus / "test.src"))
    update, seen = Step.update, []

    def interrupting(self, batches, rate, step):
        update(self, batches, rate, step)
        seen.append(step)
        if len(seen) == 7:  # in the second epoch
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "update", interrupting)
        quiet_train(tiny_recipe(corpus, "training.members=2"), tmp_path / "run", cache)
    run = Run(tmp_path / "run")
    assert run.member(2).best_file.exists() and not run.member(2).is_trained()
    assert "is to have 2 models; the 1 trained so far" in run.missing_members()
    assert Translator.load(run.path, "cpu")(lines(corpus / "test.src")) == said
    run = quiet_train(tiny_recipe(corpus, "training.members=2"), tmp_path / "run", cache).run
    assert run.missing_members() is None and len(Translator.load(run.path, "cpu").models) == 2
    run.member(2).last_file.unlink()  # to save room
    assert run.missing_members() is None


def test_until_all_are_trained_those_there_are_translate(corpus, cache, tmp_path):
    recipe = tiny_recipe(corpus, "training.members=2", "training.max_epochs=1")
    run = quiet_train(recipe, tmp_path / "run", cache).run
    run.member(2).best_file.unlink()
    assert len(Translator.load(run.path, "cpu").models) == 1
    run.best_file.unlink()
    with pytest.raises(UserError, match=r"best.safetensors does not exist yet; training has not got so far"):
        Translator.load(run.path, "cpu")


def test_seconds_of_all_are_added_up(corpus, cache, tmp_path):
    def seconds(*changes):
        run = quiet_train(tiny_recipe(corpus, *changes), tmp_path / "run", cache).run
        return run.manifest()["seconds"], [member.history()[-1]["elapsed"] for member in run.members()]

    first, (own,) = seconds("training.max_epochs=1")
    assert own < first
    both, (own, second) = seconds("training.max_epochs=1", "training.members=2")
    assert both > own + second


def test_the_recipe_says_how_many(three, tmp_path):
    assert load_recipe(three.run.recipe_file).training.members == 3
    assert load_recipe(three.run.member(2).recipe_file).training.members == 1
