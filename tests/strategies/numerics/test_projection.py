"""The projection agrees with bisection, and with the paper's Algorithm 2, on everything it may meet."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strategies.numerics.projection import project_floored_simplex, scale_rows_above_floor

ALPHAS = st.one_of(st.sampled_from([1e-15, 1e-6, 0.4, 1 - 1e-15, 1.0]), st.floats(1e-15, 1.0))
LOG_WEIGHTS = st.one_of(
    arrays(np.float64, st.integers(1, 30), elements=st.floats(-800, 800)),
    arrays(np.float64, st.integers(1, 30), elements=st.floats(-3, 3)),
    arrays(np.float64, st.integers(1, 30), elements=st.sampled_from([-5.0, 0.0, 0.5, 700.0])),  # ties
)


def by_bisection(log_weights, floor):
    """Solve sum_m max(floor, c w_m) = 1 for c."""
    weights = np.exp(log_weights - log_weights.max())
    low, high = 0.0, 1.0  # the sum is at least c, as max w = 1
    for _ in range(200):
        middle = (low + high) / 2
        if np.maximum(floor, middle * weights).sum() > 1:
            high = middle
        else:
            low = middle
    return np.maximum(floor, low * weights)


def by_algorithm_2(log_weights, alpha):
    """Sort, and take the smallest m with v_m > u_m, as printed."""
    p = np.exp(log_weights - log_weights.max())
    m = p.size
    order = np.argsort(p, kind="stable")
    tails = np.cumsum(p[order][::-1])[::-1]
    v = p[order] * (1 - np.arange(m) / m * alpha)
    first = int(np.argmax(v > alpha / m * tails))
    result = np.full(m, alpha / m)
    result[order[first:]] = (1 - first / m * alpha) * p[order[first:]] / tails[first]
    return result


@given(LOG_WEIGHTS, ALPHAS)
def test_agrees_with_bisection(log_weights, alpha):
    floor = alpha / log_weights.size
    p = project_floored_simplex(log_weights, floor)
    np.testing.assert_allclose(p, by_bisection(log_weights, floor), rtol=0, atol=1e-12)
    assert abs(p.sum() - 1) < 1e-12
    assert (p >= floor).all()


@given(arrays(np.float64, st.integers(1, 30), elements=st.floats(-5, 5)), st.floats(1e-3, 0.9))
def test_agrees_with_the_papers_sort(log_weights, alpha):
    p = project_floored_simplex(log_weights, alpha / log_weights.size)
    np.testing.assert_allclose(p, by_algorithm_2(log_weights, alpha), rtol=0, atol=1e-12)


@given(LOG_WEIGHTS, ALPHAS, st.randoms(use_true_random=False))
def test_relabelling_permutes(log_weights, alpha, random):
    order = list(range(log_weights.size))
    random.shuffle(order)
    floor = alpha / log_weights.size
    expected = project_floored_simplex(log_weights, floor)[order]
    np.testing.assert_allclose(
        project_floored_simplex(log_weights[order], floor), expected, rtol=0, atol=1e-14
    )


@given(LOG_WEIGHTS)
def test_alpha_1_is_uniform(log_weights):
    p = project_floored_simplex(log_weights, 1 / log_weights.size)
    np.testing.assert_allclose(p, 1 / log_weights.size, rtol=0, atol=1e-14)


@given(
    arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 30)), elements=st.floats(-30, 0)),
    st.sampled_from([0.1, 3.0]),
    ALPHAS,
)
def test_rows_are_projected_each_on_its_own(log_weights, spread, alpha):
    """Though some come to rest before others: weights of the last row are far apart, of the first alike."""
    steps = spread * np.arange(len(log_weights))[:, None]
    log_weights = log_weights * steps - (log_weights * steps).max(axis=1, keepdims=True)
    floor = alpha / log_weights.shape[1]
    rows = scale_rows_above_floor(np.exp(log_weights), floor)
    for row, log_row in zip(rows, log_weights, strict=True):
        np.testing.assert_allclose(row, by_bisection(log_row, floor), rtol=0, atol=1e-12)
        assert row.min() >= floor


def test_without_need_of_the_floor_it_normalises():
    np.testing.assert_allclose(
        project_floored_simplex(np.log([2.0, 3.0, 5.0]), 0.1), [0.2, 0.3, 0.5], atol=1e-15
    )


def test_hand_computed():
    # w = (.02, .18, .8), floor .1: the first is floored; the others share .9 as .18 : .8.
    expected = [0.1, 0.9 * 0.18 / 0.98, 0.9 * 0.8 / 0.98]
    np.testing.assert_allclose(project_floored_simplex(np.log([0.02, 0.18, 0.8]), 0.1), expected, atol=1e-15)


def test_the_floor_set_grows_in_steps():
    # floor .3: .25 and .05 are below; flooring them leaves .4 for the one that started at .7.
    np.testing.assert_allclose(
        project_floored_simplex(np.log([0.7, 0.25, 0.05]), 0.3), [0.4, 0.3, 0.3], atol=1e-15
    )
    # floor .2: only the last is below at first; then .21 c = .21 * .8/.99 < .2 is too.
    expected = [0.2, 0.2, 0.6 * 0.38 / 0.78, 0.6 * 0.4 / 0.78]
    got = project_floored_simplex(np.log([0.01, 0.21, 0.38, 0.4]), 0.2)
    np.testing.assert_allclose(got, expected, atol=1e-15)


def test_huge_exponents_end_at_the_floor():
    np.testing.assert_allclose(project_floored_simplex([0.0, 5e4, -5e4, -np.inf], 0.1), [0.1, 0.7, 0.1, 0.1])
