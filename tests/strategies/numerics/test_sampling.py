"""Draws follow their distribution, and their importance weights are exact."""

from itertools import permutations
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies.numerics.sampling import (
    draw_with_replacement,
    draw_without_replacement,
    first_arrivals,
    first_seen,
)

P = np.array([0.05, 0.5, 0.15, 0.3])
DRAWS = 8_000


def test_with_replacement_counts_are_multinomial_and_importance_is_exact():
    rng = np.random.default_rng(2)
    counts, importance = np.zeros((2, DRAWS, P.size))
    for number in range(DRAWS):
        drawn = draw_with_replacement(P, 3, rng)
        counts[number, drawn.clients] = drawn.counts
        importance[number, drawn.clients] = drawn.importance
    assert (counts.sum(axis=1) == 3).all()
    assert (np.abs(counts.mean(axis=0) - 3 * P) < 5 * np.sqrt(3 * P * (1 - P) / DRAWS)).all()
    np.testing.assert_allclose(counts.var(axis=0), 3 * P * (1 - P), rtol=0.1)
    np.testing.assert_allclose(importance, counts / (3 * P))


def test_without_replacement_is_successive_sampling():
    """The frequency of every ordered triple of 4 clients equals p_a p_b/(1-p_a) p_c/(1-p_a-p_b)."""
    rng = np.random.default_rng(3)
    seen = dict.fromkeys(permutations(range(4), 3), 0)
    for _ in range(DRAWS):
        seen[tuple(draw_without_replacement(P, 3, rng).clients.tolist())] += 1
    for triple, times in seen.items():
        before = [P[list(triple[:j])].sum() for j in range(3)]
        expected = prod(P[m] / (1 - mass) for m, mass in zip(triple, before, strict=True))
        assert abs(times / DRAWS - expected) < 5 * np.sqrt(expected * (1 - expected) / DRAWS)


@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0, 200.0])
@pytest.mark.parametrize("k", [0, 1, 50, 1500, 2000])
def test_the_first_arrivals_are_those_of_a_sort(spread, k):
    """Whether or not all of them come early, as they do not where few clients are heavy."""
    weights = np.exp(spread * np.random.default_rng(7).normal(size=3000).clip(-3, 3))
    weights[2000:] = 0
    found, times = first_arrivals(weights, k, np.random.default_rng(8))
    with np.errstate(divide="ignore"):
        arrival = np.random.default_rng(8).standard_exponential(3000) / weights
    np.testing.assert_array_equal(np.sort(found), np.sort(np.argsort(arrival)[:k]))
    np.testing.assert_array_equal(times, arrival[found])


def test_without_replacement_importance_is_exactly_unbiased_by_enumeration():
    """Algorithm 6's weights, averaged over all ordered pairs with their probabilities."""
    rng = np.random.default_rng(4)
    weights = {}
    while len(weights) < 12:
        drawn = draw_without_replacement(P, 2, rng)
        weights[tuple(drawn.clients.tolist())] = drawn.importance
    mean = np.zeros(4)
    for pair, importance in weights.items():
        mean[list(pair)] += P[pair[0]] * P[pair[1]] / (1 - P[pair[0]]) * importance
    np.testing.assert_allclose(mean, 1, atol=1e-14)


def test_first_seen_keeps_the_order_and_counts():
    clients, counts = first_seen(np.array([7, 2, 7, 7, 0, 2]))
    assert (clients.tolist(), counts.tolist()) == ([7, 2, 0], [3, 2, 1])
    assert clients.dtype == counts.dtype == np.int64
    assert [each.size for each in first_seen(np.empty(0, dtype=np.int64))] == [0, 0]


def test_draws_come_in_draw_order():
    rng = np.random.default_rng(5)
    firsts = [draw_with_replacement([0.5, 0.5], 20, rng).clients[0] for _ in range(50)]
    assert set(firsts) == {0, 1}


@given(
    arrays(np.float64, st.integers(1, 12), elements=st.sampled_from([0.0, 1e-300, 1e-17, 0.1, 1.0])),
    st.integers(0, 2**32 - 1),
)
def test_zeros_are_never_drawn_and_indexes_stay_in_range(p, seed):
    if not p.any():
        return
    rng = np.random.default_rng(seed)
    some = np.flatnonzero(p / p.sum())
    for drawn in (draw_with_replacement(p, 5, rng), draw_without_replacement(p, some.size, rng)):
        assert np.isin(drawn.clients, some).all()
        assert np.unique(drawn.clients).size == drawn.clients.size
        assert (drawn.importance > 0).all()


def test_the_largest_uniform_number_does_not_index_past_the_end():
    class Largest:
        def random(self, k):
            return np.full(k, np.nextafter(1.0, 0.0))

    for p in ([0.1] * 10 + [0.0], [1 / 3, 1 / 3, 1 / 3, 0.0, 0.0], [0.7, 0.1, 0.2, 0.0]):
        drawn = draw_with_replacement(p, 3, Largest())
        assert drawn.clients.tolist() == [int(np.flatnonzero(p)[-1])]


def test_without_replacement_keeps_precision_when_little_mass_is_left():
    # 1 - mass drawn before is 2e-20 for the second draw, which 1 - (1 - 2e-20) would lose.
    p = np.array([1.0, 1e-20, 1e-20])
    drawn = draw_without_replacement(p, 2, np.random.default_rng(6))
    assert drawn.clients[0] == 0
    np.testing.assert_allclose(drawn.importance, [(1 + 1) / 2, (2 + 0) / 2], rtol=1e-12)


def test_nothing_is_drawn_for_k_0():
    for draw in (draw_with_replacement, draw_without_replacement):
        drawn = draw(P, 0, np.random.default_rng())
        assert drawn.clients.size == drawn.counts.size == drawn.importance.size == 0


@pytest.mark.parametrize("draw", [draw_with_replacement, draw_without_replacement])
@pytest.mark.parametrize("p", [[], [0.0, 0.0], [0.5, -0.1, 0.6], [0.5, np.nan], [np.inf, 1.0], [[0.5, 0.5]]])
def test_bad_distributions_are_refused(draw, p):
    with pytest.raises(ValueError, match="p has"):
        draw(p, 1, np.random.default_rng())


@pytest.mark.parametrize(
    ("draw", "k"),
    [(draw_with_replacement, -1), (draw_without_replacement, -1), (draw_without_replacement, 5)],
)
def test_a_bad_k_is_refused(draw, k):
    with pytest.raises(ValueError, match=f"k = {k}"):
        draw(P, k, np.random.default_rng())
