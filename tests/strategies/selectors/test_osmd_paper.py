"""The OSMD family in lockstep with the algorithms of both versions of the paper, written down as printed.

`Paper` knows a_m = λ_m² ||g_m||² of the drawn clients and how often each was drawn, in the paper's own units;
it shares no code with the selectors, and solves line 7 of Algorithm 1 by bisection.
"""

from math import ceil, exp, floor, log, log2, sqrt

import numpy as np
import pytest

from strategies.selectors import create
from strategies.selectors.osmd.base import ExpertsSelector

from ...support.selections import feedback

M, K, ALPHA = 7, 3, 0.3


def etas(version, rounds, bound):
    """E (eqs. 13 and 14, or 22 and 23)."""
    inner = 0.5 * log2(1 + 4 * log(M / ALPHA) / log(M) * (rounds - 1))
    if version == "v1":
        base, number = K**2 * ALPHA**3 / (M**3 * bound) * sqrt(log(M) / (2 * rounds)), floor(inner) + 1
    else:
        base, number = K * ALPHA**3 / (M**3 * bound) * sqrt(2 * log(M) / rounds), ceil(inner) + 1
    return [2 ** (e - 1) * base for e in range(1, number + 1)]


def etas_of_block(version, b, bound):
    """E_b (eqs. 15 and 16, or 27 and 28)."""
    inner = 0.5 * log2(1 + 4 * log(M / ALPHA) / log(M) * (2 ** (b - 1) - 1))
    if version == "v1":
        number = floor(inner) + 1
        return [
            2 ** (e - b / 2 - 1) * K**2 * ALPHA**3 * sqrt(log(M)) / (M**3 * bound)
            for e in range(1, number + 1)
        ]
    number = ceil(inner) + 1
    return [
        2 ** (e - b / 2 - 1 / 2) * K * ALPHA**3 * sqrt(2 * log(M)) / (M**3 * bound)
        for e in range(1, number + 1)
    ]


def gamma_printed(rounds, bound):
    return ALPHA / M * sqrt(8 * K / (rounds * bound))


def mirror_step(q, gradient, eta):
    """argmin over A of eta <p, gradient> + D(p || q), D the unnormalised relative entropy."""
    least = min(gradient)  # on the simplex a constant changes nothing, and this one prevents overflow
    tilde = [q_m * exp(-eta * (g_m - least)) for q_m, g_m in zip(q, gradient, strict=True)]
    low, high = 0.0, 1 / max(tilde)
    for _ in range(200):
        middle = (low + high) / 2
        if sum(max(ALPHA / M, middle * each) for each in tilde) > 1:
            high = middle
        else:
            low = middle
    return [max(ALPHA / M, low * each) for each in tilde]


class Paper:
    """Algorithm 4 (v2: 5), from `start`."""

    def __init__(self, rates, gamma, start):
        number = len(rates)
        self.rates, self.gamma = rates, gamma
        self.theta = [(1 + 1 / number) / (e * (e + 1)) for e in range(1, number + 1)]
        self.experts = [list(start) for _ in rates]

    @property
    def p(self):
        return [
            sum(theta * q[m] for theta, q in zip(self.theta, self.experts, strict=True)) for m in range(M)
        ]

    def learn(self, counts, a):
        p, losses = self.p, []
        for e, q in enumerate(self.experts):
            gradient = [-counts[m] * a[m] / (K**2 * q[m] ** 2 * p[m]) for m in range(M)]  # eq. 7
            losses.append(sum(counts[m] * a[m] / (q[m] * p[m]) for m in range(M)) / K**2)  # eq. 6
            self.experts[e] = mirror_step(q, gradient, self.rates[e])
        weights = [t * exp(-self.gamma * loss) for t, loss in zip(self.theta, losses, strict=True)]
        self.theta = [weight / sum(weights) for weight in weights]


class World:
    """Clients with norms of their own: some decay, some grow."""

    def __init__(self, seed, unit=1.0):
        self.rng = np.random.default_rng(seed)
        self.sizes = self.rng.uniform(1, 5, M)
        self.shares = self.sizes / self.sizes.sum()
        self.unit = unit

    def norms(self, round):
        steady = np.arange(1, M + 1) ** 1.5 * (0.97**round)
        return self.unit * steady * self.rng.lognormal(0, 0.5, M)

    def a(self, norms):
        return (self.shares * norms) ** 2


def play(selector, world, round):
    """One round; returns how often each client was drawn, and a (M,)."""
    selection = selector.select(round)
    norms = world.norms(round)
    selector.update(round, selection, feedback(norms[selection.clients]))
    counts = np.zeros(M)
    counts[selection.clients] = selection.counts
    return counts, world.a(norms)


def new(name, world, **settings):
    arguments = {"client_sizes": world.sizes, "clients_per_round": K, "alpha": ALPHA, "seed": 3}
    return create(name, M, **(arguments | settings))


def assert_agree(selector, p):
    np.testing.assert_allclose(selector.probabilities, p, rtol=0, atol=1e-11)


@pytest.fixture(params=[10**9, 1], ids=["dense", "lazy"])
def form(request, monkeypatch):
    monkeypatch.setattr(ExpertsSelector, "lazy_from", request.param)


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("unit", [1.0, 30.0])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_adaptive_osmd_with_a_given_bound(version, unit):
    """T = 40, and the printed γ, which depends on the unit."""
    rounds, bound, faster = 40, 9 * unit**2, 200.0
    world = World(1, unit)
    selector = new(
        "adaptive-osmd",
        world,
        num_rounds=rounds,
        rates=version,
        gamma="printed",
        a_max=bound,
        learning_rate_multiplier=faster,
    )
    rates = [faster * eta for eta in etas(version, rounds, bound)]
    paper = Paper(rates, gamma_printed(rounds, bound), np.full(M, 1 / M))
    assert len(paper.rates) == len(selector.state_dict()["log_theta"])
    for round in range(1, rounds + 1):
        assert_agree(selector, paper.p)
        paper.learn(*play(selector, world, round))
    assert_agree(selector, paper.p)
    np.testing.assert_allclose(np.exp(selector.state_dict()["log_theta"]), paper.theta, rtol=1e-9)
    assert selector.probabilities.max() > 1.5 * selector.probabilities.min()  # something was learned


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_adaptive_osmd_with_the_largest_so_far(version):
    """Not in the paper: ā grows to the largest a observed, and γ is scale-free."""
    rounds, faster, world = 40, 100.0, World(2)
    settings = {"num_rounds": rounds, "rates": version, "learning_rate_multiplier": faster}
    selector = new("adaptive-osmd", world, **settings)
    paper, bound = Paper(etas(version, rounds, 1.0), 0.0, np.full(M, 1 / M)), 0.0
    for round in range(1, rounds + 1):
        assert_agree(selector, paper.p)
        counts, a = play(selector, world, round)
        bound = max(bound, a[counts > 0].max())
        paper.rates = [faster * eta for eta in etas(version, rounds, bound)]
        paper.gamma = sqrt(8 / rounds) * ALPHA**2 * K / (M**2 * bound)
        paper.learn(counts, a)
    assert selector.probabilities.max() > 1.5 * selector.probabilities.min()


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("variation", [0.0, 2.5])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_osmd(version, variation):
    """Algorithm 1 with the rate of eq. 11 (v1) or eq. 20 (v2)."""
    rounds, bound, faster, world = 30, 0.8, 300.0, World(3)
    selector = new(
        "osmd",
        world,
        num_rounds=rounds,
        rates=version,
        a_max=bound,
        variation=variation,
        learning_rate_multiplier=faster,
    )
    far = variation * log(M / ALPHA)
    eta = K**2 * ALPHA**3 / (M**3 * bound) * sqrt((log(M) + 2 * far) / (2 * rounds))
    if version == "v2":
        eta = K * ALPHA**3 / (M**3 * bound) * sqrt((2 * log(M) + 4 * far) / rounds)
    p = [1 / M] * M
    for round in range(1, rounds + 1):
        assert_agree(selector, p)
        counts, a = play(selector, world, round)
        p = mirror_step(p, [-counts[m] * a[m] / (K**2 * p[m] ** 3) for m in range(M)], faster * eta)
    assert selector.probabilities.max() > 1.5 * selector.probabilities.min()


@pytest.mark.usefixtures("form")
@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("largest_of", ["block", "round"])
def test_doubling_of_the_first_version(largest_of, warm):
    """Algorithm 5: ā_b from the previous interval, restart from the p of round T_b - 1, T_b - 1 steps."""
    faster, world = 150.0, World(4)
    selector = new(
        "adaptive-doubling-osmd",
        world,
        rates="v1",
        gamma="printed",
        learning_rate_multiplier=faster,
        largest_of=largest_of,
        warm_start=warm,
    )
    start, spread, bound = np.full(M, 1 / M), 0.0, 1.0  # nothing is known of ā_1: block 1 makes no step
    for b in range(1, 7):
        rates = [faster * eta for eta in etas_of_block("v1", b, bound)]
        paper, observed = Paper(rates, gamma_printed(2 ** (b - 1), bound), start), 0.0
        for round in range(2 ** (b - 1), 2**b):
            assert_agree(selector, paper.p)
            counts, a = play(selector, world, round)
            largest = a[counts > 0].max()
            observed = largest if largest_of == "round" else max(observed, largest)
            if round < 2**b - 1:  # Algorithm 4: for t = 1, ..., T - 1
                paper.learn(counts, a)
        bound, start = observed, np.array(paper.p) if warm else np.full(M, 1 / M)
        spread = max(paper.p) / min(paper.p)
    assert spread > 1.5


@pytest.mark.usefixtures("form")
def test_doubling_of_the_later_version():
    """Algorithm 6 of v2: one A_max for all blocks."""
    faster, bound, world = 300.0, 0.7, World(5)
    settings = {"rates": "v2", "gamma": "printed", "a_max": bound, "learning_rate_multiplier": faster}
    selector = new("adaptive-doubling-osmd", world, **settings)
    start = np.full(M, 1 / M)
    for b in range(1, 7):
        rates = [faster * eta for eta in etas_of_block("v2", b, bound)]
        paper = Paper(rates, gamma_printed(2 ** (b - 1), bound), start)
        for round in range(2 ** (b - 1), 2**b):
            assert_agree(selector, paper.p)
            counts, a = play(selector, world, round)
            if round < 2**b - 1:
                paper.learn(counts, a)
        start = np.array(paper.p)
    assert max(start) > 1.5 * min(start)


def test_without_replacement_the_feedback_has_the_importance_of_algorithm_6():
    """(1/p_(k),m + K - k)/K for the client drawn k-th, in the loss and in its gradient."""
    rounds, bound, faster, world = 20, 0.5, 100.0, World(6)
    selector = new(
        "osmd",
        world,
        num_rounds=rounds,
        a_max=bound,
        rates="v2",
        replacement=False,
        learning_rate_multiplier=faster,
    )
    eta = faster * K * ALPHA**3 / (M**3 * bound) * sqrt(2 * log(M) / rounds)
    p = [1 / M] * M
    for round in range(1, rounds + 1):
        assert_agree(selector, p)
        selection = selector.select(round)
        norms = world.norms(round)
        selector.update(round, selection, feedback(norms[selection.clients]))
        gradient, left, a = [0.0] * M, 1.0, world.a(norms)
        for k, m in enumerate(selection.clients, start=1):
            importance = (left / p[m] + K - k) / K
            gradient[m] = -importance * a[m] / (K * p[m] ** 2)
            left -= p[m]
        p = mirror_step(p, gradient, eta)
    assert selector.probabilities.max() > 1.3 * selector.probabilities.min()
