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


def test_less_of_the_term_can_mean_more_variance():
    cells = bounds_measured.run_bounds(0).cells
    for row in {row for row, _ in cells}:
        assert cells[row, "Φ̃, DELTA"] == pytest.approx(cells[row, "eq. 84"])
        assert cells[row, "Φ̃, DELTA"] >= max(1, cells[row, "Φ̃, IS"])
        assert cells[row, "variance, IS"] >= max(1, cells[row, "variance, DELTA"])
        assert cells[row, "eq. 78"] >= 1
    assert cells["common 3", "variance, DELTA"] < 1
    assert bounds_measured.run_bounds(0).cells == cells != bounds_measured.run_bounds(1).cells
