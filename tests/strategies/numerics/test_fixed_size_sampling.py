"""Inclusion probabilities are exact, and systematic sampling has them."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies.numerics.fixed_size_sampling import draw_systematic, inclusion_probabilities, systematic

SCORES = arrays(
    np.float64,
    st.integers(1, 12),
    elements=st.one_of(st.sampled_from([0.0, 1e-300, 1e-17, 1.0, 1e300]), st.floats(1e-12, 100)),
)


def by_bisection(scores, k):
    """The same π from the sum of min(1, c s) as a function of c."""
    low, high = -750.0, 750.0
    for _ in range(200):
        middle = (low + high) / 2
        below = np.minimum(1.0, np.exp(np.log(scores) + middle)).sum() < k
        low, high = (middle, high) if below else (low, middle)
    return np.minimum(1.0, np.exp(np.log(scores) + high))


@pytest.mark.parametrize(
    ("scores", "k", "expected"),
    [
        ([1, 1, 2], 1, [0.25, 0.25, 0.5]),
        ([1, 1, 2], 2, [0.5, 0.5, 1.0]),  # 2 * 2/4 is 1: just not capped
        ([1, 7, 2], 2, [1 / 3, 1.0, 2 / 3]),  # 2 * 7/10 is capped, the others share 1
        ([1, 1, 4, 20], 3, [0.5, 0.5, 1.0, 1.0]),  # once 20 is, 2 * 4/6 is too
        ([3, 0, 5], 2, [1, 0, 1]),
        ([3, 1, 5], 0, [0, 0, 0]),
        ([2, 2, 2, 2], 3, [0.75] * 4),
        ([], 0, []),
    ],
)
def test_inclusion_by_hand(scores, k, expected):
    np.testing.assert_allclose(inclusion_probabilities(scores, k), expected, rtol=1e-15)


@given(SCORES, st.data())
def test_inclusion_is_capped_proportionality(scores, data):
    k = data.draw(st.integers(0, int(np.count_nonzero(scores))))
    pi = inclusion_probabilities(scores, k)
    assert abs(pi.sum() - k) <= 1e-12 * max(1, k)
    assert ((pi >= 0) & (pi <= 1)).all()
    assert (pi[scores == 0] == 0).all()
    free = (pi < 1) & (pi > 1e-290)
    if free.any():  # one c for all that are not capped, and it would put the capped at 1 or more
        ratios = pi[free] / scores[free]
        np.testing.assert_allclose(ratios, ratios[0], rtol=1e-12)
        assert (scores[pi == 1] >= (1 - 1e-12) / ratios[0]).all()


@given(arrays(np.float64, st.integers(1, 30), elements=st.floats(1e-6, 1e6)), st.data())
def test_inclusion_agrees_with_bisection(scores, data):
    k = data.draw(st.integers(1, scores.size))
    np.testing.assert_allclose(inclusion_probabilities(scores, k), by_bisection(scores, k), rtol=1e-11)


def test_a_cascade_of_caps():
    """Each of k - 1 geometric scores is capped only once all larger ones are."""
    scores = np.concatenate([2.0 ** np.arange(40), np.full(30, 2.0**-5)])
    pi = inclusion_probabilities(scores, 41)
    assert (pi[:40] == 1).all()
    np.testing.assert_allclose(pi[40:], 1 / 30, rtol=1e-14)


PI = np.array([0.1, 1.0, 0.55, 0.05, 0.9, 0.4])


def test_systematic_has_these_inclusion_probabilities():
    """Within 5 standard errors over 3,000 draws; every draw has 3 distinct clients, the certain one first."""
    rng, draws = np.random.default_rng(1), 3_000
    drawn = np.zeros((draws, PI.size))
    for row in drawn:
        clients = systematic(PI, rng)
        assert np.unique(clients).size == clients.size == 3
        assert clients[0] == 1
        row[clients] = 1
    error = np.sqrt(PI * (1 - PI) / draws)
    assert (np.abs(drawn.mean(axis=0) - PI) <= 5 * error).all()


def test_systematic_draws_every_pair_in_random_order():
    """Laid out in a fixed order, 4 clients of 1/2 would leave only two pairs of six."""
    rng = np.random.default_rng(2)
    pairs = {tuple(sorted(systematic([0.5] * 4, rng).tolist())) for _ in range(200)}
    assert pairs == set(combinations(range(4), 2))


@given(SCORES, st.integers(0, 2**32 - 1), st.data())
def test_systematic_draws_exactly_k_distinct(scores, seed, data):
    k = data.draw(st.integers(0, int(np.count_nonzero(scores))))
    draw = draw_systematic(scores, k, np.random.default_rng(seed))
    assert np.unique(draw.clients).size == draw.clients.size == k
    assert (scores[draw.clients] > 0).all()
    assert (draw.counts == 1).all()
    np.testing.assert_allclose(draw.importance * draw.probabilities, 1, rtol=1e-14)


def test_a_random_order_in_blocks():
    """Of 1,500 clients, in several blocks: π holds for each, and neighbours are drawn together as any pair.

    1,500 draws; within 5 standard errors. With all π = 1/2 a fixed order would never draw both neighbours.
    """
    rng, draws = np.random.default_rng(5), 1_500
    scores = np.random.default_rng(6).uniform(0.5, 3, 1500)
    scores[::7] = 0
    pi = inclusion_probabilities(scores, 150)
    found = np.zeros(1500)
    for _ in range(draws):
        clients = systematic(pi, rng)
        assert np.unique(clients).size == clients.size == 150
        found[clients] += 1
    assert (np.abs(found / draws - pi) <= 5 * np.sqrt(pi * (1 - pi) / draws)).all()

    together = np.zeros(300)
    for _ in range(300):
        drawn = np.zeros(600, dtype=bool)
        drawn[systematic(np.full(600, 0.5), rng)] = True
        together += drawn[::2] & drawn[1::2]
    expected = 0.5 * 299 / 599
    error = np.sqrt(expected * (1 - expected) / 300)
    assert (np.abs(together / 300 - expected) <= 5 * error).all()
    assert abs(together.mean() / 300 - expected) <= 5 * error / np.sqrt(300)


class Fixed:
    """A generator that keeps the order and always returns the same number."""

    def __init__(self, number):
        self.number = number

    def random(self):
        return self.number

    def permutation(self, clients):
        return clients


def test_systematic_by_hand():
    """Ends at .5, .75, 1.25, 2: the points .6 and 1.6 lie in the second and the last."""
    assert systematic([0.5, 0.25, 0.5, 0.75], Fixed(0.6)).tolist() == [1, 3]
    assert systematic([0.5, 0.25, 0.5, 0.75], Fixed(0.0)).tolist() == [0, 2]
    assert systematic([1.0, 0.0, 1.0], Fixed(0.5)).tolist() == [0, 2]


def test_rounding_neither_draws_twice_nor_past_the_end():
    # The sum is within its tolerance of 2, so the first is a little longer than the points are apart.
    assert systematic([0.9999999, 0.9999995, 0.0000001], Fixed(0.0)).tolist() == [0, 1]
    assert systematic([0.5, 0.25, 0.5, 0.75], Fixed(1.0)).tolist() == [2, 3]  # the last point is the end


def test_importance_has_mean_1():
    rng, draws = np.random.default_rng(3), 3_000
    p = np.array([0.02, 0.6, 0.08, 0.3])
    importance = np.zeros((draws, 4))
    for row in importance:
        draw = draw_systematic(p, 2, rng)
        row[draw.clients] = draw.importance
    error = importance.std(axis=0) / np.sqrt(draws)
    assert (np.abs(importance.mean(axis=0) - 1) <= 5 * error).all()


@pytest.mark.parametrize(
    ("scores", "k", "text"),
    [
        ([[1.0]], 1, r"scores has shape \(1, 1\)"),
        ([1.0, -0.5], 1, r"scores has sum 0\.5"),
        ([1.0, np.nan], 1, "scores has sum nan"),
        ([1.0, np.inf], 1, "scores has sum inf"),
        ([1e308, 1e308], 1, "scores has sum inf"),
        ([1.0, 0.0], 2, "k = 2: must be between 0 and 1"),
        ([1.0, 1.0], -1, "k = -1"),
        ([0.0], 1, "k = 1"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_bad_scores_are_refused(scores, k, text):
    with pytest.raises(ValueError, match=text):
        inclusion_probabilities(scores, k)


@pytest.mark.parametrize(
    ("pi", "text"),
    [
        ([[1.0]], "pi has shape"),
        ([0.5, 1.5], r"pi holds 1\.5"),
        ([-0.5, 1.0], r"pi holds -0\.5"),
        ([np.nan], "pi holds nan"),
        ([0.5, 0.7], r"pi has sum 1\.2: must be an integer"),
    ],
)
def test_bad_inclusion_probabilities_are_refused(pi, text):
    with pytest.raises(ValueError, match=text):
        systematic(pi, np.random.default_rng())
