import numpy as np
import pytest

from benchmarks.experiments.power_of_choice import quadratics as poc
from strategies.selectors import create


def test_the_closed_form_is_gradient_descent_on_the_quadratic():
    problem, rounds = poc.make_quadratic(1, 30), 20
    settings = {"client_sizes": problem.sizes, "clients_per_round": 3, "seed": 1, "num_candidates": 6}
    descent = poc.descend(problem, create("pow-d", 30, **settings), rounds)
    selector, w = create("pow-d", 30, **settings), np.ones(5)
    e = problem.curvatures[:, None] * problem.optima
    counts = np.zeros(30)
    for round in range(rounds):
        asked = selector.candidates(round)
        # Eq. 87, with 1/(2h) ||e||² for the last term.
        h = problem.curvatures[asked]
        losses = h / 2 * (w @ w) - e[asked] @ w + (e[asked] ** 2).sum(axis=1) / (2 * h)
        chosen = selector.select(round, candidates=asked, reports={"loss": losses}).clients
        local = np.tile(w, (3, 1))
        for _ in range(poc.STEPS):
            local -= poc.STEP_SIZE * (problem.curvatures[chosen, None] * local - e[chosen])
        w = local.mean(axis=0)
        counts[chosen] += 1
    assert descent.path[-1] == pytest.approx(w, abs=1e-12)
    assert np.array_equal(descent.counts, counts)
    everyone = np.arange(30)
    gap, first = (
        problem.sizes @ (problem.losses(at, everyone) - problem.losses(problem.optimum, everyone))
        for at in (w, np.ones(5))
    )
    assert descent.gaps[-1] == pytest.approx(gap / first)
    assert descent.gaps[0] == 1


@pytest.mark.parametrize("d", [6, 15, 30])
def test_shares_are_those_of_the_selectors_own_choices(d):
    problem = poc.make_quadratic(0, 30)
    selector = create("pow-d", 30, client_sizes=problem.sizes, clients_per_round=3, num_candidates=d)
    points = np.random.default_rng(0).normal(size=(2, 5))
    shares = poc.selection_shares(problem, selector, points, num_samples=50)
    for w, share in zip(points, shares, strict=True):
        counts = np.zeros(30)
        for round in range(50):
            asked = selector.candidates(round)
            counts[
                selector.select(round, candidates=asked, reports={"loss": problem.losses(w, asked)}).clients
            ] += 1
        assert share == pytest.approx(counts / 150)


def test_random_selection_has_skew_1_everywhere():
    problem = poc.make_quadratic(0, 30)
    points = np.random.default_rng(0).normal(size=(2, 5))
    selector = create("md", 30, client_sizes=problem.sizes, clients_per_round=3)
    shares = poc.selection_shares(problem, selector, points, num_samples=1)
    assert poc.skews_at(problem, shares, points[0]) == pytest.approx([1, 1])
    assert poc.smallest_skews(problem, shares) == pytest.approx([1, 1])


def test_the_smallest_skew_is_below_all_others_and_is_reached():
    problem, rng = poc.make_quadratic(0, 6), np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(6), 3)
    smallest = poc.smallest_skews(problem, shares)
    reached = np.full(3, np.inf)
    for spread in (0.01, 0.1, 1, 10):
        for _ in range(1000):
            w = problem.optimum + spread * rng.normal(size=5)
            reached = np.minimum(reached, poc.skews_at(problem, shares, w))
    assert (smallest <= reached).all()
    assert reached == pytest.approx(smallest, rel=0.25)
