"""Clients that train at least once in so many rounds, besides those that the selector draws.

A client that is due trains for certain. So its importance W is 1, its weight is its share λ_m, and the
selector draws the rest of the K clients among the other available clients. Whoever is due, E[W_m] = 1 for
each available client: the aggregate estimates the same mean as without this rule, and is as unbiased.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Array, Ints
from ..selectors import Selection, Selector, checks
from .stages import Opened


class RegularClients:
    """Knows when each of the regular clients has trained last, and which of them are due.

    ``every``: client -> m >= 1, the number of rounds in which it trains at least once.
    """

    def __init__(self, every: Mapping[int, int]) -> None:
        self._every, self._trained = dict(every), dict.fromkeys(every, 0)

    def declare(self, every: Mapping[int, int]) -> None:
        """Set the number of rounds of regular clients, also of those that have joined."""
        self._every |= every
        self._trained = dict.fromkeys(every, 0) | self._trained

    def due(self, opened: Opened, selector: Selector) -> Ints:
        """Return the selectable clients that must train now, those that are overdue longest first.

        While there are other selectable clients, one place is left for these: else they would be missing from
        the mean.
        """
        late = {
            client: opened.number - self._trained[client] - m
            for client, m in self._every.items()
            if opened.number - self._trained[client] >= m
        }
        if not late:
            return np.empty(0, dtype=np.int64)
        here = np.intersect1d(opened.selectable(selector.registered), list(late))
        places = selector.clients_per_round if opened.budget is None else int(opened.budget)
        if here.size < opened.num_available:
            places -= 1
        overdue = np.array([late[client] for client in here.tolist()], dtype=np.int64)
        due: Ints = here[np.argsort(-overdue, kind="stable")[: max(0, places)]]
        return due

    def observe(self, round: int, clients: Ints) -> None:
        """Note that these clients have trained in a round."""
        self._trained |= {client: round for client in clients.tolist() if client in self._every}

    def state_dict(self) -> dict[str, Array]:
        clients = sorted(self._trained)
        return {
            "clients": np.array(clients, dtype=np.int64),
            "trained": np.array([self._trained[client] for client in clients], dtype=np.int64),
        }

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        axes = {"clients": ("regular",), "trained": ("regular",)}
        clients, trained = checks.state(state, self.state_dict(), axes).values()
        checks.in_range("state['clients']", clients, 0)
        checks.in_range("state['trained']", trained, 0)
        self._trained |= dict(zip(clients.tolist(), trained.tolist(), strict=True))


def with_due(due: Ints, drawn: Selection, selector: Selector, opened: Opened) -> Selection:
    """Return a selection of the clients that are due, and of those that were drawn among the others.

    A selector that is not unbiased has weights of its own: they share what the clients that are due leave.
    """
    clients = np.concatenate([due, drawn.clients])
    ones = np.ones(due.size)
    importance = np.concatenate([ones, drawn.importance])
    shares = selector.shares_of(clients, available=opened.available, unavailable=opened.unavailable)
    weights = importance * shares
    if selector.unbiased != "round":
        weights[due.size :] = (1 - weights[: due.size].sum()) * drawn.weights
    return Selection(
        clients,
        np.concatenate([ones.astype(np.int64), drawn.counts]),
        np.concatenate([ones, drawn.probabilities]),
        importance,
        weights,
    )
