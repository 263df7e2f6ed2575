"""cvxpy's answers against the closed form, and against bisection on the multipliers."""

import re
import sys

import numpy as np
import pytest

from strategies.numerics.budget_allocation import water_fill
from strategies.numerics.convex_allocation import fill_with_budgets, load_cvxpy


def test_a_missing_cvxpy_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    for call in (load_cvxpy, lambda: fill_with_budgets([1], [0], [1], [0], [[1]], [1])):
        with pytest.raises(ImportError, match=re.escape("needs cvxpy: pip install")):
            call()


def realistic(seed):
    """Targets, counts, availability and budget of a group system after some rounds."""
    rng = np.random.default_rng(seed)
    g = int(rng.integers(2, 15))
    targets = rng.dirichlet(np.full(g, 3.0))
    k = int(rng.integers(2, 40))
    counts = rng.poisson(targets * k * rng.integers(1, 300) * rng.uniform(0.3, 1.5, g)).astype(float)
    upper = rng.poisson(np.geomspace(1, 30, g)).astype(float)
    return rng, targets, counts, upper, float(k)


def variance(targets, counts, rates):
    reached = counts + rates > 0
    return (targets[reached] ** 2 / (counts + rates)[reached]).sum()


def test_the_closed_form_is_the_optimum():
    """Never above cvxpy's objective, which comes within 1e-8 of it."""
    pytest.importorskip("cvxpy")
    for seed in range(16):
        rng, targets, counts, upper, k = realistic(seed)
        lower = upper * rng.choice([0, 0, 0.3], upper.size)
        k = max(k, lower.sum() + 0.5)
        closed = variance(targets, counts, water_fill(targets, counts, k, upper, lower))
        rates = fill_with_budgets(targets, counts, upper, lower, np.ones((1, upper.size)), [k])
        assert closed <= (solved := variance(targets, counts, rates)) * (1 + 1e-12)
        assert solved <= closed * (1 + 1e-8)


def by_multipliers(targets, counts, upper, usage, budgets):
    """Two budgets by nested bisection on their multipliers y: r = clip(p/√(y · usage) - n, 0, upper)."""

    def rates(first, second):
        with np.errstate(divide="ignore"):
            return np.clip(targets / np.sqrt(first * usage[0] + second * usage[1]) - counts, 0, upper)

    def search(fits, made):
        if fits(made(0.0)):
            return made(0.0)
        low, high = -60.0, 60.0
        for _ in range(90):
            middle = (low + high) / 2
            low, high = (low, middle) if fits(made(np.exp(middle))) else (middle, high)
        return made(np.exp(high))

    def second(first):
        return search(lambda r: usage[1] @ r <= budgets[1], lambda each: rates(first, each))

    return search(lambda r: usage[0] @ r <= budgets[0], second)


def test_two_budgets_at_once():
    pytest.importorskip("cvxpy")
    both = 0
    for seed in range(12):
        rng, targets, counts, upper, k = realistic(seed)
        usage = np.array([np.ones(upper.size), rng.lognormal(0, 1, upper.size)])
        budgets = np.array([k, rng.uniform(0.4, 1.2) * k])
        rates = fill_with_budgets(targets, counts, upper, np.zeros(upper.size), usage, budgets)
        assert (rates >= 0).all()
        assert (rates <= upper).all()
        assert (usage @ rates <= budgets * (1 + 1e-12)).all()
        expected = by_multipliers(targets, counts, upper, usage, budgets)
        value, best = variance(targets, counts, rates), variance(targets, counts, expected)
        assert abs(value / best - 1) < 1e-8
        both += (usage @ expected > budgets * (1 - 1e-6)).all()
    assert both > 1  # cases in which both budgets bind


def test_a_used_up_budget_excludes_only_groups_that_need_it():
    pytest.importorskip("cvxpy")
    usage, zeros, ones = [[1, 1, 1], [0, 2, 3]], [0, 0, 0], [1, 1, 1]
    rates = fill_with_budgets(ones, zeros, [9, 9, 9], zeros, usage, [6, 0])
    np.testing.assert_allclose(rates, [6, 0, 0], rtol=1e-6)
    rates = fill_with_budgets(ones, zeros, [9, 9, 9], [0, 2, 1], usage, [9, 7])
    np.testing.assert_allclose(rates, [6, 2, 1], rtol=1e-6)
    np.testing.assert_array_equal(fill_with_budgets(ones, zeros, ones, ones, usage, [3, 5]), ones)
    np.testing.assert_array_equal(fill_with_budgets(zeros, zeros, ones, zeros, usage, [3, 5]), zeros)
    with pytest.raises(ValueError, match=r"budgets = \[9\. 4\.\]: must be at least \[3\. 5\.\]"):
        fill_with_budgets(ones, zeros, ones, ones, usage, [9, 4])


def test_a_solver_without_an_answer_is_an_error(monkeypatch):
    cp = pytest.importorskip("cvxpy")
    arguments = ([1, 1], [0, 0], [9, 9], [0, 0], [[1, 1]], [6])

    def fail(self, **options):
        raise cp.error.SolverError("no luck")

    monkeypatch.setattr(cp.Problem, "solve", fail)
    with pytest.raises(RuntimeError, match="the solver failed: no luck"):
        fill_with_budgets(*arguments)
    monkeypatch.setattr(cp.Problem, "solve", lambda self, **options: None)
    with pytest.raises(RuntimeError, match="its status is None"):
        fill_with_budgets(*arguments)
