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
