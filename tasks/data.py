"""Samples in memory: a data set, and a whole federation's samples in three arrays, client after client."""

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
        """Return the number of samples n (not of fields)."""
        return len(self.labels)

    def take(self, rows: NDArray[np.int64]) -> Dataset:
        """Return some samples: a copy."""
        return Dataset(self.inputs[rows], self.labels[rows])


class Takes(Protocol):
    """Samples of which some can be had: a `Dataset`, or the half of a data set that is still bytes."""

    def take(self, rows: NDArray[np.int64]) -> Dataset:
        """Return some samples."""


class FederatedData(NamedTuple):
    """The samples of M clients, N in all; client m holds the rows offsets[m] to offsets[m + 1] - 1."""

    inputs: NDArray[np.float32]  # (N, features)
    labels: NDArray[np.int64]  # (N,)
    offsets: NDArray[np.int64]  # (M + 1,), ascending from 0 to N
    groups: NDArray[np.int64] | None = None  # (M,)

    @property
    def num_clients(self) -> int:
        """M."""
        return len(self.offsets) - 1

    def sizes(self) -> NDArray[np.int64]:
        """Return (M,) samples a client."""
        return np.diff(self.offsets)

    def check(self, num_features: int | None = None, num_classes: float = inf) -> None:
        """Look whether the arrays fit together and, where that is known, a model.

        Parameters
        ----------
        num_features, num_classes : int, optional
            What the model takes, and what it tells apart.

        Raises
        ------
        ValueError
            If they do not; the message says which.
        """
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
        """Return the samples of client m, 0 <= m < M; views, no copies.

        Raises
        ------
        IndexError
            If there is no such client.
        """
        if not 0 <= m < self.num_clients:
            raise IndexError(f"client = {m}: must be between 0 and {self.num_clients - 1}")
        rows = slice(self.offsets[m], self.offsets[m + 1])
        return Dataset(self.inputs[rows], self.labels[rows])


def federate(
    dataset: Takes, parts: Sequence[NDArray[Any]], groups: NDArray[Any] | None = None
) -> FederatedData:
    """Lay out ``dataset`` client after client: a copy, in the order of ``parts``.

    Parameters
    ----------
    dataset : Dataset, or whatever else has its ``take``
        All samples.
    parts : sequence of numpy.ndarray
        For each client the indexes of its samples; what no part names is left out.
    groups : numpy.ndarray, optional
        (M,) each client's group, a whole number.

    Raises
    ------
    ValueError
        If there is no client, or ``groups`` has another length than ``parts``.
    """
    if not parts:
        raise ValueError("parts = []: there must be at least one client")
    if groups is not None and np.shape(groups) != (len(parts),):
        raise ValueError(f"groups of shape {np.shape(groups)}: must be ({len(parts)},), one a client")
    order = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return FederatedData(
        *dataset.take(order), offsets, None if groups is None else np.asarray(groups, dtype=np.int64)
    )
