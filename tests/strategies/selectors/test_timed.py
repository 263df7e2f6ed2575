"""Durations as selectors learn them, the expected time of a round, and draws that weigh the time."""

from itertools import product

import numpy as np
import pytest

from strategies.selectors import Feedback, create
from strategies.selectors.durations import learned
from strategies.selectors.durations.round_time import best_masses, expected_maximum, slopes

NAMES = ["timed-md", "timed-forecast"]


def know(replies, means=np.nan, variances=np.nan, noise=learned.START_NOISE):
    """What is known of one client after replies; None is a reply that did not come while a peer took 10 s."""
    means, variances = np.array([means, np.nan]), np.array([variances, np.nan])
    population = np.zeros(2)
    for seconds in replies:
        values = np.array([np.nan if seconds is None else seconds, 10.0])
        answered = np.array([seconds is not None, True])
        means, variances, noise, population = learned.learn(
            means, variances, noise, population, values, answered
        )
    return float(np.exp(means[0])), float(variances[0]), noise


def test_a_duration_is_learned_and_gets_surer():
    few, many = know([2.0] * 2), know([2.0] * 30)
    assert abs(many[0] / 2 - 1) < 0.05
    assert many[1] < few[1]


def test_a_client_that_becomes_a_hundred_times_slower_is_learned_in_two_replies():
    assert know([2.0] * 20 + [200.0] * 2)[0] > 150


def test_one_outlier_is_forgotten_after_one_more_reply():
    assert know([2.0] * 20 + [200.0, 2.0])[0] < 3


def test_a_missing_reply_took_at_least_as_long_as_the_last_one():
    assert know([1.0] * 10 + [None] * 5)[0] > 8
    assert abs(know([200.0] * 10 + [None] * 20)[0] / 200 - 1) < 0.1  # the bound says nothing new


@pytest.mark.parametrize("odd", [0.0, -5.0, np.nan, np.inf, -np.inf, 1e300])  # -5: the clock was set back
def test_odd_durations_leave_finite_knowledge(odd):
    expected, variance, noise = know([2.0, odd, 2.0, odd])
    assert 1e-4 < expected < 1e8
    assert 0 < variance < 1e4
    assert learned.LEAST_NOISE <= noise <= learned.LARGEST_NOISE


def test_a_round_of_stragglers_alone_changes_nothing():
    nothing = np.full(2, np.nan)
    found = learned.learn(nothing, nothing, 0.1, np.zeros(2), nothing, np.zeros(2, dtype=bool))
    assert np.isnan(found.means).all()


@pytest.mark.parametrize("draws", [1, 2, 3])
def test_the_expected_maximum_is_that_of_all_cohorts(draws):
    rng = np.random.default_rng(draws)
    seconds, masses = np.sort(rng.lognormal(size=5)), rng.dirichlet(np.ones(5))
    by_hand = sum(
        np.prod(masses[list(cohort)]) * seconds[list(cohort)].max()
        for cohort in product(range(5), repeat=draws)
    )
    assert abs(expected_maximum(seconds, masses, draws) - by_hand) < 1e-12
    moved = masses.copy()
    moved[0], moved[3] = moved[0] + 1e-6, moved[3] - 1e-6
    change = (expected_maximum(seconds, moved, draws) - expected_maximum(seconds, masses, draws)) / 1e-6
    slope = slopes(seconds, masses, draws)
    assert abs(change - (slope[0] - slope[3])) < 1e-4


@pytest.mark.parametrize("draws", [1, 3, 30])
def test_the_best_masses_are_at_most_a_thousandth_from_a_grid_search(draws):
    shares, seconds = np.array([0.5, 0.3, 0.2]), np.array([1.0, 3.0, 20.0])

    def cost(masses):
        return (shares**2 / masses).sum() * expected_maximum(seconds, masses, draws)

    found = best_masses(shares, np.eye(3), seconds, draws, 0.25, 4.0)
    grid = np.linspace(0.01, 0.98, 195)
    inside = [
        p
        for a in grid
        for b in grid
        if a + b < 1
        for p in [np.array([a, b, 1 - a - b])]
        if (p >= 0.25 * shares).all() and (p <= 4 * shares).all()
    ]
    assert abs(found.sum() - 1) < 1e-9
    assert (found >= 0.25 * shares - 1e-6).all()
    assert cost(found) <= 1.001 * min(map(cost, inside))
    assert cost(found) < cost(shares)


def slow_and_fast(name, num_clients=40, k=5, rounds=40, **settings):
    """A selector that has learned that the last tenth of the clients takes thirty times as long."""
    selector = create(name, num_clients, clients_per_round=k, seed=3, **settings)
    slow = np.arange(num_clients) >= num_clients * 9 // 10
    for round in range(1, rounds):
        chosen = selector.select(round)
        n = chosen.clients.size
        ones = np.ones(n)
        seconds = np.where(slow[chosen.clients], 30.0, 1.0)
        selector.update(
            round, chosen, Feedback(ones, ones, ones, ones, np.ones(n, dtype=bool), seconds=seconds)
        )
    return selector, slow


@pytest.mark.parametrize("name", NAMES)
def test_slow_clients_are_drawn_less_often_and_keep_a_least_probability(name):
    selector, slow = slow_and_fast(name)
    p = selector.probabilities
    assert p[slow].sum() < 0.05
    assert p.min() > 0.2 / 40
    assert abs(p.sum() - 1) < 1e-9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lazy_from", [1, 10**9])
def test_the_aggregate_stays_unbiased(name, lazy_from, monkeypatch):
    selector, slow = slow_and_fast(name)
    monkeypatch.setattr(type(selector), "lazy_from", lazy_from)
    absent, values = np.array([1, 25, 38]), np.where(slow, 3.0, -1.0)
    present = np.setdiff1d(np.arange(40), absent)
    sums = []
    for round in range(100, 1600):
        chosen = selector.select(round, unavailable=absent)
        sums.append(float(chosen.weights @ values[chosen.clients]))
    error = np.std(sums) / np.sqrt(len(sums))
    assert abs(np.mean(sums) - values[present].mean()) < 4 * error


@pytest.mark.parametrize("name", NAMES)
def test_without_durations_the_probabilities_are_those_of_the_selector_without_time(name):
    plain = create(name.removeprefix("timed-"), 8, client_sizes=range(1, 9), clients_per_round=2, seed=1)
    timed = create(name, 8, client_sizes=range(1, 9), clients_per_round=2, seed=1)
    np.testing.assert_allclose(timed.probabilities, plain.probabilities, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_selector_selects_the_same(name):
    selector, _ = slow_and_fast(name, rounds=20)
    other = create(name, 40, clients_per_round=5, seed=3)
    other.load_state_dict(selector.state_dict())
    for round in range(20, 24):
        one, two = selector.select(round), other.select(round)
        assert one.clients.tolist() == two.clients.tolist()
        assert one.weights.tolist() == two.weights.tolist()


def test_a_state_that_contradicts_itself_is_refused():
    selector, _ = slow_and_fast("timed-md", rounds=5)
    state = selector.state_dict()
    with pytest.raises(ValueError, match="must hold the clients whose durations are known"):
        selector.load_state_dict(state | {"num_timed": np.array(1)})


@pytest.mark.parametrize("name", NAMES)
def test_a_majority_of_stragglers_is_still_drawn(name):
    """Seven of ten clients never reply: p has its floor, and weights are those of the draws."""
    selector = create(name, 10, clients_per_round=3, seed=3)
    for round in range(1, 60):
        chosen = selector.select(round)
        replied = chosen.clients < 3
        ones = np.ones(replied.size)
        norms, seconds = (np.where(replied, values, np.nan) for values in (ones, 2.0 * ones))
        selector.update(round, chosen, Feedback(norms, norms, norms, norms, replied, seconds=seconds))
    assert selector.probabilities.min() > 0.2 / 10
    assert selector.probabilities.sum() == pytest.approx(1)
    assert (np.isfinite(chosen.weights) & (chosen.weights > 0)).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_becomes_a_hundred_times_slower_is_drawn_less_often(name):
    selector = create(name, 10, clients_per_round=3, seed=3)
    before = None
    for round in range(1, 240):
        chosen = selector.select(round)
        ones = np.ones(chosen.clients.size)
        seconds = np.where((chosen.clients == 4) & (round >= 120), 200.0, 2.0)
        replied = np.ones(ones.size, dtype=bool)
        selector.update(round, chosen, Feedback(ones, ones, ones, ones, replied, seconds=seconds))
        before = selector.probabilities[4] if round == 119 else before
    assert selector.probabilities[4] < before / 2
