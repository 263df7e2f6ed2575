"""Predicts every client's share of the variance in a round from the other rounds of a log."""

import numpy as np

from ..numerics.arrays import Floats, Ints
from ..selectors import Selector, create
from .log import LoggedRound

MEMORY = 0.9
"""The weight of a round in the scale of the prediction, relative to the round that follows it."""


class Predictor:
    """Predicts a_m = λ_m² ||g_m||² of all clients as b_m = c q_m².

    q is the distribution of `forecast`, which is nearly in proportion to the roots of a. The scale c is the
    sum of a over the last draws, divided by the sum of q² over these draws. Older draws count less.
    """

    def __init__(self, selector: Selector) -> None:
        self._selector = selector
        self._sums: Floats = np.zeros(2)  # decaying sums of a and of q² over the draws

    @classmethod
    def new(cls, sizes: Floats, clients_per_round: int) -> "Predictor":
        """Return a predictor with a selector of its own, for clients of these sizes (M,)."""
        k = min(clients_per_round, sizes.size)
        return cls(create("forecast", sizes.size, client_sizes=sizes, clients_per_round=k))

    def predict(self, round: LoggedRound) -> Floats:
        """Return b (M,); 0 for absent clients."""
        scale = self._sums[0] / self._sums[1] if self._sums[1] > 0 else 0.0
        prediction: Floats = scale * self._distribution(round) ** 2
        return prediction

    def learn(self, round: LoggedRound) -> None:
        """Learn from a round which clients have large norms, and the scale of the norms."""
        extended(self._selector, round.sizes)
        self.learn_scale(round)
        if round.clients.size:
            self._selector.update(round.number, *round.observed())

    def learn_scale(self, round: LoggedRound) -> None:
        """Learn only the scale of the norms from a round; the selector learns elsewhere, or not at all."""
        drawn: Ints = round.clients
        a = (round.shares[drawn] * round.norms) ** 2
        q = self._distribution(round)[drawn]
        self._sums = MEMORY * self._sums + (float(a @ round.counts), float(q**2 @ round.counts))

    def _distribution(self, round: LoggedRound) -> Floats:
        """Return q, restricted to the selectable clients; a client unknown to the selector has the mean q."""
        p = self._selector.probabilities[: round.sizes.size]
        joined = np.full(round.sizes.size - p.size, p.mean())
        return round.restricted(np.concatenate([p, joined]))


def extended(selector: Selector, sizes: Floats) -> None:
    """Set the sizes (M,) of all clients in a selector, and add the clients that have joined."""
    before = selector.num_clients
    if sizes.size < before:  # a round before clients joined, see `collect`
        return
    changed = np.flatnonzero(sizes[:before] != selector.client_sizes)
    if changed.size:
        selector.set_sizes(changed, sizes[changed])
    if sizes.size > before:
        selector.add_clients(sizes[before:])
