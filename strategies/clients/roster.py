"""The clients of a run: durable identity <-> dense index, the node of each, its data size and its group."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .reports import Report


class Roster:
    """The clients of a run, numbered 0..M-1 in the order of registration and never renumbered.

    A node is only the connection of a client: its id may change from one connection to the next, the client's
    index stays.

    Attributes
    ----------
    changes : int
        Counts registrations, removals and changes of size: while it stays the same, so do `ids`, `sizes` and
        `removed`.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._ids: list[str] = []
        self._index: dict[str, int] = {}  # of the registered clients
        self._removed: list[int] = []
        self._node: dict[int, int] = {}  # index -> node id
        self._client: dict[int, int] = {}  # node id -> index
        self._size: dict[int, float] = {}  # index -> samples held, where reported
        self._group: dict[int, str | None] = {}  # index -> its group, where reported
        self._unavailable: set[int] = set()  # clients whose last report said so

    def __len__(self) -> int:
        """Return M, the number of clients ever registered."""
        return len(self._ids)

    def register(self, nodes: Mapping[str, int]) -> list[int]:
        """Register new clients and find known ones again, given the node of each durable identity.

        New clients are numbered in the order of their identities, so that the order of arrival is irrelevant.

        Returns
        -------
        list of int
            The new indexes, ascending.
        """
        new = []
        for client_id in sorted(nodes):
            if client_id not in self._index:
                self._index[client_id] = len(self._ids)
                new.append(len(self._ids))
                self._ids.append(client_id)
                self.changes += 1
            index = self._index[client_id]
            self._client.pop(self._node.get(index, -1), None)
            self._node[index] = nodes[client_id]
            self._client[nodes[client_id]] = index
        return new

    def remove(self, client_ids: Collection[str]) -> list[str]:
        """Remove clients for good; unknown identities are ignored.

        Their indexes are not given again: an identity that registers once more gets a new one.

        Returns
        -------
        list of str
            The identities that were removed now, sorted.
        """
        leaving = sorted(client_id for client_id in client_ids if client_id in self._index)
        for client_id in leaving:
            index = self._index.pop(client_id)
            self._client.pop(self._node.pop(index, -1), None)
            self._removed.append(index)
            self.changes += 1
        return leaving

    def removed(self) -> list[int]:
        """Return the indexes of the removed clients, in the order of removal."""
        return list(self._removed)

    def ids(self) -> list[str]:
        """Return (M,) the durable identities of all clients ever registered, by index."""
        return list(self._ids)

    def id_of(self, index: int) -> str:
        """Return the durable identity of a client."""
        return self._ids[index]

    def node_of(self, index: int) -> int:
        """Return the last known node of a client."""
        return self._node[index]

    def node_of_id(self, client_id: str) -> int | None:
        """Return the last known node of an identity, None if it is not registered."""
        index = self._index.get(client_id)
        return None if index is None else self._node.get(index)

    def client_at(self, node_id: int) -> int | None:
        """Return the client behind a node, None if none is registered."""
        return self._client.get(node_id)

    def note(self, index: int, report: Report) -> None:
        """Remember the size, the availability and (from the first report) the group that a client reports."""
        if report.num_examples is not None and report.num_examples != self._size.get(index):
            self._size[index] = report.num_examples
            self.changes += 1
        # A first report without a group counts too: a later one would shift the numbers of other groups.
        self._group.setdefault(index, None if report.group is None else str(report.group))
        (self._unavailable.discard if report.available else self._unavailable.add)(index)

    def is_available(self, index: int) -> bool:
        """Return whether the last report of a client said that it is willing to train."""
        return index not in self._unavailable

    def available(self, node_ids: Iterable[int]) -> NDArray[np.int64]:
        """Return the available clients behind the online nodes, ascending."""
        online = {self._client[node] for node in node_ids if node in self._client}
        return np.array(sorted(online - self._unavailable), dtype=np.int64)

    def sizes(self) -> NDArray[np.float64]:
        """Return (M,) samples held, as reported; NaN where a client has not reported yet."""
        return np.array([self._size.get(index, np.nan) for index in range(len(self))], dtype=np.float64)

    def group_of(self, index: int) -> str | None:
        """Return the group in a client's first report, None if there was none."""
        return self._group.get(index)

    def state(self) -> dict[str, Any]:
        """Return the whole state as a JSON object."""
        return {
            "ids": self._ids,
            "removed": self._removed,
            "nodes": sorted(self._node.items()),
            "sizes": sorted(self._size.items()),
            "groups": sorted(self._group.items()),
            "unavailable": sorted(self._unavailable),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned; nodes that have changed since are registered anew."""
        self._ids = list(state["ids"])
        self._removed = list(state["removed"])
        gone = set(self._removed)
        self._index = {each: index for index, each in enumerate(self._ids) if index not in gone}
        self._node = dict(state["nodes"])
        self._client = {node: index for index, node in self._node.items()}
        self._size = dict(state["sizes"])
        self._group = dict(state["groups"])
        self._unavailable = set(state["unavailable"])
