import numpy as np
import pytest

from benchmarks.experiments.power_of_choice import bounds, bounds_measured
from benchmarks.experiments.power_of_choice.bounds import Constants
from benchmarks.experiments.power_of_choice.quadratics import Quadratic, make_quadratic, selection_shares
from strategies.selectors import create

OF = Constants(
    smoothness=2.0,
    convexity=1.0,
    gap=0.5,
    gradient=3.0,
    noise=4.0,
    steps=2,
    selected=2,
    start=9.0,
    start_gap=7.0,
)


def test_the_gap_of_two_clients_by_hand():
    # F_1 = w²/2 and F_2 = (w - 1)² with shares 3/4 and 1/4: w* = (1/2) / (3/4 + 1/2) = 2/5.
    problem = Quadratic(np.array([0.75, 0.25]), np.array([1.0, 2.0]), np.array([[0.0], [1.0]]))
    assert problem.optimum == pytest.approx([0.4])
    assert bounds.objective_gap(problem) == pytest.approx(0.75 * 0.4**2 / 2 + 0.25 * 0.6**2)


def test_the_bounds_by_hand():
    """L = 2, μ = 1, Γ = 1/2, G² = 3, σ² = 4, τ = m = 2, ρ̄ = 1/2, ρ̃ = 3/2, T = 10."""
    at = np.array([10.0])
    # Eq. 8: γ = 8; [8 (384 + 2)/(3/2) + 16 + 72]/18 + (16/2)/3 · (3 - 1)
    expected = (8 * 386 / 1.5 + 16 + 2 * 8 * 9 / 2) / 18 + 8 / 3 * 2
    assert bounds.decaying_bound(OF, at, 0.5, 1.5) == pytest.approx([expected])
    # Eq. 9: 1 + 3ρ̄/8 = 19/16, 8 + 3ρ̄ = 19/2; η (384 + 2 + 6) = 0.0392 for η = 1e-4 times 10
    noise = 1e-3 * (384 + 2 + 6 * 0.5 * 2 * 0.5)
    first = (1 - 1e-3 * 19 / 16) ** 10 * (7 - 4 * (noise + 2 * 0.5 * 1) / 9.5)
    second = 4 * 2 * noise / 9.5 + 8 * 2 * 0.5 * 1 / 9.5
    assert bounds.fixed_bound(OF, 1e-3, at, 0.5, 1.5) == pytest.approx([2 * first + second])
    # Eq. 86: γ = 48; [2 · 4 (64 · 12 + 4)/(1/2) + 2 · 4 · 2 · 4/2 + 432]/58 + 2/(1/2) · 2
    expected = (2 * 4 * (32 * 2 * 4 * 3 + 4) / 0.5 + 2 * 4 * 2 * 4 * 0.5 + 2 * 48 * 9 / 2) / 58 + 4 * 2
    assert bounds.averaging_bound(OF, at, 0.5, 1.5) == pytest.approx([expected])
    assert bounds.decaying_offset(OF) == 8
    assert bounds.averaging_offset(OF) == 48


def test_without_skew_there_is_no_bias():
    assert bounds.bias(OF, 1.0, 1.0) == 0
    late = np.array([1e12])
    assert bounds.decaying_bound(OF, late, 1.0, 1.0) == pytest.approx([0], abs=1e-6)
    assert bounds.averaging_bound(OF, late, 1.0, 1.0) == pytest.approx([0], abs=1e-6)


def test_a_fixed_rate_above_that_of_the_theorem_is_refused():
    with pytest.raises(ValueError, match=r"rate = 0\.2: must be above 0 and at most 0\.125"):
        bounds.fixed_bound(OF, 0.2, np.array([1.0]), 1.0, 1.0)


def test_weights_by_data_count_in_the_shares():
    """All clients are candidates; those with the largest losses share by their data."""
    problem = make_quadratic(0, 6)
    selector = create("pow-d", 6, client_sizes=problem.sizes, clients_per_round=2, num_candidates=6)
    w = np.full((1, 5), 3.0)
    losses = problem.losses(w[0], np.arange(6))
    top = np.argsort(losses)[-2:]
    plain = selection_shares(problem, selector, w, 3)[0]
    by_data = selection_shares(problem, selector, w, 3, by_data=True)[0]
    assert plain[top] == pytest.approx([0.5, 0.5])
    assert by_data[top] == pytest.approx(problem.sizes[top] / problem.sizes[top].sum())
    assert by_data.sum() == pytest.approx(1)


def test_the_larger_loss_leads_to_the_minimum_of_both():
    cells = bounds_measured.run_toy(0).cells
    assert cells["larger loss", "after 5"] < 0.1 < cells["at random, mean of all orders", "after 5"]
    # By hand: from w the first selection of client 2 leads to w + .4 (1 - w).
    w = -((2 * cells["larger loss", "before"]) ** 0.5)
    assert cells["larger loss", "after 1"] == pytest.approx((w + 0.4 * (1 - w)) ** 2 / 2)
