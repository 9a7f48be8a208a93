"""Rows are trained once and reused, stopped and gone on with; the pages say what was found."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

import qknorm.paper.runner as runner
from qknorm.config import load_recipe
from qknorm.data import lines
from qknorm.data.registry import find_corpus
from qknorm.data.text import sha256_file
from qknorm.errors import UserError
from qknorm.paper import TARGETS, reproduce
from qknorm.paper.experiments import FIGURE1, TABLE2, System
from qknorm.paper.plan import experiment
from qknorm.paper.records import Record, find_record
from qknorm.paper.summary import Summary, read_summary
from qknorm.progress import Progress
from qknorm.run import Run, signed
from qknorm.scoring import compare, score
from qknorm.training.trainer import Trainer
from support.paper import TINY, rows_of, wish, write_paper_corpus


@pytest.fixture
def trained(monkeypatch):
    """Names of the runs that were trained."""
    names = []

    def train(recipe, *arguments, **options):
        names.append(recipe.name)
        return real(recipe, *arguments, **options)

    real = runner.train
    monkeypatch.setattr(runner, "train", train)
    return names


def fail_baseline(monkeypatch, error):
    """The baseline's training ends with what ``error`` makes of its folder."""
    real = runner.train

    def failing(recipe, folder, **options):
        if "baseline" in recipe.name:
            raise error(folder)
        return real(recipe, folder, **options)

    monkeypatch.setattr(runner, "train", failing)


def test_a_row_says_what_was_measured(finished):
    baseline, system = rows_of(finished, "table2")
    references = list(lines(finished / "data" / "iwslt15-en-vi" / "test.vi"))
    for row in (baseline, system):
        assert row["seeds"] == [1, 2] and row["status"] == "done"
        for name, value in zip(row["runs"], row["values"], strict=True):
            hypotheses = finished / "results" / "runs" / name / "hypotheses" / "test.txt"
            assert value == score(list(lines(hypotheses)), references, ter=False)["bleu_tokenized"]
        assert row["ours"] == pytest.approx(sum(row["values"]) / 2)
        assert row["spread"] == pytest.approx(abs(row["values"][0] - row["values"][1]) / 2**0.5)
        assert row["difference"] == pytest.approx(row["ours"] - row["paper"])
        assert row["command"].startswith(
            "qknorm reproduce table2 --pairs en-vi --recipe fast --seeds 1,2 --set"
        )
        assert "tok:none" in row["signature"] and all(len(each) == 64 for each in row["experiments"])
    assert baseline["gain"] is None and system["gain"] == pytest.approx(system["ours"] - baseline["ours"])
    assert baseline["tests"] == [] and [test["seed"] for test in system["tests"]] == [1, 2]
    files = [
        finished / "results" / "runs" / row["runs"][1] / "hypotheses" / "test.txt"
        for row in (baseline, system)
    ]
    expected = compare(*files, references)
    assert system["tests"][1]["p_value"] == expected.p_value
    assert system["tests"][1]["delta"] == pytest.approx(expected.delta)


def test_what_is_kept_is_a_run_folder_without_weights_and_paths(finished):
    for folder in (finished / "results" / "runs").iterdir():
        assert {path.name for path in folder.iterdir()} == {
            "recipe.yaml",
            "manifest.json",
            "history.jsonl",
            "hypotheses",
            "record.json",
        }
        assert {path.name for path in (folder / "hypotheses").iterdir()} == {
            "dev.txt",
            "test.txt",
            "scores.json",
        }
        run = Run.open(folder)
        assert run.recipe().data.folder == finished / "data" / "iwslt15-en-vi"  # seen from the record
        assert run.recipe().model.length == run.manifest()["facts"]["L"]
        assert len(run.history()) == 2
    for file in (finished / "results").rglob("*"):
        assert not file.is_file() or str(finished).encode() not in file.read_bytes(), file


def test_a_kept_recipe_trains_the_same_experiment(finished):
    record = Record(next((finished / "results" / "runs").iterdir()))
    again = load_recipe(record.folder / "recipe.yaml")
    assert again == record.recipe
    assert again.data.paths().train[0].is_file()


def test_the_page_has_paper_and_ours(finished):
    page = (finished / "results" / "table2.md").read_text()
    baseline, system = rows_of(finished, "table2")
    line = next(line for line in page.split("\n") if line.startswith("| en→vi | QKNorm + LayerNorm"))
    p_values = ", ".join(f"{test['p_value']:.3f}" for test in system["tests"])
    for part in (
        "33.24",
        f"{system['ours']:.2f}",
        f"{system['spread']:.2f}",
        f"{system['difference']:+.2f}",
        p_values,
    ):
        assert f"| {part} |" in line
    assert "The fast recipe, with model.d_model=32" in page
    assert "QKNorm + LayerNorm above Nguyen and Salazar (2019) (paper +0.45, here" in page
    assert "32.79 is what Nguyen and Salazar report" in page
    assert f"- test.bleu_tokenized: `{baseline['signature']}`" in page
    assert f"- p: `{system['tests'][0]['signature']}`" in page and "several at a time" not in page
    assert "The standard deviation between seeds on en→vi" in page


def test_rows_without_text_are_listed_with_how_to_get_it(finished):
    page = (finished / "results" / "table2.md").read_text()
    get = "the corpus is not at hand; get it with `qknorm data get ted-sk-en --to data/ted-sk-en`"
    assert f"sk→en, Nguyen and Salazar (2019), QKNorm + LayerNorm: {get}" in page
    assert {row["status"] for row in rows_of(finished, "table2", "sk-en")} == {"not run"}
    front = (finished / "results" / "README.md").read_text()
    assert "2 of 10 rows were run. Not done: for want of the corpus, ar→en, en→he, gl→en, sk→en;" in front
    minutes = sum(took for row in rows_of(finished, "table2") for took in row["run_minutes"].values())
    assert f"Runs recorded: 4, which took {minutes:.1f} minutes of cpu." in front


def test_trained_once_and_reused(home, trained):
    before = {path: path.read_bytes() for path in (home / "results").rglob("*") if path.is_file()}
    reproduce(wish(home, "table2", ["en-vi"], seeds=[1, 2]))
    assert trained == []
    assert {path: path.read_bytes() for path in (home / "results").rglob("*") if path.is_file()} == before
    shutil.rmtree(home / "runs")  # what is kept is enough
    reproduce(wish(home, "table3", ["en-vi"], seeds=[1, 2]))
    assert trained == []
    assert [row["status"] for row in rows_of(home, "table3")] == ["done", "done"]
    assert rows_of(home, "table3")[0]["figure"] == "test.sacrebleu_detok"


def test_a_lost_record_is_made_again_from_the_run(home, trained):
    kept = sorted((home / "results" / "runs").iterdir())[0]
    before = (kept / "record.json").read_bytes()
    shutil.rmtree(kept)
    reproduce(wish(home, "table2", ["en-vi"], seeds=[1, 2]))
    assert trained == [] and (kept / "record.json").read_bytes() == before


@pytest.mark.parametrize("file", ["history.jsonl", "hypotheses/dev.txt", "hypotheses/scores.json"])
@pytest.mark.parametrize("lost", [True, False])
def test_a_damaged_record_is_named_before_anything_is_trained(home, trained, file, lost):
    kept = sorted((home / "results" / "runs").iterdir())[0]
    if lost:
        (kept / file).unlink()
    else:
        (kept / file).write_bytes((kept / file).read_bytes().replace(b"e", b"a", 1))
    with pytest.raises(UserError, match=rf"{kept.name}/{file} is (missing or|damaged or)"):
        reproduce(wish(home, "table2", ["en-vi"], seeds=[1, 2, 3]))
    assert trained == []


def test_results_of_two_machines_are_one(home, trained):
    """Runs kept elsewhere are put beside those kept here: they count, without text or weights."""
    elsewhere = home / "elsewhere"
    asked = replace(wish(home, "table2", ["en-vi"], seeds=[3]), results=elsewhere, runs=home / "other")
    reproduce(asked)
    for folder in ("runs", "other"):
        shutil.rmtree(home / folder)
    shutil.copytree(elsewhere / "runs", home / "results" / "runs", dirs_exist_ok=True)
    reproduce(wish(home, "table2", ["en-vi"], seeds=[1, 2, 3], trains=False))
    together = (home / "results" / "table2.md").read_bytes()
    assert [row["seeds"] for row in rows_of(home, "table2")] == [[1, 2, 3]] * 2
    assert [len(row["tests"]) for row in rows_of(home, "table2")] == [0, 3]
    shutil.rmtree(home / "data")
    ended = reproduce(wish(home, "table2", ["en-vi"], seeds=[1, 2, 3]))
    assert {task.state for task in ended.tasks} == {"recorded"} and len(trained) == 2
    assert (home / "results" / "table2.md").read_bytes() == together


def asked_for(home, target):
    """What a page would say of the settings that the runs here have, asked for by name."""
    asked = wish(home, target)
    return Summary(asked.results, asked.data).build(TARGETS[target], [asked.group])


def test_writing_pages_asks_for_no_other_recipe(home):
    """Table 2 has runs of the fast recipe, with settings of the user's; the default is the paper's."""
    reproduce(wish(home, "all", trains=False, kind="paper", overrides=()))
    summaries = [read_summary(home / "results" / f"{name}.json") for name in ("table2", "table1")]
    assert [[group["recipe"] for group in summary["groups"]] for summary in summaries] == [["fast"], ["fast"]]


def test_a_page_leaves_out_settings_it_has_nothing_to_compare_with(home):
    """Of table 4 only the row of 8 heads was run with these settings; asked for by name, it is shown."""
    reproduce(wish(home, "all", trains=False, kind="paper", overrides=()))
    shown = read_summary(home / "results" / "table4.json")["groups"]
    assert [group["overrides"] for group in shown] == [[]]
    shown = asked_for(home, "table4")["groups"]
    done = [row["label"] for row in shown[-1]["rows"] if row["status"] == "done"]
    assert done == ["2 heads", "8 heads"]  # with the tests' settings both are the same model of 2


def test_every_systems_seeds_tell_of_the_noise(home):
    """Of table 4's rows only that of 8 heads has been run; the baseline of table 2 has two seeds too."""
    both = asked_for(home, "table4")["groups"][-1]
    values = [row["values"] for row in rows_of(home, "table2")]
    pooled = sum((one - other) ** 2 / 2 for one, other in values) / 2
    assert both["noise"]["en-vi"] == pytest.approx(pooled**0.5)


def test_tables_share_runs(home, trained):
    """Table 1's row of en-vi and Table 4's with 8 heads are Table 2's QKNorm model."""
    reproduce(wish(home, "table1", ["en-vi"]))
    assert trained == []
    (row,) = rows_of(home, "table1")
    manifest = Run.open(home / "results" / "runs" / row["runs"][0]).manifest()
    assert row["facts"]["examples"] == 60 and row["facts"]["L"] == manifest["facts"]["L"]
    page = (home / "results" / "table1.md").read_text()
    assert "| en→vi | paper | 133,000 | 5,990,000 | 48,431,538 | 19 | 28.77 | 72 | T4 |" in page
    assert f"| 60 | {row['facts']['tokens']:,} | {row['facts']['parameters']:,} |" in page


def test_other_settings_or_text_are_trained_anew(home, trained, monkeypatch):
    asked = wish(home, "table2", ["en-vi"])
    row = asked.targets[0].rows[1]
    kept = find_record(asked.results, experiment(row, "fast", 1, TINY))
    system = replace(row.system, changes=("model.dropout=0.05",))  # the row means something else now
    changed = replace(asked.targets[0], rows=(asked.targets[0].rows[0], replace(row, system=system)))
    monkeypatch.setitem(TARGETS, "table2", changed)
    asked = replace(asked, targets=[changed])
    reproduce(replace(asked, trains=False))
    (_, stale) = rows_of(home, "table2")
    assert stale["status"] == "not run" and "trained with another model.dropout" in stale["stale"][0]
    progress = Progress()
    progress.console = Console(file=io.StringIO(), width=400)
    before = (kept.folder / "record.json").read_bytes()
    reproduce(replace(asked, progress=progress))
    assert trained == [kept.name]
    assert find_record(asked.results, experiment(row, "fast", 1, TINY)).recipe.model.dropout == 0.05
    said = progress.console.file.getvalue()
    assert f"{kept.name}: to train (what is kept of it does not count: it was trained with another" in said
    (aside,) = (asked.results / "superseded").iterdir()
    assert f"recorded (what was kept before is now in {aside})" in said
    assert aside.name.startswith(kept.name) and (aside / "record.json").read_bytes() == before
    Record(aside).check()
    write_paper_corpus(home / "other", "iwslt15-en-vi", seed=5)
    reproduce(replace(asked, data=home / "other", trains=False))
    assert all("other text" in row["stale"][0] for row in rows_of(home, "table2"))


def test_stopped_it_goes_on(home, trained, monkeypatch):
    """Asked to stop in the middle of a row, everything is saved, and the same wish goes on with that row."""
    asked = wish(home, "table2", ["en-vi"], seeds=[3])
    update = Trainer._update

    def interrupted(trainer, batches):
        if trainer.state.step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        update(trainer, batches)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", interrupted)
        ended = reproduce(asked)
    assert ended.interrupted and len(trained) == 1
    assert [task.state for task in ended.tasks] == ["training", "to train"]
    ended = reproduce(asked)
    assert not ended.interrupted and len(trained) == 3 and trained[0] == trained[1]
    assert rows_of(home, "table2")[0]["seeds"] == [1, 2, 3]
    assert Record(home / "results" / "runs" / trained[0]).about["updates"] == 36


def test_stopped_in_the_last_validation_no_other_row_is_begun(home, trained, monkeypatch):
    """That row is over and kept; `timeout` asks once, and the next row would not be asked again."""
    asked = wish(home, "table2", ["en-vi"], seeds=[3])
    validate = Trainer._validate

    def interrupted(trainer):
        if trainer.state.step == 36:
            os.kill(os.getpid(), signal.SIGINT)
        return validate(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_validate", interrupted)
        ended = reproduce(asked)
    assert ended.interrupted and [task.state for task in ended.tasks] == ["recorded", "to train"]
    assert len(trained) == 1 and rows_of(home, "table2")[0]["seeds"] == [1, 2, 3]
    assert not reproduce(asked).interrupted and len(trained) == 2


def test_packed_text_is_the_same_text(home, trained):
    """Rows trained on plain files are those of the same files packed, and not of others."""
    shutil.rmtree(home / "runs")
    folder = home / "data" / "iwslt15-en-vi"
    for file in folder.iterdir():
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    reproduce(wish(home, "table2", ["en-vi"], seeds=[1, 2]))
    assert trained == [] and [row["seeds"] for row in rows_of(home, "table2")] == [[1, 2], [1, 2]]
    (folder / "dev.en.gz").write_bytes(gzip.compress(b"ano\n" * 8))
    reproduce(wish(home, "table2", ["en-vi"], trains=False))
    assert all("other text" in row["stale"][0] for row in rows_of(home, "table2"))


def test_rows_without_any_figure_are_listed_and_not_tabled(home, monkeypatch):
    asked = wish(home, "table2", ["en-vi"], trains=False)
    rows = asked.targets[0].rows
    new = replace(rows[1], label="ours alone", paper=None, system=System("new", ("model.qk_scale_per=head",)))
    changed = replace(asked.targets[0], rows=(*rows, new))
    monkeypatch.setitem(TARGETS, "table2", changed)
    reproduce(replace(asked, targets=[changed]))
    tabled, listed = (home / "results" / "table2.md").read_text().split("Not run, and what to do for it:")
    assert "| ours alone |" not in tabled and "en→vi, ours alone: `qknorm reproduce table2" in listed
    assert "| sk→en | QKNorm + LayerNorm | 33.23 | not run |" in tabled  # the paper has a figure of it


def test_one_training_under_two_names_is_trained_once(home, trained, monkeypatch):
    """As the paper's own recipe has no BPE-dropout to leave out."""
    asked = wish(home, "table2", ["en-vi"], seeds=[3])
    _, row = asked.targets[0].rows[:2]
    again = replace(row, label="again", system=replace(row.system, name="again"))
    changed = replace(asked.targets[0], rows=(row, again), against="qknorm")
    monkeypatch.setitem(TARGETS, "table2", changed)
    ended = reproduce(replace(asked, targets=[changed]))
    assert len(trained) == 1 and [task.state for task in ended.tasks] == ["recorded", "recorded"]
    assert [find_record(asked.results, task.experiment) is None for task in ended.tasks] == [False, True]
    shutil.rmtree(home / "runs")
    later = reproduce(replace(asked, targets=[changed], systems=["again"]))
    assert len(trained) == 1 and [task.state for task in later.tasks] == ["recorded"]
    first, second = rows_of(home, "table2")
    assert second["runs"] == first["runs"] and second["values"] == first["values"]
    assert second["tests"] == [] and second["gain"] == 0.0  # it is not compared with itself
    noise = [group["noise"] for group in read_summary(home / "results" / "table2.json")["groups"]]
    monkeypatch.setitem(TARGETS, "table2", asked.targets[0])
    reproduce(replace(asked, trains=False))
    assert [group["noise"] for group in read_summary(home / "results" / "table2.json")["groups"]] == noise


def test_a_failure_leaves_what_was_kept(home, monkeypatch):
    """A recorded row that is trained again, here because its text has changed, and fails."""
    asked = wish(home, "table2", ["en-vi"], seeds=[1])
    kept = find_record(asked.results, experiment(asked.targets[0].rows[1], "fast", 1, TINY))
    before = (kept.folder / "record.json").read_bytes()
    dev = home / "data" / "iwslt15-en-vi" / "dev.en"
    text = dev.read_text()
    dev.write_text("ano\n" * 8)

    def failing(*_, **__):
        raise UserError("It diverged.")

    monkeypatch.setattr(runner, "train", failing)
    ended = reproduce(asked)
    assert {task.state for task in ended.tasks} == {"failed"}
    assert (kept.folder / "record.json").read_bytes() == before
    (_, row) = rows_of(home, "table2")
    assert row["status"] == "failed" and "other text" in row["stale"][0]
    page = (home / "results" / "table2.md").read_text()
    assert "QKNorm + LayerNorm, seed 1: failed. It diverged." in page
    assert "Nguyen and Salazar (2019), QKNorm + LayerNorm: `qknorm reproduce table2 --pairs en-vi" in page
    dev.write_text(text)
    reproduce(asked)
    (_, row) = rows_of(home, "table2")
    assert (row["status"], row["failures"], row["stale"]) == ("done", [], [])


def test_a_run_that_no_longer_counts_is_told_beside_one_that_does(home):
    record = home / "results" / "runs" / experiment(TABLE2.rows[1], "fast", 2, TINY).name
    recipe = (record / "recipe.yaml").read_text()
    (record / "recipe.yaml").write_text(recipe.replace("dropout: 0.1", "dropout: 0.2", 1))
    manifest = json.loads((record / "manifest.json").read_text())
    manifest["files"]["recipe.yaml"] = sha256_file(record / "recipe.yaml")
    manifest.pop("sha256")
    (record / "manifest.json").write_text(json.dumps(signed(manifest)))
    reproduce(wish(home, "table2", ["en-vi"], trains=False))
    (_, row) = rows_of(home, "table2")
    assert row["seeds"] == [1] and row["stale"]
    page = (home / "results" / "table2.md").read_text()
    assert f"{record.name} is kept, but it was trained with another" in page


def test_a_row_that_fails_is_told_and_the_others_go_on(home, trained, monkeypatch):
    said = "10 updates in a row were not finite; {} is intact."
    fail_baseline(monkeypatch, lambda folder: UserError(said.format(folder)))
    ended = reproduce(wish(home, "table2", ["en-vi"], seeds=[4]))
    assert [task.state for task in ended.tasks] == ["failed", "recorded"]
    baseline, system = rows_of(home, "table2")
    assert system["seeds"] == [1, 2, 4] and baseline["seeds"] == [1, 2]
    assert baseline["failures"][0]["seed"] == 4
    page = (home / "results" / "table2.md").read_text()
    assert "en→vi, Nguyen and Salazar (2019), seed 4: failed. 10 updates in a row were not finite" in page
    assert str(home) not in page


def test_not_even_a_fault_of_the_program_keeps_the_others_from_being_trained(home, monkeypatch, capsys):
    fail_baseline(monkeypatch, lambda folder: RuntimeError(f"no kernel for {folder}"))
    ended = reproduce(wish(home, "table2", ["en-vi"], seeds=[4]))
    assert [task.state for task in ended.tasks] == ["failed", "recorded"]
    assert "RuntimeError: no kernel for" in capsys.readouterr().err
    page = (home / "results" / "table2.md").read_text()
    assert "seed 4: failed. It ended with RuntimeError" in page and str(home) not in page


def test_text_of_another_edition_is_marked_as_not_comparable(home, monkeypatch):
    """As that of Galician at hand, here in the place of the text the rows were trained on."""
    galician = find_corpus("ted-gl-en")
    (caveat,) = galician.caveats.values()
    assert "not comparable with published ones" in caveat and "train.gl.gz" in galician.gz_hashes
    hashes = Record(next((home / "results" / "runs").iterdir())).manifest["corpus"]
    here = replace(galician, source="en", gz_hashes={"train.en.gz": hashes["train.source"]})
    monkeypatch.setattr("qknorm.paper.records.find_corpus", lambda name: here)
    reproduce(wish(home, "table2", ["en-vi"], trains=False))
    assert all(row["difference"] is None for row in rows_of(home, "table2"))
    for page in ("table2.md", "README.md"):
        text = (home / "results" / page).read_text()
        assert "| en→vi† | QKNorm + LayerNorm | 33.24 |" in text and caveat in text


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    home = tmp_path_factory.mktemp("plain")
    write_paper_corpus(home / "data", "multi30k-de-en")
    done = reproduce(wish(home, "figure1", systems=["plain-qknorm"]))
    assert [task.experiment.system.name for task in done.tasks] == ["plain-qknorm"]
    assert not (home / "results" / "figure1.png").exists(), "one model does not make the picture"
    reproduce(wish(home, "figure1"))
    return home


def test_the_figure_shows_both_models(plain):
    image = read_summary(plain / "results" / "figure1.json")["image"]
    assert (plain / "results" / "figure1.png").read_bytes().startswith(b"\x89PNG")
    assert (plain / "results" / "figure1.pdf").read_bytes().startswith(b"%PDF")
    assert image["heads"] == [1, 2] and list(image["entropy"]) == ["scaled dot product", "QKNorm"]
    assert all(0 < value < image["uniform"] for values in image["entropy"].values() for value in values)
    page = (plain / "results" / "figure1.md").read_text()
    assert "![Figures 1 and 2" in page and image["sentence"] in page
    plain_heads, normalised = (values[-1] for values in image["entropy"].values())
    more = "QKNorm" if normalised > plain_heads else "scaled dot product"
    assert f"those under {more} are: mean entropy {normalised:.2f}" in page


def test_the_figure_is_drawn_once_and_needs_weights_to_be_drawn_again(plain, trained, tmp_path, monkeypatch):
    home = shutil.copytree(plain, tmp_path / "home")
    picture = home / "results" / "figure1.png"
    before = picture.stat().st_mtime_ns
    reproduce(wish(home, "figure1"))
    assert picture.stat().st_mtime_ns == before and trained == []
    picture.unlink()
    shutil.rmtree(home / "runs")
    monkeypatch.setattr(
        runner,
        "train",
        lambda recipe, *_, **__: trained.append(recipe.name) or SimpleNamespace(interrupted=True),
    )
    reproduce(wish(home, "figure1"))
    assert trained == [experiment(FIGURE1.rows[0], "fast", 1, TINY).name]


def test_two_models_that_are_one_training_make_no_figure(tmp_path, trained, capsys):
    write_paper_corpus(tmp_path / "data", "multi30k-de-en")
    same = (*TINY, "model.qk_norm=null")
    done = reproduce(wish(tmp_path, "figure1", overrides=same, progress=Progress()))
    assert [task.state for task in done.tasks] == ["recorded", "recorded"] and len(trained) == 1
    assert "its two models are one training" in capsys.readouterr().err
    assert not (tmp_path / "results" / "figure1.png").exists()


def test_the_plain_pair_says_what_stands_in(plain):
    reproduce(wish(plain, "annotated"))
    page = (plain / "results" / "annotated.md").read_text()
    assert "Multi30k de→en stands in for it here" in page and "24.33" in page
    assert all(row["difference"] is None for row in rows_of(plain, "annotated", "de-en"))
    assert "no difference from its figures is given" in page
