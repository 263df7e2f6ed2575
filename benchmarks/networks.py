"""Client updates a second with the papers' networks, on a GPU if there is one.

Two engines train the same federation in turns: the batched simulator of this project, with Adaptive-OSMD, and
a plain PyTorch loop with FedAvg over clients drawn uniformly. The loop keeps all samples, models and sums on
the device. The simulator copies mini-batches to the device. It copies the updates back, or for a large model
only their sum, since selectors and server strategies are in NumPy. Both engines compute in float32 without
TF32.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import tasks
from benchmarks.results.machine import gpu
from simulation.kernels import kernel_of
from simulation.simulator import Simulator
from tasks.federated_data import FederatedData
from tasks.models.network import Network
from tasks.models.resnet import ResNet18

RATE, HORIZON, BLOCKS = 0.01, 10_000, 5


class Case(NamedTuple):
    """A network and a federation."""

    title: str
    build: Callable[[], tasks.Task]
    num_clients: int = 300
    samples: int = 200  # of each client
    clients_per_round: int = 20
    steps: int = 5
    batch_size: int = 32


CASES = {
    "cnn": Case("McMahan's CNN, 28 x 28", lambda: tasks.create("mnist-cnn")),
    "resnet18": Case("ResNet-18, 28 x 28", lambda: ResNet18("mnist")),
}
"""The networks. The defaults of `Case` are the numbers of DELTA's Table 2 on Fashion-MNIST: 20 of 300 clients
take 5 steps on mini-batches of 32."""


class Row(NamedTuple):
    """The speed of an engine: medians over the blocks of rounds."""

    network: str
    device: str
    engine: str
    updates_per_s: float
    ms_per_round: float


def federation(case: Case) -> FederatedData:
    """Return a federation of noise with random labels: every sample is 784 random numbers in [0, 1)."""
    random, count = np.random.default_rng(0), case.num_clients * case.samples
    return FederatedData(
        random.random((count, 784), np.float32),
        random.integers(10, size=count),
        case.samples * np.arange(case.num_clients + 1),
    )


def simulator(case: Case, data: FederatedData, device: str) -> Iterator[None]:
    """Run a round of the simulator for each `next`."""
    made = Simulator(
        data,
        kernel_of(case.build(), device),
        "adaptive-osmd",
        clients_per_round=case.clients_per_round,
        num_rounds=HORIZON,
        learning_rate=RATE,
        batch_size=case.batch_size,
        local_steps=case.steps,
    )
    while True:
        made.step()
        yield


def loop(case: Case, data: FederatedData, device: str) -> Iterator[None]:
    """Run a round of the plain loop for each `next`."""
    task = case.build()
    assert isinstance(task, Network)
    model = task.layers()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in task.initial_arrays(0).items()})
    model.to(device)
    inputs, labels = torch.from_numpy(data.inputs).to(device), torch.from_numpy(data.labels).to(device)
    current = {name: value.clone() for name, value in model.state_dict().items()}
    random = np.random.default_rng(0)
    while True:
        sums = {name: torch.zeros_like(value) for name, value in current.items()}
        for client in random.choice(case.num_clients, case.clients_per_round, replace=False).tolist():
            model.load_state_dict(current)
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            order = torch.randperm(case.samples, device=device) + client * case.samples
            for step in range(case.steps):
                batch = order[step * case.batch_size : (step + 1) * case.batch_size]
                optimizer.zero_grad()
                cross_entropy(model(inputs[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            for name, value in model.state_dict().items():
                sums[name] += value
        current = {name: value / case.clients_per_round for name, value in sums.items()}
        if device == "cuda":
            torch.cuda.synchronize()
        yield


ENGINES = {"simulator": simulator, "loop": loop}


def measure(names: Sequence[str], device: str | None, seconds: float) -> list[list[dict[str, Any]]]:
    """Measure some of `CASES` with each engine, on "cpu" or "cuda" (None = a GPU if there is one).

    `seconds` is the time of each engine with each network, in `BLOCKS` blocks of at least one round. The
    engines' blocks alternate.
    """
    device = device or ("cuda" if gpu() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rows = []
    for name in names:
        case = CASES[name]
        data = federation(case)
        running = {engine: start(case, data, device) for engine, start in ENGINES.items()}
        for rounds in running.values():
            next(rounds), next(rounds)  # the first rounds compile code and take memory
        times: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        for _ in range(BLOCKS):
            for engine, rounds in running.items():
                count, begin = 0, time.perf_counter()
                while count == 0 or time.perf_counter() - begin < seconds / BLOCKS:
                    next(rounds)
                    count += 1
                times[engine].append((time.perf_counter() - begin) / count)
        where = gpu() if device == "cuda" else "CPU"
        for engine, found in times.items():
            median = statistics.median(found)
            row = Row(case.title, where, engine, case.clients_per_round / median, 1e3 * median)
            rows.append(row._asdict())
    return [rows]
