"""The offline optimum of FLICS' Theorem 2, by hand and against cvxpy."""

import numpy as np
import pytest

from benchmarks.experiments.flics.variance_above_optimum import offline_participation


def solved(targets, available, budgets):
    """Return the minimum of sum_j p_j²/s_j over 0 <= r(t) <= a(t) and sum_j r_j(t) <= k(t), by cvxpy."""
    cp = pytest.importorskip("cvxpy")
    most = np.minimum(available, budgets[:, None])
    served = (targets > 0) & most.any(axis=0)
    if not served.any():
        return 0.0
    p, a = targets[served], most[:, served]
    unit = p * np.minimum(budgets, a.sum(axis=1)).mean() / p.sum()
    r = cp.Variable(a.shape, nonneg=True)
    x = cp.multiply(cp.sum(r, axis=0) / len(a), 1 / unit)  # near 1
    problem = cp.Problem(cp.Minimize((p / p.sum()) @ cp.inv_pos(x)), [r <= a, cp.sum(r, axis=1) <= budgets])
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return float((p**2 / unit) @ cp.inv_pos(x).value)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")  # the solver stops short of 1e-10
def test_the_offline_optimum_of_few_groups_is_exact():
    """The value is cvxpy's within 1e-8, and it is possible: no set of groups gets more than is available."""
    pytest.importorskip("cvxpy")
    for seed in range(10):
        rng = np.random.default_rng(seed)
        g, horizon = int(rng.integers(2, 8)), int(rng.integers(1, 40))
        targets = rng.dirichlet(np.full(g, 3.0)) * (rng.random(g) < 0.9)
        available = rng.poisson(np.geomspace(0.05, 20, g), (horizon, g)) * (rng.random((horizon, 1)) < 0.8)
        budgets = rng.integers(0, 15, horizon).astype(float)
        found = offline_participation(targets, available, budgets)
        best = solved(targets, available, budgets)
        served = (targets > 0) & np.minimum(available, budgets[:, None]).any(axis=0)
        assert (found[~served] == 0).all()
        assert (targets[served] ** 2 / found[served]).sum() == pytest.approx(best, rel=1e-8)
        for number in range(2**g):
            chosen = (number >> np.arange(g)) & 1 == 1
            there = np.minimum(budgets, available[:, chosen].sum(axis=1)).mean()
            assert found[chosen].sum() <= there + 1e-12


def test_the_offline_optimum_of_few_groups_by_hand():
    found = offline_participation([0.5, 0.5], [[10, 0], [10, 10]], [10, 10])
    np.testing.assert_allclose(found, [5, 5])
    # Group 1 has 1 in two rounds; the others share what is left, 3 : 1.
    found = offline_participation([0.3, 0.6, 0.1, 0], [[9, 1, 9, 9], [9, 0, 9, 9]], [4, 5])
    np.testing.assert_allclose(found, [3, 0.5, 1, 0])
    with pytest.raises(ValueError, match="17 groups with p > 0: must be at most 16"):
        offline_participation(np.ones(17), np.ones((2, 17)), [1, 1])
