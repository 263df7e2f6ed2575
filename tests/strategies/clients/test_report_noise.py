"""The Gaussian mechanism, against its definition."""

import doctest
from math import exp, log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import strategies.clients.report_noise
from benchmarks.experiments.robustness import report_noise
from strategies.clients.report_noise import GaussianMechanism, composed_epsilon, least_delta


def overlap(mu, epsilon):
    """Return sup_A P(A) - e^ε Q(A) of N(μ, 1) and N(0, 1), by summing up where it is positive."""
    x = np.linspace(-30, 30 + mu, 2_000_001)
    p, q = np.exp(-((x - mu) ** 2) / 2), np.exp(-(x**2) / 2)
    return float(np.maximum(p - exp(epsilon) * q, 0).sum() * (x[1] - x[0]) / sqrt(2 * np.pi))


def test_the_examples_run():
    assert doctest.testmod(strategies.clients.report_noise).failed == 0


@pytest.mark.parametrize(("mu", "epsilon"), [(1, 0.5), (0.1, 0.2), (0.1, 0.01), (3, 1), (5, 20), (1, 0)])
def test_delta_is_that_of_the_definition(mu, epsilon):
    assert least_delta(mu, epsilon) == pytest.approx(overlap(mu, epsilon), rel=1e-4)


@given(st.floats(0.01, 50), st.floats(-14, -0.5))
def test_the_noise_is_the_least_that_keeps_the_budget(epsilon, log_delta):
    delta = 10**log_delta
    z = GaussianMechanism(epsilon, delta, 1.0).noise_multiplier
    assert least_delta(1 / z, epsilon) <= delta
    assert least_delta(1 / (0.999 * z), epsilon) > delta


def test_known_noise_multipliers():
    """Against the closed forms: Dwork & Roth's sqrt(2 ln(1.25/δ))/ε is an upper bound for ε <= 1."""
    for epsilon in (0.1, 0.5, 1.0):
        z = GaussianMechanism(epsilon, 1e-5, 1.0).noise_multiplier
        assert 0.6 < z / (sqrt(2 * log(1.25e5)) / epsilon) < 1


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_reports_compose_to_the_budget_of_their_sum(count):
    z = GaussianMechanism(0.5, 1e-6, 1.0).noise_multiplier
    total = composed_epsilon([z] * count, 1e-6)
    mu = sqrt(count) / z
    assert least_delta(mu, total) == pytest.approx(1e-6, rel=1e-6)
    assert total <= mu**2 / 2 + mu * sqrt(2 * log(1e6))  # zCDP's conversion, an upper bound
    assert total == pytest.approx(0.5) if count == 1 else total < 0.5 * count


def test_unlike_reports_compose():
    assert composed_epsilon([3.0, 4.0], 1e-5) == pytest.approx(composed_epsilon([2.4], 1e-5))  # 1/9 + 1/16
    assert composed_epsilon([], 1e-5) == 0
    assert composed_epsilon([1e9], 1e-5) == 0  # hidden by δ alone


def test_released_numbers_have_the_right_mean_and_spread():
    mechanism = GaussianMechanism(10.0, 1e-5, bound=4.0)
    rng = np.random.default_rng(0)
    # At the bound noise that is clipped away cannot be told from no noise: P(4) = 1/2.
    at_bound = np.array([mechanism.release(9.0, rng) for _ in range(4000)])
    assert (at_bound == 4.0).mean() == pytest.approx(0.5, abs=0.03)
    wide = GaussianMechanism(50.0, 0.5, bound=4.0)
    middle = np.array([wide.release(2.0, rng) for _ in range(4000)])
    assert middle.mean() == pytest.approx(2.0, abs=4 * wide.sigma / sqrt(4000))
    assert middle.std() == pytest.approx(wide.sigma, rel=0.1)
    assert middle.min() >= 0
    assert middle.max() <= 4


@pytest.mark.parametrize(
    ("value", "as_if"), [(-3.0, 0.0), (7.0, 4.0), (float("inf"), 4.0), (float("nan"), 4.0)]
)
def test_a_number_out_of_range_is_clipped_before_the_noise(value, as_if):
    mechanism = GaussianMechanism(1.0, 1e-5, bound=4.0)
    told, expected = (mechanism.release(x, np.random.default_rng(3)) for x in (value, as_if))
    assert told == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon": 0.0}, r"epsilon = 0\.0: must be greater than 0 and at most 50"),
        ({"epsilon": float("nan")}, "epsilon = nan"),
        ({"epsilon": 51.0}, r"epsilon = 51\.0"),
        ({"delta": 0.0}, r"delta = 0\.0: must be between 1e-15 and 0\.5"),
        ({"bound": 0.0}, r"bound = 0\.0: must be finite and greater than 0"),
        ({"bound": float("inf")}, "bound = inf"),
    ],
)
def test_a_wrong_budget_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        GaussianMechanism(**{"epsilon": 1.0, "delta": 1e-5, "bound": 1.0, **wrong})


def test_a_wrong_list_of_noise_multipliers_is_refused():
    with pytest.raises(ValueError, match="noise_multipliers"):
        composed_epsilon([1.0, 0.0], 1e-5)
    with pytest.raises(ValueError, match=r"delta = 1\.0"):
        composed_epsilon([1.0], 1.0)


def test_noise_costs_quality_of_selection_and_none_costs_none():
    forecast, rpow_d = report_noise.BY_NORM["forecast"], report_noise.BY_LOSS["rpow-d"]
    exact, mild, strong = (
        report_noise.regret("static", forecast, column, 0, 100) for column in ("exact", "ε = 10", "ε = 0.1")
    )
    assert exact < mild < strong
    exact, mild, strong = (
        report_noise.chosen_loss(rpow_d, column, 0, 100) for column in ("exact", "ε = 10", "ε = 0.1")
    )
    assert exact > mild > strong
