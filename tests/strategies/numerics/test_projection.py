"""The projection agrees with bisection on everything it may meet."""

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


@given(LOG_WEIGHTS, ALPHAS)
def test_agrees_with_bisection(log_weights, alpha):
    floor = alpha / log_weights.size
    p = project_floored_simplex(log_weights, floor)
    np.testing.assert_allclose(p, by_bisection(log_weights, floor), rtol=0, atol=1e-12)
    assert abs(p.sum() - 1) < 1e-12
    assert (p >= floor).all()


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


def test_huge_exponents_end_at_the_floor():
    np.testing.assert_allclose(project_floored_simplex([0.0, 5e4, -5e4, -np.inf], 0.1), [0.1, 0.7, 0.1, 0.1])
