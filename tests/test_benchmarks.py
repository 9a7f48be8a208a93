"""The benchmarks of a GPU, tried on a CPU: figures as they come, and a line for what fails."""

import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
PEER = "torch.nn.Transformer"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Run a benchmark at its tiny size; the figures it wrote."""

    def run(module, *arguments: str) -> dict:
        file = tmp_path / "figures.json"
        words = [module.__name__, "--device=cpu", "--size=tiny", f"--json={file}", *arguments]
        monkeypatch.setattr(sys, "argv", words)
        module.main()
        assert [each.name for each in tmp_path.iterdir()] == [file.name]
        return json.loads(file.read_text())

    return run


@pytest.fixture
def training(monkeypatch):
    """``train_gpu`` without new processes, each of which would import everything again."""
    import train_entries
    import train_gpu

    monkeypatch.setattr(train_entries, "first_start", lambda name, bench, tokens: 1.5)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # the benchmark sets them
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    return train_gpu


def failing(*arguments: object) -> None:
    raise RuntimeError("no | memory\nat all")


def test_training_is_compared_and_a_peer_that_fails_has_a_line(training, measured, monkeypatch, capfd):
    monkeypatch.setitem(training.EAGER, PEER, failing)
    names = ["--candidates", "qknorm", "qknorm, eager", PEER]
    found = measured(training, *names, "--growth", "--profile", "--peak=1", "--steps=1", "--rounds=1")
    works = found["compared"]
    assert list(works) == ["4x32", "128 tokens, real lengths"], "the full batch comes first"
    for ours, eager, peer in works.values():
        assert ours["ms"] > 0 and ours["share_of_peak"] > 0 and ours["first_start_s"] == 1.5
        assert ours["target_tokens_per_s"] > 0 and eager["ms"] > 0 and eager["loss"] > 1
        assert peer == {"candidate": PEER, "failure": "RuntimeError: no / memory"}
    assert [row["layers"] for row in found["growth"]["layers"]] == [1, 2]
    assert [row["tokens"] for row in found["growth"]["tokens"]] == [64, 128]
    assert found["growth"]["tokens"][1]["ms"] == works["128 tokens, real lengths"][0]["ms"], "measured once"
    assert all(row["ms"] > 0 for rows in found["growth"].values() for row in rows)
    assert found["kernels"]
    said = capfd.readouterr()
    assert f"| {PEER} | RuntimeError: no / memory |" in said.out and "qknorm: ready after" in said.err


def test_training_that_is_cut_off_leaves_what_was_measured(training, measured, monkeypatch):
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(training.EAGER, PEER, interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured(training, "--candidates", "qknorm, eager", PEER, "--steps=1")
    file = Path(sys.argv[3].removeprefix("--json="))
    works = json.loads(file.read_text())["compared"]
    assert [row["candidate"] for row in works["4x32"]] == ["qknorm, eager"] and works["4x32"][0]["ms"] > 0


def test_training_starts_nothing_when_time_is_up(training, measured):
    found = measured(training, "--candidates", "qknorm, eager", "--seconds=0", "--growth")
    rows = [*found["compared"]["4x32"], *found["growth"]["layers"], *found["growth"]["tokens"]]
    assert len(rows) == 5 and all(row["failure"] == "not run, --seconds are over" for row in rows)


def test_decoding_is_compared_and_what_fails_has_a_line(measured, monkeypatch, capfd):
    import decode_gpu

    monkeypatch.setattr(decode_gpu.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(decode_gpu, "marian", failing)
    found = measured(decode_gpu, "--sentences=6", "--rounds=1")
    assert found["identical"]["translations"] == found["identical"]["of"] == 6
    *rows, peer = found["rows"].items()
    assert rows[0][0] == "free, captured, float32" and len(rows) == 4
    assert all(len(row["rounds_s"]) == 1 for _, row in rows)
    assert peer == ("forced, HF MarianMT float32", {"failure": "RuntimeError: no | memory"})
    assert "6 of 6 translations identical" in capfd.readouterr().out


def test_decoding_starts_nothing_when_time_is_up(measured, monkeypatch):
    import decode_gpu

    monkeypatch.setattr(decode_gpu, "calibrate", lambda model, bench: 14.0)
    found = measured(decode_gpu, "--sentences=6", "--seconds=0", "--no-plain")
    assert {row["failure"] for row in found["rows"].values()} == {"not run, --seconds are over"}


def test_trainings_at_a_time_are_counted(measured, capfd):
    import jobs

    rows = measured(jobs, "--jobs", "1", "2", "--tokens=64", "--seconds=0.05")
    assert [(row["way"], row["tokens"], row["jobs"]) for row in rows] == [("in turns", 64, n) for n in (1, 2)]
    assert rows[0]["against_one"] == 1.0 and all(row["ms"] > 0 for row in rows)
    assert all(abs(row["ms"] * row["updates_per_s"] - 1000 * row["jobs"]) < 1e-6 for row in rows)
    assert "| in turns | 64 | 2 |" in capfd.readouterr().out
