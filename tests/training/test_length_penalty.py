"""The length penalty by dev: where it climbs to, and what a run keeps of it."""

from __future__ import annotations

import pytest

from qknorm.data import lines
from qknorm.errors import UserError
from qknorm.paper.plan import differences
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.training import train
from qknorm.training.length_penalty import LADDER, climb
from qknorm.translation.translator import Translator
from support.tiny import same_weights, tiny_recipe, write_corpus

ON = "decoding.length_penalty_from_dev=true"
GIVEN = (
    "training.max_epochs=2",
    "training.epoch_batches=20",
    "subwords.operations=12",
    "decoding.length_penalty=2",
)
"""A model that says more or less, by the length penalty."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def quiet_train(cache):
    return lambda recipe, run: train(recipe, run, device="cpu", progress=Progress(quiet=True), cache=cache)


@pytest.mark.parametrize(
    ("top", "start", "found", "tried"),
    [
        (2.0, 0.6, 2.0, [0.6, 1.0, 1.5, 2.0, 2.5]),
        (0.0, 0.6, 0.0, [0.6, 1.0, 0.3, 0.0]),
        (0.6, 0.6, 0.6, [0.6, 1.0, 0.3]),
        (9.0, 3.0, 4.0, [3.0, 4.0]),
        (0.8, 0.8, 0.8, [0.8, 1.0, 0.6]),
    ],
)
def test_it_climbs_to_the_top_and_no_further(top, start, found, tried):
    asked = []

    def height(penalty):
        asked.append(penalty)
        return -abs(penalty - top)

    assert climb(start, height) == found and asked == tried


def test_what_is_as_good_stays_as_it_is():
    assert climb(0.6, lambda penalty: 1.0) == 0.6
    assert sorted(LADDER) == list(LADDER)


def words(lines_):
    return sum(len(line.split()) for line in lines_)


@pytest.fixture
def by_length(monkeypatch):
    """In place of BLEU, which is 0 for models as small as these: how near the number of words is to one."""

    def want(number):
        def figure(said, wanted, kind):
            return -float(abs(words(said) - number))

        monkeypatch.setattr("qknorm.training.length_penalty.bleu", figure)
        return figure

    return want


def figures_by_hand(run, corpus, figure):
    """Of the translations of dev with each length penalty, by the translator."""
    translator, source = Translator.load(run.path, "cpu"), list(lines(corpus / "dev.src"))
    return {penalty: figure(translator(source, length_penalty=penalty), [], "") for penalty in LADDER}


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("number", [0, 1000])
def test_the_run_translates_with_what_was_found(corpus, tmp_path, quiet_train, members, number, by_length):
    figure = by_length(number)
    recipe = tiny_recipe(corpus, ON, *GIVEN, f"training.members={members}")
    run = quiet_train(recipe, tmp_path / "run").run
    figures = figures_by_hand(run, corpus, figure)
    assert len(set(figures.values())) > 2, "length penalties make a difference"
    found = run.decoding().length_penalty
    assert run.recipe().decoding.length_penalty == 2, "that is what was asked for"
    assert found == climb(2.0, lambda penalty: figures[penalty])
    assert (found < 2) == (number == 0) and (found > 2) == (number == 1000)
    translator = Translator.load(run.path, "cpu")
    for split in ("dev", "test"):
        assert translator(lines(corpus / f"{split}.src")) == list(lines(run.hypotheses_file(split)))
    assert not differences(run.recipe(), recipe), "it is the run that the recipe asks for"


def same_files(one, other, *names):
    return all((one.path / name).read_bytes() == (other.path / name).read_bytes() for name in names)


@pytest.mark.parametrize("members", [1, 2])
def test_going_on_after_a_choice_is_going_on_without(corpus, tmp_path, quiet_train, by_length, members):
    """Epochs are judged by the length penalty that was set, whatever dev has chosen in between."""
    by_length(1000)

    def epochs(number):
        changes = (f"training.max_epochs={number}", f"training.members={members}")
        return tiny_recipe(corpus, ON, *GIVEN, *changes)

    first = quiet_train(epochs(2), tmp_path / "run").run
    assert first.decoding().length_penalty > 2
    went_on = quiet_train(epochs(4), tmp_path / "run").run
    whole = quiet_train(epochs(4), tmp_path / "whole").run
    assert went_on.decoding() == whole.decoding() and went_on.scores() == whole.scores()
    for one, other in zip(went_on.members(), whole.members(), strict=True):
        assert same_weights(one, other)
        rows = [[(row["dev_bleu"], row["best"]) for row in run.history()] for run in (one, other)]
        assert rows[0] == rows[1]
    assert same_files(went_on, whole, "decoding.json", "hypotheses/dev.txt", "hypotheses/test.txt")


def test_models_that_come_later_are_judged_as_the_first_was(corpus, tmp_path, quiet_train, by_length):
    by_length(1000)
    quiet_train(tiny_recipe(corpus, ON, *GIVEN), tmp_path / "run")
    later = quiet_train(tiny_recipe(corpus, ON, *GIVEN, "training.members=2"), tmp_path / "run").run
    whole = quiet_train(tiny_recipe(corpus, ON, *GIVEN, "training.members=2"), tmp_path / "whole").run
    assert same_weights(later.member(2), whole.member(2))
    assert same_files(later, whole, "decoding.json", "hypotheses/test.txt", "hypotheses/scores.json")
    fewer = quiet_train(tiny_recipe(corpus, ON, *GIVEN), tmp_path / "run").run
    alone = quiet_train(tiny_recipe(corpus, ON, *GIVEN), tmp_path / "alone").run
    assert same_files(fewer, alone, "decoding.json", "hypotheses/test.txt")


def test_another_start_is_told_and_tried(corpus, tmp_path, quiet_train, by_length, capsys):
    by_length(0)
    run = quiet_train(tiny_recipe(corpus, ON, *GIVEN), tmp_path / "run").run
    other = tiny_recipe(corpus, ON, *GIVEN, "decoding.length_penalty=2.5")
    train(other, run.path, device="cpu", progress=Progress(), cache=tmp_path)
    told = capsys.readouterr().err
    assert "changed: decoding.length_penalty: 2.0 → 2.5" in told
    assert told.index("Length penalty 2.5: dev BLEU") < told.index("Length penalty 3: dev BLEU")


def test_a_finished_run_is_scored_anew_with_another_search(corpus, tmp_path, quiet_train):
    before = quiet_train(tiny_recipe(corpus, *GIVEN), tmp_path / "run").run
    test = list(lines(before.hypotheses_file("test")))
    after = quiet_train(tiny_recipe(corpus, *GIVEN, "decoding.max_extra=0"), tmp_path / "run").run
    assert after.scores() is not None and list(lines(after.hypotheses_file("test"))) != test
    source = lines(corpus / "test.src")
    assert list(lines(after.hypotheses_file("test"))) == Translator.load(after.path, "cpu")(source)


@pytest.mark.parametrize("kept", ["{", '{"length_penalty": -1}', "[]", '{"length_penalty": "much"}'])
def test_a_damaged_choice_is_named(corpus, tmp_path, quiet_train, by_length, kept):
    by_length(1000)
    run = quiet_train(tiny_recipe(corpus, ON, *GIVEN), tmp_path / "run").run
    run.decoding_file.write_text(kept)
    with pytest.raises(UserError, match=r"decoding.json is damaged.*restore it from a copy"):
        Translator.load(run.path, "cpu")


def test_stopped_before_the_recipe_asks_for_it_it_is_still_asked_for(
    corpus, tmp_path, quiet_train, by_length, monkeypatch
):
    by_length(1000)
    quiet_train(tiny_recipe(corpus, *GIVEN), tmp_path / "run")
    forget = Run.forget_scores

    def interrupted(run):
        forget(run)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Run, "forget_scores", interrupted)
        quiet_train(tiny_recipe(corpus, ON, *GIVEN), tmp_path / "run")
    run = quiet_train(tiny_recipe(corpus, ON, *GIVEN), tmp_path / "run").run
    assert run.decoding().length_penalty > 2 and run.scores() is not None


def test_a_finished_run_can_be_asked_for_it(corpus, tmp_path, quiet_train, by_length):
    by_length(1000)
    before = quiet_train(tiny_recipe(corpus, *GIVEN), tmp_path / "run").run
    short = words(lines(before.hypotheses_file("test")))
    after = quiet_train(tiny_recipe(corpus, ON, *GIVEN), tmp_path / "run").run
    assert after.decoding().length_penalty > 2
    assert words(lines(after.hypotheses_file("test"))) > short
    assert before.path == after.path and after.scores() is not None
