import numpy as np
import pytest

from benchmarks.experiments.delta import regression
from strategies.selectors.delta.delta import DeltaSelector


def test_a_local_step_is_down_the_gradient_of_the_loss():
    problem = regression.make_regression(0, noise=0.0, num_samples=50)
    rng, w = np.random.default_rng(0), np.array([7.0, 0.5])
    _, losses = regression.local_updates(problem, w, rng)
    x, y = problem.x.astype(np.float64), problem.y.astype(np.float64)

    def mean_loss(at):
        return ((np.log((at[0] * x - at[1]) ** 2 / 2) - y) ** 2).mean(axis=1)

    assert losses == pytest.approx(mean_loss(w), rel=1e-4)
    assert mean_loss(np.array(regression.OPTIMUM)) == pytest.approx(np.zeros(20), abs=1e-10)
    # Five steps this short are five times the gradient, nearly.
    g, _ = regression.local_updates(problem, w, rng)
    for j, nudge in enumerate(np.eye(2) * 1e-5):
        slope = (mean_loss(w + nudge) - mean_loss(w - nudge)) / 2e-5
        assert g[:, j] == pytest.approx(regression.LOCAL_STEPS * slope, rel=0.02)


def test_the_loss_is_zero_at_either_optimum_and_finite_on_the_way():
    rng = np.random.default_rng(0)
    for optimum in (regression.OPTIMUM, regression.OTHER):
        problem = regression.make_regression(0, 0.0, num_samples=200, optimum=optimum)
        assert problem.x.min() >= optimum[1] / optimum[0] + 0.149
        _, losses = regression.local_updates(problem, np.array(optimum), rng)
        assert losses == pytest.approx(np.zeros(20), abs=1e-8)
        for share in np.linspace(0, 1, 11):
            w = (1 - share) * np.array(regression.FAR) + share * np.array(optimum)
            assert np.isfinite(regression.local_updates(problem, w, rng)[0]).all()
            assert (w[0] * problem.x - w[1] > 0.5).all()


def test_delta_is_told_the_variance_of_one_step_and_the_number_of_steps():
    """A client with the gradient variance σ² and the summed diversity ζ has the score of eq. 13 for ζ/5."""
    problem = regression.make_regression(0, noise=20.0, num_samples=20)
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(20_000, 2)) * problem.noise[3]
    assert problem.step_variances[3] == pytest.approx((noise**2).sum(axis=1).mean(), rel=0.03)
    selector = regression.make_selector(regression.Method("delta"), 20, seed=0)
    assert isinstance(selector, DeltaSelector)
    scores = selector.settings.scores(np.array([10.0, 0.0]), np.array([0.0, 4.0]), 10)
    assert scores == pytest.approx([2 * 0.5**0.5, 2 * 0.5**0.5])


def test_a_far_start_counts_the_rounds_until_a_quarter_of_the_loss():
    run = regression.run_regression(0, num_rounds=400, noises=(0,), start=regression.FAR, num_samples=50)
    losses = run.curves["ν = 0"]["FedAvg"]
    first = regression.train(
        regression.make_regression(0, 0, 50),
        regression.Method("uniform"),
        (0, 0),
        1,
        np.array(regression.FAR),
    ).losses[0]
    rounds = run.cells["FedAvg", "rounds, ν = 0"]
    assert 0 < rounds < 400
    assert losses.y[losses.x > rounds].max() <= first / 4
    # Without noise all clients have nearly the same gradients, so all methods are equally fast.
    assert run.cells["DELTA", "rounds, ν = 0"] == pytest.approx(rounds, rel=0.1)


def test_distinct_clients_have_the_known_error():
    """(M - 10)/(M - 1) of the error of 10 draws with replacement, which is 10/19 for 20 clients."""
    g = np.random.default_rng(0).normal(size=(20, 2))
    errors = {}
    for label in ("FedAvg", "FedAvg, distinct"):
        selector = regression.make_selector(regression.REGRESSION_METHODS[label], 20, seed=1)
        selections = [selector.select(round) for round in range(4000)]
        estimates = np.array([each.weights @ g[each.clients] for each in selections])
        errors[label] = ((estimates - g.mean(axis=0)) ** 2).sum(axis=1).mean()
        sizes = {each.clients.size for each in selections}
        assert (sizes == {10}) == (label == "FedAvg, distinct")
    assert errors["FedAvg, distinct"] / errors["FedAvg"] == pytest.approx(10 / 19, rel=0.06)


@pytest.mark.parametrize("name", ["prac-is", "prac-delta"])
def test_the_practical_forms_learn_from_the_selected_clients(name):
    """After one round, the probabilities of S are in proportion to norms or scores, as in eqs. 15 and 16."""
    g = np.random.default_rng(0).normal(size=(20, 2))
    variances = np.linspace(1, 3, 20)
    selector = regression.make_selector(regression.Method(name, {"floor": 1e-9}), 20, seed=1)
    selection = selector.select(0)
    selector.update(0, selection, regression.feedback_of(g, variances, selection))
    chosen = selection.clients
    scores = np.linalg.norm(g[chosen], axis=1)
    if name == "prac-delta":
        mean = np.average(g[chosen], axis=0, weights=selection.weights)
        diversities = np.linalg.norm(g[chosen] - mean, axis=1) / regression.LOCAL_STEPS
        scores = np.sqrt(0.5 * diversities**2 + 0.5 * variances[chosen])
    p = selector.probabilities[chosen]
    assert p / p.sum() == pytest.approx(scores / scores.sum(), rel=1e-6)
    assert p.sum() == pytest.approx(chosen.size / 20)


def test_the_extremes_with_practical_sampling_are_not_those_with_full_information():
    cells = regression.run_extremes(0, num_rounds=30).cells
    for label, row in (("IS", "U of the norm"), ("DELTA", "Ũ of the diversity")):
        assert cells[f"practical {label}: {row}", "extreme"] != cells[f"{label}: {row}", "extreme"]
    assert cells["IS: smallest norm", "extreme"] <= cells["IS: smallest norm", "last tenth"]
    assert cells["IS: largest norm", "extreme"] >= cells["IS: largest norm", "last tenth"]


@pytest.mark.slow
def test_sampling_by_norms_has_the_known_error():
    # Normal noise in two dimensions, its level U(0, 2ν): (E||ν||)² / E||ν||² = 0.59; and the floor.
    noisy = regression.run_regression(0, noises=(40,)).cells
    assert noisy["IS", "error², ν = 40"] == pytest.approx(0.59, abs=0.1)
    assert 0.59 < noisy["DELTA", "error², ν = 40"] < 0.85


def test_the_growth_is_since_the_last_participation():
    """All of 10 clients take part in each round, so the last participation is in the round before."""
    problem = regression.make_regression(0, noise=1.0, num_samples=20, num_clients=10)
    run = regression.train(problem, regression.Method("uniform"), (0, 1), 3, np.array(regression.FAR))
    assert np.isnan(run.growths[:, 0]).all()
    w, before = np.array(regression.FAR), None
    for round in range(3):
        g, _ = regression.local_updates(problem, w, np.random.default_rng((0, 1, round)))
        now = np.array([np.linalg.norm(g, axis=1), np.linalg.norm(g - g.mean(axis=0), axis=1)])
        if before is not None:
            assert run.growths[:, round] == pytest.approx((now / before).max(axis=1))
        before, w = now, w - regression.RATE * g.mean(axis=0)
