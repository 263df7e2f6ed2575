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
MODE = Buffered(concurrency=10, size=3)


class Chosen(ResponseTimes):
    """The liars reply after a time of their choice, in seconds; the others need about a second."""

    def __init__(self, seed: int, liars_need: float | None) -> None:
        super().__init__(NUM_CLIENTS, seed=seed)
        self._random, self._liars_need = np.random.default_rng(seed), liars_need

    def seconds(self, round: int, clients: Sequence[int]) -> np.ndarray:
        usual = self._random.lognormal(0, 0.3, len(clients))
        return usual if self._liars_need is None else np.where(np.isin(clients, LIARS), self._liars_need, usual)


def accuracy(partition: str, attack: Attack, seed: int, liars_need: float | None) -> float:
    """Return the mean test accuracy of the last rounds, in percent. None: liars need as long as others."""
    task = tasks.create("digits", partition=partition)
    data, test = task.federated_data(NUM_CLIENTS, seed), task.test_data()
    simulator = Simulator(
        data,
        LyingKernel(kernel_of(task), attack),
        "md",
        clients_per_round=CLIENTS_PER_ROUND,
        num_rounds=ROUNDS,
        learning_rate=0.2,
        batch_size=16,
        local_steps=5,
        seed=seed,
        faults=Faults(),
        mode=MODE,
        response_times=Chosen(seed, liars_need),
    )
    found = []
    for number in range(1, ROUNDS + 1):
        simulator.step()
        if number > ROUNDS - LAST:
            found.append(100 * simulator.evaluate(test).accuracy)
    return float(np.mean(found))


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
