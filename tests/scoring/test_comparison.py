"""Paired tests: sacrebleu's p-values, our interval of the difference, and the cases where there is none."""

import json
import os
import random

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from qknorm.errors import UserError
from qknorm.scoring import bleu, compare, score


def sentences(count: int, seed: int) -> list[list[str]]:
    draw = random.Random(seed)
    return [draw.choices("abcdefgh", k=draw.randint(3, 15)) for _ in range(count)]


def worse(lines: list[list[str]], share: float, seed: int) -> list[str]:
    """A system that gets `share` of the words wrong."""
    draw = random.Random(seed)
    return [" ".join("x" if draw.random() < share else word for word in line) for line in lines]


RIGHT = sentences(80, seed=1)
REFERENCES = [" ".join(line) for line in RIGHT]
BASELINE = worse(RIGHT, 0.3, seed=2)
SYSTEM = worse(RIGHT, 0.24, seed=3)


@pytest.fixture(scope="module", autouse=True)
def few_trials():
    """A tenth of the usual shufflings: enough to tell right from wrong, in a tenth of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qknorm.scoring.comparison.TRIALS", 1000)
        yield


@pytest.fixture(scope="module")
def comparison(few_trials):
    return compare(BASELINE, SYSTEM, REFERENCES, samples=300, seed=7)


def paired_test(test: str, samples: int, monkeypatch, **settings) -> list:
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    systems = [("baseline", BASELINE), ("system", SYSTEM)]
    _, results = PairedTest(systems, {"BLEU": BLEU(force=True, **settings)}, [REFERENCES], test, samples)()
    return results["BLEU"]


def test_figures_are_sacrebleus(comparison, monkeypatch):
    settings = {"tokenize": "none", "smooth_method": "none"}
    baseline, system = paired_test("bs", 300, monkeypatch, **settings)
    assert comparison.baseline.main == pytest.approx(baseline.score)
    assert comparison.system.main == pytest.approx(system.score)
    assert comparison.delta == pytest.approx(system.score - baseline.score)
    assert comparison.p_value == system.p_value
    assert 0.01 < system.p_value < 1, "the p-values must not agree only because both are the least possible"
    randomised = paired_test("ar", 1000, monkeypatch, **settings)[1]
    assert comparison.bleu.p_value_randomization == randomised.p_value
    assert "bs:300|seed:7|" in comparison.bleu.signature
    assert "ar:1000|seed:7|" in comparison.bleu.signature_randomization
    assert "tok:none|smooth:none" in comparison.bleu.signature


def test_interval_comes_from_bleu_of_the_resampled_sentences(comparison):
    draws = np.random.default_rng(7).choice(len(RIGHT), size=(300, len(RIGHT)), replace=True)

    def resampled(lines: list[str]) -> np.ndarray:
        return np.array([bleu([lines[i] for i in draw], [REFERENCES[i] for i in draw]) for draw in draws])

    low, high = np.quantile(resampled(SYSTEM) - resampled(BASELINE), [0.025, 0.975])
    assert (comparison.ci_low, comparison.ci_high) == pytest.approx((low, high), abs=1e-6)
    assert comparison.ci_low < comparison.delta < comparison.ci_high


def test_interval_agrees_with_sacrebleus_bootstrap_statistic():
    """The same draws, through the interval and through sacrebleu's p-value formula, tell the same story."""
    clear = compare(worse(RIGHT, 0.6, seed=4), SYSTEM, REFERENCES, samples=300)
    assert clear.ci_low > 0 and clear.p_value < 0.01 and clear.bleu.p_value_randomization < 0.01
    twin = compare(worse(RIGHT, 0.24, seed=5), SYSTEM, REFERENCES, samples=300)
    assert twin.ci_low < 0 < twin.ci_high and twin.p_value > 0.05
    assert clear.chrf.delta > 0 and clear.chrf.ci_low > 0 and clear.chrf.p_value < 0.01


def test_swapping_the_systems_turns_the_signs(comparison):
    swapped = compare(SYSTEM, BASELINE, REFERENCES, samples=300, seed=7)
    assert swapped.delta == pytest.approx(-comparison.delta)
    assert (swapped.ci_low, swapped.ci_high) == pytest.approx((-comparison.ci_high, -comparison.ci_low))
    assert swapped.p_value == comparison.p_value
    assert [change.line for change in swapped.improved] == [change.line for change in comparison.worsened]


def test_same_seed_same_figures_whatever_the_global_state(comparison, monkeypatch):
    np.random.seed(99)
    state = np.random.get_state()[1].copy()
    monkeypatch.setenv("SACREBLEU_SEED", "none")
    assert compare(BASELINE, SYSTEM, REFERENCES, samples=300, seed=7) == comparison
    assert os.environ["SACREBLEU_SEED"] == "none"
    assert (np.random.get_state()[1] == state).all()
    assert compare(BASELINE, SYSTEM, REFERENCES, samples=300, seed=8) != comparison
    monkeypatch.delenv("SACREBLEU_SEED")
    compare(BASELINE, SYSTEM, REFERENCES, samples=10)
    assert "SACREBLEU_SEED" not in os.environ


@pytest.mark.parametrize("kind", ["words", "raw"])
def test_identical_systems(kind):
    same = compare(SYSTEM, list(SYSTEM), REFERENCES, kind=kind, samples=50)
    for difference in (same.bleu, same.chrf):
        assert (difference.delta, difference.ci_low, difference.ci_high) == (0, 0, 0)
        assert (difference.p_value, difference.p_value_randomization) == (1, 1)
    assert same.improved == same.worsened == []


def test_different_words_with_equal_counts_are_no_difference():
    other = [line.replace("x", "y") for line in BASELINE]
    assert other != BASELINE
    equal = compare(BASELINE, other, REFERENCES, samples=50)
    assert (equal.delta, equal.p_value, equal.bleu.p_value_randomization) == (0, 1, 1)


@pytest.mark.parametrize(("differing", "least"), [(1, 1.0), (2, 0.5), (4, 0.125)])
def test_few_differing_sentences_are_not_significant(differing, least):
    better = REFERENCES[:differing] + BASELINE[differing:]
    assert all(old != new for old, new in zip(BASELINE[:differing], better[:differing], strict=True))
    few = compare(BASELINE, better, REFERENCES, samples=50)
    assert few.delta > 0
    assert few.bleu.p_value_randomization >= least


def test_sentences_that_changed_most():
    references = [f"this is sentence number {i} of the text" for i in range(40)]
    old, new = list(references), list(references)
    old[4] = "nothing of it"
    old[30] = references[30].replace("number", "no")
    new[16] = "quite another thing"
    few = compare(old, new, references, samples=10)
    assert [(change.line, change.change > 0) for change in few.improved] == [(5, True), (31, True)]
    assert [change.line for change in few.worsened] == [17]
    top = few.improved[0]
    assert (top.reference, top.baseline, top.system) == (references[4], old[4], new[4])
    assert few.worsened[0].change == pytest.approx(
        BLEU(tokenize="none", effective_order=True).sentence_score(new[16], [references[16]]).score - 100
    )


def test_at_most_ten_each_way_in_order_of_change(comparison):
    up = [change.change for change in comparison.improved]
    down = [change.change for change in comparison.worsened]
    assert len(up) == len(down) == 10
    assert up == sorted(up, reverse=True) and up[-1] > 0
    assert down == sorted(down) and down[-1] < 0


def test_json(comparison):
    data = json.loads(json.dumps(comparison.to_json()))
    assert data["delta"] == comparison.delta
    assert data["baseline"] == score(BASELINE, REFERENCES, ter=False).to_json()
    tests = {"p_value", "ci_low", "ci_high", "p_value_randomization", "delta", "signature"}
    assert tests | {"baseline", "system", "samples", "seed", "trials", "improved", "worsened"} <= set(data)
    assert tests <= set(data["chrf"])
    assert (data["samples"], data["seed"]) == (300, 7)
    assert set(data["improved"][0]) == {"line", "reference", "baseline", "system", "change"}


def test_raw_text_is_compared_on_sacrebleu(monkeypatch):
    raw = compare(BASELINE, SYSTEM, REFERENCES, kind="raw", samples=100, seed=7)
    baseline, system = paired_test("bs", 100, monkeypatch)
    assert raw.delta == pytest.approx(system.score - baseline.score)
    assert raw.p_value == system.p_value
    assert "tok:13a|smooth:exp" in raw.bleu.signature


def test_settings_that_make_no_sense():
    with pytest.raises(UserError, match="at least 1, not 0; 1000"):
        compare(BASELINE, SYSTEM, REFERENCES, samples=0)
    with pytest.raises(UserError, match="seed must be at least 1, not 0"):
        compare(BASELINE, SYSTEM, REFERENCES, seed=0)
    with pytest.raises(UserError, match="at least two"):
        compare(["a"], ["b"], ["a"])
    with pytest.raises(UserError, match="not a kind"):
        compare(BASELINE, SYSTEM, REFERENCES, kind="tokens")
