"""The roster of a run: the index, node, data size, group and availability of each client identity."""

from collections.abc import Collection, Iterable, Mapping
from math import isnan, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .reports import Report


class Roster:
    """The clients of a run, numbered 0..M-1 in the order of registration and never renumbered.

    A node is a connection of a client. The node id may change when a client reconnects; the client's index
    stays.

    ``changes``: the number of registrations, removals, changes of identity and changes of data size so far.
    While this number stays the same, `ids`, `sizes` and `removed` return the same values.
    """

    def __init__(self) -> None:
        self.changes = 0
        self._ids: list[str] = []
        self._index: dict[str, int] = {}  # identity -> index, without removed clients
        self._removed: list[int] = []
        self._node: dict[int, int] = {}  # index -> node id
        self._client: dict[int, int] = {}  # node id -> index
        self._size: dict[int, float] = {}  # index -> the last reported data size
        self._group: dict[int, str | None] = {}  # index -> the group in the first report, None without one
        self._costs: dict[int, float] = {}  # index -> the cost in the first report, NaN without one
        self._energies: dict[int, float] = {}  # index -> the energy in the first report, NaN without one
        self._properties: dict[int, dict[str, Any]] = {}  # index -> the last reported properties
        self._unavailable: set[int] = set()  # clients whose last report says that they cannot train

    def __len__(self) -> int:
        """Return M, the number of known clients: the registered and the removed clients."""
        return len(self._ids)

    def register(self, nodes: Mapping[str, int]) -> list[int]:
        """Register the clients that are new, and note the node of every given client.

        New clients are numbered in the order of their identities. So the order in which clients arrive before
        this call makes no difference.

        `nodes` holds the node id of each client, by identity. Return the indexes of the new clients,
        ascending.
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
        """Remove the registered clients among these identities; return these, sorted. No index is reused."""
        leaving = sorted(client_id for client_id in client_ids if client_id in self._index)
        for client_id in leaving:
            index = self._index.pop(client_id)
            self._client.pop(self._node.pop(index, -1), None)
            self._removed.append(index)
            self.changes += 1
        return leaving

    def rename(self, index: int, client_id: str) -> None:
        """Give a client another identity, which must not be registered."""
        del self._index[self._ids[index]]
        self._index[client_id] = index
        self._ids[index] = client_id
        self.changes += 1

    def removed(self) -> list[int]:
        """Return the indexes of the removed clients, in the order of removal."""
        return list(self._removed)

    def ids(self) -> list[str]:
        """Return (M,) the identities of all known clients, removed ones too, by index."""
        return list(self._ids)

    def id_of(self, index: int) -> str:
        return self._ids[index]

    def node_of(self, index: int) -> int:
        return self._node[index]

    def node_of_id(self, client_id: str) -> int | None:
        """Return the last known node id of an identity; None if the identity is not registered."""
        index = self._index.get(client_id)
        return None if index is None else self._node.get(index)

    def client_at(self, node_id: int) -> int | None:
        """Return the index of the client at a node; None if no registered client is known at this node."""
        return self._client.get(node_id)

    def note(self, index: int, report: Report) -> None:
        """Remember what a client reports; its group, cost and energy from its first report only."""
        if report.num_examples is not None and report.num_examples != self._size.get(index):
            self._size[index] = report.num_examples
            self.changes += 1
        # If the first report has no group, groups in later reports are ignored: they would renumber groups.
        self._group.setdefault(index, None if report.group is None else str(report.group))
        # Cost and energy are also taken once: the selector learns them when the client is registered.
        self._costs.setdefault(index, nan if report.cost is None else report.cost)
        self._energies.setdefault(index, nan if report.energy is None else report.energy)
        if report.properties is not None:
            self._properties[index] = report.properties
        (self._unavailable.discard if report.available else self._unavailable.add)(index)

    def is_available(self, index: int) -> bool:
        """Return whether a client can train according to its last report; True if there is no report."""
        return index not in self._unavailable

    def available(self, node_ids: Iterable[int]) -> NDArray[np.int64]:
        """Return the indexes of the available clients at the given online nodes, ascending."""
        known = [self._client[node] for node in node_ids if node in self._client]
        online = np.sort(np.array(known, dtype=np.int64))
        online = online[np.flatnonzero(np.diff(online, prepend=-1))]  # a node may be given twice
        if self._unavailable:
            online = online[~np.isin(online, list(self._unavailable))]
        return online

    def without_available(self, node_ids: Iterable[int]) -> list[int]:
        """Return those of the given nodes at which no available client is known, in the same order."""
        client = self._client
        if not self._unavailable:
            return [node for node in node_ids if node not in client]
        return [node for node in node_ids if node not in client or client[node] in self._unavailable]

    def sizes(self) -> NDArray[np.float64]:
        """Return (M,) the last reported data size of each client, in samples; NaN if none was reported."""
        sizes = np.full(len(self), nan)
        known = np.fromiter(self._size.keys(), np.int64, len(self._size))
        sizes[known] = np.fromiter(self._size.values(), np.float64, len(self._size))
        return sizes

    def costs(self) -> NDArray[np.float64]:
        """Return (M,) the cost in each client's first report; NaN if the report had none."""
        return np.array([self._costs.get(index, np.nan) for index in range(len(self))], dtype=np.float64)

    def energies(self) -> NDArray[np.float64]:
        """Return (M,) the energy in each client's first report; NaN if the report had none."""
        return np.array([self._energies.get(index, np.nan) for index in range(len(self))], dtype=np.float64)

    def group_of(self, index: int) -> str | None:
        """Return the group in a client's first report, None if the report had none."""
        return self._group.get(index)

    def properties_of(self, index: int) -> dict[str, Any]:
        return self._properties.get(index, {})

    def groups(self) -> list[str | None]:
        """Return (M,) the group in each client's first report, None without one."""
        return list(map(self._group.get, range(len(self))))

    def state(self) -> dict[str, Any]:
        return {
            "ids": self._ids,
            "removed": self._removed,
            "nodes": sorted(self._node.items()),
            "sizes": sorted(self._size.items()),
            "groups": sorted(self._group.items()),
            "costs": _known(self._costs),
            "energies": _known(self._energies),
            "properties": sorted(self._properties.items()),
            "unavailable": sorted(self._unavailable),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned. The caller then registers clients whose node has changed."""
        self._ids = list(state["ids"])
        self._removed = list(state["removed"])
        gone = set(self._removed)
        self._index = {each: index for index, each in enumerate(self._ids) if index not in gone}
        self._node = dict(state["nodes"])
        self._client = {node: index for index, node in self._node.items()}
        self._size = dict(state["sizes"])
        self._group = dict(state["groups"])
        self._costs = {index: nan if cost is None else cost for index, cost in state["costs"]}
        self._energies = {index: nan if energy is None else energy for index, energy in state["energies"]}
        self._properties = dict(state.get("properties", ()))  # older checkpoints have none
        self._unavailable = set(state["unavailable"])


def _known(numbers: Mapping[int, float]) -> list[tuple[int, float | None]]:
    """Return (index, number) pairs, ascending by index, with None instead of NaN: JSON has no NaN."""
    return [(index, None if isnan(number) else number) for index, number in sorted(numbers.items())]
