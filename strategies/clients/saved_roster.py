"""A roster and a set that know what has changed in them, so that a checkpoint need not hold all clients."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from .node_index import NodeIndex
from .reports import Report
from .roster import Roster

T = TypeVar("T", int, str)

_PAIRS = ("nodes", "sizes", "groups", "costs", "energies", "properties")
"""The entries of `Roster.state` that are lists of pairs (index, value)."""


class SavedRoster(Roster):
    """A roster that knows which clients have changed since `settle`."""

    def __init__(self) -> None:
        super().__init__()
        self._changed: set[int] = set()
        self._node_index = NodeIndex()

    def register(self, nodes: Mapping[str, int]) -> list[int]:
        before = [self.node_of_id(client_id) for client_id in nodes]
        new = super().register(nodes)
        self._node_index.change([*nodes.values(), *(node for node in before if node is not None)])
        self._changed.update(self._index[client_id] for client_id in nodes)
        return new

    def remove(self, client_ids: Collection[str]) -> list[str]:
        known = len(self._removed)
        before = [self.node_of_id(client_id) for client_id in client_ids]
        leaving = super().remove(client_ids)
        self._node_index.change(node for node in before if node is not None)
        self._changed.update(self._removed[known:])
        return leaving

    def rename(self, index: int, client_id: str) -> None:
        super().rename(index, client_id)
        self._changed.add(index)

    def note(self, index: int, report: Report) -> None:
        before = self._noted(index)
        super().note(index, report)
        if self._noted(index) != before:
            self._changed.add(index)

    def _noted(self, index: int) -> tuple[Any, ...]:
        """Return what `note` can change. Group, cost and energy are noted together, and only once."""
        values = self._size.get(index), self._properties.get(index)
        return (*values, index in self._group, index in self._unavailable)

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self._node_index = NodeIndex()

    def clients_at(self, nodes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return (n,) the index of the client at each node; -1 where no registered client is known."""
        return self._node_index.find(self._client, nodes)

    def unavailable(self) -> NDArray[np.int64]:
        """Return the indexes of the clients whose last report says that they cannot train, in any order."""
        return np.fromiter(self._unavailable, np.int64, len(self._unavailable))

    def settle(self) -> None:
        """Count changes from now on."""
        self._changed.clear()

    def changed_state(self) -> dict[str, Any]:
        """Return the changed clients, and what `state` holds about them, as JSON values."""
        part = Roster()
        part._node, part._size = self._of_changed(self._node), self._of_changed(self._size)
        part._group, part._properties = self._of_changed(self._group), self._of_changed(self._properties)
        part._costs, part._energies = self._of_changed(self._costs), self._of_changed(self._energies)
        part._unavailable = self._unavailable & self._changed
        changed = sorted(self._changed)
        ids = [self._ids[index] for index in changed]
        return {**part.state(), "changed": changed, "ids": ids, "removed": self._removed}

    def _of_changed(self, values: Mapping[int, Any]) -> dict[int, Any]:
        return {index: values[index] for index in self._changed if index in values}

    @staticmethod
    def merged(state: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `state` returned when `changed_state` returned ``changed``; ``state`` is of before."""
        gone = set(changed["changed"])
        ids = dict(enumerate(state["ids"])) | dict(zip(changed["changed"], changed["ids"], strict=True))
        found = {"ids": [ids[index] for index in range(len(ids))], "removed": changed["removed"]}
        for name in _PAIRS:
            kept = [pair for pair in state[name] if pair[0] not in gone]
            found[name] = sorted([*kept, *changed[name]], key=lambda pair: pair[0])
        found["unavailable"] = sorted({*state["unavailable"]} - gone | {*changed["unavailable"]})
        return found


class SavedSet(Generic[T]):
    """A set that knows which members came and went since `settle`."""

    def __init__(self, members: Iterable[T] = ()) -> None:
        self._members: set[T] = set(members)
        self._changed: set[T] = set()

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[T]:
        return iter(self._members)

    def add(self, members: Iterable[T]) -> None:
        self._changed.update(new := set(members) - self._members)
        self._members |= new

    def discard(self, members: Iterable[T]) -> None:
        self._changed.update(gone := self._members.intersection(members))
        self._members -= gone

    def settle(self) -> None:
        """Count changes from now on."""
        self._changed.clear()

    def changes(self) -> dict[str, list[T]]:
        """Return the members that came and those that went, as JSON values."""
        came = self._changed & self._members
        return {"came": sorted(came), "went": sorted(self._changed - came)}

    @staticmethod
    def merged(members: Iterable[Any], changes: Mapping[str, list[Any]]) -> list[Any]:
        """Return the members, sorted, after ``changes`` (see `changes`) to the given ``members``."""
        return sorted(({*members} - {*changes["went"]}) | {*changes["came"]})
