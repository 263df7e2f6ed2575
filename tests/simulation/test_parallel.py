"""A kernel in several processes: its own results, bit for bit."""

import multiprocessing

import numpy as np
import pytest
import torch

import tasks
from simulation.kernels import MLP, Loop, Parallel, Plan, Softmax, parallel
from simulation.kernels.torch_functional import Torch
from simulation.simulator import Simulator

from ..support.simulators import data_of, start

CLIENTS = np.array([9, 0, 4, 7, 1, 8, 3, 5, 2, 6])


class Counted(Loop):
    """Counts the clients that are trained in this process."""

    trained = 0

    def train(self, arrays, data, clients, *more):
        Counted.trained += clients.size
        return super().train(arrays, data, clients, *more)


def torch_kernel(memory):
    task = tasks.create("digits-mlp")
    return Torch(task.layers, task.initial_arrays, memory=memory)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "kernel",
    [Softmax(64, 10), MLP((64, 32, 10)), torch_kernel(1 << 18), Counted(tasks.create("digits-mlp"))],
    ids=["softmax", "mlp", "torch", "loop"],
)
@pytest.mark.parametrize("memory", [1 << 30, 40 << 10], ids=["all at once", "in lots"])
def test_several_processes_give_the_results_of_one(kernel, memory, monkeypatch):
    """Includes kernels in torch, whose threads do not survive the fork."""
    monkeypatch.setattr(parallel, "_MEMORY", memory)
    data, arrays = data_of(), start(kernel)
    controls = {m: {name: np.full_like(array, 0.01 * m) for name, array in arrays.items()} for m in range(10)}
    kernel.train(arrays, data, CLIENTS, Plan(3, 1, 0.1, batch_size=1000, steps=1))
    plans = (
        Plan(3, 1, 0.1, batch_size=16, steps=1),
        Plan(3, 1, 0.1, batch_size=16, steps=4, proximal_mu=0.1, measure_variance=True),
        Plan(3, 1, 0.1, batch_size=10, steps=0, epochs=2),
    )
    with Parallel(kernel, workers=3) as several:
        for clients in (CLIENTS, CLIENTS[:2], CLIENTS[:1]):
            for plan, addends in [*((plan, None) for plan in plans), (plans[1], controls)]:
                Counted.trained = 0
                ours = several.train(arrays, data, clients, plan, addends)
                assert Counted.trained < max(2, clients.size)
                theirs = kernel.train(arrays, data, clients, plan, addends)
                np.testing.assert_array_equal(ours.losses, theirs.losses)
                np.testing.assert_array_equal(ours.gradient_variances, theirs.gradient_variances)
                np.testing.assert_array_equal(ours.updates.norms(), theirs.updates.norms())
                weights = np.linspace(0, 2, 10)[: clients.size]
                both = ours.updates, theirs.updates
                for one, other in (
                    [updates.combined(weights) for updates in both],
                    [updates.model(clients.size - 1) for updates in both],
                ):
                    assert one.keys() == other.keys()
                    for name in arrays:
                        np.testing.assert_array_equal(one[name], other[name])


def test_a_simulation_in_several_processes_is_the_one_in_one_process():
    data, kernel = data_of(), MLP((64, 32, 10))
    models = []
    with Parallel(kernel, workers=2) as several:
        for each in (kernel, several):
            simulator = Simulator(
                data, each, "adaptive-osmd", clients_per_round=5, num_rounds=6, learning_rate=0.1,
                batch_size=8, local_epochs=2,
            )  # fmt: skip
            simulator.run(6)
            models.append(simulator.arrays)
    for name, array in models[0].items():
        np.testing.assert_array_equal(array, models[1][name])


def test_a_chunk_is_computed_alike_with_any_other_chunks():
    data, kernel = data_of(), MLP((64, 8, 10))
    clients = np.random.default_rng(1).permutation(10)
    plan = Plan(3, 1, 0.1, batch_size=16, steps=0, epochs=1)
    chunks = kernel.chunks(data, clients, plan)
    assert len(chunks) > 3
    assert sorted(np.concatenate(chunks)) == list(range(10))
    for some in (chunks[::2], chunks[1:], chunks[-1:]):
        share = np.concatenate(some)
        again = kernel.chunks(data, clients[share], plan)
        assert [share[chunk].tolist() for chunk in again] == [chunk.tolist() for chunk in some]


def test_an_error_in_a_process_is_raised_and_the_next_round_works():
    data = data_of()
    kernel = Loop(tasks.create("digits"))
    with Parallel(kernel, workers=2) as several:
        arrays = kernel.initial_arrays(1)
        with pytest.raises(ValueError, match="seed = -1"):
            several.train(arrays, data, np.arange(6), Plan(-1, 1, 0.1, batch_size=8, steps=1))
        assert not multiprocessing.active_children()  # their late results must not enter the next round
        trained = several.train(arrays, data, np.arange(6), Plan(3, 1, 0.1, batch_size=8, steps=1))
        assert np.isfinite(trained.losses).all()
        (child,) = multiprocessing.active_children()
        with Parallel(kernel, workers=2) as other:  # its process inherits the first one's connection
            other.train(arrays, data, np.arange(6), Plan(3, 1, 0.1, batch_size=8, steps=1))
        child.kill()
        with pytest.raises(RuntimeError, match="ended with code -9"):
            several.train(arrays, data, np.arange(6), Plan(3, 1, 0.1, batch_size=8, steps=1))
    assert not multiprocessing.active_children()
    with pytest.raises(ValueError, match="workers = 0: must be >= 1"):
        Parallel(kernel, workers=0)
