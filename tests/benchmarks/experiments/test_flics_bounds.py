import numpy as np
import pytest

from benchmarks.experiments.flics import bounds, bounds_measured
from benchmarks.experiments.flics.bounds import Constants

OF = Constants(
    smoothness=1.0,
    noise=2.0,
    spread=3.0,
    gradient=4.0,
    local_rate=0.01,
    global_rate=1.0,
    steps=2,
    shares=np.array([0.25, 0.75]),
    gap=5.0,
)


def test_the_constant_by_hand():
    """sum p² = 5/8, G sum p² = 5/4; ε̂ = 1.5, σ_T = (.2 + .4)/2, c = .4."""
    squares, error = 0.625, 1.5
    expected = (
        0.01 * error**2 * 2 * squares / 2
        + 5 * error * 1e-4 * 2 * 1.25 / 2 * (2 + 6 * 2 * 3)
        + 0.01 / (2 * 2) * (2 + 4) * 0.3
    ) / (0.4 * error)
    variances = np.array([0.2, 0.4])
    assert bounds.remainder(OF, error, variances, 0.4) == pytest.approx(expected)
    c = 0.5 - 15 * 0.02**2 * 1.25
    assert OF.margin() == pytest.approx(c)
    assert bounds.bound(OF, 100, error, variances) == pytest.approx(
        5 / (c * 0.01 * 2 * 100) + bounds.remainder(OF, error, variances, c)
    )


@pytest.mark.parametrize("changed", [{"local_rate": 0.1}, {"global_rate": 50.0}])
def test_rates_that_the_proof_excludes_are_refused(changed):
    with pytest.raises(ValueError, match="local_rate = "):
        OF._replace(**changed).margin()


def test_the_error_of_the_participation_by_hand():
    estimates = np.array([[1.0, 4.0], [2.0, 2.5]])
    assert bounds.participation_error(estimates, np.array([2.0, 3.0])) == pytest.approx(1 + 1 / 2)


def test_the_variance_of_independent_coins_is_that_of_eq_7():
    """With n clients that accept with the probability r, Σ_jj = n r (1 - r): sum p²/s (1 - r) for ŝ = s."""
    n, r, p = np.array([4.0, 10.0]), np.array([0.5, 0.2]), np.array([0.3, 0.7])
    s = n * r
    found = bounds.selection_variance(p, np.array([s, 2 * s]), np.diag(n * r * (1 - r)))
    assert found[0] == pytest.approx((p**2 / s * (1 - r)).sum())
    assert found[1] == pytest.approx(found[0] / 4)


def test_eq_7_is_within_its_bounds():
    """The last estimate is s itself: there both bounds are eq. 7's value."""
    rng = np.random.default_rng(3)
    for _ in range(200):
        n = rng.uniform(1, 50, 6)
        estimates = n * rng.uniform(0.01, 1, (20, 6))
        shares = rng.dirichlet(np.ones(6))
        low, middle, high = bounds.around_eq_7(shares, estimates, estimates[-1], n)
        assert (low <= middle * (1 + 1e-12)).all()
        assert (middle <= high * (1 + 1e-12)).all()
        assert low[-1] == pytest.approx(high[-1])
        coins = np.diag(estimates[-1] * (1 - estimates[-1] / n))
        assert middle == pytest.approx(bounds.selection_variance(shares, estimates, coins))


def test_a_round_is_the_local_steps_of_its_clients():
    """Without noise, one client of each group and ŝ = 1: w moves by p_j (1 - (1 - η_L)^T_L) towards θ_j."""
    optima = np.random.default_rng(0).normal(size=(bounds_measured.NUM_GROUPS, 3))
    one = np.ones((1, bounds_measured.NUM_GROUPS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds_measured, "NOISE", 0.0)
        path = bounds_measured.descend(optima, one, one, np.random.default_rng(1))
    local = np.tile(path[0], (len(optima), 1))
    for _ in range(bounds_measured.LOCAL_STEPS):
        local -= bounds_measured.RATES.local * (local - optima)
    assert path[1] == pytest.approx(path[0] + bounds_measured.SHARES @ (local - path[0]))


def test_the_rates_of_the_corollary_by_hand():
    """T = 400, T_L = 5, G = 10, L = 1. The server's rate multiplies the step."""
    assert bounds_measured.corollary(400) == pytest.approx((0.01, 50**0.5))
    optima = np.random.default_rng(0).normal(size=(bounds_measured.NUM_GROUPS, 3))
    one = np.ones((1, bounds_measured.NUM_GROUPS))
    steps = [
        np.diff(
            bounds_measured.descend(
                optima, one, one, np.random.default_rng(1), bounds_measured.Rates(0.01, eta)
            ),
            axis=0,
        )
        for eta in (1.0, 3.0)
    ]
    np.testing.assert_allclose(steps[1], 3 * steps[0])
