"""What durations say: idle time, missing replies, and the variances between and within clients."""

import numpy as np
import pytest

from strategies.advice import waiting

NAN, INF = float("nan"), float("inf")


def rounds(*seconds):
    return [(np.arange(len(each)), np.array(each, dtype=float)) for each in seconds]


def test_idle_time_and_missing_replies_by_hand():
    found = waiting(rounds([1, 1, 4], [2, NAN, 2], [NAN, NAN, NAN]))
    assert found.replies == 5
    assert found.idle == pytest.approx((1 - 2 / 4 + 0) / 2)
    assert found.missing == pytest.approx(4 / 9)


def test_variances_are_those_of_the_durations():
    rng = np.random.default_rng(1)
    typical = np.exp(0.8 * rng.standard_normal(300))
    each = [typical * np.exp(0.3 * rng.standard_normal(300)) for _ in range(10)]
    found = waiting(rounds(*each))
    assert found.between == pytest.approx(np.log(typical).std(), rel=0.05)
    assert found.within == pytest.approx(0.3, rel=0.05)


def test_equal_durations_have_no_variance():
    found = waiting(rounds([5, 5], [5, 5]))
    assert found[1:] == (0, 0, 0, 0)


@pytest.mark.parametrize("odd", [[NAN, NAN], [INF, NAN], [-1, -5]])
def test_durations_that_are_no_durations_are_missing(odd):
    assert waiting(rounds(odd, odd)) is None
    found = waiting(rounds(odd, [1, 1], [1, 1]))
    assert (found.replies, found.idle) == (4, 0)


def test_zeros_and_one_duration_for_each_client():
    assert waiting(rounds([0, 0], [0, 1])).within > 1  # 0 counts as a millisecond
    assert waiting(rounds([1, 2, 3])) is None
    assert waiting([]) is None
    assert waiting(rounds([1], [2])).between == 0
