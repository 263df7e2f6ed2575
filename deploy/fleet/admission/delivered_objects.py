"""Knows which objects a node may fetch: those of the messages that were delivered to the node.

An object's name is the hash of its content. In stock Flower any node may ask for any object, so a node that
guesses what another one has reported could ask whether the guess is right.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from deploy.fleet import protocol

MESSAGES = 8  # the latest messages of a node whose objects are remembered; a SuperNode fetches one at a time

_DELIVERED = (
    "SELECT message_id, created_at + ttl FROM message_ins WHERE dst_node_id = ? "
    "AND delivered_at NOT IN ('', 'past') ORDER BY created_at DESC LIMIT ?"
)


class _Names(frozenset[str]):
    """The names of a record and of all its parts."""


class _Message(NamedTuple):
    until: float
    """The time (s since 1970) at which the message expires."""
    own: frozenset[str]
    """The names of the message and of its content."""
    records: list[_Names]
    """Those of the content's records. Nodes that receive the same record share them."""


class DeliveredObjects:
    """For each node, the objects of the messages that were delivered to the node and have not expired.

    The messages that were delivered before the SuperLink's start are looked up in the database, as long as
    their nodes have not confirmed them.
    """

    def __init__(self) -> None:
        self._of_node: dict[int, OrderedDict[str, _Message]] = {}
        self._records = WeakValueDictionary[str, _Names]()
        self._restored: set[int] = set()  # the nodes whose messages were looked up in the database
        self._lock = threading.Lock()

    def note(self, node: int, response: Any) -> None:
        """Note the delivery of the messages of a PullMessagesResponse to a node."""
        for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            self._add(node, tree, message.metadata.created_at + message.metadata.ttl)

    def has(self, node: int, name: str, state: Any) -> bool:
        """Return whether a node may fetch the object with this name.

        `state` is the SuperLink's state, in which earlier messages are looked up once for each node.
        """
        if name in self.among(node, (name,)):
            return True
        with self._lock:
            if node in self._restored:
                return False
        self._restore(node, state)
        return name in self.among(node, (name,))

    def forget(self, node: int) -> None:
        """Forget a node's messages: those that it receives next may come from another front end."""
        with self._lock:
            self._of_node.pop(node, None)
            self._restored.discard(node)

    def among(self, node: int, names: Iterable[str]) -> set[str]:
        """Return those of the names whose objects the node may fetch."""
        with self._lock:
            messages = list(self._of_node.get(node, {}).values())
        now = time.time()
        known: list[Collection[str]] = [
            each for message in messages if now < message.until for each in (message.own, *message.records)
        ]
        return {name for name in names if any(name in each for each in known)}

    def _add(self, node: int, tree: Any, until: float, *, newest: bool = True) -> None:
        contents = list(tree.children)
        own = frozenset([tree.object_id, *(each.object_id for each in contents)])
        records = [record for content in contents for record in content.children]
        message = _Message(until, own, list(map(self._shared, records)))
        with self._lock:
            messages = self._of_node.setdefault(node, OrderedDict())
            messages[tree.object_id] = message
            messages.move_to_end(tree.object_id, last=newest)
            while len(messages) > MESSAGES:
                messages.popitem(last=False)

    def _shared(self, record: Any) -> _Names:
        names = _Names(each.object_id for each in protocol.each_object(record))
        with self._lock:
            before = self._records.get(record.object_id)
            if before == names:
                return before
            self._records[record.object_id] = names
            return names

    def _restore(self, node: int, state: Any) -> None:
        for message_id, until in state.rows(_DELIVERED, (protocol.signed(node), MESSAGES)):
            if (tree := state.objects.tree_of(message_id)) is not None:  # else the node has confirmed it
                self._add(node, tree, until, newest=False)
        with self._lock:
            self._restored.add(node)
