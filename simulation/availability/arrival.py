"""Clients of whom nobody knows before they are first here."""

from __future__ import annotations

import numpy as np

from strategies.numerics.arrays import Ints
from tasks.data import Dataset, FederatedData, federate

from .base import Availability


class InOrderOfArrival(Availability):
    """A process whose clients are enrolled when they are first here, as `SelectionStrategy` enrols them.

    They are renumbered: by their first round, then by their index (`strategies.clients.roster`). The cohorts of the
    simulator are then those of the strategy over the same process, also where clients join late.

    Parameters
    ----------
    process : Availability
        Who is here. In round 1 there must be somebody.
    num_rounds : int
        Who has not been here by then is numbered last, and known from then on.

    Attributes
    ----------
    order : ndarray of int, shape (M,)
        Which client of the process each one is.

    Raises
    ------
    ValueError
        If nobody is here in round 1.

    Examples
    --------
    >>> from simulation.availability import create
    >>> arrivals = InOrderOfArrival(create("once", 6, rates=0.4), num_rounds=3)
    >>> [arrivals.here(round).tolist() for round in (1, 2, 3)], [arrivals.known(round) for round in (1, 2, 3)]
    ([[0, 1], [2, 3], [4, 5]], [2, 4, 6])
    """

    def __init__(self, process: Availability, num_rounds: int) -> None:
        super().__init__(process.num_clients, process.seed)
        seen = np.zeros(process.num_clients, dtype=np.bool_)
        joined: list[Ints] = []
        for number in range(1, num_rounds + 1):
            here = process.here(number)
            new = np.flatnonzero(~seen) if here is None else here[~seen[here]]
            seen[new] = True
            joined.append(new)
        if not joined or not joined[0].size:
            raise ValueError("process: nobody is here in round 1")
        self.order: Ints = np.concatenate([*joined, np.flatnonzero(~seen)])
        self._known = np.cumsum([new.size for new in joined])
        self._index = np.argsort(self.order)
        self._process = process

    def known(self, round: int) -> int:
        return int(self._known[round - 1]) if round <= self._known.size else self.num_clients

    def _here(self, round: int) -> Ints | None:
        here = self._process.here(round)
        return None if here is None else np.sort(self._index[here])

    def renumbered(self, data: FederatedData) -> FederatedData:
        """Return the samples of the process's clients in the new order; groups are numbered as they come."""
        rows = [np.arange(data.offsets[m], data.offsets[m + 1]) for m in self.order.tolist()]
        groups = None
        if data.groups is not None:
            _, first, group = np.unique(data.groups[self.order], return_index=True, return_inverse=True)
            groups = np.argsort(np.argsort(first))[group]
        return federate(Dataset(data.inputs, data.labels), rows, groups)
