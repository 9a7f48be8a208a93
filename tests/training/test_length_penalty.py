"""The length penalty by dev: where it climbs to, and what a run keeps of it."""

from __future__ import annotations

import pytest

from qknorm.data import lines
from qknorm.paper.plan import differences
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.training import train
from qknorm.training.length_penalty import LADDER, climb
from qknorm.translation.translator import Translator
from support.tiny import tiny_recipe, write_corpus

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
    found = run.recipe().decoding.length_penalty
    assert found == climb(2.0, lambda penalty: figures[penalty])
    assert (found < 2) == (number == 0) and (found > 2) == (number == 1000)
    translator = Translator.load(run.path, "cpu")
    for split in ("dev", "test"):
        assert translator(lines(corpus / f"{split}.src")) == list(lines(run.hypotheses_file(split)))
    assert not differences(run.recipe(), recipe), "it is the run that the recipe asks for"


def test_going_on_keeps_it_and_chooses_anew(corpus, tmp_path, quiet_train, by_length, capsys):
    by_length(1000)
    recipe = tiny_recipe(corpus, ON, *GIVEN)
    run = quiet_train(recipe, tmp_path / "run").run
    found = run.recipe().decoding.length_penalty
    assert found > 2
    assert quiet_train(recipe, run.path).run.recipe().decoding.length_penalty == found
    by_length(0)
    longer = tiny_recipe(corpus, ON, *GIVEN, "training.max_epochs=3")
    said = train(longer, run.path, device="cpu", progress=Progress(), cache=tmp_path)
    told = capsys.readouterr().err
    assert "changed: decoding" not in told and f"Length penalty {found:g}: dev BLEU" in told
    kept = Run(run.path).recipe().decoding.length_penalty
    assert f"Length penalty {kept:g} is kept" in told and said.scores is not None and kept < found


def test_a_finished_run_can_be_asked_for_it(corpus, tmp_path, quiet_train, by_length):
    by_length(1000)
    before = quiet_train(tiny_recipe(corpus, *GIVEN), tmp_path / "run").run
    short = words(lines(before.hypotheses_file("test")))
    after = quiet_train(tiny_recipe(corpus, ON, *GIVEN), tmp_path / "run").run
    assert after.recipe().decoding.length_penalty > 2
    assert words(lines(after.hypotheses_file("test"))) > short
    assert before.path == after.path and after.scores() is not None
