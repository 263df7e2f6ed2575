"""The local training of all selected clients as one batch, which a simulator returns instead of replies."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..numerics.arrays import Floats, Ints
from .aggregation import Arrays


class Rebased(Mapping[str, NDArray[Any]]):
    """w_t + (w_m - w_s) for a client m that trained from w_s. Each array is computed when it is accessed.

    The sums are in float32, or in the arrays' type if it is wider.

    The names, shapes and types of w_m (``sent``) have been checked. ``base`` is w_s, and ``now`` w_t.
    """

    def __init__(
        self,
        sent: Mapping[str, NDArray[Any]],
        base: Mapping[str, NDArray[Any]],
        now: Mapping[str, NDArray[Any]],
    ) -> None:
        self._sent, self._base, self._now = sent, base, now

    def __getitem__(self, name: str) -> NDArray[Any]:
        now = self._now[name]
        moved: NDArray[Any] = np.subtract(now, self._base[name], dtype=np.result_type(now, np.float32))
        np.add(moved, self._sent[name], out=moved, casting="same_kind")
        return moved

    def __iter__(self) -> Iterator[str]:
        return iter(self._sent)

    def __len__(self) -> int:
        return len(self._sent)


class ClientUpdates(ABC):
    """The updates w_m - w_t of R clients. Subclasses need not store each update explicitly."""

    @abstractmethod
    def norms(self) -> Floats:
        """Return (R,) the L2 norm of each update over all arrays; not finite if an entry is not finite."""

    @abstractmethod
    def combined(self, coefficients: Floats) -> Arrays:
        """Return Σ_m c_m (w_m - w_t) by name, in new arrays. Updates with c_m = 0, even NaN, are left out."""

    @abstractmethod
    def model(self, row: int) -> Mapping[str, NDArray[Any]]:
        """Return the trained model w_m of the client at ``row``, 0 <= row < R."""


@dataclass(frozen=True)
class WeightedUpdates(ClientUpdates):
    """The updates of R clients that multiply their updates by weights, and report the unweighted norms."""

    updates: ClientUpdates
    weights: Floats  # (R,)
    arrays: Mapping[str, NDArray[Any]]  # w_t

    def norms(self) -> Floats:
        """Return (R,) the norms of the updates before they are multiplied by the weights."""
        return self.updates.norms()

    def combined(self, coefficients: Floats) -> Arrays:
        return self.updates.combined(coefficients * self.weights)

    def model(self, row: int) -> Mapping[str, NDArray[Any]]:
        """Return the model in the reply of the client at ``row``: w_t plus the weighted update."""
        weight, sent = np.float32(self.weights[row]), self.updates.model(row)
        return {name: array + weight * (sent[name] - array) for name, array in self.arrays.items()}


@dataclass(frozen=True)
class JoinedUpdates(ClientUpdates):
    """The updates of R clients in several sets. The clients of a set trained from the same model."""

    rows: Sequence[Ints]  # of each set: the rows of its clients, from 0 to R - 1
    sets: Sequence[ClientUpdates]
    bases: Sequence[Mapping[str, NDArray[Any]]]  # of each set: the model from which its clients trained
    now: Mapping[str, NDArray[Any]]  # w_t

    def norms(self) -> Floats:
        """Return (R,) the norms of the updates, each relative to the model from which its client trained."""
        norms = np.empty(sum(rows.size for rows in self.rows))
        for rows, updates in zip(self.rows, self.sets, strict=True):
            norms[rows] = updates.norms()
        return norms

    def combined(self, coefficients: Floats) -> Arrays:
        total: Arrays = {}
        for rows, updates in zip(self.rows, self.sets, strict=True):
            for name, array in updates.combined(coefficients[rows]).items():
                total[name] = total[name] + array if name in total else array
        return total

    def model(self, row: int) -> Mapping[str, NDArray[Any]]:
        """Return w_t plus the update of the client at ``row``."""
        for rows, updates, base in zip(self.rows, self.sets, self.bases, strict=True):
            for place in np.flatnonzero(rows == row).tolist():
                return Rebased(updates.model(place), base, self.now)
        raise IndexError(f"row = {row}: must be a row of a set")


@dataclass(frozen=True)
class TrainedClients:
    """The training of S selected clients, of which R replied."""

    positions: Ints  # (R,) the positions of the replying clients in the selection, ascending
    updates: ClientUpdates  # the updates of the R clients that replied
    losses: Floats  # (R,) the mean local training losses
    num_steps: Ints  # (R,) the numbers of local steps
    gradient_variances: Floats  # (R,) the gradient variances σ²; NaN = not measured
    failures: Mapping[int, str] = field(default_factory=dict)  # position -> why the client did not reply

    @cached_property
    def norms(self) -> Floats:
        """(R,) the L2 norm of each update; not finite if an entry is not finite."""
        return self.updates.norms()

    def spread(self, values: Floats, size: int) -> Floats:
        """Return (S,) the values (R,) at the positions of their clients, and NaN at all other positions."""
        if values.size == size:
            return values
        placed = np.full(size, np.nan)
        placed[self.positions] = values
        return placed


class TrainedModel(Mapping[str, NDArray[Any]]):
    """The trained model w_m of one client of a batch. It is computed on the first access."""

    def __init__(self, updates: ClientUpdates, row: int) -> None:
        self._updates, self._row = updates, row
        self._arrays: Mapping[str, NDArray[Any]] | None = None

    def _made(self) -> Mapping[str, NDArray[Any]]:
        if self._arrays is None:
            self._arrays = self._updates.model(self._row)
        return self._arrays

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._made()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made())

    def __len__(self) -> int:
        return len(self._made())
