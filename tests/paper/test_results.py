"""What lies in ``results/``: every page is its JSON, and every figure comes out of the translations again."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
from pathlib import Path

import pytest

from qknorm.data import lines
from qknorm.paper.experiments import PAIRS, TARGETS
from qknorm.paper.front import render_front
from qknorm.paper.page import render_page
from qknorm.paper.records import Record, all_records
from qknorm.paper.summary import read_summary
from qknorm.run import Run
from qknorm.scoring import compare, score

RESULTS = Path(__file__).parents[2] / "results"
ABSOLUTE = re.compile(rb"[\"'` :=](/[A-Za-z][\w.-]*){2,}")
"""A path from the root, as JSON, YAML or Markdown would quote it."""


def summaries(results: Path) -> list[dict]:
    found = (read_summary(results / f"{name}.json") for name in TARGETS)
    return [summary for summary in found if summary is not None]


def done_rows(results: Path) -> list[dict]:
    groups = (group for summary in summaries(results) for group in summary["groups"])
    return [row for group in groups for row in group["rows"] if row["status"] == "done"]


def check_pages(results: Path) -> None:
    """Pages are made from the JSON as it is now."""
    for summary in summaries(results):
        page = (results / f"{summary['target']}.md").read_text(encoding="utf-8")
        assert page == render_page(summary), f"{summary['target']}.md is not what its JSON says"
    assert (results / "README.md").read_text(encoding="utf-8") == render_front(results)


def check_figures(results: Path) -> None:
    """Means, spreads and differences come from the scores of the runs named."""
    for row in done_rows(results):
        runs = [Record(results / "runs" / name) for name in row["runs"]]
        assert row["values"] == [run.figure(row["figure"]) for run in runs]
        assert row["ours"] == pytest.approx(statistics.fmean(row["values"]))
        assert (row["spread"] is None) == (len(runs) == 1)
        if row["difference"] is not None:
            assert row["difference"] == pytest.approx(row["ours"] - row["paper"])
        assert row["seeds"] == [run.recipe.training.seed for run in runs]
        assert row["experiments"] == [run.about["experiment"] for run in runs]


def check_records(results: Path) -> None:
    """What is kept is whole, holds no weights and no path of the machine it was made on."""
    for record in all_records(results):
        assert len(Run.open(record.folder).history()) >= 1 and record.recipe.name == record.name
        for file in record.folder.rglob("*"):
            if file.is_file() and file.suffix != ".txt":
                assert file.suffix in (".json", ".jsonl", ".yaml")
                assert not ABSOLUTE.search(file.read_bytes()), f"{file} has an absolute path"


def check_scores(results: Path, data: Path) -> list[str]:
    """Every BLEU again from the translations; the names of runs whose references are not in ``data``."""
    absent = []
    for record in all_records(results):
        pair = PAIRS[record.about["pair"]]
        *_, target = pair.name.split("-")
        for split in record.scores:
            files = [data / pair.corpus / f"{split}.{target}{ending}" for ending in ("", ".gz")]
            references = next((file for file in files if file.is_file()), None)
            if references is None:
                absent.append(record.name)
                continue
            found = score(record.hypotheses(split), references, record.about["kind"], ter=False)
            for name, value in found.figures.items():
                assert record.scores[split][name] == pytest.approx(value, abs=1e-9), (
                    record.name,
                    split,
                    name,
                )
    return absent


def check_tests(results: Path, data: Path) -> None:
    """p-values again from the translations of both systems."""
    seen = set()
    for row in done_rows(results):
        *_, target = row["pair"].split("-")
        files = [data / PAIRS[row["pair"]].corpus / f"test.{target}{ending}" for ending in ("", ".gz")]
        references = next((file for file in files if file.is_file()), None)
        for test in row["tests"]:
            if references is None or test["key"] in seen:
                continue
            seen.add(test["key"])
            baseline, system = (Record(results / "runs" / name) for name in test["runs"])
            found = compare(baseline.hypotheses(), system.hypotheses(), references, system.about["kind"])
            assert (test["delta"], test["p_value"]) == (pytest.approx(found.delta), found.p_value)


def test_the_pages_are_what_the_json_says():
    assert summaries(RESULTS), "results/ has no JSON of qknorm reproduce"
    check_pages(RESULTS)


def test_the_figures_are_those_of_the_runs():
    check_figures(RESULTS)
    check_records(RESULTS)


@pytest.mark.data
def test_every_score_comes_out_again():
    folder = os.environ.get("QKNORM_DATA")
    if not folder:
        pytest.skip("needs real corpora: set QKNORM_DATA to a folder that has them")
    if not all_records(RESULTS):
        pytest.skip("no run has been recorded yet")
    absent = check_scores(RESULTS, Path(folder))
    check_tests(RESULTS, Path(folder))
    if absent:
        pytest.skip(f"QKNORM_DATA lacks the references of {', '.join(sorted(set(absent)))}")


def test_sound_results_pass(finished):
    results, data = finished / "results", finished / "data"
    check_pages(results)
    check_figures(results)
    check_records(results)
    assert check_scores(results, data) == []
    check_tests(results, data)
    assert len(set(check_scores(results, finished / "elsewhere"))) == 4


def altered(finished: Path, to: Path, file: str, old: str, new: str) -> Path:
    results = shutil.copytree(finished / "results", to / "results")
    (path,) = results.glob(file)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return results


def test_an_altered_page_is_noticed(finished, tmp_path):
    results = altered(finished, tmp_path, "table2.md", "33.24", "33.25")
    with pytest.raises(AssertionError, match=r"table2.md is not what its JSON says"):
        check_pages(results)


def test_an_altered_figure_is_noticed(finished, tmp_path):
    row = done_rows(finished / "results")[0]
    written = json.dumps(row["values"][0])
    results = altered(
        finished, tmp_path, "table2.json", f'"values": [\n      {written}', '"values": [\n      99.0'
    )
    with pytest.raises(AssertionError):
        check_figures(results)


def test_an_altered_translation_is_noticed(finished, tmp_path):
    name = done_rows(finished / "results")[0]["runs"][0]
    file = f"runs/{name}/hypotheses/test.txt"
    first = next(lines(finished / "results" / file))
    results = altered(finished, tmp_path, file, first, "year year house tooth")
    with pytest.raises(AssertionError):
        check_scores(results, finished / "data")


def test_an_absolute_path_is_noticed(finished, tmp_path):
    name = done_rows(finished / "results")[0]["runs"][0]
    results = altered(
        finished, tmp_path, f"runs/{name}/record.json", '"device": "cpu"', '"device": "/srv/gpu/0"'
    )
    with pytest.raises(AssertionError, match="absolute path"):
        check_records(results)
