"""The workloads that the engines train: the sizes of each, its samples and its initial model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.federated_data import Dataset, FederatedData, federate

FEATURES, CLASSES = 784, 10
HORIZON = 1000  # number of rounds that Adaptive-OSMD's learning rates assume; an engine may run more

Parameters = list["NDArray[np.float32]"]
"""A model: the weight (in, out) and the bias (out,) of the first layer, then of the second, and so on."""


@dataclass(frozen=True)
class Workload:
    """A federation, a model, and the local training of a selected client."""

    name: str
    title: str
    layers: tuple[int, ...]  # widths, from the features to the classes; ReLU between two layers
    shares: tuple[tuple[float, int], ...]  # (share of the clients, samples of each of these clients)
    num_clients: int  # M
    clients_per_round: int  # K
    steps: int  # SGD steps of a selected client in one round
    batch_size: int  # the mini-batch of a client with fewer samples is all its samples
    learning_rate: float
    seed: int = 0

    def sizes(self) -> NDArray[np.int64]:
        """Return the number of samples of each client (M,), in random order."""
        ends = np.rint(np.cumsum([share for share, _ in self.shares]) * self.num_clients).astype(np.int64)
        counts = np.diff(ends, prepend=0)
        sizes = np.repeat([samples for _, samples in self.shares], counts)
        return np.random.default_rng(self.seed).permutation(sizes)

    def initial(self) -> Parameters:
        """Return the initial model: uniform in ± 1/√fan_in, as torch initialises `Linear`."""
        random = np.random.default_rng(self.seed)
        parameters: Parameters = []
        for fan_in, fan_out in pairwise(self.layers):
            for shape in ((fan_in, fan_out), (fan_out,)):
                parameters.append(random.uniform(-(fan_in**-0.5), fan_in**-0.5, shape).astype(np.float32))
        return parameters

    def data(self, file: Path | None = None) -> FederatedData:
        """Return every client's samples: uniform noise with random labels, or samples drawn from a file.

        The file is an .npz with ``x_train`` (n, 28, 28) bytes and ``y_train`` (n,), such as MNIST's. Samples
        are drawn with replacement, so that clients may share them.
        """
        if file is not None and self.layers[0] != FEATURES:
            raise ValueError(f"data = {file}: must be left out, {self.name} has {self.layers[0]} features")
        sizes = self.sizes()
        total = int(sizes.sum())
        random = np.random.default_rng((self.seed, 1))
        if file is None:
            inputs = random.random((total, self.layers[0]), np.float32)
            offsets = np.concatenate(([0], np.cumsum(sizes)))
            return FederatedData(inputs, random.integers(CLASSES, size=total), offsets)
        with np.load(file) as arrays:
            images, labels = arrays["x_train"], arrays["y_train"]
        pool = Dataset(images.reshape(len(images), -1) / np.float32(255), labels.astype(np.int64))
        drawn = random.integers(len(pool), size=total)
        return federate(pool, np.split(drawn, np.cumsum(sizes)[:-1]))

    def alone(self) -> Workload:
        """Return this workload with a single client, whose every mini-batch is all its samples.

        Engines shuffle samples in different orders, which does not matter here: all must compute the same
        model.
        """
        samples = min(self.batch_size, max(samples for _, samples in self.shares))
        return replace(self, shares=((1.0, samples),), num_clients=1, clients_per_round=1)


_MLP = (FEATURES, 64, 30, CLASSES)

_SKEWED = ((0.65, 1), (0.2, 5), (0.1, 30), (0.05, 100))
_W1 = "logistic regression 784-10, M = 500 of 1 to 100 samples, K = 10, 1 step of batch 5"
_W2 = "MLP 784-64-30-10, M = 100 of 500 samples, K = 10, 30 steps of batch 64"
_W3 = "MLP 784-64-30-10, M = 10,000 of 50 samples, K = 100, 5 steps of all samples"
_W4 = "logistic regression 60-10, M = 1,000,000 of 5 samples, K = 100, 5 steps of all samples"
WORKLOADS = {
    "W1": Workload("W1", _W1, (FEATURES, CLASSES), _SKEWED, 500, 10, 1, 5, 0.01),
    "W2": Workload("W2", _W2, _MLP, ((1.0, 500),), 100, 10, 30, 64, 0.05),
    "W3": Workload("W3", _W3, _MLP, ((1.0, 50),), 10_000, 100, 5, 64, 0.05),
    "W4": Workload("W4", _W4, (60, CLASSES), ((1.0, 5),), 1_000_000, 100, 5, 5, 0.01),
}

FOR_ALL = ("W1", "W2", "W3")
"""The workloads of ``--workload all``, which every engine can run.

W4 has too many clients for engines that keep state for each client.
"""


def save(workload: Workload, data: FederatedData, folder: Path) -> None:
    """Write a workload and its samples to a folder, for `read` and `load`."""
    (folder / "workload.json").write_text(json.dumps(asdict(workload)))
    for name in ("inputs", "labels", "offsets"):
        np.save(folder / f"{name}.npy", getattr(data, name))


def read(folder: Path) -> Workload:
    """Return a saved workload."""
    fields = json.loads((folder / "workload.json").read_text())
    return Workload(
        **fields | {"layers": tuple(fields["layers"]), "shares": tuple(map(tuple, fields["shares"]))}
    )


def load(folder: Path) -> FederatedData:
    """Return saved samples. The arrays map files, so processes share their memory until one writes to it."""
    arrays = (np.load(folder / f"{name}.npy", mmap_mode="c") for name in ("inputs", "labels", "offsets"))
    return FederatedData(*(array.view(np.ndarray) for array in arrays))
