"""Clients that join late, numbered in the order in which they are first available."""

import numpy as np

from strategies.numerics.arrays import Ints
from tasks.federated_data import Dataset, FederatedData, federate

from .base import Availability


class InOrderOfArrival(Availability):
    """Registers the clients of another process when they are first available, as `SelectionStrategy` does.

    Clients are renumbered by the first round in which they are available, then by their index
    (`strategies.clients.roster`). So if clients join late, the simulator with this process selects the same
    clients as `SelectionStrategy` with ``process``. At least one client must be available in round 1. Clients
    that are not available in rounds 1 to ``num_rounds`` get the last numbers, and are registered after round
    ``num_rounds``. ``order`` (M,) is the index in ``process`` of each renumbered client.

    Examples
    --------
    >>> from simulation.availability import create
    >>> process = InOrderOfArrival(create("once", 6, rates=0.4), num_rounds=3)
    >>> [process.available(round).tolist() for round in (1, 2, 3)]
    [[0, 1], [2, 3], [4, 5]]
    >>> [process.num_registered(round) for round in (1, 2, 3)]
    [2, 4, 6]
    """

    def __init__(self, process: Availability, num_rounds: int) -> None:
        super().__init__(process.num_clients, process.seed)
        seen = np.zeros(process.num_clients, dtype=np.bool_)
        joined: list[Ints] = []
        for number in range(1, num_rounds + 1):
            available = process.available(number)
            new = np.flatnonzero(~seen) if available is None else available[~seen[available]]
            seen[new] = True
            joined.append(new)
        if not joined or not joined[0].size:
            raise ValueError("process: no client is available in round 1")
        self.order: Ints = np.concatenate([*joined, np.flatnonzero(~seen)])
        self._registered = np.cumsum([new.size for new in joined])
        self._index = np.argsort(self.order)
        self._process = process

    def num_registered(self, round: int) -> int:
        return int(self._registered[round - 1]) if round <= self._registered.size else self.num_clients

    def _available(self, round: int) -> Ints | None:
        available = self._process.available(round)
        return None if available is None else np.sort(self._index[available])

    def renumbered(self, data: FederatedData) -> FederatedData:
        rows = [np.arange(data.offsets[m], data.offsets[m + 1]) for m in self.order.tolist()]
        groups = None if data.groups is None else data.groups[self.order]
        return federate(Dataset(data.inputs, data.labels), rows, groups)
