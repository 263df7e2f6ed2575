"""Kernels, made-up samples and simulators for the tests of the simulation."""

from typing import Any

import numpy as np

import tasks
from simulation.kernels import MLP, Kernel, Softmax
from simulation.kernels.torch_functional import Torch
from simulation.simulator import Simulator
from tasks.federated_data import FederatedData

SIZES = (1, 3, 5, 8, 16, 17, 40, 64, 65, 100)


def data_of(sizes: tuple[int, ...] = SIZES, features: int = 64, seed: int = 0) -> FederatedData:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    inputs = rng.random((offsets[-1], features), dtype=np.float32)
    return FederatedData(inputs, rng.integers(0, 10, offsets[-1]), offsets)


def torch_kernel(task: str) -> Kernel:
    """Return the kernel on `torch.func`, which `kernel_of` uses only for networks without another one."""
    made: Any = tasks.create(task)
    return Torch(made.layers, made.initial_arrays, memory=1 << 28)


KERNELS: dict[str, tuple[Kernel, str]] = {
    "softmax": (Softmax(64, 10), "digits"),
    "mlp": (MLP((64, 32, 10)), "digits-mlp"),
    "torch": (torch_kernel("digits-mlp"), "digits-mlp"),
}


def start(kernel: Kernel) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {
        name: array + 0.03 * rng.standard_normal(array.shape, dtype=np.float32)
        for name, array in kernel.initial_arrays(1).items()
    }


def digits(num_clients: int, seed: int) -> FederatedData:
    task = tasks.create("digits")
    parts = [task.client_data(m, num_clients, seed) for m in range(num_clients)]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    inputs, labels = (np.concatenate([part[field] for part in parts]) for field in (0, 1))
    return FederatedData(inputs, labels, offsets)


def simulator_of(**options: Any) -> Simulator:
    return Simulator(
        data_of(), Softmax(64, 10), **{
            "selector": "adaptive-osmd", "clients_per_round": 3, "num_rounds": 20, "learning_rate": 0.1,
            "batch_size": 8, "local_steps": 2, "seed": 4, **options,
        },
    )  # fmt: skip
