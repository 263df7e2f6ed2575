"""Selectors that are biased on purpose: they take the plain mean of the selected clients."""

from abc import abstractmethod

import numpy as np

from ...numerics.arrays import Floats, Ints
from ..base import Selector
from ..context import RoundContext
from ..presence import Presence
from ..records import Selection


class PlainMeanSelector(Selector):
    """Weights each of the S selected clients with c_m = 1/S, also when all available clients are selected.

    ``Selection.importance`` is c_m/λ_m, λ being the share of the available clients' data: how many times its
    due weight a client gets. Its expectation is not 1, which is the bias. ``Selection.probabilities`` holds
    the probability of each client at the first draw, or 1 if all are taken.
    """

    unbiased = "none"
    equal_weight_draws = "always"

    def _distribution(self) -> Floats:
        p = np.zeros(self.num_clients)
        everyone = self._presence(None, None)
        if everyone.count:
            p[everyone.clients] = self._first_draw(everyone)
        return p

    def _select(self, context: RoundContext) -> Selection:
        available = context.available
        clients, p = self._choose(context)
        if clients.size == available.count:
            p = np.ones(clients.size)
        weights = np.full(clients.size, 1 / max(1, clients.size))
        importance = weights * (available.total_size / self.client_sizes[clients])
        return Selection(clients, np.ones(clients.size, dtype=np.int64), p, importance, weights)

    def _first_draw(self, available: Presence) -> Floats:
        """Return (n,) the probability of each available client, n >= 1, at the first draw: by data."""
        sizes = available.of(self.client_sizes)
        p: Floats = sizes / sizes.sum()
        return p

    @abstractmethod
    def _choose(self, context: RoundContext) -> tuple[Ints, Floats]:
        """Return (clients, their `_first_draw`): at most K distinct available clients."""
