"""Randomised response: its promise of privacy, and counts that are right on average."""

import re
from math import exp, inf, log

import numpy as np
import pytest

from strategies.numerics.randomised_response import coin_privacy, estimate_counts, randomise

ROUNDS = 4_000


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_answers_are_as_likely_as_promised(epsilon):
    """P and Q within 5 standard errors; their ratio is e^ε, which is the privacy."""
    n, g = 60_000, 4
    said = np.bincount(randomise(np.full(n, 2), g, epsilon, np.random.default_rng(1)), minlength=g) / n
    honest = exp(epsilon) / (exp(epsilon) + g - 1)
    expected = np.where(np.arange(g) == 2, honest, honest * exp(-epsilon))
    np.testing.assert_allclose(expected.sum(), 1)
    assert (np.abs(said - expected) < 5 * np.sqrt(expected * (1 - expected) / n)).all()


def test_counts_are_unbiased_and_vary_as_stated():
    """Means within 5 standard errors; variances, of 4,000 rounds, within 5 · √(2/4000) = 11 %."""
    truth = np.array([5, 0, 40, 155])
    rng = np.random.default_rng(2)
    found = [
        estimate_counts(randomise(np.repeat(np.arange(4), truth), 4, 1.0, rng), 4, 1.0) for _ in range(ROUNDS)
    ]
    values = np.array([each.values for each in found])
    error = values.std(axis=0) / np.sqrt(ROUNDS)
    assert (np.abs(values.mean(axis=0) - truth) < 5 * error).all()
    np.testing.assert_allclose(values.sum(axis=1), 200)
    likely, unlikely = exp(1) / (exp(1) + 3), 1 / (exp(1) + 3)
    spread = truth * likely * (1 - likely) + (200 - truth) * unlikely * (1 - unlikely)
    np.testing.assert_allclose(values.var(axis=0), spread / (likely - unlikely) ** 2, rtol=0.11)
    # The plug-in takes the count for 0 where it is negative: too high for scarce groups, never by much.
    stated = np.array([each.variances for each in found]).mean(axis=0)
    np.testing.assert_allclose(stated, spread / (likely - unlikely) ** 2, rtol=0.05)


def test_a_large_epsilon_is_the_truth():
    truths = np.array([0, 2, 2, 1])
    answers = randomise(truths, 3, 50.0, np.random.default_rng(0))
    np.testing.assert_array_equal(answers, truths)
    counts = estimate_counts(answers, 3, 50.0)
    np.testing.assert_allclose(counts.values, [1, 1, 2], atol=1e-12)
    assert (counts.variances < 1e-20).all()


def test_one_value_and_no_answers():
    assert randomise([0, 0], 1, 1.0, np.random.default_rng(0)).tolist() == [0, 0]
    assert [each.tolist() for each in estimate_counts([0, 0], 1, 1.0)] == [[2.0], [0.0]]
    assert randomise([], 3, 1.0, np.random.default_rng(0)).size == 0
    assert [each.tolist() for each in estimate_counts([], 3, 1.0)] == [[0.0] * 3] * 2


@pytest.mark.parametrize(
    ("rates", "epsilon"),
    [
        ([0.5, 0.5], 0.0),
        ([0.1, 0.4], log(4)),
        ([0.9, 0.6], log(4)),
        ([1.0, 0.5], inf),
        ([0.0, 0.5], inf),
        ([1.0, 1.0], 0.0),
        ([0.0, 0.0], 0.0),
    ],
)
def test_what_a_coin_tells(rates, epsilon):
    assert coin_privacy(rates) == pytest.approx(epsilon)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([0, 3], 3, 1.0), "holds 3: must be between 0 and 2"),
        (([-1], 3, 1.0), "holds -1"),
        (([0.5], 3, 1.0), "dtype float64"),
        (([[0]], 3, 1.0), "shape (1, 1)"),
        (([0], 0, 1.0), "num_values = 0"),
        (([0], 3, 0.0), "epsilon = 0.0"),
        (([0], 3, inf), "epsilon = inf"),
        (([0], 3, np.nan), "epsilon = nan"),
    ],
)
def test_bad_arguments_are_named(arguments, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        estimate_counts(*arguments)
    with pytest.raises(ValueError, match=re.escape(text)):
        randomise(*arguments, np.random.default_rng(0))
