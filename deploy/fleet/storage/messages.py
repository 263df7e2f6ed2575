"""Stores and finds messages, and begins and ends the pushes of their objects, with few statements.

For a message and its reply, stock Flower builds more than a hundred statements with SQLAlchemy's ORM. Each
takes 0.2 ms of CPU time or more. Stock Flower reads a message's row up to four times in a transaction. It has
no index of the messages that wait for a node, so it reads all messages when a node asks for its next one.

Here the statements are fixed texts, a row is read once, and there is an index. A group of Flower's methods is
replaced only if this saves at least a fifth of a message's CPU time in the SuperLink: those for messages and
replies (35 %), `preregister_object_tree` (23 %) and `store_object` (60 %). The
statements that find a node, take it online and keep it there are most of the CPU time of coming online (a
heartbeat takes 4.3 ms in Flower, .8 ms here). The other statements for nodes are Flower's.
"""

from __future__ import annotations

from datetime import timedelta
from logging import ERROR, WARNING
from typing import TYPE_CHECKING, Any

from flwr.common.constant import HEARTBEAT_PATIENCE, MESSAGE_TTL_TOLERANCE, SUPERLINK_NODE_ID
from flwr.server.superlink.linkstate import SqlLinkState
from flwr.server.superlink.linkstate.utils import (
    create_message_error_unavailable_ins_message,
    create_message_error_unavailable_res_message,
    dict_to_message,
    message_to_dict,
)
from flwr.server.utils.validator import validate_message
from flwr.supercore import log
from flwr.supercore.date import now
from flwr.supercore.utils import int64_to_uint64, uint64_to_int64
from sqlalchemy.exc import IntegrityError

from deploy.fleet.storage.statements import AMONG, executor, listed, stored_time

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flwr.app import Message
    from flwr.proto.message_pb2 import ObjectTree

LONGEST_PART = 600
"""A reply is given up if no further part has arrived completely for this many seconds.

Stock Flower has 180 s. A part has up to 5 MB, and a SuperNode sends four parts at a time."""

_FIELDS = (
    "message_id",
    "group_id",
    "run_id",
    "src_node_id",
    "dst_node_id",
    "reply_to_message_id",
    "created_at",
    "delivered_at",
    "ttl",
    "message_type",
    "content",
    "error",
)
_COLUMNS = ", ".join(_FIELDS)
_IDS = ("run_id", "src_node_id", "dst_node_id")  # signed numbers in a row, unsigned ones in a Message
_INDEX = (
    "CREATE INDEX IF NOT EXISTS cohort_waiting ON message_ins (dst_node_id, created_at, message_id) "
    "WHERE delivered_at = ''"
)
_LOCK_RUN = (
    "UPDATE run SET run_id = run_id WHERE run_id = ? AND EXISTS "
    "(SELECT 1 FROM task WHERE task_id = run.primary_task_id AND finished_at IS NULL) "
    "RETURNING federation_id"
)
_FEDERATIONS = f"SELECT run_id, federation_id FROM run WHERE run_id {AMONG}"
_IS_NODE = "SELECT 1 FROM node WHERE node_id = ? AND status IN ('online', 'offline')"
_STORE = f"INSERT INTO {{}} ({_COLUMNS}) VALUES ({', '.join('?' * len(_FIELDS))})"
_STORE_MESSAGE = _STORE.format("message_ins") + " ON CONFLICT (message_id) DO NOTHING"
_STORE_REPLY = _STORE.format("message_res")
_WAITS = "dst_node_id = ? AND delivered_at = '' AND created_at + ttl > ?"
_FIRST = f"SELECT message_id FROM message_ins WHERE {_WAITS} ORDER BY created_at, message_id LIMIT ?"
_CLAIM = "UPDATE message_ins SET delivered_at = ? WHERE {} RETURNING " + _COLUMNS
_CLAIM_FIRST = _CLAIM.format(f"message_id IN ({_FIRST})")
_CLAIM_FIRST_OF_RUN = _CLAIM.format(f"message_id IN ({_FIRST.replace('ORDER', 'AND run_id = ? ORDER')})")
_CLAIM_ALL = _CLAIM.format(_WAITS)
_CLAIM_ALL_OF_RUN = _CLAIM.format(f"{_WAITS} AND run_id = ?")
_MESSAGE = f"SELECT {_COLUMNS} FROM message_ins WHERE message_id = ?"
_MESSAGES = f"SELECT {_COLUMNS} FROM message_ins WHERE message_id {AMONG}"
_ONLINE_UNTIL = f"SELECT node_id, online_until FROM node WHERE node_id {AMONG} AND status != 'unregistered'"
_CLAIM_REPLIES = (
    f"UPDATE message_res SET delivered_at = ? WHERE reply_to_message_id {AMONG} AND delivered_at = '' "
    f"RETURNING {_COLUMNS}"
)
_IS_REPLY = "SELECT 1 FROM message_res WHERE message_id = ?"
_NODE_OF_KEY = "SELECT node_id FROM node WHERE public_key = ? AND status != 'unregistered'"
_HEARTBEAT = (
    "UPDATE node SET online_until = ?, heartbeat_interval = ?, status = 'online', "
    "last_activated_at = CASE WHEN status != 'online' THEN ? ELSE last_activated_at END "
    "WHERE node_id = ? AND status != 'unregistered' RETURNING 1"
)
_ACTIVATE = (
    "UPDATE node SET status = 'online', online_until = ?, heartbeat_interval = ?, last_activated_at = ?, "
    "last_deactivated_at = CASE WHEN status = 'online' THEN ? ELSE last_deactivated_at END "
    "WHERE node_id = ? AND (status IN ('registered', 'offline') "
    "OR status = 'online' AND (online_until <= ? OR ?)) RETURNING 1"
)
_RUN_OF_PUSH = "SELECT run_id FROM object_push_sessions WHERE session_id = ?"
_OLDER_PUSH = "SELECT session_id FROM object_push_session_roots WHERE root_object_id = ? AND session_id != ?"
_ADD_ROOT = "INSERT INTO object_push_session_roots (session_id, root_object_id) VALUES (?, ?)"
_ADD_PENDING = (
    "INSERT INTO object_push_session_pending (session_id, object_id) SELECT ?, value FROM json_each(?) "
    "WHERE TRUE ON CONFLICT DO NOTHING"
)
_COUNT_PENDING = (
    "UPDATE object_push_sessions SET pending_count = "
    "(SELECT count(*) FROM object_push_session_pending WHERE session_id = ?) WHERE session_id = ?"
)
_CLAIM_OBJECT = "DELETE FROM object_push_session_pending WHERE session_id = ? AND object_id = ?"
_REFRESH_PUSH = (
    "UPDATE object_push_sessions SET pending_count = pending_count - 1, expires_at = ? "
    "WHERE session_id = ? AND run_id = ? AND expires_at > ? RETURNING pending_count"
)
_END_PUSH = "DELETE FROM object_push_sessions WHERE session_id = ?"


class _Expired(Exception):  # noqa: N818
    """The push session in which an object arrived has expired, or belongs to another run."""


class FewStatements(SqlLinkState):
    """Flower's state with few statements. It stores, returns and refuses the same as Flower's.

    Only `store_object` differs in a detail: an object that belongs to another run is refused with a line in
    the log.
    """

    def initialize(self, log_queries: bool = False, **engine_kwargs: Any) -> list[str]:
        """Connect to the database, and add the index of the messages that wait for a node."""
        tables = super().initialize(log_queries, **engine_kwargs)
        with self.session() as session:
            executor(session)(_INDEX)
        return tables

    def store_message_ins(self, message: Message) -> str | None:
        """Store a message to a node. Return the message's id, or None if the message is not valid."""
        metadata = message.metadata
        if any(errors := validate_message(message=message, is_reply_message=False)):
            log(ERROR, errors)
            return None
        if metadata.src_node_id != SUPERLINK_NODE_ID:
            log(ERROR, "Invalid source node ID for Message: %s", metadata.src_node_id)
            return None
        values = _values(message)
        with self.session() as session:
            execute = executor(session)
            federation = execute(_LOCK_RUN, (uint64_to_int64(metadata.run_id),)).first()
            if federation is None:
                log(ERROR, "Invalid run ID for Message: %s", metadata.run_id)
                return None
            node = metadata.dst_node_id
            if node != SUPERLINK_NODE_ID and (
                execute(_IS_NODE, (uint64_to_int64(node),)).first() is None
                or not self.federation_manager.has_node(node, federation[0])
            ):
                log(ERROR, "Invalid destination node ID for Message: %s", node)
                return None
            execute(_STORE_MESSAGE, values)
        message_id: str = metadata.message_id
        return message_id

    def store_message_res(self, message: Message) -> str | None:
        """Store a reply. Return the reply's id, or None if the reply is not valid."""
        metadata = message.metadata
        if any(errors := validate_message(message=message, is_reply_message=True)):
            log(ERROR, errors)
            return None
        message_id: str = metadata.message_id
        asked_id = metadata.reply_to_message_id
        try:
            with self.session() as session:
                execute = executor(session)
                if execute(_LOCK_RUN, (uint64_to_int64(metadata.run_id),)).first() is None:
                    log(ERROR, "Invalid run ID for Message: %s", metadata.run_id)
                    return None
                found = _find(execute, asked_id)
                if found and int64_to_uint64(found[0]["run_id"]) != metadata.run_id:
                    log(ERROR, "`metadata.run_id` is invalid")
                    return None
                if not (valid := _valid(self, execute, found)):
                    log(
                        ERROR,
                        "Failed to store Message reply: The message it replies to with message_id %s does "
                        "not exist or has expired, or was deleted because the target SuperNode was removed "
                        "from the federation.",
                        asked_id,
                    )
                    return None
                (asked,) = valid
                if int64_to_uint64(asked["dst_node_id"]) != metadata.src_node_id:
                    return None
                longest = asked["created_at"] + asked["ttl"] - metadata.created_at
                if metadata.ttl and metadata.ttl - longest > MESSAGE_TTL_TOLERANCE:
                    text = "Received Message with TTL %.2f exceeding the allowed maximum TTL %.2f."
                    log(WARNING, text, metadata.ttl, longest)
                    return None
                if execute(_IS_REPLY, (message_id,)).first() is None:  # otherwise the reply was stored before
                    execute(_STORE_REPLY, _values(message))
        except IntegrityError:
            log(
                ERROR,
                "Failed to store Message reply: duplicate reply for reply_to_message_id %s or invalid run.",
                asked_id,
            )
            return None
        return message_id

    def get_message_ins(self, node_id: int, limit: int | None, *, run_id: int | None = None) -> list[Message]:
        """Return undelivered messages to a node, the oldest first, and note their delivery."""
        if limit is not None and limit < 1:
            raise AssertionError("`limit` must be >= 1")
        moment = now()
        parameters: list[Any] = [moment.isoformat(), uint64_to_int64(node_id), moment.timestamp()]
        parameters += [] if run_id is None else [uint64_to_int64(run_id)]
        if limit is None:
            claim = _CLAIM_ALL if run_id is None else _CLAIM_ALL_OF_RUN
        else:
            claim = _CLAIM_FIRST if run_id is None else _CLAIM_FIRST_OF_RUN
            parameters.append(limit)
        with self.session() as session:
            execute = executor(session)
            rows = [_row(values) for values in execute(claim, tuple(parameters))]
            rows = _valid(self, execute, rows)
        rows.sort(key=lambda row: (row["created_at"], row["message_id"]))
        return [_message(row) for row in rows]

    def get_valid_message_ins(self, message_id: str) -> dict[str, Any] | None:
        """Return the row of a message to a node, or None if there is no valid message with this id."""
        with self.session() as session:
            execute = executor(session)
            valid = _valid(self, execute, _find(execute, message_id))
        return valid[0] if valid else None

    def get_message_res(self, message_ids: set[str], run_id: int) -> list[Message]:
        """Return the replies to the given messages, as far as they have arrived and were not returned before.

        An error takes the place of a reply if the message does not exist, if the message or the reply has
        expired, or if the message's node is offline.
        """
        if not message_ids:
            return []
        replies: list[Message] = []
        errors: list[Message] = []
        with self.session() as session:
            execute = executor(session)
            found = [_row(values) for values in execute(_MESSAGES, (listed(message_ids),))]
            if any(int64_to_uint64(row["run_id"]) != run_id for row in found):
                raise ValueError("`message_ids` contains invalid IDs")
            asked = {row["message_id"]: row for row in _valid(self, execute, found)}
            moment = now()
            current = moment.timestamp()

            def unavailable(row: dict[str, Any], what: str) -> Any:
                return create_message_error_unavailable_res_message(_message(row).metadata, what)

            for message_id in message_ids - asked.keys():
                errors.append(create_message_error_unavailable_ins_message(message_id, run_id))
            nodes = listed({row["dst_node_id"] for row in asked.values()})
            online = dict(execute(_ONLINE_UNTIL, (nodes,)).all()) if asked else {}
            waiting = []
            for message_id, row in asked.items():
                if (online.get(row["dst_node_id"]) or 0.0) < current:
                    errors.append(unavailable(row, "node_unavail"))
                else:
                    waiting.append(message_id)
            arrived = execute(_CLAIM_REPLIES, (moment.isoformat(), listed(waiting))) if waiting else ()
            for reply in map(_row, arrived):
                if reply["created_at"] + reply["ttl"] < current:
                    errors.append(unavailable(asked[reply["reply_to_message_id"]], "msg_unavail"))
                else:
                    replies.append(_message(reply))
            for error in errors:
                self._store_generated_message(error)
        return replies + errors

    def get_node_id_by_public_key(self, public_key: bytes) -> int | None:
        """Return the id of the node that is registered with a key, or None if there is no such node."""
        with self.session() as session:
            found = executor(session)(_NODE_OF_KEY, (public_key,)).first()
        return None if found is None else int64_to_uint64(found[0])

    def acknowledge_node_heartbeat(self, node_id: int, heartbeat_interval: float) -> bool:
        """Note that a node is online. Return whether there is such a node."""
        moment = now()
        until = moment.timestamp() + HEARTBEAT_PATIENCE * heartbeat_interval
        values = until, heartbeat_interval, moment.isoformat(), uint64_to_int64(node_id)
        with self.session() as session:
            return executor(session)(_HEARTBEAT, values).first() is not None

    def come_online(self, node_id: int, heartbeat_interval: float, *, returns: bool) -> bool:
        """Do what Flower's `activate_node` does, and before it, if the node returns, `deactivate_node`."""
        moment = now()
        time, until = moment.timestamp(), moment.timestamp() + HEARTBEAT_PATIENCE * heartbeat_interval
        name, node = moment.isoformat(), uint64_to_int64(node_id)
        values = until, heartbeat_interval, name, name, node, time, returns
        with self.session() as session:
            return executor(session)(_ACTIVATE, values).first() is not None

    def preregister_object_tree(self, object_tree: ObjectTree, session_id: str) -> list[str]:
        """Store the names of a message's objects. Return those whose contents are still to arrive."""
        with self.session() as session:
            execute = executor(session)
            if (run := execute(_RUN_OF_PUSH, (session_id,)).first()) is None:
                raise ValueError(f"Unknown object push session: {session_id}")
            missing: list[str] = self.object_store.preregister(int64_to_uint64(run[0]), object_tree)
            root = object_tree.object_id
            if (older := execute(_OLDER_PUSH, (root, session_id)).first()) is not None:
                self._cleanup_push_session(older[0], cleanup_messages=False)
            execute(_ADD_ROOT, (session_id, root))
            if missing:
                execute(_ADD_PENDING, (session_id, listed(missing)))
            execute(_COUNT_PENDING, (session_id, session_id))
        return missing

    def store_object(self, run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool:
        """Store the content of an object with three to five statements. Return whether it was stored.

        Flower's method is still called in two cases: if the request names no push session, to look for the
        session; and if the session has expired or belongs to another run, to refuse the object.
        """
        if not session_id:
            return super().store_object(run_id, session_id, object_id, object_content)
        moment = now()
        until = moment + timedelta(seconds=LONGEST_PART)
        which = stored_time(until), session_id, uint64_to_int64(run_id), stored_time(moment)
        try:
            with self.session() as session:
                execute = executor(session)
                if not execute(_CLAIM_OBJECT, (session_id, object_id)).rowcount:
                    return False
                left = execute(_REFRESH_PUSH, which).scalar()
                if left is None:
                    raise _Expired
                self.object_store.put(object_id, object_content)
                if not left:
                    execute(_END_PUSH, (session_id,))
                return True
        except _Expired:
            return super().store_object(run_id, session_id, object_id, object_content)
        except Exception as error:
            log(ERROR, "Failed to store object %s: %s", object_id, error)
            return False


def _find(execute: Callable[..., Any], message_id: str) -> list[dict[str, Any]]:
    """Return a list with the row of a message to a node; the list is empty if there is no such message.

    The id is not passed as JSON, because it may come from a node, and SQLite cuts JSON at a NUL character.
    """
    return [_row(values) for values in execute(_MESSAGE, (message_id,))]


def _valid(
    state: SqlLinkState, execute: Callable[..., Any], rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return those rows whose message has not expired, and whose two nodes are in the run's federation.

    The two nodes are the message's sender and receiver. The messages of the other rows are deleted.
    """
    if not rows:
        return []
    federations = dict(execute(_FEDERATIONS, (listed({row["run_id"] for row in rows}),)).all())
    current = now().timestamp()

    def is_valid(row: dict[str, Any]) -> bool:
        federation = federations.get(row["run_id"])
        if row["created_at"] + row["ttl"] <= current or not federation:
            return False
        nodes = {int64_to_uint64(row[name]) for name in ("src_node_id", "dst_node_id")}
        return len(nodes) == 1 or len(state.federation_manager.filter_nodes(nodes, federation)) == 2

    valid = [row for row in rows if is_valid(row)]
    if len(valid) < len(rows):
        state.delete_messages({row["message_id"] for row in rows} - {row["message_id"] for row in valid})
    return valid


def _row(values: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(_FIELDS, values, strict=True))


def _message(row: dict[str, Any]) -> Message:
    """Return the Message of a row."""
    return dict_to_message(row | {name: int64_to_uint64(row[name]) for name in _IDS})


def _values(message: Message) -> tuple[Any, ...]:
    """Return the row of a Message."""
    row = message_to_dict(message)
    row |= {name: uint64_to_int64(row[name]) for name in _IDS}
    return tuple(row[name] for name in _FIELDS)
