"""Learning rates at the steps that matter."""

import math

import pytest

from qknorm.config import TrainingSettings
from qknorm.training.schedule import decays, peak_rate, rate_at, slow_at


def settings(**options):
    return TrainingSettings(**({"warmup_steps": 10, "min_learning_rate": 1e-5} | options))


def test_the_papers_peak():
    assert peak_rate(TrainingSettings(warmup_steps=8000), 512) == pytest.approx(4.94e-4, rel=1e-3)
    assert peak_rate(TrainingSettings(learning_rate=3e-4), 512) == 3e-4


@pytest.mark.parametrize("schedule", ["plateau", "inverse_sqrt", "cosine", "linear"])
def test_warm_up_is_linear(schedule):
    of = settings(schedule=schedule)
    assert [rate_at(s, of, 1.0, 1.0, 100) for s in (1, 5, 10)] == pytest.approx([0.1, 0.5, 1.0])


def test_after_warm_up():
    assert rate_at(5000, settings(schedule="plateau"), 1.0, 0.8**2, 100) == pytest.approx(0.64)
    assert rate_at(40, settings(schedule="inverse_sqrt"), 1.0, 1.0, 100) == pytest.approx(0.5)
    linear, cosine = settings(schedule="linear"), settings(schedule="cosine")
    assert rate_at(55, linear, 1.0, 1.0, 100) == pytest.approx(0.5, abs=1e-4)
    assert rate_at(55, cosine, 1.0, 1.0, 100) == pytest.approx(0.5, abs=1e-4)
    for of in (linear, cosine):
        assert rate_at(100, of, 1.0, 1.0, 100) == pytest.approx(0.0)
        assert rate_at(10**6, of, 1.0, 1.0, 100) == pytest.approx(0.0)
    quarter = rate_at(32, cosine, 1.0, 1.0, 98)
    assert quarter == pytest.approx((1 + math.cos(math.pi / 4)) / 2, abs=1e-4)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_rate_may_be_held_before_it_falls(schedule):
    of = settings(schedule=schedule, hold_steps=60)
    assert [rate_at(s, of, 1.0, 1.0, 100) for s in (5, 10, 11, 70)] == [0.5, 1.0, 1.0, 1.0]
    assert rate_at(85, of, 1.0, 1.0, 100) == pytest.approx(0.5)
    assert rate_at(71, of, 1.0, 1.0, 100) < 1.0 and rate_at(100, of, 1.0, 1.0, 100) == pytest.approx(0.0)
    assert rate_at(65, settings(schedule=schedule, hold_steps=60), 1.0, 1.0, 50) == 1.0, "held to the end"


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_rate_may_end_above_zero(schedule):
    of = settings(schedule=schedule, final_rate=0.2)
    assert [rate_at(s, of, 1.0, 1.0, 100) for s in (5, 10)] == [0.5, 1.0], "the warm-up is as without"
    assert rate_at(55, of, 1.0, 1.0, 100) == pytest.approx(0.6, abs=1e-4)
    assert rate_at(100, of, 2.0, 1.0, 100) == rate_at(10**6, of, 2.0, 1.0, 100) == pytest.approx(0.4)


def test_without_warm_up():
    assert rate_at(1, settings(warmup_steps=0, learning_rate=3e-4), 3e-4, 1.0, 9) == 3e-4


@pytest.mark.parametrize(
    ("bleus", "expected"),
    [
        ([], False),
        ([5.0], False),
        ([3, 4, 5, 2.9], True),
        ([3, 4, 5, 3.0], False),
        ([9, 3, 4, 5, 3.5], False),
    ],
)
def test_the_papers_decay(bleus, expected):
    assert decays(bleus, 3) is expected


def test_the_slow_mean_counts_more_and_moves_less_on_the_way():
    """As the authors have it: the weight rises linearly, and so does the half-life."""
    of = settings(optimizer="ademamix", max_steps=1000, slow_weight=8.0, slow_beta=0.999, beta1=0.9)
    weights, moves = zip(*(slow_at(step, of) for step in (0, 500, 1000, 5000)), strict=True)
    assert weights == (0.0, 4.0, 8.0, 8.0)
    assert moves == pytest.approx([0.1, moves[1], 0.001, 0.001], rel=1e-9)
    half_lives = [math.log(0.5) / math.log1p(-move) for move in moves]
    assert half_lives[1] == pytest.approx((half_lives[0] + half_lives[2]) / 2)
    assert slow_at(7, settings(beta1=0.0, optimizer="ademamix", max_steps=10))[1] < 1.0
    assert slow_at(500, settings()) == (0.0, 0.0)


def test_the_slow_mean_needs_to_know_how_long_training_is():
    with pytest.raises(ValueError, match="max_steps must be given where optimizer is ademamix"):
        settings(optimizer="ademamix")
