"""Finds the clients at all online nodes at once, in sorted arrays: much faster than look-ups in a dict."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray


class NodeIndex:
    """A copy, in arrays, of the mapping of nodes to clients; it is brought up to date when it is used."""

    def __init__(self) -> None:
        self._nodes: NDArray[np.uint64] = np.empty(0, np.uint64)  # ascending
        self._clients: NDArray[np.int64] = np.empty(0, np.int64)  # -1: no client is at the node any more
        self._changed: set[int] = set()  # nodes at which another client may be by now

    def change(self, nodes: Iterable[int]) -> None:
        """Note that the clients at these nodes may have changed."""
        self._changed.update(nodes)

    def find(self, client: Mapping[int, int], nodes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return (n,) the client at each of the ``nodes`` (n,); -1 if none. ``client``: node -> client."""
        most = 1000 + len(self._nodes) // 20
        if len(self._changed) > most or len(client) > len(self._nodes) + most:
            found = np.fromiter(client, np.uint64, len(client))
            order = np.argsort(found)
            self._nodes = found[order]
            self._clients = np.fromiter(client.values(), np.int64, len(client))[order]
        else:
            changed = np.array(sorted(self._changed), np.uint64)
            at, is_here = self._at(changed)
            self._clients[at[is_here]] = [client.get(node, -1) for node in changed[is_here].tolist()]
        self._changed.clear()
        # Look-ups of ascending nodes are faster by far, since each finds its memory in the cache.
        is_ascending = bool((nodes[1:] >= nodes[:-1]).all())
        order = np.arange(nodes.size) if is_ascending else np.argsort(nodes)
        at, is_here = self._at(nodes[order])
        clients = np.full(nodes.size, -1)
        clients[order[is_here]] = self._clients[at[is_here]]
        lacking = np.flatnonzero(clients < 0)  # perhaps they were added since the arrays were made
        clients[lacking] = [client.get(node, -1) for node in nodes[lacking].tolist()]
        return clients

    def _at(self, nodes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the place of each node in the arrays, and whether it is there."""
        at = np.searchsorted(self._nodes, nodes)
        if not self._nodes.size:
            return at, np.zeros(nodes.size, np.bool_)
        at = np.minimum(at, self._nodes.size - 1)
        return at, self._nodes[at] == nodes
