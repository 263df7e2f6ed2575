"""A whole cohort's local training in one piece: what a simulator hands to the round, not replies."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..numerics.arrays import Floats, Ints
from .aggregation import Arrays


class ClientUpdates(ABC):
    """The updates w_m - w_t of R clients, held in whatever form local training left them."""

    @abstractmethod
    def norms(self) -> Floats:
        """Return (R,) the L2 norm of each update over all arrays; not finite where the update is not."""

    @abstractmethod
    def combined(self, coefficients: Floats) -> Arrays:
        """Return Σ_m c_m (w_m - w_t) by name, in the model's shapes: the caller's own.

        Parameters
        ----------
        coefficients : ndarray, shape (R,)
            c_m. An update with c_m = 0 may be anything, NaN too.
        """

    @abstractmethod
    def model(self, row: int) -> Mapping[str, NDArray[Any]]:
        """Return w_m of one client, 0 <= row < R."""


@dataclass(frozen=True)
class TrainedClients:
    """What came of a cohort of S clients, of which R answered."""

    positions: Ints  # (R,) of those who answered, in the selection; ascending
    updates: ClientUpdates  # R of them
    losses: Floats  # (R,) mean local training loss
    num_steps: Ints  # (R,) local steps
    gradient_variances: Floats  # (R,) σ²; NaN = not measured
    failures: Mapping[int, str] = field(default_factory=dict)  # position -> why it did not answer


class TrainedModel(Mapping[str, NDArray[Any]]):
    """w_m of one client of a trained cohort, made when somebody looks at it."""

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
