"""The closed form of FLICS' allocation against hand-made cases, bisection and the KKT conditions."""

import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies.numerics.budget_allocation import round_to_total, water_fill


def numbers(low, high, *special):
    return st.one_of(
        st.floats(low, high), st.integers(int(low), int(high)), st.sampled_from([low, high, *special])
    )


@st.composite
def states(draw):
    """Cases of a run: ties, zero targets, nobody available, no budget, groups far ahead of the others."""
    g = draw(st.integers(1, 12))
    targets = draw(
        arrays(np.float64, g, elements=numbers(0, 1, 1e-6, 0.25, 0.25).filter(lambda x: x == 0 or x > 1e-9))
    )
    counts = draw(arrays(np.float64, g, elements=numbers(0, 10**6, 3, 3)))
    upper = draw(arrays(np.float64, g, elements=numbers(0, 1000, 1, 1)))
    lower = draw(arrays(np.float64, g, elements=st.sampled_from([0, 0, 0.25, 1]))) * upper
    budget = lower.sum() + draw(numbers(0, 3000, 1))
    return targets, counts, float(budget), upper, lower


def by_bisection(targets, counts, budget, upper, lower):
    """Solve sum_j clip(μ p_j - n_j, lower_j, upper_j) = budget for μ."""
    low, high = 0.0, 1e18
    for _ in range(160):
        middle = (low + high) / 2
        filled = np.clip(middle * targets - counts, lower, upper).sum()
        low, high = (middle, high) if filled <= budget else (low, middle)
    return np.where(targets > 0, np.clip(low * targets - counts, lower, upper), lower)


@settings(max_examples=60, deadline=None)
@given(states())
def test_agrees_with_bisection(state):
    expected = by_bisection(*state)
    np.testing.assert_allclose(water_fill(*state), expected, rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(states())
def test_meets_the_kkt_conditions(state):
    targets, counts, budget, upper, lower = state
    rates = water_fill(*state)
    assert (rates >= lower).all()
    assert (rates <= upper).all()
    wanted = targets > 0
    most = min(budget, upper[wanted].sum() + lower[~wanted].sum())
    assert abs(rates.sum() - most) <= 4e-12 * (1 + counts.max() + most)
    # A group above its lower bound is at most at the common level; a group below its upper bound at least.
    levels = (counts + rates)[wanted] / targets[wanted]
    raised, rising = (rates > lower)[wanted], (rates < upper)[wanted]
    if raised.any() and rising.any():
        assert levels[raised].max() <= levels[rising].min() * (1 + 4e-12)


@pytest.mark.parametrize(
    ("counts", "upper", "lower", "expected"),
    [
        ([0, 0, 0], [10, 10, 10], None, [5, 3, 2]),  # as the targets
        ([0, 0, 0], [2, 10, 10], None, [2, 4.8, 3.2]),  # group 0 has two, the others share 8 as 3 : 2
        ([0, 6, 0], [10, 10, 10], None, [50 / 7, 0, 20 / 7]),  # group 1 is ahead: 10 shared as 5 : 2
        ([0, 6, 0], [10, 10, 10], [0, 1, 0], [45 / 7, 1, 18 / 7]),
        ([10, 6, 4], [10, 10, 10], None, [5, 3, 2]),  # level already
        ([0, 0, 0], [1, 0, 3], None, [1, 0, 3]),  # all that there is
    ],
)
def test_by_hand(counts, upper, lower, expected):
    """Targets .5, .3, .2 and a budget of 10."""
    rates = water_fill([0.5, 0.3, 0.2], counts, 10, upper, lower)
    np.testing.assert_allclose(rates, expected, rtol=1e-14)
    np.testing.assert_allclose(water_fill([500, 300, 200], counts, 10, upper, lower), expected, rtol=1e-14)


def test_a_group_without_a_target_gets_its_lower_bound():
    np.testing.assert_allclose(water_fill([0, 1, 1], [0, 0, 0], 5, [9, 9, 9], [1, 0, 0]), [1, 2, 2])
    np.testing.assert_array_equal(water_fill([0, 0], [0, 0], 5, [9, 9]), [0, 0])
    np.testing.assert_array_equal(water_fill([0, 1], [0, 0], 50, [9, 9]), [0, 9])


def test_targets_that_differ_by_300_orders_of_magnitude():
    np.testing.assert_allclose(water_fill([1e-300, 1.0], [5, 5], 3, [9, 9]), [0, 3])
    np.testing.assert_allclose(water_fill([1e-320, 1.0], [0, 0], 12, [9, 9]), [3, 9])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([1], [0, 0], 1, [1]), r"counts has shape (2,): must be (G,), as targets has (1,)"),
        (([[1]], [0], 1, [1]), "targets has shape (1, 1)"),
        (([-1], [0], 1, [1]), "targets = [-1.]: must be finite"),
        (([1], [np.nan], 1, [1]), "counts = [nan]"),
        (([1], [0], 1, [np.inf]), "upper = [inf]"),
        (([1], [0], 1, [1], [2]), "upper = [1.]: must be finite and >= [2.]"),
        (([1], [0], 0.5, [1], [1]), "budget = 0.5: must be finite and at least 1.0"),
        (([1], [0], np.nan, [1]), "budget = nan"),
        (([1], [0], np.inf, [1]), "budget = inf"),
    ],
)
def test_bad_arguments_are_named(arguments, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        water_fill(*arguments)


def test_a_hundred_thousand_groups_take_50_ms():
    rng = np.random.default_rng(0)
    g = 100_000
    state = rng.dirichlet(np.ones(g)), rng.poisson(50, g), 20_000, rng.poisson(3, g)
    took = []
    for _ in range(5):
        start = time.process_time()
        rates = water_fill(*state)
        took.append(time.process_time() - start)
    assert abs(rates.sum() - 20_000) < 1e-6
    assert min(took) < 0.05


@settings(deadline=None)
@given(arrays(np.float64, st.integers(1, 20), elements=st.floats(0, 5)), st.integers(0, 2**32 - 1))
def test_rounding_keeps_the_total_and_moves_by_less_than_1(values, seed):
    values[-1] = np.ceil(values.sum()) - values[:-1].sum()
    values = np.maximum(values, 0)
    counts = round_to_total(values, np.random.default_rng(seed))
    assert counts.sum() == round(values.sum())
    assert (np.abs(counts - values) < 1 + 1e-9).all()


def test_rounding_is_right_on_average():
    """Each mean over 4,000 rounds is within 5 standard errors, at most 5 · .5/√4000."""
    values = np.array([0.3, 2.0, 0.0, 1.25, 0.45])
    rng = np.random.default_rng(1)
    counts = np.array([round_to_total(values, rng) for _ in range(4000)])
    assert (np.abs(counts.mean(axis=0) - values) < 5 * 0.5 / np.sqrt(4000)).all()
    assert (counts[:, [1, 2]] == [2, 0]).all()


@pytest.mark.parametrize("values", [[-1.0, 2.0], [0.5, 0.2], [np.nan]])
def test_rounding_refuses_numbers_without_an_integer_total(values):
    with pytest.raises(ValueError, match=r"expected = .*must be >= 0, with an integer as sum|cannot convert"):
        round_to_total(values, np.random.default_rng(0))
