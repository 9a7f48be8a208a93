"""What the commands tell of a run with several models, and what they do with it."""

from __future__ import annotations

import json
import shutil

import pytest

from qknorm.data import lines
from qknorm.progress import Progress
from qknorm.run import Run
from qknorm.training import train
from qknorm.translation.augment import Search, _part_file, augment
from qknorm.translation.translator import Translator
from support.command import run_command
from support.tiny import tiny_recipe, write_corpus


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A run of two models, and its corpus."""
    folder = tmp_path_factory.mktemp("two")
    corpus = write_corpus(folder / "corpus")
    recipe = tiny_recipe(corpus, "training.members=2")
    train(recipe, folder / "run", device="cpu", progress=Progress(quiet=True), cache=folder)
    return folder


@pytest.fixture
def unfinished(two, tmp_path):
    """The same with nothing of the second model."""
    shutil.copytree(two / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "members")
    return tmp_path


def test_info_tells_of_all(two):
    told = json.loads(run_command(two, "info", "run", "--json").out)
    (second,) = told["members"]
    assert second["seed"] == 2 and len(second["history"]) == 3 and second["best"]["best"]
    shown = run_command(two, "info", "run").out
    assert "2 models translate together" in shown and "Model 2: seed 2, best epoch " in shown
    assert "(run/members/2)" in shown
    alone = run_command(two, "info", "run/members/2").out
    assert "models translate" not in alone and "seed 2" in alone
    assert "one of the models of run, where they are scored together" in alone
    assert "not finished" not in alone


def test_info_tells_what_is_missing(unfinished):
    assert "Model 2: not trained yet (run/members/2)" in run_command(unfinished, "info", "run").out


def test_translate_uses_all_and_says_where_some_are_missing(two, unfinished):
    source = two / "corpus" / "test.src"
    done = run_command(two, "translate", "run", source)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == list(lines(two / "run" / "hypotheses" / "test.txt"))
    done = run_command(unfinished, "translate", "run", source)
    assert done.code == 0 and done.err == "run is to have 2 models; the 1 trained so far translate.\n"
    alone = Translator.load(two / "run", "cpu", together=False)
    assert done.out.splitlines() == alone(lines(source))


def test_a_look_inside_is_at_the_first(two):
    said = run_command(two, "attention", "run", "casa ela", "--out", "maps.json")
    assert said.code == 0 and "Maps are of the first of 2 models; the next is run/members/2" in said.err
    second = run_command(two, "attention", "run/members/2", "casa ela", "--out", "second.json")
    assert second.code == 0 and "of the first" not in second.err
    assert (two / "maps.json").read_text() != (two / "second.json").read_text()
    heads = run_command(two, "heads", "run")
    assert heads.code == 0 and "Heads are of the first of 2 models" in heads.err
    report = run_command(two, "report", "run", "--out", "report.html")
    assert report.code == 0 and "Curves and maps of run are of the first of 2 models" in report.err


def test_what_is_served_is_told_of_all(two):
    pytest.importorskip("fastapi", reason="needs the server's packages: pip install qknorm[serve]")
    from qknorm.serving import load_served

    (served,) = load_served([two / "run"], "cpu")
    run = Run(two / "run")
    assert len(served.translator.models) == 2
    assert served.about.parameters == 2 * sum(p.numel() for p in run.model().parameters())
    assert served.about.dev_bleu == run.scores()["dev"]["bleu_tokenized"]


def test_models_that_were_not_scored_together_are_served_without_a_score(two, unfinished):
    pytest.importorskip("fastapi", reason="needs the server's packages: pip install qknorm[serve]")
    from qknorm.serving import load_served

    shutil.copytree(two / "run", unfinished / "unscored")
    (unfinished / "unscored" / "hypotheses" / "scores.json").unlink()
    (unscored,) = load_served([unfinished / "unscored"], "cpu")
    assert len(unscored.translator.models) == 2 and unscored.about.dev_bleu is None
    (unfinished / "run" / "hypotheses" / "scores.json").unlink()
    (first,) = load_served([unfinished / "run"], "cpu")
    best = [row["dev_bleu"] for row in Run(two / "run").history() if row["best"]][-1]
    assert len(first.translator.models) == 1 and first.about.dev_bleu == best


def test_augment_says_where_some_are_missing(unfinished, capsys):
    augment([unfinished / "run"], unfinished / "more", progress=Progress())
    told = capsys.readouterr().err
    assert told.count("is to have 2 models; the 1 trained so far translate.") == 1


def test_text_translated_by_fewer_models_is_other_text(two, unfinished):
    text = two / "corpus" / "train.src"
    parts = {_part_file(Run(folder / "run"), text, two, Search()) for folder in (two, unfinished)}
    assert len(parts) == 2
