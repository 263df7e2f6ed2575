import numpy as np
import pytest

from strategies.numerics.robust import mean_weights


def test_the_weights_of_a_mean_scale_a_huge_update_down_and_leave_out_one_that_is_not_finite():
    # λ = 1/8, 1/8, 3/4 over the finite updates; the median norm is 2, so the longest that counts is 20.
    weights = mean_weights(np.array([1.0, 1.0, 6.0, 9.0]), np.array([1.0, 2.0, 40.0, np.nan]))
    assert weights == pytest.approx([1 / 8, 1 / 8, 3 / 8, 0])
    assert mean_weights(np.ones(2), np.zeros(2)) == pytest.approx([1 / 2, 1 / 2])
    assert mean_weights(np.ones(2), np.full(2, np.inf)) == pytest.approx([0, 0])
