"""Stores, finds and deletes messages, with few statements whose texts are fixed.

For a message and its reply, stock Flower builds about forty statements with SQLAlchemy's ORM. Each takes
0.2 ms of CPU time. Stock Flower reads a message's row up to four times in a transaction. It has no index of
the messages that wait for a node, so it reads all messages when a node asks for its next one.

Here the statements are fixed texts, a row is read once, and `add_index` adds the index. The functions with a
parameter `this` replace the methods of the same name of Flower's class SqlLinkState. They return, store,
delete and refuse the same as these methods.
"""

from __future__ import annotations

import importlib
from functools import wraps
from logging import ERROR, WARNING
from typing import TYPE_CHECKING, Any

from deploy.fleet.storage.statements import AMONG, executor, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LINK_STATE = "flwr.server.superlink.linkstate"
_SQL_LINK_STATE = f"{_LINK_STATE}.sql_linkstate"
_LINK_UTILS = f"{_LINK_STATE}.utils"
_TABLES = "flwr.supercore.state.schema.linkstate_models"
REPLACED = (
    "store_message_ins",
    "store_message_res",
    "get_message_ins",
    "get_message_res",
    "get_valid_message_ins",
    "delete_messages",
)
USED = (
    *(f"{_LINK_STATE}:SqlLinkState.{name}" for name in REPLACED),
    *(f"{_LINK_STATE}:SqlLinkState.{name}" for name in ("session", "initialize", "federation_manager")),
    f"{_LINK_STATE}:SqlLinkState._store_generated_message",
    *(f"{_SQL_LINK_STATE}:{name}" for name in ("validate_message", "log", "now")),
    *(f"{_SQL_LINK_STATE}:{name}" for name in ("MESSAGE_TTL_TOLERANCE", "SUPERLINK_NODE_ID")),
    *(f"{_SQL_LINK_STATE}:{name}" for name in ("uint64_to_int64", "int64_to_uint64")),
    *(f"{_LINK_UTILS}:{name}" for name in ("message_to_dict", "dict_to_message")),
    f"{_LINK_UTILS}:create_message_error_unavailable_ins_message",
    f"{_LINK_UTILS}:create_message_error_unavailable_res_message",
    *(f"{_TABLES}:{name}" for name in ("MessageIns", "MessageRes", "Node.node_id")),
)

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
_DELETE_MESSAGES = f"DELETE FROM message_ins WHERE message_id {AMONG}"
_DELETE_REPLIES = f"DELETE FROM message_res WHERE reply_to_message_id {AMONG}"


def patch() -> None:
    """Let Flower's SqlLinkState use these functions. Call this before other patches of the same methods."""
    state = importlib.import_module(_LINK_STATE).SqlLinkState
    for name in REPLACED:
        setattr(state, name, globals()[name])
    add_index(state)


def add_index(state: Any) -> None:
    """Let instances of `state`, Flower's class SqlLinkState, add the index when they open their database."""
    initialize = state.initialize

    @wraps(initialize)
    def initialized(this: Any, *arguments: Any, **settings: Any) -> Any:
        tables = initialize(this, *arguments, **settings)
        with this.session() as session:
            executor(session)(_INDEX)
        return tables

    state.initialize = initialized


def _flower() -> Any:
    return importlib.import_module(_SQL_LINK_STATE)


def _row(values: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(_FIELDS, values, strict=True))


def _message(row: dict[str, Any]) -> Any:
    """Return the Message of a row."""
    utils, unsigned = importlib.import_module(_LINK_UTILS), _flower().int64_to_uint64
    return utils.dict_to_message(row | {name: unsigned(row[name]) for name in _IDS})


def _values(message: Any) -> tuple[Any, ...]:
    """Return the row of a Message."""
    row, signed = importlib.import_module(_LINK_UTILS).message_to_dict(message), _flower().uint64_to_int64
    row |= {name: signed(row[name]) for name in _IDS}
    return tuple(row[name] for name in _FIELDS)


def store_message_ins(this: Any, message: Any) -> str | None:
    """Store a message to a node. Return the message's id, or None if the message is not valid."""
    flower, metadata = _flower(), message.metadata
    if any(errors := flower.validate_message(message=message, is_reply_message=False)):
        flower.log(ERROR, errors)
        return None
    if metadata.src_node_id != flower.SUPERLINK_NODE_ID:
        flower.log(ERROR, "Invalid source node ID for Message: %s", metadata.src_node_id)
        return None
    values, signed = _values(message), flower.uint64_to_int64
    with this.session() as session:
        execute = executor(session)
        federation = execute(_LOCK_RUN, (signed(metadata.run_id),)).first()
        if federation is None:
            flower.log(ERROR, "Invalid run ID for Message: %s", metadata.run_id)
            return None
        node = metadata.dst_node_id
        if node != flower.SUPERLINK_NODE_ID and (
            execute(_IS_NODE, (signed(node),)).first() is None
            or not this.federation_manager.has_node(node, federation[0])
        ):
            flower.log(ERROR, "Invalid destination node ID for Message: %s", node)
            return None
        execute(_STORE_MESSAGE, values)
    message_id: str = metadata.message_id
    return message_id


def store_message_res(this: Any, message: Any) -> str | None:
    """Store a reply. Return the reply's id, or None if the reply is not valid."""
    flower, metadata = _flower(), message.metadata
    if any(errors := flower.validate_message(message=message, is_reply_message=True)):
        flower.log(ERROR, errors)
        return None
    message_id: str = metadata.message_id
    asked_id, unsigned = metadata.reply_to_message_id, flower.int64_to_uint64
    try:
        with this.session() as session:
            execute = executor(session)
            if execute(_LOCK_RUN, (flower.uint64_to_int64(metadata.run_id),)).first() is None:
                flower.log(ERROR, "Invalid run ID for Message: %s", metadata.run_id)
                return None
            found = _find(execute, asked_id)
            if found and unsigned(found[0]["run_id"]) != metadata.run_id:
                flower.log(ERROR, "`metadata.run_id` is invalid")
                return None
            if not (valid := _valid(this, execute, found)):
                flower.log(
                    ERROR,
                    "Failed to store Message reply: The message it replies to with message_id %s does not "
                    "exist or has expired, or was deleted because the target SuperNode was removed from the "
                    "federation.",
                    asked_id,
                )
                return None
            (asked,) = valid
            if unsigned(asked["dst_node_id"]) != metadata.src_node_id:
                return None
            longest = asked["created_at"] + asked["ttl"] - metadata.created_at
            if metadata.ttl and metadata.ttl - longest > flower.MESSAGE_TTL_TOLERANCE:
                text = "Received Message with TTL %.2f exceeding the allowed maximum TTL %.2f."
                flower.log(WARNING, text, metadata.ttl, longest)
                return None
            if execute(_IS_REPLY, (message_id,)).first() is None:  # otherwise the reply was stored before
                execute(_STORE_REPLY, _values(message))
    except importlib.import_module("sqlalchemy").exc.IntegrityError:
        flower.log(
            ERROR,
            "Failed to store Message reply: duplicate reply for reply_to_message_id %s or invalid run.",
            asked_id,
        )
        return None
    return message_id


def _find(execute: Callable[..., Any], message_id: str) -> list[dict[str, Any]]:
    """Return a list with the row of a message to a node; the list is empty if there is no such message.

    The id is not passed as JSON, because it may come from a node, and SQLite cuts JSON at a NUL character.
    """
    return [_row(values) for values in execute(_MESSAGE, (message_id,))]


def _valid(state: Any, execute: Callable[..., Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return those rows whose message has not expired, and whose two nodes are in the run's federation.

    The two nodes are the message's sender and receiver. The messages of the other rows are deleted.
    """
    if not rows:
        return []
    flower = _flower()
    federations = dict(execute(_FEDERATIONS, (listed({row["run_id"] for row in rows}),)).all())
    now = flower.now().timestamp()

    def is_valid(row: dict[str, Any]) -> bool:
        federation = federations.get(row["run_id"])
        if row["created_at"] + row["ttl"] <= now or not federation:
            return False
        nodes = {flower.int64_to_uint64(row[name]) for name in ("src_node_id", "dst_node_id")}
        return len(nodes) == 1 or len(state.federation_manager.filter_nodes(nodes, federation)) == 2

    valid = [row for row in rows if is_valid(row)]
    if len(valid) < len(rows):
        state.delete_messages({row["message_id"] for row in rows} - {row["message_id"] for row in valid})
    return valid


def get_message_ins(this: Any, node_id: int, limit: int | None, *, run_id: int | None = None) -> list[Any]:
    """Return messages to a node that have not been delivered, the oldest first, and note their delivery."""
    if limit is not None and limit < 1:
        raise AssertionError("`limit` must be >= 1")
    flower, now = _flower(), _flower().now()
    parameters: list[Any] = [now.isoformat(), flower.uint64_to_int64(node_id), now.timestamp()]
    parameters += [] if run_id is None else [flower.uint64_to_int64(run_id)]
    if limit is None:
        claim = _CLAIM_ALL if run_id is None else _CLAIM_ALL_OF_RUN
    else:
        claim = _CLAIM_FIRST if run_id is None else _CLAIM_FIRST_OF_RUN
        parameters.append(limit)
    with this.session() as session:
        execute = executor(session)
        rows = [_row(values) for values in execute(claim, tuple(parameters))]
        rows = _valid(this, execute, rows)
    rows.sort(key=lambda row: (row["created_at"], row["message_id"]))
    return [_message(row) for row in rows]


def get_valid_message_ins(this: Any, message_id: str) -> dict[str, Any] | None:
    """Return the row of a message to a node, or None if there is no such message or `_valid` deletes it."""
    with this.session() as session:
        execute = executor(session)
        valid = _valid(this, execute, _find(execute, message_id))
    return valid[0] if valid else None


def get_message_res(this: Any, message_ids: set[str], run_id: int) -> list[Any]:
    """Return the replies to the given messages, as far as they have arrived and were not returned before.

    An error takes the place of a reply if the message does not exist, if the message or the reply has
    expired, or if the message's node is offline.

    Raises
    ------
    ValueError
        If one of the messages belongs to another run.
    """
    if not message_ids:
        return []
    flower, utils = _flower(), importlib.import_module(_LINK_UTILS)
    replies: list[Any] = []
    errors: list[Any] = []
    with this.session() as session:
        execute = executor(session)
        found = [_row(values) for values in execute(_MESSAGES, (listed(message_ids),))]
        if any(flower.int64_to_uint64(row["run_id"]) != run_id for row in found):
            raise ValueError("`message_ids` contains invalid IDs")
        asked = {row["message_id"]: row for row in _valid(this, execute, found)}
        now = flower.now()
        current = now.timestamp()

        def unavailable(row: dict[str, Any], what: str) -> Any:
            return utils.create_message_error_unavailable_res_message(_message(row).metadata, what)

        for message_id in message_ids - asked.keys():
            errors.append(utils.create_message_error_unavailable_ins_message(message_id, run_id))
        nodes = listed({row["dst_node_id"] for row in asked.values()})
        online = dict(execute(_ONLINE_UNTIL, (nodes,)).all()) if asked else {}
        waiting = []
        for message_id, row in asked.items():
            if (online.get(row["dst_node_id"]) or 0.0) < current:
                errors.append(unavailable(row, "node_unavail"))
            else:
                waiting.append(message_id)
        arrived = execute(_CLAIM_REPLIES, (now.isoformat(), listed(waiting))) if waiting else ()
        for reply in map(_row, arrived):
            if reply["created_at"] + reply["ttl"] < current:
                errors.append(unavailable(asked[reply["reply_to_message_id"]], "msg_unavail"))
            else:
                replies.append(_message(reply))
        for error in errors:
            this._store_generated_message(error)
    return replies + errors


def delete_messages(this: Any, message_ins_ids: set[str]) -> None:
    """Delete messages to nodes, and the replies to them."""
    if not message_ins_ids:
        return
    with this.session() as session:
        execute, gone = executor(session), (listed(message_ins_ids),)
        execute(_DELETE_MESSAGES, gone)
        execute(_DELETE_REPLIES, gone)
