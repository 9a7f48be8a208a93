"""The commands on a small phrasebook, from text to scores, each in a process of its own."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

pytest.importorskip("babel", reason="needs the Python package babel")

from qknorm import Translator
from qknorm.data.phrasebook import write_phrasebook
from qknorm.run import Run, signed
from support.command import Command, environment, run_command, small

INPUT = (
    "3 days ago\n\n   \nMonday\u2028Tuesday \U0001f600 שלום\n\r\n5 hours\r\nthe last line, without its end"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder with a phrasebook in `text`, and in `runs/first` a run trained on it from two files."""
    folder = tmp_path_factory.mktemp("home")
    write_phrasebook("en-gl", folder / "text", train=300, dev=20, test=20)
    return folder


@pytest.fixture(scope="module")
def trained(home: Path):
    files = [
        f"--{split}{side}=text/{split.rstrip('-') or 'train'}.{code}"
        for split in ("", "dev-", "test-")
        for side, code in (("source", "en"), ("target", "gl"))
    ]
    return run_command(home, "train", *files, *small(), "--device", "cpu")


@pytest.fixture(scope="module")
def run(home: Path, trained) -> Path:
    assert trained.code == 0, trained.err
    return home / "runs" / "en-gl"


@pytest.fixture
def command(home, monkeypatch, capsys) -> Command:
    return Command(home, monkeypatch, capsys)


def test_two_files_are_enough_to_train(trained, run):
    assert "300 pairs are learned by a small model" in trained.err
    assert re.search(r"^  0:\d\d epoch 2: update 40", trained.err, re.MULTILINE)
    assert all(re.match(r"  0:\d\d .", line) for line in trained.err.splitlines())
    assert "From the start of the command to the scores: 0:" in trained.err.splitlines()[-1]
    assert "\ntest: SacreBLEU" in trained.out and "dev: SacreBLEU" in trained.out
    assert "Translate with: qknorm translate runs/en-gl FILE" in trained.out
    assert Run.open(run).recipe().model.d_model == 32
    assert Run.open(run).recipe().model.word_dropout == 0.1


def test_a_finished_run_is_not_trained_again(home, trained, run):
    before = {file.name: file.read_bytes() for file in run.glob("*.safetensors")}
    again = run_command(home, "train", "--run", "runs/en-gl")
    assert again.code == 0, again.err
    assert again.out == trained.out
    assert "epoch 1" not in again.err
    assert {file.name: file.read_bytes() for file in run.glob("*.safetensors")} == before


def test_translate_prints_what_the_translator_gives(home, run):
    done = run_command(home, "translate", run, stdin=INPUT.encode())
    assert done.code == 0, done.err
    lines = [line.removesuffix("\r") for line in INPUT.split("\n")]
    assert len(lines) == 7
    expected = Translator.load(run)(lines)
    assert done.out == "".join(f"{line}\n" for line in expected)
    assert [not line for line in expected] == [False, True, True, False, True, False, False]


def test_translate_with_columns_and_an_ensemble(home, run, command):
    (home / "input.en").write_bytes(INPUT.encode())
    done = command("translate", run, "input.en", "--nbest=2", "--beam=3", "--ensemble", run)
    assert done.code == 0, done.err
    rows = [line.split("\t") for line in done.out.removesuffix("\n").split("\n")]
    found = Translator.load([run, run]).stream(lines_of(INPUT), beam=3, nbest=2)
    expected = [
        [str(number), f"{score:.6f}", text]
        for number, each in enumerate(found, 1)
        for score, text in ([(t.score, t.text) for t in each] or [(0.0, "")])
    ]
    assert rows == expected
    counts = Counter(row[0] for row in rows)  # a line may have fewer than asked for, never none
    assert list(counts) == ["1", "2", "3", "4", "5", "6", "7"]
    assert [counts[blank] for blank in ("2", "3", "5")] == [1, 1, 1]
    assert max(counts.values()) == 2


def test_translate_in_bfloat16(home, run, command):
    half = command("translate", run, "text/test.en", "--scores", "--precision", "bfloat16")
    whole = command("translate", run, "text/test.en", "--scores", "--precision", "float32")
    assert half.code == 0 and half.out != whole.out
    assert whole.out == command("translate", run, "text/test.en", "--scores").out
    lines = (home / "text/test.en").read_text().splitlines()
    found = Translator.load(run, dtype=torch.bfloat16).stream(lines)
    expected = [f"{number}\t{t.score:.6f}\t{t.text}\n" for number, (t,) in enumerate(found, 1)]
    assert half.out == "".join(expected)


def test_scores_alone_have_the_same_columns(run, command):
    plain = command("translate", run, "text/test.en").out.split("\n")
    columns = [
        line.split("\t") for line in command("translate", run, "text/test.en", "--scores").out.split("\n")
    ]
    assert [row[-1] for row in columns] == plain
    assert [row[0] for row in columns[:-1]] == [str(number) for number in range(1, 21)]
    assert all(float(row[1]) < 0 for row in columns[:-1])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["no.en"], "There is no file no.en"),
        (["text"], "text is a folder"),
        (["cut.en"], "cut.en line 2 is not valid UTF-8"),
        (["text/test.en", "--nbest=9"], "nbest must be at most beam (2), not 9"),
        (["text/test.en", "--ensemble=text"], "text is not a run folder"),
    ],
)
def test_what_cannot_be_translated(home, run, command, arguments, sentence):
    (home / "cut.en").write_bytes(b"fine\nca\xc3\n")
    done = command("translate", run, *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {sentence}")


def test_a_run_keeps_its_subwords(run, command):
    done = command("train", "--run", run, "--subwords", "words")
    assert done.code == 2 and "has its subwords already" in done.err
    done = command("train", "--run", run, "--set", "model.heads=4")
    assert done.code == 2 and "model.heads: 2 → 4" in done.err


def lines_of(text: str) -> list[str]:
    return [line.removesuffix("\r") for line in text.split("\n")]


def test_hypotheses_of_the_run_are_what_translate_prints(run, command):
    done = command("translate", run, "text/test.en", "--batch-tokens=100")
    assert done.out == (run / "hypotheses" / "test.txt").read_text(encoding="utf-8")


def test_each_line_is_answered_before_the_next_is_written(home, run):
    command = [sys.executable, "-m", "qknorm", "translate", str(run)]
    lines = ["3 days ago", "", "Monday"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(home)
    ) as process:
        assert process.stdin and process.stdout
        for line, expected in zip(lines, Translator.load(run)(lines), strict=True):
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().decode() == f"{expected}\n"
        process.stdin.close()
        assert process.stdout.read() == b"" and process.wait(60) == 0


def test_a_reader_that_leaves_early_is_no_error(home, run):
    command = [sys.executable, "-m", "qknorm", "translate", str(run), "--beam=1"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(home),
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdout.close()
        process.stdin.write(b"Monday\n" * 50)
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


def test_info_as_text_and_json(run, command):
    shown = command("info", run)
    assert shown.code == 0, shown.err
    for words in ("1+1 layers, width 32", "Best epoch", "ms/step", "tokens/s", "waiting", "best.safetensors"):
        assert words in shown.out
    assert "From the start of the command to the scores: 0:" in shown.out
    about = json.loads(command("info", run, "--json").out)
    assert about["history"][-1]["elapsed"] < about["seconds"] == Run.open(run).manifest()["seconds"]
    assert [row["epoch"] for row in about["history"]] == [1, 2]
    assert about["finished"] and about["scores"]["test"]["sentences"] == 20
    assert about["facts"]["examples"] == 300
    assert about["files"]["best.safetensors"] == (run / "best.safetensors").stat().st_size
    assert about["best"]["dev_bleu"] == max(row["dev_bleu"] for row in about["history"])


def test_a_run_of_before_does_not_tell_its_seconds(run, command, tmp_path):
    old = Run(shutil.copytree(run, tmp_path / "old"))
    manifest = {key: value for key, value in old.manifest().items() if key != "seconds"}
    old.manifest_file.write_text(json.dumps(signed(manifest)))
    shown = command("info", old.path)
    assert shown.code == 0 and "Best epoch" in shown.out and "From the start" not in shown.out
    assert json.loads(command("info", old.path, "--json").out)["seconds"] is None


def test_prepare_prints_the_facts(run, command):
    done = command("prepare", "--run", run)
    assert done.code == 0, done.err
    facts = dict(line.rsplit(maxsplit=1) for line in done.out.partition("\n\n")[0].split("\n"))
    recorded = Run.open(run).manifest()["facts"]
    assert facts["examples"] == "300" and facts["dev pairs"] == "20"
    assert facts["tokens"] == f"{recorded['tokens']:,}"
    assert facts["g₀"] == f"{recorded['g0']:.4f}"
    model = Run.open(run).model()
    assert facts["parameters"] == f"{sum(weight.numel() for weight in model.parameters()):,}"
    assert "warning" in done.out


def test_an_interrupted_training_goes_on(home, run):
    """By a recipe this time, without a dev text; Ctrl-C saves and ends with 130."""
    shutil.copy(run / "recipe.yaml", home / "long.yaml")
    changes = ["name=long", "training.max_steps=null", "training.epoch_batches=5"]
    changes += ["data.dev_source=null", "data.dev_target=null", "training.validate_bleu=false"]
    words = [word for change in changes for word in ("--set", change)]
    command = [sys.executable, "-m", "qknorm", "train", "long.yaml", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment(home), cwd=home) as process:
        assert process.stderr
        for line in process.stderr:
            if b" epoch 1: " in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read().decode()
        assert process.wait(60) == 130, rest
    assert "Go on with: qknorm train --run runs/long" in rest
    assert "Traceback" not in rest
    steps = Run.open(home / "runs/long").history()[-1]["step"] + 10
    done = run_command(home, "train", "--run", "runs/long", "--set", f"training.max_steps={steps}")
    assert done.code == 0, done.err
    assert f"changed: training.max_steps: None → {steps}" in done.err
    assert f"all {steps} updates are done" in done.err
