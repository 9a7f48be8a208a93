"""The benchmarks of a GPU, tried on a CPU: figures as they come, and a line for what fails."""

import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
PEER = "torch.nn.Transformer"
WAITING = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
try: time.sleep(600)
except KeyboardInterrupt: pass
"""


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


@pytest.fixture
def small_recipe(monkeypatch, tmp_path):
    """One that is trained in a second, with its text."""
    for name, count in (("train", 60), ("dev", 6), ("test", 5)):
        for side in ("en", "gl"):
            text = "".join(f"{side} {name} {n} says word{n % 7} {side}{n % 5}\n" for n in range(count))
            (tmp_path / f"{name}.{side}").write_text(text)
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(
        f"data: {{source: en, target: gl, folder: {tmp_path}}}\nsubwords: {{kind: words, operations: 20}}\n"
        "model: {d_model: 16, d_ff: 16, heads: 2, encoder_layers: 1, decoder_layers: 1}\n"
        "training: {max_steps: 4, epoch_batches: 2, batch_tokens: 64}\n"
    )
    monkeypatch.setenv("QKNORM_CACHE", str(tmp_path / "cache"))
    return recipe


def test_variants_are_compared_on_dev_text(monkeypatch, tmp_path, capsys, small_recipe):
    """Side by side, without the test text; one that fails says why, and the others are shown."""
    import sweep

    kept = tmp_path / "kept"
    words = [
        "--set",
        "training.seed=7",
        "--variant",
        "as it is",
        "--variant",
        "fast: training.learning_rate=1",
    ]
    words += ["--variant", "not so: model.heads=3", f"--keep={kept}"]
    monkeypatch.setattr(sys, "argv", ["sweep", str(small_recipe), *words])
    sweep.main()
    said = capsys.readouterr().out
    assert "not so failed: error: " in said and "heads" in said
    assert "| as it is |  | 4 | " in said and "| fast | `training.learning_rate=1` | 4 | " in said
    assert "| not so | no epoch was finished |" in said
    assert said.count("| update | 2 | 4 |") == 2
    assert {path.name for path in kept.iterdir()} == {"as-it-is", "fast"}
    histories = [(kept / name / "history.jsonl").read_text() for name in ("as-it-is", "fast")]
    assert histories[0] != histories[1]
    for folder in kept.iterdir():
        assert not (folder / "hypotheses" / "test.txt").exists()
        assert not any(str(tmp_path) in path.read_text() for path in folder.rglob("*.*"))
        assert "seed: 7" in (folder / "recipe.yaml").read_text()
    with pytest.raises(SystemExit) as refused:
        sweep.main()
    assert refused.value.code == 2 and "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--variant", "a", "--variant", "a"], "the same name"),
        (["--variant", "a: heads"], "is not of the form"),
        (["--variant", "!"], "is not of the form"),
        (["--variant", "a: 'b"], "is not of the form"),
        (["--variant", "a", "--set", "data.folder=nowhere"], "nowhere has no train.en"),
    ],
)
def test_variants_that_cannot_be_are_refused(monkeypatch, tmp_path, capsys, small_recipe, words, why):
    import sweep

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sweep", str(small_recipe), *words])
    with pytest.raises(SystemExit) as refused:
        sweep.main()
    assert refused.value.code == 2 and why in capsys.readouterr().err


def test_variants_that_outlast_their_time_are_stopped(tmp_path):
    import sweep

    commands = {name: [sys.executable, "-c", code] for name, code in (("long", WAITING), ("short", "1"))}
    begun = time.monotonic()
    assert sweep.train_all(commands, 4.0, tmp_path) == {"long": None, "short": 0}
    assert 4.0 <= time.monotonic() - begun < 60.0


def test_a_recipe_against_the_clock(monkeypatch, tmp_path, capsys, small_recipe):
    """Timed, shown in tables, and kept without its weights."""
    import speedrun

    kept = tmp_path / "kept"
    monkeypatch.setattr(
        sys, "argv", ["speedrun", str(small_recipe), "--set", "training.seed=7", f"--keep={kept}"]
    )
    speedrun.main()
    said = capsys.readouterr().out
    scores = json.loads((kept / "hypotheses" / "scores.json").read_text())
    row = next(line for line in said.splitlines() if line.startswith("| `qknorm train"))
    assert "--set training.seed=7` | 7 | 4 | " in row and "everything included" in row
    assert row.endswith(f"| **{scores['test']['bleu_tokenized']:.2f}** |")
    assert "| update | 2 | 4 |" in said and " of updates, " in said and " for each further one, " in said
    with pytest.raises(SystemExit) as refused:
        speedrun.main()
    assert refused.value.code == 2 and "is there already" in capsys.readouterr().err
    assert {path.name for path in kept.iterdir()} == {
        *("recipe.yaml", "history.jsonl", "manifest.json", "hypotheses")
    }


def test_a_run_that_outlasts_its_time_is_stopped():
    import speedrun

    seconds, whole = speedrun.timed([sys.executable, "-c", WAITING], 2.0)
    assert 2.0 <= seconds < 60 and not whole
    row = {"step": 5, "seconds": 1.0, "elapsed": 2.0, "dev_bleu": None, "dev_perplexity": 3.0}
    history = [row | {"train_perplexity": 4.0}]
    run = SimpleNamespace(recipe=lambda: SimpleNamespace(training=SimpleNamespace(seed=1)))
    shown = speedrun.row_of(["a.yaml"], run, [history], seconds, whole)
    assert shown.endswith(f"| 1 | 5 | 200.00 | {seconds / 60:.1f}, cut off | – | not scored |")
    said = speedrun.parts_of([history], 5.0)
    assert said == "5 seconds: 1 of updates, 1 for the start and the first validation, 3 at the end."


def test_a_run_of_several_models_is_told_as_one(small_recipe, tmp_path, monkeypatch, capsys):
    import speedrun

    kept = tmp_path / "kept"
    words = [str(small_recipe), "--set", "training.members=2", f"--keep={kept}"]
    monkeypatch.setattr(sys, "argv", ["speedrun", *words])
    speedrun.main()
    said = capsys.readouterr().out
    scores = json.loads((kept / "hypotheses" / "scores.json").read_text())
    row = next(line for line in said.splitlines() if line.startswith("| `qknorm train"))
    assert "--set training.members=2` | 1, 2 | 4 + 4 | " in row
    assert f"| {scores['dev']['bleu_tokenized']:.2f} together; " in row
    assert said.count("| update | 2 | 4 |") == 2 and re.search(r"of updates, \d+ and \d+ for the start", said)
    assert (kept / "members" / "2" / "history.jsonl").is_file()
    assert "members/2/history.jsonl" in json.loads((kept / "manifest.json").read_text())["files"]


def test_rare_words_and_copies_are_counted(tmp_path, capsys):
    import gzip

    import rare_words

    texts = {"train.x": ["a b Ann"] * 20, "train.y": ["c d"] * 20}
    texts |= {"dev.x": ["Ann Bob a", "b"], "dev.y": ["c Ann Bob", "d"]}
    for name, lines in texts.items():
        with gzip.open(tmp_path / f"{name}.gz", "wt") as file:
            file.write("".join(line + "\n" for line in lines))
    for run, lines in (("good", "c Ann Bob\nd\n"), ("bad", "c Anne\nc\n")):
        (tmp_path / run / "hypotheses").mkdir(parents=True)
        (tmp_path / run / "hypotheses" / "dev.txt").write_text(lines)
    rare_words.main([str(tmp_path), "x", "y", str(tmp_path / "good"), str(tmp_path / "bad")])
    head, _, good, bad = (line.split(" | ") for line in capsys.readouterr().out.splitlines())
    assert head[1:] == ["0 (2)", "10–99 (2)", "rare and copied (2) |"]
    assert good[1:] == ["1.000", "1.000", "2 |"] and bad[1:] == ["0.000", "0.500", "0 |"]
