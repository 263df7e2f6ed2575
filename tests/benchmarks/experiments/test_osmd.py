import numpy as np
import pytest

from benchmarks.experiments.osmd import personalised, section_f
from benchmarks.experiments.osmd.least_squares import Problem, Trial, train, train_scaffold, unlike_clients
from benchmarks.experiments.osmd.logistic_regression import _split, lipschitz_constants
from benchmarks.experiments.osmd.section_f_selectors import K, M, Maker
from benchmarks.experiments.regret import Oracle
from strategies.selectors import create
from tests.support.made_data import made
from tests.support.selections import feedback

ROUNDS = 12
RUN = {each.name: each.run for each in section_f.EXPERIMENTS}


@pytest.mark.parametrize("name", ["uniform", "avare", "adaptive-osmd"])
def test_a_trial_is_the_same_beside_others_as_alone(name):
    m, k, rounds, step = 6, 2, 25, 0.05

    def make(other=name):
        return create(other, m, clients_per_round=k, num_rounds=rounds, seed=5)

    problem = unlike_clients(np.random.default_rng(0), 3.0, m)
    trials = [Trial(make("vrb")), Trial(make(), step)]
    track = train(problem, trials, np.random.default_rng(5), num_rounds=rounds)[1]

    w, regret, selector, rng = np.zeros(10), 0.0, make(), np.random.default_rng(5)
    for round in range(1, rounds + 1):
        picks = rng.integers(100, size=(m, 10))
        g = np.zeros((m, 10))
        for client in range(m):
            for sample in picks[client]:
                x, y = problem.x[client, sample], problem.y[client, sample]
                g[client] += (w @ x - y) * x / 10
        norms, p = np.linalg.norm(g, axis=1), selector.probabilities
        a, best = (norms / m) ** 2, norms / norms.sum()
        regret += (a / p).sum() / k - (a / best).sum() / k
        selection = selector.select(round)
        chosen = selection.clients
        w = w - step * (selection.counts / (k * p[chosen] * m)) @ g[chosen]
        selector.update(round, selection, feedback(norms[chosen]))
        assert track.roots[round - 1] == pytest.approx(norms / m, rel=1e-9)
        assert track.regret[round - 1] == pytest.approx(regret, rel=1e-9)
        assert track.loss[round - 1] == pytest.approx(((problem.x @ w - problem.y) ** 2).mean() / 2, rel=1e-9)


def test_no_distribution_above_the_floor_beats_the_oracle():
    rng = np.random.default_rng(0)
    norms, floor = rng.lognormal(0, 2, 8), 0.05
    oracle = Oracle(8, 2, 0, floor)
    oracle.norms = norms
    p = oracle.probabilities
    assert p.sum() == pytest.approx(1)
    assert p.min() >= floor * (1 - 1e-12)
    others = floor + (1 - 8 * floor) * rng.dirichlet(np.full(8, 0.3), 2000)
    near = 0.99 * p + 0.01 * others
    for q in (others, near):
        assert (norms**2 / p).sum() <= (norms**2 / q).sum(axis=1).min()


def test_a_fixed_rate_of_osmd_is_the_rate_of_the_raw_feedback():
    rate, norms = 1e-3, np.array([30.0, 7.0, 1.0, 0.5, 2.0])
    selector = Maker(seed=1, num_rounds=100).osmd(rate)
    selection = selector.select(1)
    sent = norms[: selection.clients.size]
    selector.update(1, selection, feedback(sent))
    w, a = np.full(M, 1 / M), (sent / M) ** 2
    w[selection.clients] *= np.exp(rate * selection.importance * a / (K / M**2))
    assert selector.probabilities == pytest.approx(w / w.sum(), rel=1e-9)  # nobody is near the floor yet


def test_scaffold_is_algorithm_1_with_weights():
    rng = np.random.default_rng(2)
    m, d, k, rounds, steps, rate = 5, 3, 2, 6, 4, 0.1
    problem = Problem(rng.normal(size=(m, 1, d)), rng.normal(size=(m, 1)))  # one sample: nothing is random

    def selector():
        return create("uniform", m, clients_per_round=k, seed=3)

    track = train_scaffold(
        problem, [Trial(selector(), 0.3), Trial(selector(), rate)], rng, num_rounds=rounds, local_steps=steps
    )[1]
    w, common, controls, twin = np.zeros(d), np.zeros(d), np.zeros((m, d)), selector()
    for round in range(1, rounds + 1):
        move, change = np.zeros(d), np.zeros(d)
        selection = twin.select(round)
        for client, weight in zip(selection.clients, selection.weights, strict=True):
            x, y = problem.x[client, 0], problem.y[client, 0]
            v = w.copy()
            for _ in range(steps):
                v -= rate * ((v @ x - y) * x - controls[client] + common)
            new = controls[client] - common + (w - v) / (steps * rate)
            move += weight * (v - w)
            change += (new - controls[client]) / m
            controls[client] = new
        w, common = w + move, common + change
        loss = ((problem.x[:, 0] @ w - problem.y[:, 0]) ** 2).mean() / 2
        assert track.loss[round - 1] == pytest.approx(loss, rel=1e-9)


def test_lipschitz_constants_bound_the_hessian(tmp_path):
    images = made(tmp_path, "digits")
    holdings = {1: 0.4, 4: 0.6}
    constants = lipschitz_constants(2, images, num_clients=10, holdings=holdings)
    rng = np.random.default_rng(0)
    half = np.array([0.5, 0.5, *[0] * 8])  # where the bound is reached
    for group in _split(np.random.default_rng(2), images, 10, holdings)[0]:
        for client, x in zip(group.clients, group.images.astype(np.float64), strict=True):
            n = len(x)
            for q in ([half] * n, rng.dirichlet(np.ones(10), n)):
                # A sample's Hessian is the square of root ⊗ x; the mean's is that of all, one above another.
                roots = [np.diag(np.sqrt(p)) - np.outer(np.sqrt(p), p) for p in q]
                factor = np.concatenate([np.kron(root, v) for root, v in zip(roots, x, strict=True)])
                curvature = np.linalg.norm(factor, 2) ** 2 / n
                if q[0] is half:
                    assert curvature == pytest.approx(constants[client], rel=1e-5)
                else:
                    assert curvature < constants[client]


def test_the_personalised_problem_by_differences():
    """The parts sum to the gradient of h, which is least at `best`; personal models minimise their loss."""
    problem, rng = personalised.quadratics(np.random.default_rng(2)), np.random.default_rng(3)
    w = rng.normal(size=personalised.D)
    gradient = problem.parts(w).sum(axis=0).mean(axis=0)
    steps = 1e-5 * np.eye(personalised.D)
    differences = [(problem.objective(w + e) - problem.objective(w - e)) / 2e-5 for e in steps]
    np.testing.assert_allclose(gradient, differences, rtol=1e-5)
    best = problem.best()
    np.testing.assert_allclose(problem.parts(best).sum(axis=0).mean(axis=0), 0, atol=1e-9)
    assert problem.objective(best) < problem.objective(w)
    off = problem.curvature * (problem.personal(w) - problem.mine) + personalised.MU * (
        problem.personal(w) - w
    )
    np.testing.assert_allclose(off, 0, atol=1e-9)
