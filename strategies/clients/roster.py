"""Who is who: durable client identity <-> dense index; who is here, how much data, which group."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .reports import Report


class Roster:
    """The clients of a run, numbered 0..M-1 in the order of enrolment; nobody is renumbered.

    A node is only the way to a client: its id may change from one connection to the next, the client's
    index stays.

    Attributes
    ----------
    changes : int
        Counts who was enrolled and whose size became another: while it stands still, `ids` and `sizes` do.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._ids: list[str] = []
        self._index: dict[str, int] = {}
        self._node: dict[int, int] = {}  # index -> node id
        self._client: dict[int, int] = {}  # node id -> index
        self._size: dict[int, float] = {}  # index -> samples held, where said
        self._group: dict[int, str | None] = {}  # index -> its group, where said
        self._unavailable: set[int] = set()  # those that said so when they last spoke

    def __len__(self) -> int:
        """Return M, the number of clients ever enrolled."""
        return len(self._ids)

    def enrol(self, nodes: Mapping[str, int]) -> list[int]:
        """Enrol or find again clients, given the node of each durable identity.

        New ones are numbered in the order of their identity, so that the order of arrival changes nothing.

        Returns
        -------
        list of int
            The indexes that are new, ascending.
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

    def ids(self) -> list[str]:
        """Return the durable identities of all clients, in the order of their indexes."""
        return list(self._ids)

    def id_of(self, index: int) -> str:
        """Return the durable identity of a client."""
        return self._ids[index]

    def node_of(self, index: int) -> int:
        """Return the node that a client was last reached through."""
        return self._node[index]

    def node_of_id(self, client_id: str) -> int | None:
        """Return the node that an identity was last reached through, None if it is not enrolled."""
        index = self._index.get(client_id)
        return None if index is None else self._node.get(index)

    def client_at(self, node_id: int) -> int | None:
        """Return the client behind a node, None if there is none enrolled."""
        return self._client.get(node_id)

    def note(self, index: int, report: Report) -> None:
        """Remember a client's own word of its size, availability and (when it first speaks) group."""
        if report.num_examples is not None and report.num_examples != self._size.get(index):
            self._size[index] = report.num_examples
            self.changes += 1
        # Silence counts too: a group that comes later would shift the numbers of others.
        self._group.setdefault(index, None if report.group is None else str(report.group))
        (self._unavailable.discard if report.available else self._unavailable.add)(index)

    def is_available(self, index: int) -> bool:
        """Return whether a client was willing to train when it last spoke."""
        return index not in self._unavailable

    def here(self, node_ids: Iterable[int]) -> NDArray[np.int64]:
        """Return the available clients behind the online nodes, ascending."""
        online = {self._client[node] for node in node_ids if node in self._client}
        return np.array(sorted(online - self._unavailable), dtype=np.int64)

    def sizes(self) -> NDArray[np.float64]:
        """Return (M,) samples held, as the clients said; NaN where one has not said yet."""
        return np.array([self._size.get(index, np.nan) for index in range(len(self))], dtype=np.float64)

    def group_of(self, index: int) -> str | None:
        """Return a client's group, as it first said; None if it said none."""
        return self._group.get(index)

    def state(self) -> dict[str, Any]:
        """Return everything, as JSON has it."""
        return {
            "ids": self._ids,
            "nodes": sorted(self._node.items()),
            "sizes": sorted(self._size.items()),
            "groups": sorted(self._group.items()),
            "unavailable": sorted(self._unavailable),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned; nodes that have changed meanwhile are enrolled anew."""
        self._ids = list(state["ids"])
        self._index = {client_id: index for index, client_id in enumerate(self._ids)}
        self._node = dict(state["nodes"])
        self._client = {node: index for index, node in self._node.items()}
        self._size = dict(state["sizes"])
        self._group = dict(state["groups"])
        self._unavailable = set(state["unavailable"])
