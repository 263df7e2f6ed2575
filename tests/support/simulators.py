"""Kernels, made-up samples, simulators, and runs of the strategy with which their rounds are compared."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord

import tasks
from client.app import app as client_app
from simulation.grid import InProcessGrid
from simulation.kernels import MLP, Softmax
from simulation.kernels.torch_functional import Torch
from simulation.simulator import Simulator
from strategies import SelectionStrategy
from strategies.options import Polling
from tasks.federated_data import FederatedData

from ..server.test_apps import DEFAULTS

SIZES = (1, 3, 5, 8, 16, 17, 40, 64, 65, 100)


def data_of(sizes=SIZES, features=64, seed=0):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    inputs = rng.random((offsets[-1], features), dtype=np.float32)
    return FederatedData(inputs, rng.integers(0, 10, offsets[-1]), offsets)


def torch_kernel(task):
    """Return the kernel on `torch.func`, which `kernel_of` uses only for networks without another one."""
    made = tasks.create(task)
    return Torch(made.layers, made.initial_arrays, memory=1 << 28)


KERNELS = {
    "softmax": (Softmax(64, 10), "digits"),
    "mlp": (MLP((64, 32, 10)), "digits-mlp"),
    "torch": (torch_kernel("digits-mlp"), "digits-mlp"),
}


def start(kernel):
    rng = np.random.default_rng(7)
    return {
        name: array + 0.03 * rng.standard_normal(array.shape, dtype=np.float32)
        for name, array in kernel.initial_arrays(1).items()
    }


def digits(num_clients, seed):
    task = tasks.create("digits")
    parts = [task.client_data(m, num_clients, seed) for m in range(num_clients)]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    inputs, labels = (np.concatenate([part[field] for part in parts]) for field in (0, 1))
    return FederatedData(inputs, labels, offsets)


def simulator_of(data=None, **options):
    return Simulator(
        data or data_of(), options.pop("kernel", Softmax(64, 10)), **{
            "selector": "adaptive-osmd", "clients_per_round": 3, "num_rounds": 20, "learning_rate": 0.1,
            "batch_size": 8, "local_steps": 2, "seed": 4, **options,
        },
    )  # fmt: skip


TRAINING = {"learning_rate": 0.5, "batch_size": 16, "local_steps": 5}


def run_of_apps(selector, clients, rounds, *, grid=None, partition="skewed", **options):
    """Run the strategy over the ClientApp, on digits; return it, the last model, and the records."""
    if grid is None:
        grid = {}
    records = []
    config = {**DEFAULTS, "num-clients": clients, "seed": 5, "partition": partition}
    nodes = ({"partition-id": m, "num-partitions": clients} for m in range(clients))
    strategy = SelectionStrategy(
        selector, **{
            "clients_per_round": 3, "min_available_clients": clients, "seed": 5, "local_learning_rate": 0.5,
            "polling": Polling(ask_status=True), "on_round": records.append, **options,
        },
    )  # fmt: skip
    result = strategy.start(
        InProcessGrid(client_app, nodes, run_config=config, **grid),
        ArrayRecord({name: Array(array) for name, array in Softmax(64, 10).initial_arrays(5).items()}),
        num_rounds=rounds,
        train_config=ConfigRecord({name.replace("_", "-"): value for name, value in TRAINING.items()}),
    )
    return strategy, {name: array.numpy() for name, array in result.arrays.items()}, records


def like_the_apps(selector, data, rounds, **options):
    """Return the simulator of the federation that `run_of_apps` trains."""
    held = digits(data, 5) if isinstance(data, int) else data
    options = {"clients_per_round": 3, "num_rounds": rounds, "seed": 5, **TRAINING, **options}
    return Simulator(held, options.pop("kernel", Softmax(64, 10)), selector, **options)
