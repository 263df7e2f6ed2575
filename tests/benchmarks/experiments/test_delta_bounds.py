import numpy as np
import pytest

from benchmarks.experiments.delta import bounds, bounds_measured
from benchmarks.experiments.delta.bounds import Constants
from strategies.selectors.delta.delta import DeltaSettings

OF = Constants(smoothness=2.0, local_rate=0.1, global_rate=3.0, steps=2, selected=4)


def test_the_terms_by_hand():
    """L = 2, η_L = .1, η = 3, K = 2, n = 4, m = 2; client 2 has no diversity, client 1 no variance."""
    p, zeta, sigma = np.array([0.25, 0.75]), np.array([1.0, 0.0]), np.array([0.0, 2.0])
    # 5 L² K η_L²/2 = .2; client 1: 4 K ζ² = 8; client 2: σ² = 2; L η_L η/(2 n m²) = .6/32
    drawn = 0.6 / 32 * 2 / 0.75
    assert bounds.phi_tilde(OF, p, zeta, sigma, True) == pytest.approx(
        0.2 / 4 * (8 / 0.25 + 2 / 0.75) + drawn
    )
    assert bounds.phi_tilde(OF, p, zeta, sigma, False) == pytest.approx(
        0.2 / 8 * (8 / 0.25 + 2 / 0.75) + drawn
    )
    # .2 (2 + 8 · 3) + .6/4 · 2 + .6/16 · 7
    assert bounds.phi(OF, 3.0, 2.0, 2, 7.0) == pytest.approx(0.2 * 26 + 0.3 + 0.6 / 16 * 7)
    assert bounds.is_gain(np.array([1.0, 3.0])) == pytest.approx(2 * 10 / 16)


def test_the_constants_and_probabilities_are_those_of_the_selector():
    settings = DeltaSettings(smoothness=2.0, local_learning_rate=0.1, global_learning_rate=3.0, local_steps=2)
    assert OF.alphas() == pytest.approx(settings.alphas(4))
    rng = np.random.default_rng(0)
    zeta, sigma = rng.lognormal(size=(2, 6))
    scores = settings.scores(2 * zeta, sigma, 4)
    assert bounds.best_probabilities(OF, zeta, sigma) == pytest.approx(scores / scores.sum())


def test_no_p_has_a_smaller_term_than_deltas():
    rng = np.random.default_rng(1)
    zeta, sigma = rng.lognormal(size=(2, 6))
    best = bounds.best_probabilities(OF, zeta, sigma)
    least = bounds.phi_tilde(OF, best, zeta, sigma, True)
    for p in rng.dirichlet(np.ones(6), 50):
        assert bounds.phi_tilde(OF, 0.7 * best + 0.3 * p, zeta, sigma, True) > least
    uniform = bounds.phi_tilde(OF, np.full(6, 1 / 6), zeta, sigma, True)
    assert bounds.delta_gain(OF, zeta, sigma) == pytest.approx(uniform / least)
    assert uniform > least


def test_the_bounds_of_the_gradient_by_hand():
    """L = 2, η_L = .01, η = 3, K = 2, n = 4: K L η_L = .04, η η_L K = .06. A² = 1, p = (1/4, 3/4)."""
    of = OF._replace(local_rate=0.01)
    assert bounds.crude_variances(of, 5.0, 3.0, 7.0, 1.0) == pytest.approx((4 * 5, 4 * (3 + 2 * 7)))
    c = bounds.is_margin(of, 1.0)
    assert c == pytest.approx(0.5 - 10 * 0.04**2 * 2 - 3 * 0.04 * 2 / 8)
    assert bounds.is_bound(of, c, 50, 6.0, 0.7) == pytest.approx((6 / (0.06 * 50) + 0.7) / c)
    c = bounds.delta_margin(of, np.array([0.25, 0.75]), 1.0)
    assert c == pytest.approx(0.5 - 20 * 0.04**2 * 2 * (4 + 4 / 3) / 4)
    assert bounds.delta_bound(of, c, 50, 6.0, 0.7) == pytest.approx(2 * bounds.is_bound(of, c, 50, 6.0, 0.7))


@pytest.mark.parametrize("changed", [{"local_rate": 0.1}, {"local_rate": 0.01, "global_rate": 30.0}])
def test_rates_that_the_proofs_exclude_are_refused(changed):
    with pytest.raises(ValueError, match="local_rate = "):
        bounds.is_margin(OF._replace(**changed), 1.0)
    with pytest.raises(ValueError, match="local_rate = "):
        bounds.delta_margin(OF._replace(**changed), np.array([0.001, 0.999]), 1.0)


def test_the_bound_of_feddelta_needs_the_local_rate_of_lemma_e8():
    """K L = 4, so that η_L <= 1/(8LK) = 1/32; c > 0 would allow more."""
    half = np.array([0.5, 0.5])
    assert bounds.delta_margin(OF._replace(local_rate=1 / 32), half, 0.0) == pytest.approx(0.5 - 20 / 64)
    with pytest.raises(ValueError, match="local_rate = "):
        bounds.delta_margin(OF._replace(local_rate=1 / 31), half, 0.0)


def test_a_run_has_the_variances_and_the_step_of_its_probabilities():
    """Two clients, without noise: V of eq. 29, and a step that is unbiased in the mean of many runs."""
    problem = bounds_measured.Quadratics(np.array([[1.0, 0.0], [-1.0, 2.0]]), np.zeros(2))
    start, mean = np.full(2, bounds_measured.START), problem.optima.mean(axis=0)
    run = bounds_measured.descend(problem, "FedAvg", 1, np.random.default_rng(0))
    left = (1 - bounds_measured.RUN.local_rate) ** bounds_measured.RUN.steps
    total = (1 - left) * (start - problem.optima) / bounds_measured.RUN.local_rate
    assert run.squares[0] == pytest.approx(((start - mean) ** 2).sum())
    assert run.variances[0] == pytest.approx((total**2).sum() / 2 - (total.mean(axis=0) ** 2).sum())
    assert run.reciprocals == pytest.approx(np.full((1, 2), 2))
    assert run.gradient == pytest.approx(((start - problem.optima) ** 2).sum(axis=1).max())


def test_deltas_bound_has_the_probabilities_of_each_round():
    """IS draws from other probabilities in each round: Φ̃ is their mean, and c holds in the worst round."""
    problem = bounds_measured.make_quadratics(np.random.default_rng(0))
    run, of = bounds_measured.descend(problem, "IS", 50, np.random.default_rng((0, 1))), bounds_measured.RUN
    terms = [
        bounds.phi_tilde(of, 1 / each, problem.diversities, problem.variances, True)
        for each in run.reciprocals
    ]
    totals = run.reciprocals.sum(axis=1)
    assert totals.max() > 1.01 * totals.mean()
    c = 0.5 - 20 * (5 * 0.005) ** 2 * 2 * totals.max() / 20**2
    bound = 2 * bounds.is_bound(of, c, 50, run.squares[0] / 2, float(np.mean(terms)))
    cells = bounds_measured.run_theorems(0, num_rounds=50).cells
    assert cells["IS", "log10 bound, Theorem 3.5"] == pytest.approx(np.log10(bound), rel=1e-12)
