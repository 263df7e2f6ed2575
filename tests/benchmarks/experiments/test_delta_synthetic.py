import itertools

import numpy as np
import pytest

from benchmarks.experiments.delta import synthetic


def test_the_toy_is_exactly_what_is_known_of_it():
    cells = synthetic.run_toy(0, num_rounds=1).cells
    for row, pair, mse in (("FedAvg", 1.803, 3.667), ("IS", 1.414, 2.366), ("DELTA", 0.5, 5.344)):
        assert cells[row, "its pair, plain mean"] == pytest.approx(pair, abs=5e-4)
        assert cells[row, "MSE"] == pytest.approx(mse, abs=5e-4)
    assert cells["DELTA", "bias of 1/(Kp) w/o repl."] == pytest.approx(0.296, abs=5e-4)
    assert cells["DELTA", "the same, %"] == pytest.approx(7.4, abs=0.05)
    assert cells["FedAvg", "bias of 1/(Kp) w/o repl."] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("name", synthetic.METHODS.values())
def test_the_selectors_estimates_of_the_toy_are_unbiased(name, replacement):
    errors = synthetic._errors(
        name, synthetic.TOY, 2, 0, 600, replacement=replacement, floor=synthetic.NO_FLOOR
    )
    standard_error = errors.std(axis=0) / len(errors) ** 0.5
    assert (np.abs(errors.mean(axis=0)) < 4 * standard_error).all()
    if replacement:
        q = synthetic.sampling_distribution(name, synthetic.TOY, floor=synthetic.NO_FLOOR)
        squares = (errors**2).sum(axis=1)
        expected = synthetic.estimate_variance(synthetic.TOY, q, 2)
        assert abs(squares.mean() - expected) < 4 * squares.std() / len(squares) ** 0.5


def test_the_variance_is_that_over_all_draws():
    rng = np.random.default_rng(0)
    g, q = rng.normal(size=(4, 3)), np.array([0.1, 0.2, 0.3, 0.4])
    variance = 0.0
    for drawn in itertools.product(range(4), repeat=2):
        estimate = sum(g[i] / (4 * 2 * q[i]) for i in drawn)
        variance += q[list(drawn)].prod() * ((estimate - g.mean(axis=0)) ** 2).sum()
    assert synthetic.estimate_variance(g, q, 2) == pytest.approx(variance)


def test_distributions_are_read_off_the_selectors():
    g = np.random.default_rng(0).normal(size=(6, 2)) + 1
    norms = np.linalg.norm(g, axis=1)
    diversities = np.linalg.norm(g - g.mean(axis=0), axis=1)
    p = norms / norms.sum()
    assert synthetic.sampling_distribution("uniform", g, floor=0.1) == pytest.approx(np.full(6, 1 / 6))
    assert synthetic.sampling_distribution("fed-is", g, floor=0.1) == pytest.approx(0.9 * p + 0.1 / 6)
    assert synthetic.sampling_distribution("delta", g, floor=synthetic.NO_FLOOR) == pytest.approx(
        diversities / diversities.sum(), rel=1e-6
    )
