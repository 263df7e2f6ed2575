"""Liars in buffered rounds, which choose when they reply: what three of twenty cost in accuracy."""

import numpy as np
import pytest

import tasks
from benchmarks.experiments.robustness.liars import (
    ATTACKS,
    CLIENTS_PER_ROUND,
    LIARS,
    NUM_CLIENTS,
    Attack,
    LyingKernel,
)
from simulation.kernels import kernel_of
from simulation.response_times import ResponseTimes
from simulation.simulator import Simulator
from strategies.options import Buffered, Faults, GuardSettings
from strategies.rounds.guard.claimed_sizes import believed_sizes

ROUNDS, LAST = 80, 40


class Chosen(ResponseTimes):
    """The liars reply after a time of their choice, in seconds; the others need about a second."""

    def __init__(self, seed, liars_need):
        super().__init__(NUM_CLIENTS, seed=seed)
        self._random, self._liars_need = np.random.default_rng(seed), liars_need

    def seconds(self, round, clients):
        usual = self._random.lognormal(0, 0.3, len(clients))
        if self._liars_need is None:
            return usual
        return np.where(np.isin(clients, LIARS), self._liars_need, usual)


def simulator(
    partition,
    attack,
    seed,
    liars_need,
    selector="md",
    size=3,
    concurrency=10,
    learning_rate=0.2,
):
    """Return a simulation; ``liars_need`` is None if liars need as long as others."""
    task = tasks.create("digits", partition=partition)
    data = task.federated_data(NUM_CLIENTS, seed)
    claimed = data.sizes().astype(float)
    if attack.size == attack.size:
        claimed[list(attack.liars)] = attack.size * claimed.mean()
    return Simulator(
        data,
        LyingKernel(kernel_of(task), attack),
        selector,
        clients_per_round=CLIENTS_PER_ROUND,
        num_rounds=ROUNDS,
        learning_rate=learning_rate,
        batch_size=16,
        local_steps=5,
        seed=seed,
        client_sizes=believed_sizes(claimed, None, GuardSettings(level="strict")),
        faults=Faults(guard="strict"),
        mode=Buffered(concurrency=concurrency, size=size),
        response_times=Chosen(seed, liars_need),
    )


def accuracy(attack, liars_need, **settings):
    """Return the mean test accuracy of the last rounds over three seeds, in percent."""
    test = tasks.create("digits").test_data()
    found = []
    for seed in (1, 2, 3):
        simulated = simulator(attack=attack, seed=seed, liars_need=liars_need, **settings)
        for number in range(1, ROUNDS + 1):
            simulated.step()
            if number > ROUNDS - LAST:
                found.append(100 * simulated.evaluate(test).accuracy)
    return float(np.mean(found))


@pytest.mark.parametrize("selector", ["oort", "rpow-d"])
def test_a_liar_that_replies_at_once_is_drawn_twice_as_often_as_its_share_at_most(selector):
    """Its share is that among all available clients, and not among those few that are idle."""
    size, rounds = 5, 50
    simulated = simulator("balanced", Attack(loss=1e3), 1, 0.001, selector, size)
    draws = np.zeros(NUM_CLIENTS)
    for _ in range(rounds):
        selection = simulated.step().selection
        draws[selection.clients] += selection.counts
    assert draws[list(LIARS)].max() <= 1 + 2 * rounds * size / (NUM_CLIENTS - len(LIARS))


PLAYED = {
    "3 of 10": {"size": 3, "concurrency": 10, "learning_rate": 0.1},  # honest runs nearly diverge with 0.2
    "4 of 8": {"size": 4, "concurrency": 8},
    "5 of 5": {"size": 5, "concurrency": 5},
}


@pytest.mark.slow
@pytest.mark.parametrize("selector", ["md", "forecast"])
@pytest.mark.parametrize("name", PLAYED)
@pytest.mark.parametrize(("partition", "points"), [("balanced", 3.0), ("dirichlet:0.5", 8.0)])
def test_liars_that_reply_at_once_cost_a_few_points(partition, points, name, selector):
    """Liars would be the first buffers, before a norm is known, and their updates are of the newest model."""
    settings = {"partition": partition, "selector": selector, **PLAYED[name]}
    honest = accuracy(Attack(liars=()), None, **settings)
    for attack, more in (("all three", 0.0), ("all, update x -10", 0.0), ("all, size x 3", 1.0)):
        assert accuracy(ATTACKS[attack], 0.001, **settings) >= honest - points - more, attack


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "partition", "liars_need", "points"),
    [
        ("3 of 10", "balanced", None, 3.0),
        ("3 of 10", "dirichlet:0.5", None, 8.0),
        ("3 of 10", "balanced", 20.0, 3.0),
        ("4 of 8", "dirichlet:0.5", 20.0, 8.0),
        ("5 of 5", "dirichlet:0.5", 20.0, 8.0),
    ],
)
def test_liars_that_reply_as_others_or_late_cost_a_few_points(name, partition, liars_need, points):
    """With K = 3, C = 10 and Dirichlet(0.5), late ones cost more, see docs/security.md."""
    settings = {"partition": partition, **PLAYED[name]}
    honest = accuracy(Attack(liars=()), None, **settings)
    assert accuracy(ATTACKS["all three"], liars_need, **settings) >= honest - points
