import math

import numpy as np
import pytest

from benchmarks.experiments.osmd import bounds, bounds_measured
from benchmarks.experiments.osmd.bounds import Setting
from benchmarks.experiments.osmd.least_squares import Trial, train, train_fedavg, unlike_clients
from strategies.numerics.projection import project_floored_simplex
from strategies.selectors import create
from strategies.selectors.osmd.rates import smallest_rate
from tests.support.selections import feedback


def test_the_bounds_by_hand():
    """M = 2, K = 1, α = 1: the slope is at most 8 ā, log M = log(M/α) = log 2."""
    one, later = Setting("v1", 2, 1, 1.0), Setting("v2", 2, 1, 1.0)
    log_2 = math.log(2)
    assert bounds.best_rate_regret(one, 4, 3.0, 1.5) == pytest.approx(
        2 * 2**0.5 * 8 * 3 * (4 * 4 * log_2) ** 0.5
    )
    assert bounds.best_rate_regret(later, 4, 3.0, 1.5) == pytest.approx(2 * 8 * 3 * (4 * 2 * log_2) ** 0.5)
    largest = np.array([1.0, 2.0])
    assert bounds.intrinsic_regret(one, 0.1, 1.5, largest) == pytest.approx(10 * 4 * log_2 + 2 * 0.1 * 5 * 64)
    assert bounds.intrinsic_regret(later, 0.1, 1.5, largest) == pytest.approx(10 * 4 * log_2 + 0.05 * 5 * 64)
    experts = 2 * (4 * 3 / 8) ** 0.5 * (1 + 2 * math.log(3))  # (M/α) sqrt(T ā/(8K)) (1 + 2 log E)
    assert bounds.ensemble_regret(one, 4, 3.0, 1.5, 3) == pytest.approx(
        1.5 * bounds.best_rate_regret(one, 4, 3.0, 1.5) + experts
    )
    assert bounds.doubling_regret(later, 4, 3.0, 1.5, 3) == pytest.approx(
        (3 * bounds.best_rate_regret(later, 4, 3.0, 1.5) + 2 * experts) / (2**0.5 - 1)
    )
    assert bounds.doubling_regret(one, 3, 3.0, 1.5, 3, excess=2.0) == pytest.approx(
        8**0.5 / (2**0.5 - 1) * (
            5 * 2**0.5 * 8 * 3 * (4 * log_2) ** 0.5 + 2 * (3 / 8) ** 0.5 * (2 + 2 * math.log(3))
        )
    )  # fmt: skip


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_papers_rate_gives_the_bound_of_its_corollary(version):
    """η of eq. 11 (v1) and eq. 20 (v2), put into the bound for any η; and no other η gives less."""
    at, rounds, variation, largest = Setting(version, 20, 3, 0.3), 50, 4.0, 0.7
    rate = smallest_rate(version, 20, 3, 0.3, rounds, variation) / largest
    every = np.full(rounds, largest)
    best = bounds.best_rate_regret(at, rounds, largest, variation)
    assert bounds.intrinsic_regret(at, rate, variation, every) == pytest.approx(best)
    for other in (0.9 * rate, 1.1 * rate):
        assert bounds.intrinsic_regret(at, other, variation, every) > best


def test_the_error_of_the_projection_by_hand():
    at = Setting("v1", 2, 1, 0.4)  # the floor is .2
    q, roots = np.array([[0.1, 0.9], [0.5, 0.5]]), np.array([[1.0, 3.0], [1.0, 1.0]])
    omega = 0.1 / 0.7
    losses = 1 / 0.1 + 9 / 0.9
    expected = 8 * math.log(5) / 2 * 0.1 + omega / (1 - omega * 0.8) * losses
    assert bounds.projection_error(at, 2.0, q, roots) == pytest.approx(expected)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_regret_of_osmd_is_below_its_bound(version):
    """On drifting norms of four clients; and it is above the regret of the best p, which is 0."""
    m, k, alpha, rounds = 4, 2, 0.8, 200
    rng = np.random.default_rng(0)
    roots = np.exp(0.3 * rng.normal(size=(rounds, m)) + np.linspace(0, [0, 1, -1, 0], rounds)) / m
    a_max = float((roots**2).max())
    selector = create(
        "osmd", m, clients_per_round=k, num_rounds=rounds, alpha=alpha, rates=version, a_max=a_max
    )
    best = np.array([project_floored_simplex(np.log(row), alpha / m) for row in roots])
    regret = 0.0
    for round in range(1, rounds + 1):
        root = roots[round - 1]
        regret += ((root**2 / selector.probabilities).sum() - (root**2 / best[round - 1]).sum()) / k
        selection = selector.select(round)
        selector.update(round, selection, feedback(m * root[selection.clients]))
    at, variation = Setting(version, m, k, alpha), float(np.abs(np.diff(best, axis=0)).sum())
    rate = smallest_rate(version, m, k, alpha, rounds, 0) / a_max
    bound = bounds.intrinsic_regret(at, rate, variation, (roots**2).max(axis=1))
    assert 0 < regret < bound
    # The projection adds nothing for a comparator above the floor.
    assert bounds.projection_error(at, rate, best, roots) == pytest.approx(0, abs=1e-9)


def test_heterogeneity_is_the_minimum_over_a_grid():
    """Two clients, three models: ζ_fix by search over p_1, and the order of the three ζ."""
    norms = np.array([[2.0, 1.0], [1.0, 3.0], [0.5, 0.5]])
    mean = np.array([1.0, 2.0, 0.1])
    found = bounds.heterogeneity(norms, mean)
    grid = np.linspace(0.01, 0.99, 9801)
    worst = [bounds.variance(np.array([p, 1 - p]), norms, mean).max() for p in grid]
    assert found.fixed == pytest.approx(min(worst), rel=2e-3)
    assert bounds.variance(found.best, norms, mean).max() == pytest.approx(found.fixed)
    assert found.uniform == pytest.approx(max((4 + 1) / 2 - 1, (1 + 9) / 2 - 4))
    assert found.least == pytest.approx(max(1.5**2 - 1, 2**2 - 4))
    assert found.least < found.fixed < found.uniform
    assert bounds.heterogeneity(norms, mean, alpha=1.0).fixed == pytest.approx(found.uniform)


def test_the_bound_of_the_gradient_by_hand():
    """M = 2, K = 4, B = 2, T = 5; L μ = .1. 2 σ²/(K B M²) sum 1/q = 2 · 3/(4 · 2 · 4) · (4 + 4/3)."""
    of = bounds.Descent(step_size=0.05, smoothness=2.0, gap=7.0, noise=3.0, batch_size=2, rounds=5)
    noise = 6 / 32 * (4 + 4 / 3)
    expected = 14 / (5 * 0.05) + 0.1 * (noise + 2 * 6 / 4 + 10 / 5)
    assert bounds.gradient_bound(of, 4, np.array([0.25, 0.75]), 6.0, 10.0) == pytest.approx(expected)
    with pytest.raises(ValueError, match="step_size = "):
        bounds.gradient_bound(of._replace(step_size=0.6), 4, np.array([0.5, 0.5]), 6.0, 10.0)


def test_the_gradients_along_a_run_are_those_of_the_loss():
    """By finite differences; and σ² is the variance of single samples' gradients."""
    problem = unlike_clients(np.random.default_rng(0), 1.0, 3)
    w, step = np.linspace(0, 1, 10), 1e-5

    def losses(w):
        return ((problem.x @ w - problem.y) ** 2).mean(axis=1) / 2

    slopes = np.array([(losses(w + e) - losses(w - e)) / (2 * step) for e in step * np.eye(10)])
    norms, means, noise = bounds_measured.along(problem, w[None])
    assert norms[0] == pytest.approx(np.linalg.norm(slopes, axis=0), rel=1e-5)
    assert means[0] == pytest.approx(np.linalg.norm(slopes.mean(axis=1)), rel=1e-5)
    each = (problem.x @ w - problem.y)[:, :, None] * problem.x
    assert noise == pytest.approx(each.var(axis=1).sum(axis=1).max())


def test_the_bound_of_fedavg_by_hand():
    """M = 2, q = (1/4, 3/4), so α = 1/2; K = 4, B = 2, T = 5, L μ B = .1."""
    of = bounds.Descent(step_size=0.025, smoothness=2.0, gap=7.0, noise=3.0, batch_size=2, rounds=5)
    q = np.array([0.25, 0.75])
    drift = 8 * (4 + 4) * 0.1**2 * (5 + 3 / 4)
    chosen = 2 * 6 / 4 + 3 / (4 * 2 * 4) * (4 + 4 / 3) + 10 / (5 * 2)
    expected = 8 * 7 / (0.025 * 2 * 5) + drift + 4 * 0.1 * chosen
    assert bounds.fedavg_bound(of, 4, q, 6.0, 5.0, 10.0) == pytest.approx(expected)
    # With the uniform p, α is 1, and longer steps are allowed.
    limits = [1 / (4 * 2 * 2.0 * (2 + inverse) ** 0.5) for inverse in (2, 1)]
    between = of._replace(step_size=sum(limits) / 2)
    assert bounds.fedavg_bound(between, 4, np.array([0.5, 0.5]), 5.0, 5.0, 0.0) > 0
    with pytest.raises(ValueError, match="step_size = "):
        bounds.fedavg_bound(between, 4, q, 6.0, 5.0, 10.0)


def test_fedavg_with_one_local_step_is_sgd():
    problem, tracks = unlike_clients(np.random.default_rng(0), 1.0, 5), []
    for training, settings in ((train, {}), (train_fedavg, {"local_steps": 1})):
        trials = [Trial(create("adaptive-osmd", 5, clients_per_round=2, num_rounds=6, a_max=0.1), 0.05)]
        tracks += training(problem, trials, np.random.default_rng(1), num_rounds=6, batch_size=3, **settings)
    for one, other in zip(*tracks, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_fedavg_is_algorithm_4(monkeypatch):
    """All clients take part; the gradients are known, since every sample of a client is the same."""
    problem = unlike_clients(np.random.default_rng(0), 1.0, 3)
    problem = problem._replace(x=problem.x[:, :1].repeat(4, axis=1), y=problem.y[:, :1].repeat(4, axis=1))
    selector, told = create("uniform", 3, clients_per_round=3), []
    monkeypatch.setattr(selector, "update", lambda round, selection, told_of: told.append(told_of))
    (track,) = train_fedavg(problem, [Trial(selector, 0.02)], np.random.default_rng(0), num_rounds=2)
    w = np.zeros(10)
    for round in range(2):
        moves = []
        for x, y in zip(problem.x[:, 0], problem.y[:, 0], strict=True):
            v = w
            for _ in range(5):
                v = v - 0.02 * (x @ v - y) * x
            moves.append(w - v)
        # Line 14: the root of a, over λ, is ||w - v||/(μ_l sqrt(B)).
        norms = np.linalg.norm(moves, axis=1) / 0.02
        np.testing.assert_allclose(told[round].update_norms, norms / 5**0.5)
        np.testing.assert_allclose(track.roots[round], norms / 3)
        w = w - np.mean(moves, axis=0)
        np.testing.assert_allclose(track.models[round], w)
