"""The local training of all selected clients as one batch, which a simulator returns instead of replies."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..numerics.arrays import Floats, Ints
from .aggregation import Arrays


class ClientUpdates(ABC):
    """The updates w_m - w_t of R clients, in whatever form the local training left them."""

    @abstractmethod
    def norms(self) -> Floats:
        """Return (R,) the L2 norm of each update over all its arrays; not finite if the update is not."""

    @abstractmethod
    def combined(self, coefficients: Floats) -> Arrays:
        """Return Σ_m c_m (w_m - w_t) by name, in the model's shapes; the caller's own arrays.

        Parameters
        ----------
        coefficients : ndarray, shape (R,)
            c_m. An update with c_m = 0 may hold anything, even NaN.
        """

    @abstractmethod
    def model(self, row: int) -> Mapping[str, NDArray[Any]]:
        """Return w_m of one client, 0 <= row < R."""


@dataclass(frozen=True)
class TrainedClients:
    """The training of S selected clients, of which R replied."""

    positions: Ints  # (R,) the positions of the replying clients in the selection, ascending
    updates: ClientUpdates  # of R clients
    losses: Floats  # (R,) mean local training loss
    num_steps: Ints  # (R,) local steps
    gradient_variances: Floats  # (R,) σ²; NaN = not measured
    failures: Mapping[int, str] = field(default_factory=dict)  # position -> why it did not reply


class TrainedModel(Mapping[str, NDArray[Any]]):
    """w_m of one client of a batch, computed on the first access."""

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


def spread(values: Floats, positions: Ints, size: int) -> Floats:
    """Return (size,) the values at their positions, NaN elsewhere."""
    if values.size == size:
        return values
    placed = np.full(size, np.nan)
    placed[positions] = values
    return placed
