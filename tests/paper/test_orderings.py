"""What of the paper holds: sentences from figures that are given here by hand."""

from __future__ import annotations

import pytest

from qknorm.paper.experiments import TABLE2, TABLE4
from qknorm.paper.orderings import noise, orderings


def row(label, system, paper, *values, pair="en-vi"):
    found = {"label": label, "pair": pair, "system": system, "paper": paper}
    if not values:
        return found | {"status": "not run"}
    return found | {"status": "done", "ours": sum(values) / len(values), "seeds": list(range(len(values)))}


def both(baseline, system):
    return [row("baseline", "baseline", 32.79, *baseline), row("QKNorm", "qknorm", 33.24, *system)]


def test_what_holds_and_what_does_not():
    found = orderings(TABLE2, both([31.0], [32.0]), {})
    assert found["holds"] == [
        "en→vi: QKNorm above baseline (paper +0.45, here +1.00; noise between seeds not known)"
    ]
    assert (found["fails"], found["orderings"], found["orderings_right"]) == ([], 1, 1)
    found = orderings(TABLE2, both([32.0], [31.0]), {"en-vi": 0.1})
    assert found["fails"] == ["en→vi: QKNorm above baseline (paper +0.45, here -1.00)"]
    assert (found["holds"], found["orderings_right"]) == ([], 0)


@pytest.mark.parametrize(("seeds", "inside"), [(1, True), (3, False)])
def test_more_seeds_make_a_difference_certain(seeds, inside):
    """Two standard errors of a difference of 0.5 with a deviation of 0.2: 0.57 of one seed, 0.33 of three."""
    found = orderings(TABLE2, both([32.0] * seeds, [32.5] * seeds), {"en-vi": 0.2})
    said = ["en→vi: QKNorm above baseline (paper +0.45, here +0.50)"]
    assert (found["holds"], found["undecided"]) == (([], said) if inside else (said, []))


def test_rows_not_run_are_left_out():
    found = orderings(TABLE2, both([], [33.0]), {})
    assert found == {"holds": [], "fails": [], "undecided": [], "orderings": 0, "orderings_right": 0}


def test_pairs_are_not_mixed():
    rows = [*both([31.0], [32.0]), row("QKNorm", "qknorm", 24.21, 40.0, pair="gl-en")]
    assert orderings(TABLE2, rows, {})["orderings"] == 1


def test_the_highest_and_the_lowest_of_a_table():
    rows = [
        row("2", "heads-2", 32.40, 30.0),
        row("8", "qknorm", 33.24, 32.0),
        row("32", "heads-32", 32.30, 31.0),
    ]
    found = orderings(TABLE4, rows, {})
    assert "en→vi: 8 is the highest of the 3 rows run" in found["holds"]
    assert "en→vi: 32 is the lowest of the 3 rows run; here it is 2" in found["fails"]
    assert (found["orderings"], found["orderings_right"]) == (3, 2)


def test_noise_is_pooled_over_systems_with_several_seeds():
    scores = {("en-vi", "a"): [1.0, 2.0, 3.0], ("en-vi", "b"): [10.0, 14.0], ("en-vi", "c"): [99.0]}
    assert noise(scores) == {"en-vi": pytest.approx(((2 * 1.0 + 1 * 8.0) / 3) ** 0.5)}
    assert noise({("en-vi", "a"): [1.0], ("en-vi", "b"): [2.0], ("gl-en", "a"): [5.0]}) == {}
