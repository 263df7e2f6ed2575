"""Liars in buffered rounds, which choose when they reply: what three of twenty cost in accuracy."""

from collections.abc import Sequence

import numpy as np
import pytest

import tasks
from benchmarks.liars import ATTACKS, CLIENTS_PER_ROUND, LIARS, NUM_CLIENTS, Attack, LyingKernel
from simulation.kernels import kernel_of
from simulation.response_times import ResponseTimes
from simulation.simulator import Simulator
from strategies.options import Buffered, Faults

ROUNDS, LAST = 100, 40


class Chosen(ResponseTimes):
    """The liars reply after a time of their choice, in seconds; the others need about a second."""

    def __init__(self, seed: int, liars_need: float | None) -> None:
        super().__init__(NUM_CLIENTS, seed=seed)
        self._random, self._liars_need = np.random.default_rng(seed), liars_need

    def seconds(self, round: int, clients: Sequence[int]) -> np.ndarray:
        usual = self._random.lognormal(0, 0.3, len(clients))
        if self._liars_need is None:
            return usual
        return np.where(np.isin(clients, LIARS), self._liars_need, usual)


def simulator(
    partition: str, attack: Attack, seed: int, liars_need: float | None, selector: str = "md", size: int = 3
) -> Simulator:
    """Return a simulation; ``liars_need`` is None if liars need as long as others."""
    task = tasks.create("digits", partition=partition)
    return Simulator(
        task.federated_data(NUM_CLIENTS, seed),
        LyingKernel(kernel_of(task), attack),
        selector,
        clients_per_round=CLIENTS_PER_ROUND,
        num_rounds=ROUNDS,
        learning_rate=0.2,
        batch_size=16,
        local_steps=5,
        seed=seed,
        faults=Faults(),
        mode=Buffered(concurrency=10, size=size, staleness_power=0.5),
        response_times=Chosen(seed, liars_need),
    )


def accuracy(partition: str, attack: Attack, seed: int, liars_need: float | None) -> float:
    """Return the mean test accuracy of the last rounds, in percent."""
    simulated, test = simulator(partition, attack, seed, liars_need), tasks.create("digits").test_data()
    found = []
    for number in range(1, ROUNDS + 1):
        simulated.step()
        if number > ROUNDS - LAST:
            found.append(100 * simulated.evaluate(test).accuracy)
    return float(np.mean(found))


@pytest.mark.parametrize("selector", ["oort", "rpow-d"])
def test_a_liar_that_replies_at_once_is_drawn_twice_as_often_as_its_share_at_most(selector: str) -> None:
    """Its share is that among all available clients, and not among those few that are idle."""
    size, rounds = 5, 50
    simulated = simulator("balanced", Attack(loss=1e3), 1, 0.001, selector, size)
    draws = np.zeros(NUM_CLIENTS)
    for _ in range(rounds):
        selection = simulated.step().selection
        draws[selection.clients] += selection.counts
    assert draws[list(LIARS)].max() <= 1 + 2 * rounds * size / (NUM_CLIENTS - len(LIARS))


@pytest.mark.slow
@pytest.mark.parametrize(("partition", "points"), [("balanced", 3.0), ("dirichlet:0.5", 8.0)])
@pytest.mark.parametrize("liars_need", [0.001, None, 20.0], ids=["at once", "as others", "late"])
def test_liars_that_choose_when_they_reply_cost_a_few_points(
    partition: str, points: float, liars_need: float | None
) -> None:
    """A false update of the newest model is less opposed to updates of the others' older models."""
    seeds = (1, 2, 3)
    honest = np.mean([accuracy(partition, Attack(liars=()), seed, None) for seed in seeds])
    lying = [accuracy(partition, ATTACKS["all three"], seed, liars_need) for seed in seeds]
    assert np.mean(lying) >= honest - points
