"""Theorem 2 of the FLICS paper in figures."""

import numpy as np

from benchmarks.experiments.flics import variance_above_optimum


def test_flics_comes_near_the_offline_optimum_and_fixed_rules_do_not():
    cells = variance_above_optimum.run_variance(0, horizons=(10, 200)).cells
    for row in {row for row, _ in cells}:
        assert -1e-9 < cells[row, "T = 200"] < 5
        assert cells[row, "uniform, T = 200"] > cells[row, "T = 200"] + 5
    assert cells["Poisson, K = 20", "naive-group, T = 200"] > 5


def test_the_participants_so_far_make_the_terms_of_sigma():
    """Everybody is available and selected: no coin is left to chance. p = 1/10."""
    a, k = np.full((3, 10), 2.0), np.full(3, 20.0)
    took_part, estimates = variance_above_optimum.toss(a, k, np.random.default_rng(0))
    np.testing.assert_array_equal(took_part, a)
    means = [(variance_above_optimum.BETA + 2 * t) / t for t in (1, 2, 3)]
    np.testing.assert_allclose(estimates, np.outer(means, np.ones(10)))


def test_sigma_comes_near_the_offline_optimum_too():
    cells = variance_above_optimum.run_sigma(0, horizons=(20, 400)).cells
    for row in {row for row, _ in cells}:
        assert np.isfinite(cells[row, "T = 20"])
        assert abs(cells[row, "T = 400"]) < 60
    assert abs(cells["Poisson", "T = 400"]) < abs(cells["Poisson", "T = 20"])
