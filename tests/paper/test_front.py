"""The front page of results: what was run at a glance, and what is missing in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qknorm.paper.front import render_front


def rows(summary: dict) -> list[dict]:
    return summary["groups"][0]["rows"]


def undo(row: dict, status: str, *, corpus: bool) -> None:
    row.update(status=status, corpus_here=corpus, runs=[], run_minutes={}, seeds=[])


@pytest.fixture
def table2(finished, tmp_path):
    """A summary of real runs that a test may change, and the page made from it."""
    summary = json.loads((finished / "results" / "table2.json").read_text())

    def page() -> str:
        (tmp_path / "table2.json").write_text(json.dumps(summary))
        return render_front(Path(tmp_path))

    return summary, page


def test_at_a_glance(table2):
    summary, page = table2
    group = summary["groups"][0]
    group.update(holds=["one", "two"], fails=["three"], undecided=[])
    line = next(line for line in page().split("\n") if line.startswith("| [Table 2"))
    assert "](table2.md) |" in line and "| 2 of 10 | 2 | 1 | 0 |" in line and "minutes of cpu" in line
    group.update(holds=[], fails=[], undecided=[])
    assert "| 2 of 10 | – | – | – |" in page()


def test_a_group_without_runs_has_no_line(table2):
    summary, page = table2
    for row in rows(summary):
        undo(row, "not run", corpus=False)
    text = page()
    assert "At a glance" not in text and "None of the 10 rows has been run yet; [table2.md]" in text


def test_rows_not_run_are_named_while_they_are_few(table2):
    summary, page = table2
    first = next(row for row in rows(summary) if row["pair"] == "en-vi")
    undo(first, "not run", corpus=True)
    assert f"en→vi, {first['label']}; for want of the corpus" in page()
    rows(summary).extend(dict(first, label=f"row {i}") for i in range(3))
    assert "en→vi, 4 rows; for want of the corpus" in page()


def test_rows_that_failed_are_always_named(table2):
    summary, page = table2
    first = next(row for row in rows(summary) if row["pair"] == "en-vi")
    undo(first, "failed", corpus=False)  # the text has gone since
    assert f"en→vi, {first['label']} (failed); for want" in page()
    rows(summary).extend(dict(first, label=f"row {i}", status="not run", corpus_here=True) for i in range(4))
    assert f"en→vi, {first['label']} (failed) and 4 more; for want" in page()


def test_nothing_is_missing(table2):
    summary, page = table2
    group = summary["groups"][0]
    group["rows"] = [row for row in group["rows"] if row["status"] == "done"]
    assert "All 2 rows were run." in page() and "Not done" not in page()
