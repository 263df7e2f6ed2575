"""Limits what a node may send: replies of limited size, and only replies to messages for this node."""

from __future__ import annotations

import importlib
import math
import threading
from collections import OrderedDict
from functools import wraps
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple

from deploy.flower.patches.guards import object_trees
from deploy.flower.patches.guards.reply_size import FACTOR, allowed_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

OBJECTS = 1000  # objects that a reply may have in any case; `FACTOR` may allow more
TREE_NODE = 256  # the most bytes that an object takes in the tree of a reply
MESSAGE = 64 * 1024  # the most bytes of a reply without its objects
ATTEMPTS = 8  # how often a node may send a reply to one message
MOST_MESSAGES = 10_000  # the most messages whose node and number of replies are remembered
LONGEST = 1e6  # s; a ClientApp that states a longer running time counts as having run for this long
SESSIONS = 256  # the most push sessions of ServerApps that are remembered

_LINK_STATE = "flwr.server.superlink.linkstate"
_STORE = "flwr.supercore.object_store.sql_object_store"
_CONSTANTS = "flwr.common.constant"
_TREES = "flwr.supercore.inflatable.inflatable_object"
_ADDRESSEE = "SELECT dst_node_id FROM message_ins WHERE message_id = :id"
_TABLE = "CREATE TABLE IF NOT EXISTS cohort_sent (run TEXT PRIMARY KEY, bytes INTEGER, objects INTEGER)"
_SAVE = (
    "INSERT INTO cohort_sent VALUES (:run, :bytes, :objects) ON CONFLICT (run) DO UPDATE "
    "SET bytes = max(bytes, excluded.bytes), objects = max(objects, excluded.objects)"
)
USED = (
    *(
        f"{_LINK_STATE}:SqlLinkState.{name}"
        for name in ("get_valid_message_ins", "query", "session", "object_store")
    ),
    *(f"{_LINK_STATE}:SqlLinkState.{name}" for name in ("store_object", "store_message_and_object_tree")),
    *(f"{_LINK_STATE}:SqlLinkState.{name}" for name in ("_cleanup_push_session", "session")),
    f"{_CONSTANTS}:SUPERLINK_NODE_ID",
    f"{_TREES}:iterate_object_tree",
    *object_trees.USED,
)


class _Size(NamedTuple):
    """The size of a message."""

    bytes: int = 0
    objects: int = 0


class _Pushes:
    """The messages that a ServerApp pushes in one session. Their objects follow one by one."""

    def __init__(self) -> None:
        self._bytes: list[int] = []  # for each message, the bytes of its objects that have arrived
        # For each object that has not arrived: the positions in `_bytes` of the messages that hold it.
        self._wanted: dict[str, list[int]] = {}
        self.present: dict[str, int] = {}  # the bytes of objects that were stored before their message came

    def announce(self, objects: set[str], missing: set[str]) -> int:
        """Note a message, and return how many bytes of it have arrived.

        Parameters
        ----------
        objects : set[str]
            The ids of all objects of the message.
        missing : set[str]
            The ids of those that have not arrived. All others are in `present`.
        """
        message = len(self._bytes)
        for name in missing:
            self._wanted.setdefault(name, []).append(message)
        self._bytes.append(sum(self.present[name] for name in objects - missing))
        return self._bytes[message]

    def store(self, name: str, size: int) -> int:
        """Remember that an object of `size` bytes has arrived.

        Return how many bytes have arrived of a message that holds the object. If several messages hold it,
        return the maximum; if none, 0.
        """
        messages = self._wanted.pop(name, [])
        for message in messages:
            self._bytes[message] += size
        return max((self._bytes[message] for message in messages), default=0)

    @property
    def complete(self) -> bool:
        return not self._wanted


class _Session:
    """The session in which a node pushes the objects of its reply. `spent` is the number of bytes so far."""

    def __init__(self, name: str, spent: int = 0) -> None:
        self.name, self.spent = name, spent


class ReplyAdmission:
    """Refuses replies that are too large, or that answer no message.

    A reply may have `FACTOR` times the bytes of the largest message that the run's ServerApp has sent, and
    `FACTOR` times the objects of the message with the most objects. In any case it may have
    `reply_size.BYTES` bytes and `OBJECTS` objects. The sizes of the messages are also saved in the database,
    because nodes may reply after a restart of the SuperLink.

    Parameters
    ----------
    state_factory : LinkStateFactory
        Returns the SuperLink's state.
    refused : Callable[[str, str], Exception]
        Makes the exception for a refused request, from the reason and the name of a gRPC status.
    """

    def __init__(self, state_factory: Any, refused: Callable[[str, str], Exception]) -> None:
        self._state_factory = state_factory
        self._refused = refused
        self._lock = threading.Lock()
        # The pushes of ServerApps, by push session. An entry is removed when all its objects have arrived.
        self._pushed: OrderedDict[str, _Pushes] = OrderedDict()
        # For each run, the most bytes and objects of a message of the ServerApp since the SuperLink's start.
        self._sent: dict[int, _Size] = {}
        # The numbers that the database holds, also from before the SuperLink's start; None: not read yet.
        self._saved: dict[int, _Size] | None = None
        self._attempts: OrderedDict[str, int] = OrderedDict()  # message -> number of its replies
        self._sessions: dict[int, _Session] = {}  # node -> its latest session
        self._delivered: OrderedDict[str, int] = OrderedDict()  # message -> the node that received it
        self._notice(importlib.import_module(_LINK_STATE).SqlLinkState)
        object_trees.read_at_once(importlib.import_module(_STORE).SqlObjectStore)

    @property
    def largest_request(self) -> int:
        """The most bytes of a request that announces a reply."""
        saved = self._all_saved()
        with self._lock:
            objects = max((each.objects for each in (*saved.values(), *self._sent.values())), default=0)
        return MESSAGE + TREE_NODE * max(OBJECTS, FACTOR * objects)

    def check(self, method: str, request: Any, node: int) -> None:
        """Raise an exception if a node's request must be refused.

        Parameters
        ----------
        method : str
            The name of the request's method in the Fleet API.
        request : protobuf message
            The request. If it pushes an object without naming a session, the node's session is added to it.
        node : int
            The id of the node.
        """
        if method == "PushMessages":
            self._check_reply(request, node)
        elif method == "PushObject":
            self._check_object(request, node)
        elif method == "ConfirmMessageReceived":
            self._check_confirmation(request, node)

    def note(self, method: str, request: Any, response: Any, node: int) -> None:
        """Note which messages a node has received, and in which session it will push its reply's objects.

        Call this after a request was answered with `response`. The other parameters are those of `check`.
        """
        if method == "PullMessages":
            with self._lock:
                for message in response.messages_list:
                    self._delivered[message.metadata.message_id] = node
                while len(self._delivered) > MOST_MESSAGES:
                    self._delivered.popitem(last=False)
        if method != "PushMessages":
            return
        missing = set(response.objects_to_push)
        tree = importlib.import_module(_TREES).iterate_object_tree(request.message_object_trees[0])
        present = {each.object_id for each in tree} - missing
        session = _Session(response.session_id)
        with self._lock:
            self._sessions[node] = session
        # Objects that are already stored count too, although the node need not send them.
        if present and missing:
            self._spend(
                session, request.messages_list[0].metadata.run_id, sum(self._stored(present).values())
            )

    def _check_reply(self, request: Any, node: int) -> None:
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise self._no("a request must hold one reply")
        (message,), (tree,) = request.messages_list, request.message_object_trees
        metadata = message.metadata
        if message.ByteSize() > MESSAGE:
            raise self._no("the reply without its objects is too large")
        addressed = (metadata.src_node_id, metadata.dst_node_id)
        if addressed != (node, importlib.import_module(_CONSTANTS).SUPERLINK_NODE_ID):
            raise self._no("the reply is not from this node to the ServerApp")
        if metadata.message_id != tree.object_id or not metadata.reply_to_message_id:
            raise self._no("the message is not a reply")
        if not all(map(math.isfinite, (metadata.created_at, metadata.ttl, *request.clientapp_runtime_list))):
            raise self._no("a time is not finite")
        # Flower adds up these times, and cannot show a sum that is infinite.
        times = [min(max(0.0, each), LONGEST) for each in request.clientapp_runtime_list]
        request.clientapp_runtime_list[:] = times
        asked = self._state_factory.state().get_valid_message_ins(metadata.reply_to_message_id)
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
            raise self._no("the message has been answered too often")
        limit = max(OBJECTS, FACTOR * self._sent_in(metadata.run_id).objects)
        if sum(1 for _ in importlib.import_module(_TREES).iterate_object_tree(tree)) > limit:
            raise self._no("the reply has too many objects")
        if not object_trees.is_hash_of(message, tree):
            raise self._no("the reply has another hash")

    def _check_object(self, request: Any, node: int) -> None:
        with self._lock:
            # After a restart of the SuperLink, the first session that the node names counts as its session;
            # the database knows whether this session exists.
            session = self._sessions.setdefault(node, _Session(request.session_id))
        if request.session_id not in ("", session.name):  # SuperNodes of earlier versions send ""
            raise self._no("the object belongs to no reply of this node")
        request.session_id = session.name
        self._spend(session, request.run_id, len(request.object_content))

    def _check_confirmation(self, request: Any, node: int) -> None:
        """Refuse the confirmation of another node's message: the SuperLink would delete the message."""
        with self._lock:
            if self._delivered.get(request.message_object_id) == node:
                return
        # The SuperLink may have sent the message before its last restart.
        found = self._state_factory.state().query(_ADDRESSEE, {"id": request.message_object_id})
        if not any(message["dst_node_id"] % 2**64 == node for message in found):
            raise self._refused("Bad confirmation: the message is not for this node", "PERMISSION_DENIED")

    def _spend(self, session: _Session, run: int, count: int) -> None:
        with self._lock:
            session.spent += count
        if session.spent > allowed_bytes(self._sent_in(run).bytes):
            self._state_factory.state()._cleanup_push_session(session.name, cleanup_messages=True)
            raise self._no("the reply is too large for what was asked")

    def _no(self, reason: str) -> Exception:
        return self._refused(f"Bad reply: {reason}", "PERMISSION_DENIED")

    def _stored(self, objects: set[str]) -> dict[str, int]:
        """Return the size of each of these objects in bytes; 0 for an object that has not arrived."""
        with self._state_factory.state().object_store.session() as database:
            return dict.fromkeys(objects, 0) | object_trees.sizes(database, objects)

    def _sent_in(self, run: int) -> _Size:
        """Return the most bytes and objects of a message of a run's ServerApp. Save them if they grew."""
        saved = self._all_saved()
        with self._lock:
            before = saved.get(run, _Size())
            sent = _Size(*map(max, before, self._sent.get(run, _Size())))
            if sent != before:  # for a run that a client has invented, both are zero
                saved[run] = sent
        if sent != before:
            try:
                self._state_factory.state().query(_SAVE, {"run": str(run), **sent._asdict()})
            except Exception as error:  # such as a locked database; this matters only after a restart
                getLogger("flwr").warning("The size of run %d was not saved: %s", run, error)
        return sent

    def _grow(self, run: int, message: _Size) -> None:
        self._sent[run] = _Size(*map(max, message, self._sent.get(run, _Size())))

    def _all_saved(self) -> dict[int, _Size]:
        if self._saved is None:
            state = self._state_factory.state()
            state.query(_TABLE)
            rows = state.query("SELECT run, bytes, objects FROM cohort_sent")
            with self._lock:
                self._saved = self._saved or {int(r["run"]): _Size(r["bytes"], r["objects"]) for r in rows}
        return self._saved

    def _notice(self, state: Any) -> None:
        """Patch `SqlLinkState`: it notes sizes of ServerApps' messages, and stores replies as flat trees."""
        store_message, store_object = state.store_message_and_object_tree, state.store_object
        iterate = importlib.import_module(_TREES).iterate_object_tree

        @wraps(store_message)
        def noticed_message(this: Any, message: Any, object_tree: Any, session_id: str) -> Any:
            is_reply, run = bool(message.metadata.reply_to_message_id), message.metadata.run_id
            store = this.object_store
            with this.session(), store._mutation_session():
                if is_reply:
                    object_tree = object_trees.flat(store, object_tree)
                else:
                    object_trees.state_children(store, run, object_tree)
                stored = store_message(this, message, object_tree, session_id)
            if not is_reply:
                missing = set(stored[1])
                objects = {each.object_id for each in iterate(object_tree)} if stored[0] else set()
                with self._lock:
                    pushes = self._pushed.setdefault(session_id, _Pushes())
                if known := objects - missing - pushes.present.keys():
                    pushes.present |= self._stored(known)
                with self._lock:
                    self._grow(run, _Size(pushes.announce(objects, missing), len(objects)))
                    if len(self._pushed) > SESSIONS:
                        self._pushed.popitem(last=False)
            return stored

        @wraps(store_object)
        def noticed_object(this: Any, run_id: int, session_id: str, object_id: str, content: bytes) -> Any:
            stored = store_object(this, run_id, session_id, object_id, content)
            with self._lock:
                if stored and (pushes := self._pushed.get(session_id)) is not None:
                    self._grow(run_id, _Size(pushes.store(object_id, len(content))))
                    if pushes.complete:
                        del self._pushed[session_id]
            return stored

        state.store_message_and_object_tree, state.store_object = noticed_message, noticed_object
