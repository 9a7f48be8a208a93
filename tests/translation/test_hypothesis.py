"""When a search is over, by hand-worked numbers."""

import math

from qknorm.translation import SearchSettings
from qknorm.translation.hypothesis import Finished


def finished(*log_probs, limit=20, **settings):
    """Finished hypotheses of one subword and EOS (length factor 7/6 for α = 1)."""
    pool = Finished(SearchSettings(length_penalty=1.0, **settings), limit)
    for i, log_prob in enumerate(log_probs):
        pool.add([4 + i], log_prob)
    return pool


def test_a_live_hypothesis_that_may_yet_win_goes_on():
    pool = finished(-2.0)  # scores -2 / (7/6) = -1.714; at 20 subwords the factor is 25/6
    assert not pool.settled(-7.1, 2)  # may reach -7.1 / (25/6) = -1.704
    assert pool.settled(-7.2, 2)  # at best -1.728


def test_a_negative_penalty_favours_the_next_step():
    pool = Finished(SearchSettings(length_penalty=-1.0), limit=20)
    pool.add([4], -2.0)  # scores -2 · 7/6 = -2.33; the next, at 3 subwords, has 8/6
    assert not pool.settled(-1.74, 2)
    assert pool.settled(-1.76, 2)


def test_a_full_beam_is_judged_at_the_present_length():
    pool = finished(-2.0, -3.0, beam=2)
    assert not pool.settled(-2.9, 2)
    assert pool.settled(-3.0, 2)
    assert not finished(-2.0, -3.0, beam=3, nbest=1).settled(-3.0, 2)


def test_all_of_nbest_must_be_beyond_reach():
    assert not finished(-2.0, nbest=2).settled(-100.0, 2)
    assert finished(-2.0, -3.0, nbest=2).settled(-100.0, 2)
    assert not finished(-2.0, -3.0, nbest=2).settled(-8.0, 2)


def test_the_limit_and_the_end_of_all_live_ones():
    assert finished(limit=5).settled(-0.1, 5)
    assert not finished(limit=5).settled(-0.1, 4)
    assert finished().settled(-math.inf, 2)


def test_the_worst_gives_way_and_of_equals_the_first_stays():
    pool = finished(-2.0, -3.0, -1.0, -2.0, beam=3)
    assert [h.ids for h in pool.best] == [[6], [4], [7]]
    assert [h.score for h in pool.best] == [-1.0 / (7 / 6), -2.0 / (7 / 6), -2.0 / (7 / 6)]
