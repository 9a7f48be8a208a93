"""The history of a run: what was written comes back, a cut last line is left out, damage gets a sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from qknorm.errors import UserError
from qknorm.history import FIELDS, read_history
from qknorm.paper.records import keep
from qknorm.run import Run
from support.command import Command


@pytest.fixture
def copy(runs, tmp_path) -> Run:
    """A run whose files a test may change."""
    shutil.copytree(runs[0].path, tmp_path / "copy")
    return Run(tmp_path / "copy")


def lines(run: Run) -> list[bytes]:
    return run.history_file.read_bytes().split(b"\n")[:-1]


def test_training_writes_what_is_read(runs):
    for run in runs:
        rows = run.history()
        assert rows == [json.loads(line) for line in lines(run)] and len(rows) == 2
        assert all(set(row) == set(FIELDS) for row in rows)


def test_a_run_without_an_epoch_yet(tmp_path):
    assert read_history(tmp_path / "history.jsonl") == []


def test_a_last_line_cut_anywhere_is_left_out(copy):
    whole, rows = copy.history_file.read_bytes(), copy.history()
    first, second = (len(line) for line in lines(copy))
    for end in range(first + 1, first + 1 + second):
        copy.history_file.write_bytes(whole[:end])
        assert copy.history() == rows[:1], f"cut after {end} bytes"
    copy.history_file.write_bytes(whole[:-1])
    assert copy.history() == rows, "only the end of the line is missing"


def test_numbers_that_are_not_finite(copy):
    rows = copy.history()
    rows[0]["train_loss"] = rows[0]["max_logit"] = float("inf")
    copy.write_history(rows)
    assert copy.history() == rows, "a run that diverged is no damage"


def test_the_first_runs_had_no_largest_logit():
    file = Path(__file__).parent.parent / "results" / "speedrun" / "2" / "history.jsonl"
    assert all("max_logit" not in row and row["elapsed"] > 0 for row in read_history(file))


def changed(line: bytes, **values: object) -> bytes:
    return json.dumps(json.loads(line) | values).encode()


DAMAGE = {
    "cut in the middle": (lambda line: line[:40], "is not JSON"),
    "not JSON": (lambda line: b"epoch 1", "is not JSON"),
    "not text": (lambda line: b"\xff\xfe\x00", "is not JSON"),
    "too deep": (lambda line: b"[" * 100_000, "is not JSON"),
    "no object": (lambda line: b"[1, 2]", "is not a JSON object"),
    "a field missing": (lambda line: line.replace(b'"best"', b'"Best"'), "has no best"),
    "text": (lambda line: changed(line, g_min="12"), 'has "12" for g_min, which must be a number or null'),
    "no number": (lambda line: changed(line, seconds=None), "has null for seconds, which must be a number"),
    "a fraction": (lambda line: changed(line, epoch=1.5), "has 1.5 for epoch, which must be a whole number"),
    "no flag": (lambda line: changed(line, best=1), "has 1 for best, which must be true or false"),
    "a flag": (lambda line: changed(line, step=True), "has true for step, which must be a whole number"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_with_its_line(copy, damage):
    spoil, words = DAMAGE[damage]
    first, second = lines(copy)
    for number, parts in ((1, [spoil(first), second]), (2, [first, spoil(second)])):
        copy.history_file.write_bytes(b"\n".join(parts) + b"\n")
        with pytest.raises(UserError) as error:
            copy.history()
        said = f"{copy.history_file}, line {number}, {words}; restore the file from a copy, or delete"
        assert str(error.value).startswith(said)


def test_a_last_line_that_was_never_a_row(copy):
    copy.history_file.write_bytes(copy.history_file.read_bytes() + b"\0\0\0\0")
    with pytest.raises(UserError, match="line 3, is not JSON"):
        copy.history()


@pytest.mark.parametrize("command", ["info", "info --json", "report", "train", "serve"])
def test_commands_say_what_is_wrong(copy, tmp_path, monkeypatch, capsys, command):
    first, second = lines(copy)
    copy.history_file.write_bytes(first[:-9] + b"\n" + second + b"\n")
    asked = {
        "info": ["info", copy.path],
        "info --json": ["info", copy.path, "--json"],
        "report": ["report", copy.path, "--out", "a.html"],
        "train": ["train", "--run", copy.path, "--device", "cpu"],
        "serve": ["serve", copy.path, "--device", "cpu"],
    }[command]
    done = Command(tmp_path, monkeypatch, capsys)(*asked)
    assert done.code == 2 and "Traceback" not in done.err, done.err
    assert f"error: {copy.history_file}, line 1, is not JSON; " in done.err
    assert done.out == "" and not (tmp_path / "a.html").exists()


def test_what_was_kept_outlives_a_damaged_run(copy, tmp_path):
    kept = tmp_path / "results" / "runs" / "name" / "record.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    for damaged, words in ((b"{}\n", "line 1, has no epoch"), (b"", "is missing or empty")):
        copy.history_file.write_bytes(damaged)
        with pytest.raises(UserError, match=words):
            keep(tmp_path / "results", SimpleNamespace(name="name"), copy, "hash", None)
        assert kept.read_text() == "{}"


def test_every_reader_leaves_out_the_same_cut_line(copy):
    reason = "needs the server's packages: pip install qknorm[serve]"
    served = pytest.importorskip("qknorm.serving.served", reason=reason, exc_type=ModuleNotFoundError)
    copy.history_file.write_bytes(copy.history_file.read_bytes()[:-20])
    (row,) = copy.history()
    assert row["best"] and served.load_served([copy.path], "cpu")[0].about.dev_bleu == row["dev_bleu"]
