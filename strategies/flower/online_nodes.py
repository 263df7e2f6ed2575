"""The nodes that are online at one look. Of a known client's node, usually nothing is read but its id."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..clients.printable import printable
from ..clients.saved_roster import SavedRoster


class OnlineNodes(Mapping[int, str]):
    """The registered name of each online node; "" if it has none.

    Among a million nodes, reading all names takes half a second. So only the names of the nodes at which no
    client is known are read at once, and those of all nodes only if one of the others is asked for.

    ``others``: node -> name, of the nodes at which no client was known.
    """

    def __init__(self, nodes: Sequence[Any], roster: SavedRoster) -> None:
        self._nodes, self._roster = nodes, roster
        self._ids = ids_of(nodes)
        self._clients = roster.clients_at(self._ids)  # (n,)
        unknown = np.flatnonzero(self._clients < 0).tolist()
        self.others = {int(self._ids[at]): name_of(nodes[at]) for at in unknown}
        self._is_online = np.zeros(len(roster), np.bool_)  # (M,)
        self._is_online[self._clients[self._clients >= 0]] = True

    @property
    def num_known(self) -> int:
        """The number of nodes at which a client was known."""
        return int(np.count_nonzero(self._is_online))

    def __len__(self) -> int:
        return self.num_known + len(self.others)

    def __iter__(self) -> Iterator[int]:
        return iter(dict.fromkeys(self._ids.tolist()))  # a node may be given twice

    def __contains__(self, node: object) -> bool:
        if node in self.others:
            return True
        client = self._roster.client_at(node) if isinstance(node, int) else None
        return client is not None and client < self._is_online.size and bool(self._is_online[client])

    def __getitem__(self, node: int) -> str:
        return self.others[node] if node in self.others else self._names[node]

    @cached_property
    def _names(self) -> dict[int, str]:
        return {node.node_id: name_of(node) for node in self._nodes}

    def available(self) -> NDArray[np.int64]:
        """Return the indexes of the clients at these nodes that are available by now, ascending."""
        is_here = np.zeros(len(self._roster), np.bool_)
        is_here[: self._is_online.size] = self._is_online
        new = (self._roster.client_at(node) for node in self.others)
        is_here[[client for client in new if client is not None]] = True
        is_here[self._roster.unavailable()] = False
        return np.flatnonzero(is_here)

    def without_available(self) -> list[int]:
        """Return the nodes at which no client was known, or one that is not available now, in their order."""
        is_available = np.ones(len(self._roster) + 1, np.bool_)
        is_available[self._roster.unavailable()] = False
        is_available[-1] = False  # at -1: no client is known
        return list(dict.fromkeys(self._ids[~is_available[self._clients]].tolist()))


def ids_of(nodes: Sequence[Any]) -> NDArray[np.uint64]:
    """Return (n,) the ids of Flower's nodes. To read them from its objects takes most of a look's time."""
    return np.fromiter(map(attrgetter("node_id"), nodes), np.uint64, len(nodes))


def name_of(node: Any) -> str:
    """Return the name under which an operator registered a node of Flower's, printable; "" if none."""
    return printable(node.name, None) if node.name else ""
