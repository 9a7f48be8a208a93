"""The command line without a model: help, scores, corpora, and every mistake answered by a sentence."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import qknorm
from qknorm.cli.app import app
from qknorm.cli.recipe import choose_recipe, recipe_for_files, run_name
from qknorm.config import preset
from qknorm.progress import Progress
from support.command import Command, environment, run_command


@pytest.fixture
def command(tmp_path, monkeypatch, capsys) -> Command:
    return Command(tmp_path, monkeypatch, capsys)


@pytest.fixture
def texts(tmp_path) -> Path:
    """Small files, good and bad, to be named on the command line."""
    (tmp_path / "a.txt").write_text("the cat sat on the mat\na dog ran\nbirds fly high\n")
    (tmp_path / "b.txt").write_text("the cat sat on a mat\na dog ran\nbirds fly\n")
    (tmp_path / "short.txt").write_text("one line\n")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bad.txt").write_bytes(b"fine\nnot \xff UTF-8\nfine\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "recipe.yaml").write_text("model:\n  headz: 3\n")
    (tmp_path / "good.yaml").write_text("data:\n  train_source: a.txt\n  train_target: b.txt\n")
    return tmp_path


MISTAKES = {
    "unknown command": (["trian"], "No such command"),
    "unknown option": (["train", "--sauce", "x"], "No such option"),
    "nothing named": (["train"], "Nothing to learn from is named"),
    "one side": (["train", "--source", "a.txt"], "--target is missing"),
    "the other side": (["prepare", "--dev-source", "a.txt", "--target", "a.txt"], "--source is missing"),
    "no such text": (["train", "--source", "no.txt", "--target", "a.txt"], "no.txt"),
    "folder as text": (["train", "--source", "folder", "--target", "a.txt"], "folder is a folder"),
    "sides differ": (["prepare", "--source", "a.txt", "--target", "short.txt"], "3 lines"),
    "empty": (["train", "--source", "empty.txt", "--target", "a.txt"], "There are 0 pairs"),
    "not UTF-8": (["prepare", "--source", "bad.txt", "--target", "a.txt"], "line 2"),
    "one dev side": (
        ["train", "--source", "a.txt", "--target", "b.txt", "--dev-source", "a.txt"],
        "dev_source needs",
    ),
    "subwords": (["train", "--source", "a.txt", "--target", "b.txt", "--subwords", "bits"], "'bits'"),
    "no such recipe": (["train", "no.yaml"], "There is no recipe no.yaml"),
    "folder as recipe": (["train", "folder"], "folder cannot be read"),
    "unknown key": (["train", "recipe.yaml"], "headz is not a setting"),
    "unknown override": (["train", "good.yaml", "--set", "training.sead=3"], "the nearest is training.seed"),
    "override without a value": (["train", "good.yaml", "--set", "training.seed"], "has no value"),
    "recipe and files": (["train", "good.yaml", "--source", "a.txt"], "either a recipe or files"),
    "run is a file": (["train", "good.yaml", "--run", "a.txt"], "a.txt is a file"),
    "run is none": (["train", "--run", "folder"], "folder is not a run folder"),
    "no such device": (["train", "good.yaml", "--device", "abacus"], '"abacus" is not a device'),
    "no such GPU": (["train", "good.yaml", "--device", "cuda:99"], "so no cuda:99"),
    "translate without a run": (["translate", "folder"], "folder is not a run folder"),
    "beam": (["translate", "folder", "--beam", "0"], "--beam"),
    "precision": (["translate", "folder", "--precision", "float8"], "'float32', 'bfloat16'"),
    "length penalty": (["translate", "folder", "--length-penalty", "inf"], "not a finite number"),
    "info of no run": (["info", "a.txt"], "a.txt is not a run folder"),
    "score of no file": (["score", "no.txt", "a.txt"], "no.txt: there is no such file"),
    "score of a folder": (["score", "folder", "a.txt"], "folder: the file cannot be read"),
    "score of two lengths": (["score", "short.txt", "a.txt"], "There is 1 line"),
    "score of bytes": (["score", "bad.txt", "a.txt"], "bad.txt, line 2"),
    "compare two lengths": (["compare", "a.txt", "short.txt", "a.txt"], "There is 1 line"),
    "no such corpus": (["data", "get", "nope", "--to", "x"], 'There is no corpus named "nope"'),
    "corpus not there": (["data", "get", "ted-gl-en", "--to", "x", "--from", "folder"], "does not hold"),
    "no folder": (["data", "phrasebook"], "--to"),
    "no such pair": (["data", "phrasebook", "--pair", "en-xx", "--to", "x"], "en-xx"),
    "folder is a file": (
        ["data", "phrasebook", "--dev", "5", "--test", "5", "--train", "50", "--to", "a.txt"],
        "a.txt",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_by_a_sentence(mistake, texts, command):
    arguments, sentence = MISTAKES[mistake]
    done = command(*arguments)
    assert done.code == 2
    assert sentence in done.err
    assert "error: " in done.err.lower()
    assert "Traceback" not in done.err and done.out == ""


def test_a_mistake_in_a_process_of_its_own(tmp_path):
    done = run_command(tmp_path, "data", "get", "nope", "--to", "x")
    assert done.code == 2 and done.out == ""
    assert done.err.startswith('error: There is no corpus named "nope"; there are ')
    assert done.err.count("\n") == 1


def test_settings_without_a_recipe_are_chosen_by_the_size_of_the_text(texts):
    files = {"train_source": texts / "a.txt", "train_target": texts / "b.txt"}
    for gpu in (False, True):
        recipe, reasons = recipe_for_files(files, "words", ["training.seed=7"], gpu)
        chosen = preset(3, 30, gpu)
        assert reasons[0] == chosen.reasons[0] and len(reasons) == len(chosen.reasons)
        assert recipe.model.encoder_layers == chosen.settings["model"]["encoder_layers"]
        assert recipe.subwords.operations == chosen.settings["subwords"]["operations"]
        assert (recipe.name, recipe.subwords.kind, recipe.training.seed) == ("a-b", "words", 7)
        assert recipe.data.train_source == texts / "a.txt" and recipe.data.dev_source is None
        assert recipe_for_files(files, None, [], gpu)[0].subwords.kind == "raw"


@pytest.mark.parametrize(
    ("device", "batching", "told"),
    [
        ("cpu", "by_length", "Without a GPU 3 pairs"),
        ("cuda", "mixed", "3 pairs are less than any corpus of the paper"),
        ("cuda:1", "mixed", "3 pairs are less than any corpus of the paper"),
    ],
)
def test_the_device_counts_too_and_the_reasons_are_told(texts, tmp_path, capsys, device, batching, told):
    files = {"train_source": texts / "a.txt", "train_target": texts / "b.txt"}
    recipe, path = choose_recipe(None, files, None, tmp_path / "new", [], Progress(), device)
    assert recipe.training.batching == batching and path == tmp_path / "new"
    said = capsys.readouterr().err
    assert told in said and "(change them with --set)" in said


@pytest.mark.parametrize("longer", ["a.en", "b.vi"])
def test_passes_are_chosen_by_the_longer_side(tmp_path, longer):
    for name in ("a.en", "b.vi"):
        (tmp_path / name).write_text(("long 中文\n" if name == longer else "x\n") * 8000)
    files = {"train_source": tmp_path / "a.en", "train_target": tmp_path / "b.vi"}
    chosen = preset(8000, 8 * 8000, gpu=True).settings["training"]
    recipe, _ = recipe_for_files(files, None, [], gpu=True)
    assert recipe.training.backward_passes == chosen["backward_passes"]


def test_a_disk_that_is_full_is_told_in_a_sentence(tmp_path, command, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x/train.en")

    monkeypatch.setattr("qknorm.data.phrasebook.write_phrasebook", full)
    done = command("data", "phrasebook", "--to", "x")
    assert (done.code, done.err) == (2, "error: x/train.en: No space left on device.\n")


def test_version(command):
    assert command("--version").out == f"qknorm {qknorm.__version__}\n"


def test_every_command_teaches_by_an_example(command):
    from typer.main import get_command

    def names(group, path=()):
        for name, inner in group.commands.items():
            yield from names(inner, (*path, name)) if hasattr(inner, "commands") else [(*path, name)]

    found = list(names(get_command(app)))
    assert ("data", "phrasebook") in found and ("train",) in found
    for path in found:
        done = command(*path, "--help")
        assert done.code == 0
        assert f"\n    qknorm {' '.join(path)}" in done.out or f"| qknorm {' '.join(path)}" in done.out


def test_help_does_not_wait_for_torch(tmp_path):
    code = (
        "import sys; from qknorm.cli import main; sys.argv = ['qknorm', 'train', '--help']\n"
        "try: main()\nexcept SystemExit: print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(tmp_path), check=True
    )
    assert done.stdout.endswith("\n[]\n")


def test_without_the_extra_it_says_how_to_get_it(tmp_path):
    code = "import sys, runpy; sys.modules['typer'] = None\nrunpy.run_module('qknorm', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(tmp_path)
    )
    assert done.returncode == 2
    assert done.stderr == (
        "error: The package typer is not installed; install it with: pip install 'qknorm[translate]'\n"
    )


def test_score_prints_the_papers_figures(texts, command):
    done = command("score", "b.txt", "a.txt")
    assert done.code == 0
    assert "BLEU, tokenised" in done.out and "SacreBLEU, detokenised" in done.out and "TER" in done.out
    figures = json.loads(command("score", "b.txt", "a.txt", "--json", "--no-ter").out)
    assert {"bleu_tokenized", "bleu_13a", "sacrebleu_detok", "chrf"} <= set(figures) and "ter" not in figures
    raw = json.loads(command("score", "b.txt", "a.txt", "--raw", "--json").out)
    assert raw["kind"] == "raw" and 0 < raw["sacrebleu"] < 100


def test_compare_prints_the_tests(texts, command):
    (texts / "a.gz").write_bytes(gzip.compress((texts / "a.txt").read_bytes()))
    found = json.loads(command("compare", "b.txt", "a.txt", "a.gz", "--json", "--samples", "50").out)
    assert found["delta"] > 0 and found["ci_low"] <= found["delta"] <= found["ci_high"]
    assert 0 < found["p_value"] <= 1 and found["samples"] == 50
    assert "baseline" in command("compare", "b.txt", "a.txt", "a.txt", "--raw", "--samples", "50").out


def test_data_list_names_the_corpora(command):
    out = command("data", "list").out
    for name in ("iwslt15-en-vi", "ted-gl-en", "multi30k-de-en", "ted-xx-en"):
        assert f"{name} " in out


def test_data_phrasebook_and_get_from_a_folder(tmp_path, command):
    arguments = ["--pair", "gl-en", "--train", "50", "--dev", "5", "--test", "5", "--seed", "3"]
    done = command("data", "phrasebook", *arguments, "--to", "my texts")
    assert done.code == 0
    assert "qknorm train --source 'my texts/train.gl' --target 'my texts/train.en'" in done.out
    assert (tmp_path / "my texts" / "train.gl").read_bytes().count(b"\n") == 50
    for split in ("train", "dev", "test"):
        for code in ("sk", "en"):
            (tmp_path / f"{split}.{code}").write_text(f"{split} {code}\n")
    done = command("data", "get", "ted-sk-en", "--to", "laid", "--from", ".")
    assert done.code == 0 and "--subwords words" in done.out
    assert (tmp_path / "laid" / "test.sk").read_text() == "test sk\n"


@pytest.mark.parametrize(
    ("source", "target", "name"),
    [("train.gl", "train.en.gz", "gl-en"), ("a.txt", "b.txt", "a-b"), ("from", "to.en", "from-to")],
)
def test_a_run_is_named_after_its_files(source, target, name):
    assert run_name(Path("some") / source, Path(target)) == name
