"""The command: several rows at a time, what it shows on the way, and what it says to mistakes."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys

import pytest
from rich.console import Console

import qknorm.paper.runner as runner
from qknorm.paper import reproduce
from qknorm.progress import Progress
from support.command import Command, environment
from support.paper import TINY, rows_of, wish

SETS = [word for setting in TINY for word in ("--set", setting)]
CHILD = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
print("ready", flush=True)
time.sleep(60)
"""


def test_several_at_a_time_are_stopped_together(home, monkeypatch):
    """SIGTERM to this process alone reaches every child once; nothing is taken for trained."""

    def start(task, device):
        task.run.path.mkdir(parents=True)
        started.append(subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE))
        started[-1].stdout.readline()  # ready
        if len(started) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return started[-1]

    started = []
    monkeypatch.setattr(runner, "_start", start)
    before = signal.getsignal(signal.SIGTERM)
    ended = reproduce(wish(home, "table2", ["en-vi"], jobs=2, seeds=[7, 8]))
    assert ended.interrupted and [child.returncode for child in started] == [130, 130]
    assert [task.state for task in ended.tasks] == ["training", "training", "to train", "to train"]
    assert signal.getsignal(signal.SIGTERM) is before
    assert rows_of(home, "table2")[0]["seeds"] == [1, 2]


@pytest.mark.slow
def test_several_at_a_time(home, monkeypatch):
    for name in ("OMP_NUM_THREADS", "PYTHONPATH"):
        monkeypatch.setenv(name, environment(home)[name])
    ended = reproduce(wish(home, "table2", ["en-vi"], jobs=2, seeds=[7]))
    assert [task.state for task in ended.tasks] == ["recorded", "recorded"]
    assert [row["seeds"] for row in rows_of(home, "table2")] == [[1, 2, 7], [1, 2, 7]]
    logs = list((home / "runs").glob("*seed7*/train.log"))
    assert len(logs) == 2 and all("Translate with" in log.read_text() for log in logs)
    assert all(row["side_by_side"] for row in rows_of(home, "table2"))
    assert "Some rows were trained several at a time" in (home / "results" / "table2.md").read_text()


def test_a_child_that_fails_tells_why(home, monkeypatch):
    def start(task, device):
        task.run.path.mkdir(parents=True)
        with (task.run.path / "train.log").open("w") as log:
            return subprocess.Popen([sys.executable, "-c", f"import sys; {code}"], stdout=log)

    monkeypatch.setattr(runner, "_start", start)
    code = "print('epoch 1\\nerror: It diverged.\\nTry less.'); sys.exit(2)"
    ended = reproduce(wish(home, "table2", ["en-vi"], jobs=2, seeds=[7]))
    assert [(task.state, task.why) for task in ended.tasks] == [("failed", "It diverged.\nTry less.")] * 2


def test_a_terminal_gets_a_table_and_a_log_gets_lines(home):
    shown = {}
    for kind in (True, False):
        progress = Progress()
        progress.console = Console(file=io.StringIO(), force_terminal=kind, width=400)
        reproduce(wish(home, "table2", ["en-vi", "sk-en"], seeds=[1, 2], progress=progress))
        shown[kind] = progress.console.file.getvalue()
    assert "4 recorded, 4 no text" in shown[True] and "run " in shown[True] and "[4/8]" not in shown[True]
    lines_of_log = shown[False].splitlines()
    assert len(lines_of_log) == 8 and lines_of_log[0].startswith("[4/8] en-vi-baseline-fast-seed1-")
    assert lines_of_log[0].endswith(": recorded")
    assert "no text (qknorm data get ted-sk-en --to " in shown[False]


def test_the_command(home, monkeypatch, capsys):
    asked = [
        "reproduce",
        "table2",
        "--pairs",
        "en-vi",
        "--recipe",
        "fast",
        "--device",
        "cpu",
        "--runs",
        "runs",
    ]
    done = Command(home, monkeypatch, capsys)(*asked, "--seeds", "2,1", *SETS)
    assert done.code == 0, done.err
    assert done.out.split() == ["results/table2.md", "results/README.md"]
    assert "[4/4] en-vi-qknorm-fast-seed2" in done.err and "recorded" in done.err


def test_only_some_systems(home, monkeypatch, capsys):
    asked = ("reproduce", "table2", "--pairs", "en-vi", "--recipe", "fast", "--runs", "runs", *SETS)
    done = Command(home, monkeypatch, capsys)(*asked, "--device", "cpu", "--systems", "qknorm")
    assert done.code == 0 and "[1/1] en-vi-qknorm-fast-seed1" in done.err and "baseline" not in done.err
    assert "Nguyen and Salazar" in (home / "results" / "table2.md").read_text(), "pages have all rows"


def test_stopped_outside_training_it_says_so(home, monkeypatch, capsys):
    def stopping(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "train", stopping)
    done = Command(home, monkeypatch, capsys)(
        "reproduce", "table2", "--pairs", "en-vi", "--device", "cpu", "--seeds", "9", *SETS
    )
    assert done.code == 130 and "The same command goes on." in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["table9"], '"table9" is not a target'),
        (["table2", "--pairs", "en-xx"], '"en-xx" is not a pair'),
        (
            ["table4", "--systems", "heads-3"],
            '"heads-3" is not a system of these rows; choose from heads-2, ',
        ),
        (["table2", "--seeds", "one"], "not a list of whole numbers"),
        (["table2", "--set", "training.sed=1"], "the nearest is training.seed"),
    ],
)
def test_mistakes_are_sentences(arguments, said, tmp_path, monkeypatch, capsys):
    done = Command(tmp_path, monkeypatch, capsys)("reproduce", *arguments)
    assert done.code == 2 and said in done.err and "Traceback" not in done.err


def test_without_any_text_everything_is_listed(tmp_path, monkeypatch, capsys):
    done = Command(tmp_path, monkeypatch, capsys)("reproduce", "all")
    assert done.code == 0
    front = (tmp_path / "results" / "README.md").read_text()
    assert "No run has been recorded yet." in front and "None of the 10 rows has been run yet" in front
    assert "ted-ar-en" in (tmp_path / "results" / "table1.md").read_text()
    assert json.loads((tmp_path / "results" / "table4.json").read_text())["groups"][0]["orderings"] == 0
