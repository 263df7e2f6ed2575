"""Samples in memory: one data set, or the samples of all clients in three arrays, client after client."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Dataset(NamedTuple):
    """Samples and their labels."""

    inputs: NDArray[np.float32]  # (n, features)
    labels: NDArray[np.int64]  # (n,)

    def __len__(self) -> int:
        """Return the number of samples n, not the number of fields."""
        return len(self.labels)

    def take(self, rows: NDArray[np.int64]) -> Dataset:
        """Return a copy of the samples in these rows."""
        return Dataset(self.inputs[rows], self.labels[rows])


class ReadableByRow(Protocol):
    """Samples that can be read by row: a `Dataset` or `datasets.Samples`."""

    def take(self, rows: NDArray[np.int64]) -> Dataset:
        """Return the samples in these rows."""


class FederatedData(NamedTuple):
    """The N samples of M clients. Client m holds the rows offsets[m] to offsets[m + 1] - 1."""

    inputs: NDArray[np.float32]  # (N, features)
    labels: NDArray[np.int64]  # (N,)
    offsets: NDArray[np.int64]  # (M + 1,), ascending from 0 to N
    groups: NDArray[np.int64] | None = None  # (M,) the group of each client; None: there are no groups

    @property
    def num_clients(self) -> int:
        """The number of clients M."""
        return len(self.offsets) - 1

    def sizes(self) -> NDArray[np.int64]:
        """Return the (M,) numbers of samples per client."""
        return np.diff(self.offsets)

    def check(self, num_features: int | None = None, num_classes: float = inf) -> None:
        """Raise ValueError if an array does not fit the others or, if given, the sizes of a model."""
        n = len(self.labels)
        features = self.inputs.shape[-1] if num_features is None else num_features
        if self.inputs.shape != (n, features):
            raise ValueError(f"inputs of shape {self.inputs.shape}: must be ({n}, {features})")
        if self.offsets[0] != 0 or self.offsets[-1] != n or (self.sizes() < 0).any():
            raise ValueError(f"offsets = {self.offsets}: must ascend from 0 to {n}")
        low, high = self.labels.min(initial=0), self.labels.max(initial=0)
        if self.labels.dtype.kind not in "iu" or low < 0 or high >= num_classes:
            raise ValueError(
                f"labels are {self.labels.dtype} from {low} to {high}: must be whole numbers >= 0, "
                f"below the number of classes ({num_classes:g})"
            )

    def client(self, m: int) -> Dataset:
        """Return the samples of client m, 0 <= m < M, as views; another m is an IndexError."""
        if not 0 <= m < self.num_clients:
            raise IndexError(f"client = {m}: must be between 0 and {self.num_clients - 1}")
        rows = slice(self.offsets[m], self.offsets[m + 1])
        return Dataset(self.inputs[rows], self.labels[rows])


def federate(
    dataset: ReadableByRow, parts: Sequence[NDArray[Any]], groups: NDArray[Any] | None = None
) -> FederatedData:
    """Copy the samples of ``dataset`` into three arrays, client after client in the order of ``parts``.

    ``parts`` holds the sample indexes of each client; samples that no client has are left out. ``groups``
    (M,) are the groups of the clients. Raises ValueError if there is no client, or if the two differ in
    length.
    """
    if not parts:
        raise ValueError("parts = []: there must be at least one client")
    if groups is not None and np.shape(groups) != (len(parts),):
        raise ValueError(f"groups of shape {np.shape(groups)}: must be ({len(parts)},), one per client")
    order = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return FederatedData(
        *dataset.take(order), offsets, None if groups is None else np.asarray(groups, dtype=np.int64)
    )
