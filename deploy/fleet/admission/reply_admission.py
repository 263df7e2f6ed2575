"""Limits what a node may send: replies of limited size, and only replies to messages for this node."""

from __future__ import annotations

import importlib
import math
import threading
import time
from collections import OrderedDict
from logging import getLogger
from typing import TYPE_CHECKING, Any

from deploy.fleet import protocol
from deploy.fleet.admission import object_trees
from deploy.fleet.duties.joined_objects import SEPARATOR
from deploy.fleet.errors import RequestRefused
from deploy.flower.patches.guards.reply_size import (
    FACTOR,
    VARIABLE,
    Part,
    Size,
    allowed_bytes,
    inflated_size,
    part_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from deploy.fleet.admission.delivered_objects import DeliveredObjects

OBJECTS = 1000  # objects that a reply may have in any case; `FACTOR` may allow more
TREE_NODE = 256  # the most bytes that an object takes in the tree of a reply
MESSAGE = 64 * 1024  # the most bytes of a reply without its objects
ATTEMPTS = 8  # how often a node may send a reply to one message
MOST_MESSAGES = 10_000  # the most messages whose node and number of replies are remembered
MOST_INCOMPLETE = 1000  # the most messages that wait for their parts and are measured later
LONGEST = 1e6  # s; a ClientApp that states a longer running time counts as having run for this long

_MESSAGES = "flwr.proto.message_pb2"
_ADDRESSEE = "SELECT dst_node_id FROM message_ins WHERE message_id = ?"
_ASKED = (
    "SELECT reply_to_message_id AS asked, run_id FROM message_res JOIN object_push_session_roots "
    "ON message_id = root_object_id WHERE session_id = ?"
)
TABLE = "CREATE TABLE IF NOT EXISTS cohort_sent (run TEXT PRIMARY KEY, bytes BIGINT, objects BIGINT)"
_LARGER = "{0} = CASE WHEN excluded.{0} > cohort_sent.{0} THEN excluded.{0} ELSE cohort_sent.{0} END"
_SAVE = (
    "INSERT INTO cohort_sent VALUES (?, ?, ?) ON CONFLICT (run) DO UPDATE "
    f"SET {_LARGER.format('bytes')}, {_LARGER.format('objects')}"
)


class _Session:
    """The session in which a node pushes the objects of its reply."""

    def __init__(self, name: str, run: int, asked: str, began: int) -> None:
        # `asked`: the message that is answered, "" if not known; `began`: `Gate.arrived` at the beginning.
        self.name, self.run, self.asked, self.began = name, run, asked, began
        self.spent = 0  # the bytes of objects in the session
        self.pushed: set[str] = set()  # the node's objects that are stored, also of its earlier attempts


class ReplyAdmission:
    """Refuses replies that are too large, or that answer no message.

    A reply may have `FACTOR` times the bytes of the largest message that was delivered in the run, and
    `FACTOR` times the objects of the message with the most objects (both as `reply_size.inflated_size` counts
    them). In any case it may have `reply_size.BYTES` bytes and `OBJECTS` objects. The sizes of the messages
    are also saved in the database, because nodes may reply after a restart of the SuperLink.

    If a reply is refused, the ServerApp receives an error reply with the reason at once.
    """

    def __init__(
        self,
        state_factory: Any,
        arrived: Callable[[int], int],
        delivered: DeliveredObjects,
    ) -> None:
        self._arrived = arrived
        self._state_factory = state_factory
        self._known = delivered
        self._lock = threading.Lock()
        # For each run, the most bytes and objects of a message, as in the database; None: not read yet.
        self._saved: dict[int, Size] | None = None
        self._attempts: OrderedDict[str, int] = OrderedDict()  # message -> number of its replies
        self._sessions: dict[int, _Session] = {}  # node -> its latest session
        self._delivered: OrderedDict[str, int] = OrderedDict()  # message -> the node that received it
        # Messages that were delivered before all of their parts had arrived -> their run and object tree.
        # They are measured when their node confirms that it has all parts.
        self._incomplete: OrderedDict[str, tuple[int, Any]] = OrderedDict()
        state_factory.state().received = self.received

    def largest_request(self, size: int) -> int:
        """Return the most bytes of a request that announces a reply. `size`: those of the request at hand."""

        def most() -> int:
            saved = self._all_saved()
            with self._lock:
                objects = max((each.objects for each in saved.values()), default=0)
            return MESSAGE + TREE_NODE * max(OBJECTS, FACTOR * objects)

        return self._limit(size, most)

    def _limit(self, value: int, most: Callable[[], int]) -> int:
        """Return a limit. If a value exceeds it, other front ends may have delivered larger messages."""
        limit = most()
        if value <= limit or self._state_factory.state().front_end is None:
            return limit
        self._saved = self._read_saved()
        return most()

    def note_delivery(self, response: Any, node: int) -> None:
        """Note which messages a node has received. `response` is a PullMessagesResponse."""
        for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            self._grow(message.metadata.message_id, message.metadata.run_id, tree)
        with self._lock:
            for message in response.messages_list:
                self._delivered[message.metadata.message_id] = node
            while len(self._delivered) > MOST_MESSAGES:
                self._delivered.popitem(last=False)

    def note_reply(self, request: Any, response: Any, node: int) -> None:
        """Note in which session a node pushes its reply's objects, and let it push all that it may not know.

        Flower's answer leaves out the objects that are stored already. So a node could test by their names
        whether others have sent certain objects. Here the answer leaves out only objects that the node has
        received, or has pushed before.
        """
        metadata = request.messages_list[0].metadata
        session = _Session(
            response.session_id, metadata.run_id, metadata.reply_to_message_id, self._arrived(node)
        )
        with self._lock:
            before = self._sessions.get(node)
            if before is not None and before.asked == session.asked:
                session.pushed = before.pushed
            self._sessions[node] = session
        tree = request.message_object_trees[0]
        names = list(dict.fromkeys(each.object_id for each in protocol.each_object(tree)))
        missing = set(response.objects_to_push)
        present = (self._known.among(node, names) | session.pushed).intersection(names) - missing
        response.objects_to_push[:] = [name for name in names if name not in present]
        # Objects that are already stored count too, although the node need not send them.
        if present and response.objects_to_push:
            self._spend(session, metadata.run_id, sum(self._stored(present).values()))

    def note_objects(self, request: Any, node: int) -> None:
        """Note that the objects of a PushObjectRequest of a node are stored."""
        with self._lock:
            if (session := self._sessions.get(node)) is not None:
                session.pushed.update(request.object_id.split(SEPARATOR))

    def received(self, run: int, message_ids: Collection[str]) -> dict[str, int]:
        """Return how many bytes have arrived of replies to these messages of a run.

        Only replies that have begun to arrive are in the dictionary. Their keys are the messages.
        """
        with self._lock:
            sessions = list(self._sessions.items())
        elsewhere: dict[str, int] = self._state_factory.state().stored_bytes(message_ids)
        return elsewhere | {
            each.asked: max(each.spent, self._arrived(node) - each.began)
            for node, each in sessions
            if each.run == run and each.asked in message_ids
        }

    def check_reply(self, request: Any, node: int) -> None:
        """Refuse a PushMessagesRequest of a node unless it announces a reply to a message for this node."""
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise self._no("a request must hold one reply")
        (message,), (tree,) = request.messages_list, request.message_object_trees
        metadata = message.metadata
        addressed = (metadata.src_node_id, metadata.dst_node_id)
        if addressed != (node, protocol.SUPERLINK):
            raise self._no("the reply is not from this node to the ServerApp")
        if metadata.message_id != tree.object_id or not metadata.reply_to_message_id:
            raise self._no("the message is not a reply")
        if not all(map(math.isfinite, (metadata.created_at, metadata.ttl, *request.clientapp_runtime_list))):
            raise self._no("a time is not finite")
        # Flower adds up these times, and cannot show a sum that is infinite.
        times = [min(max(0.0, each), LONGEST) for each in request.clientapp_runtime_list]
        request.clientapp_runtime_list[:] = times
        asked = self._state_factory.state().valid_message(metadata.reply_to_message_id)
        if (
            asked is None
            or asked["dst_node_id"] % 2**64 != node
            or asked["run_id"] % 2**64 != metadata.run_id
        ):
            raise self._no("the reply answers no message to this node")
        with self._lock:
            attempts = self._attempts.pop(metadata.reply_to_message_id, 0) + 1
            self._attempts[metadata.reply_to_message_id] = attempts
            if len(self._attempts) > MOST_MESSAGES:
                self._attempts.popitem(last=False)
        if attempts > ATTEMPTS:
            raise self._no("the message has been answered too often", metadata.reply_to_message_id)
        if message.ByteSize() > MESSAGE:
            reason = f"the reply without its objects is too large: at most {MESSAGE} bytes are allowed"
            raise self._no(reason, metadata.reply_to_message_id)
        count = sum(1 for _ in protocol.each_object(tree))
        limit = self._limit(count, lambda: max(OBJECTS, FACTOR * self._sent_in(metadata.run_id).objects))
        if count > limit:
            reason = f"the reply has too many objects: {count}, and at most {limit} are allowed"
            raise self._no(reason, metadata.reply_to_message_id)
        if not object_trees.is_hash_of(message, tree):
            raise self._no("the reply has another hash", metadata.reply_to_message_id)

    def check_object(self, request: Any, node: int) -> None:
        """Refuse a PushObjectRequest of a node unless the object may belong to the node's reply.

        If the request names no session, the node's session is added to it.
        """
        with self._lock:
            # After a restart of the SuperLink, the first session that the node names counts as its session;
            # the database knows whether this session exists.
            session = self._sessions.get(node) or self._found(request, node)
        if request.session_id not in ("", session.name):  # SuperNodes of earlier versions send ""
            raise self._no("the object belongs to no reply of this node")
        request.session_id = session.name
        self._spend(session, request.run_id, len(request.object_content))

    def _found(self, request: Any, node: int) -> _Session:
        """Note the session that a node names after a restart of the SuperLink."""
        rows = self._state_factory.state().rows(_ASKED, (request.session_id,))
        asked, run = (rows[0][0], protocol.unsigned(rows[0][1])) if rows else ("", 0)
        found = self._sessions[node] = _Session(request.session_id, run, asked, self._arrived(node))
        return found

    def check_confirmation(self, request: Any, node: int) -> None:
        """Refuse the confirmation of another node's message: the SuperLink would delete the message."""
        with self._lock:
            is_known = self._delivered.get(request.message_object_id) == node
            incomplete = self._incomplete.pop(request.message_object_id, None) if is_known else None
        if incomplete is not None:
            self._grow(request.message_object_id, *incomplete)
        if is_known:
            return
        # The SuperLink may have sent the message before its last restart.
        found = self._state_factory.state().rows(_ADDRESSEE, (request.message_object_id,))
        if not any(protocol.unsigned(to) == node for (to,) in found):
            raise RequestRefused("Bad confirmation: the message is not for this node", "PERMISSION_DENIED")

    def _spend(self, session: _Session, run: int, count: int) -> None:
        with self._lock:
            session.spent += count
        limit = self._limit(session.spent, lambda: allowed_bytes(self._sent_in(run).bytes))
        if session.spent > limit:
            state = self._state_factory.state()
            asked = [name for name, _ in state.rows(_ASKED, (session.name,))]
            state.end_push(session.name, with_messages=True)
            raise self._no(
                f"the reply is too large for what was asked: at most {limit} bytes are allowed "
                f"({VARIABLE} raises this limit)",
                *asked,
            )

    def refuse_last(self, node: int, reason: str) -> None:
        """Let an error reply answer the message that a node received last. `reason` is the error's text."""
        with self._lock:
            latest = next((each for each, to in reversed(self._delivered.items()) if to == node), None)
        if latest is not None:
            self._no(reason, latest)

    def _no(self, reason: str, *asked: str) -> Exception:
        """Return the exception for a refused reply, and store error replies to the messages `asked`."""
        for message_id in asked:
            self._answer(message_id, reason)
        return RequestRefused(f"Bad reply: {reason}", "PERMISSION_DENIED")

    def _answer(self, message_id: str, reason: str) -> None:
        """Store an error reply in place of a node's reply to a message. A stored reply is kept."""
        state = self._state_factory.state()
        asked = state.valid_message(message_id)
        if asked is None:
            return
        now, node, run = time.time(), asked["dst_node_id"] % 2**64, asked["run_id"] % 2**64
        error, content = protocol.error_reply(
            protocol.MESSAGE_UNAVAILABLE,
            f"Refused reply of node {node}: {reason}",
            run_id=run,
            src_node_id=node,
            reply_to_message_id=message_id,
            group_id=asked["group_id"],
            created_at=now,
            ttl=asked["created_at"] + asked["ttl"] - now,
            message_type=asked["message_type"],
        )
        tree = importlib.import_module(_MESSAGES).ObjectTree(object_id=error.metadata.message_id)
        if announced := state.announce_reply(error, tree):  # otherwise there is a reply already
            session, missing = announced
            for name in missing:
                state.store_object(run, session, name, content)

    def _stored(self, objects: set[str]) -> dict[str, int]:
        """Return the size of each of these objects in bytes; 0 for an object that has not arrived."""
        with self._state_factory.state().session() as database:
            return dict.fromkeys(objects, 0) | object_trees.sizes(database, objects)

    def _sent_in(self, run: int) -> Size:
        """Return the most bytes and objects of a message that was delivered in a run."""
        return self._all_saved().get(run, Size())

    def _grow(self, message: str, run: int, tree: Any) -> None:
        """Note the size of a message that is being delivered. Save the size if it is the run's largest."""
        before = self._sent_in(run)
        try:
            sent = before.largest(self._size_of(tree))
        except (KeyError, ValueError):  # a part has not arrived, or was deleted because the run has ended
            with self._lock:
                self._incomplete[message] = (run, tree)
                if len(self._incomplete) > MOST_INCOMPLETE:
                    self._incomplete.popitem(last=False)
            return
        if sent == before:
            return
        with self._lock:
            self._all_saved()[run] = sent.largest(self._sent_in(run))
        try:
            self._state_factory.state().rows(_SAVE, (str(run), sent.bytes, sent.objects))
        except Exception as error:  # such as a locked database; this matters only after a restart
            getLogger("flwr").warning("The size of run %d was not saved: %s", run, error)

    def _size_of(self, tree: Any) -> Size:
        objects = list(protocol.each_object(tree))
        with self._state_factory.state().session() as database:
            sizes = object_trees.sizes(database, {each.object_id for each in objects})
            if not all(sizes.values()):
                raise ValueError("a part has not arrived")
            contents = object_trees.contents(database, {each.object_id for each in objects if each.children})
        found = {name: Part(Size(length, objects=1), {}) for name, length in sizes.items()}
        found |= {name: part_of(content) for name, content in contents.items()}
        name: str = tree.object_id
        return inflated_size(name, found)

    def _all_saved(self) -> dict[int, Size]:
        if self._saved is None:
            found = self._read_saved()
            with self._lock:
                self._saved = self._saved or found
        return self._saved

    def _read_saved(self) -> dict[int, Size]:
        state = self._state_factory.state()
        state.rows(TABLE)
        rows = state.rows("SELECT run, bytes, objects FROM cohort_sent")
        return {int(run): Size(size, 0, objects) for run, size, objects in rows}
