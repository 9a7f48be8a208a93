"""The study in ``results/heads.md`` says what its numbers say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

RESULTS = Path(__file__).parents[2] / "results"
KINDS = ("encoder", "decoder", "cross")


@pytest.fixture(scope="module")
def heads():
    """Measures by run and kind, (layers, heads) each."""
    found = json.loads((RESULTS / "heads" / "heads.json").read_text(encoding="utf-8"))
    return {run["run"]: run["kinds"] for run in found["runs"]}


@pytest.fixture(scope="module")
def page():
    return (RESULTS / "heads.md").read_text(encoding="utf-8")


def of(run, kind, measure):
    return np.array(run[kind]["heads"][measure])


@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_saturated_rows(heads, page, kind):
    shares = [of(heads[run], kind, "saturated").mean() for run in ("qknorm", "baseline")]
    assert f"| saturated rows, {kind} | {shares[0]:.1%} | {shares[1]:.1%} |" in page


def test_counts_of_saturated_heads(heads, page):
    counts = [
        sum(int((of(run, kind, "saturated") > share).sum()) for kind in KINDS)
        for share in (0.5, 0.99)
        for run in (heads["qknorm"], heads["baseline"])
    ]
    total = sum(of(heads["qknorm"], kind, "saturated").size for kind in KINDS)
    half = f"| {counts[0]} of {total} | {counts[1]} of {total} |"
    assert f"| heads with more than half of their rows saturated {half}" in page
    assert f"| the same with more than 99% | {counts[2]} | {counts[3]} |" in page


def test_saturated_heads_look_at_the_end_and_are_not_needed(heads):
    for kind in KINDS:
        lost = of(heads["baseline"], kind, "saturated") > 0.5
        assert (of(heads["baseline"], kind, "ends")[lost] > 0.7).all()
        assert (of(heads["baseline"], kind, "importance")[lost] < 3e-4).all()


def test_no_logit_is_above_g(heads):
    for kind in KINDS:
        share = np.ravel(heads["qknorm"][kind]["max_logit"]) / np.ravel(heads["qknorm"][kind]["g"])
        assert 0.84 < share.min() <= share.max() <= 0.98
