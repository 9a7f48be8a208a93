"""The commands of this room: what they write, and a sentence for every mistake."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from qknorm.analysis import sentence_attention
from qknorm.config import DataSettings
from qknorm.run import Run
from qknorm.translation.translator import Translator
from support.command import Command


@pytest.fixture
def command(tmp_path, monkeypatch, capsys) -> Command:
    return Command(tmp_path, monkeypatch, capsys)


def test_attention_as_json_is_what_python_gives(command, runs, tmp_path):
    done = command("attention", runs[0].path, "ano casa", "--kind", "cross", "--layer", 2, "--out", "a.json")
    assert done.code == 0, done.err
    about = json.loads((tmp_path / "a.json").read_text())
    seen = sentence_attention(Translator.load(runs[0].path, "cpu"), "ano casa")
    assert "encoder" not in about and about["cross"]["layers"] == [2] and about["cross"]["heads"] == [1, 2]
    np.testing.assert_allclose(about["cross"]["weights"], seen.cross.weights[1:], atol=1e-4)
    assert about["cross"]["rows"] == seen.cross.rows and about["translation"] == seen.translation
    assert "ano casa  →" in done.err and "2 maps in a.json" in done.err


def test_attention_as_a_picture(command, runs, tmp_path):
    picture = "attention", runs[1].path, "ano casa", "--target", "house year", "--words"
    done = command(*picture, "--head", 1, "--out", "a.png")
    assert done.code == 0 and "ano casa  →  house year\n3 maps" in done.err
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    done = command(*picture, *("--kind", "cross") * 2, *("--head", 1) * 2, "--out", "B.PNG")  # said twice
    assert done.code == 0 and "1 map in B.PNG" in done.err and (tmp_path / "B.PNG").exists()


MISTAKES = {
    "no run": (["attention", ".", "a", "--out", "a.png"], "is not a run folder"),
    "format": (["attention", "RUN", "a", "--out", "a.bmp"], "a.bmp ends in none of .png, .svg"),
    "no out": (["attention", "RUN", "a"], "Missing option '--out'"),
    "blank": (["attention", "RUN", " ", "--out", "a.png"], "The sentence is blank"),
    "lines": (["attention", "RUN", "a\nb", "--out", "a.png"], "The sentence has a line break in it"),
    "bytes": (["attention", "RUN", "a\udcff", "--out", "a.png"], "The sentence is not valid UTF-8"),
    "target": (
        ["attention", "RUN", "a", "--target", "\udcff", "--out", "a.png"],
        "The translation is not valid",
    ),
    "layer": (["attention", "RUN", "a", "--out", "a.png", "--layer", 9], "There is no layer 9 in encoder"),
    "head": (["attention", "RUN", "a", "--out", "a.png", "--head", 3], "it has 1 to 2"),
    "zero": (["attention", "RUN", "a", "--out", "a.png", "--head", 0], "--head"),
    "kind": (["attention", "RUN", "a", "--out", "a.png", "--kind", "both"], "'both'"),
    "no folder": (["attention", "RUN", "a", "--out", "no/a.png"], "There is no folder no to write a.png in"),
    "a folder": (["attention", "RUN", "a", "--out", "taken.png"], "taken.png is a folder"),
    "closed": (["attention", "RUN", "a", "--out", "/proc/a.json"], "/proc/a.json cannot be written"),
    "long": (["attention", "RUN", "ano " * 600, "--out", "a.png"], "more than can be looked at (512)"),
    "long target": (["attention", "RUN", "a", "--target", "ano " * 600, "--out", "a.png"], "The translation"),
    "heads without a run": (["heads", "."], "is not a run folder"),
    "heads of one side": (["heads", "RUN", "--source", "a"], "--target is missing"),
    "heads of no file": (["heads", "RUN", "--source", "a", "--target", "b"], "There is no file"),
    "heads of train": (["heads", "RUN", "--corpus", "train"], "'train'"),
    "heads against nothing": (["heads", "RUN", "--sentences", 1, "--against", "."], "is not a run folder"),
    "heads in a file": (["heads", "RUN", "--out", "a.txt/heads"], "a.txt is a file"),
    "heads nowhere": (["heads", "RUN", "--out", "/proc/heads"], "/proc/heads cannot be written"),
    "report without a run": (["report", ".", "--out", "a.html"], "is not a run folder"),
    "report of no page": (["report", "RUN", "--out", "a.pdf"], "a.pdf must end in .html"),
    "report nowhere": (["report", "RUN", "--out", "no/a.html"], "There is no folder no"),
    "report of train": (["report", "RUN", "--out", "a.html", "--corpus", "train"], "'train'"),
    "device": (["attention", "RUN", "a", "--out", "a.png", "--device", "abacus"], "is not a device"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_get_a_sentence(command, runs, tmp_path, mistake):
    (tmp_path / "taken.png").mkdir()
    (tmp_path / "a.txt").write_text("a\n")
    words, sentence = MISTAKES[mistake]
    done = command(*(runs[0].path if word == "RUN" else word for word in words))
    assert done.code == 2, done.err
    assert sentence in " ".join(done.err.replace("│", " ").split()) and "Traceback" not in done.err


def test_heads_of_one_run(command, runs):
    done = command("heads", runs[0].path, "--sentences", 9)
    assert done.code == 0, done.err
    assert done.out.count("\nencoder") == 4 + 1 + 2 and "nats a target subword" in done.out
    assert "9 pairs of dev" in done.err and "importance" in done.out


def test_heads_of_two_runs_on_other_text(command, runs, tmp_path):
    (tmp_path / "a.src").write_text("ano casa\n\ngato\n")
    (tmp_path / "a.tgt").write_text("house year\nx\ncat\n")
    words = "--source a.src --target a.tgt --out heads"
    done = command("heads", *(runs[0].path, "--against", runs[1].path), *words.split())
    assert done.code == 0, done.err
    assert "2 pairs of a.src, a.tgt" in done.err and "Heads of qknorm and baseline" in done.out
    about = json.loads((tmp_path / "heads" / "heads.json").read_text())
    assert {each["kind"] for each in about["compared"]} == {"encoder", "decoder", "cross"}
    study, other = about["runs"]
    assert study["sentences"] == 2 and np.shape(study["kinds"]["cross"]["heads"]["importance"]) == (2, 2)
    assert np.shape(study["kinds"]["cross"]["distances"]) == (4, 4) and other["kinds"]["cross"]["g"] == [None]
    page = (tmp_path / "heads" / "heads.md").read_text()
    assert "![a map of the heads](map.png)" in page and "| cross | 2 | 2 |" in page
    for name in ("measures", "map", "importance"):
        assert (tmp_path / "heads" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_two_runs_with_different_dev_text_are_refused(command, runs, tmp_path):
    copy = Run(tmp_path / "copy")
    shutil.copytree(runs[0].path, copy.path)
    recipe = copy.recipe()
    swapped = {
        "dev_source": "test.src",
        "dev_target": "test.tgt",
        "train_source": "train.src",
        "train_target": "train.tgt",
    }
    files = {key: runs[0].path.parent / "corpus" / name for key, name in swapped.items()}
    known = copy.manifest()["corpus"]
    corpus = known | {f"dev.{side}": known[f"test.{side}"] for side in ("source", "target")}
    copy.replace_recipe(recipe.model_copy(update={"data": DataSettings(**files)}), corpus)
    done = command("heads", runs[0].path, "--against", copy.path)
    assert done.code == 2 and "The two runs have different dev text" in done.err


def test_text_that_is_not_the_runs_own_is_refused(command, runs, tmp_path):
    file = runs[0].path.parent / "corpus" / "test.src"
    before = file.read_bytes()
    try:
        file.write_bytes(before + b"ano\n")
        done = command("heads", runs[0].path, "--corpus", "test")
    finally:
        file.write_bytes(before)
    assert done.code == 2 and "is not the test text" in done.err
