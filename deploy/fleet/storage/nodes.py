"""Finds nodes and notes their heartbeats, with statements whose texts are fixed.

The functions with a parameter `this` replace the methods of the same name of Flower's class SqlLinkState.
"""

from __future__ import annotations

import importlib
from functools import wraps
from typing import TYPE_CHECKING, Any

from deploy.fleet.storage.statements import AMONG, executor, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LINK_STATE = "flwr.server.superlink.linkstate"
_SQL_LINK_STATE = f"{_LINK_STATE}.sql_linkstate"
_TABLES = "flwr.supercore.state.schema.linkstate_models"
REPLACED = ("get_node_info", "get_node_id_by_public_key", "acknowledge_node_heartbeat")
USED = (
    *(
        f"{_LINK_STATE}:SqlLinkState.{name}"
        for name in (*REPLACED, "session", "_check_and_tag_offline_nodes")
    ),
    *(f"{_SQL_LINK_STATE}:{name}" for name in ("now", "HEARTBEAT_PATIENCE", "NodeInfo", "NodeStatus")),
    *(f"{_SQL_LINK_STATE}:{name}" for name in ("uint64_to_int64", "int64_to_uint64")),
    f"{_TABLES}:Node.node_id",
)

_NODE_FIELDS = (
    "node_id",
    "owner_aid",
    "owner_name",
    "status",
    "registered_at",
    "last_activated_at",
    "last_deactivated_at",
    "unregistered_at",
    "online_until",
    "heartbeat_interval",
    "public_key",
    "location",
    "name",
)
_NODES_BY = f"SELECT {', '.join(_NODE_FIELDS)} FROM node WHERE TRUE"
_ABSENT = "SELECT 1 FROM node WHERE online_until <= ? AND status = 'online' LIMIT 1"
_NODE_OF_KEY = "SELECT node_id FROM node WHERE public_key = ? AND status != 'unregistered'"
_HEARTBEAT = (
    "UPDATE node SET online_until = ?, heartbeat_interval = ?, status = 'online', "
    "last_activated_at = CASE WHEN status != 'online' THEN ? ELSE last_activated_at END "
    "WHERE node_id = ? AND status != 'unregistered' RETURNING 1"
)


def patch() -> None:
    """Let Flower's class SqlLinkState use the functions of this module."""
    state = importlib.import_module(_LINK_STATE).SqlLinkState
    for name in REPLACED:
        setattr(state, name, globals()[name])
    state._check_and_tag_offline_nodes = tag_offline_nodes(state._check_and_tag_offline_nodes)


def _flower() -> Any:
    return importlib.import_module(_SQL_LINK_STATE)


def tag_offline_nodes(tag: Callable[..., None]) -> Callable[..., None]:
    """Return a method that calls `tag` only if there is a node that `tag` has to mark as offline.

    `tag` is Flower's method `_check_and_tag_offline_nodes`.
    """

    @wraps(tag)
    def tagged(this: Any, node_ids: list[int] | None = None) -> None:
        now = _flower().now().timestamp()
        with this.session() as session:
            if executor(session)(_ABSENT, (now,)).first() is not None:
                tag(this, node_ids)

    return tagged


def get_node_info(
    this: Any,
    *,
    node_ids: Sequence[int] | None = None,
    owner_aids: Sequence[str] | None = None,
    statuses: Sequence[str] | None = None,
) -> list[Any]:
    """Return what is known about the nodes whose id, owner and status are in the given lists.

    A list that is None admits all nodes.
    """
    flower = _flower()
    wanted = {
        "node_id": None if node_ids is None else [flower.uint64_to_int64(each) for each in node_ids],
        "owner_aid": owner_aids,
        "status": statuses,
    }
    lists = {name: values for name, values in wanted.items() if values is not None}
    if not all(map(len, lists.values())):
        return []
    statement = _NODES_BY + "".join(f" AND {name} {AMONG}" for name in lists)
    with this.session() as session:
        this._check_and_tag_offline_nodes()
        rows = executor(session)(statement, tuple(map(listed, lists.values()))).all()
    return [
        flower.NodeInfo(
            node_id=flower.int64_to_uint64(node), **dict(zip(_NODE_FIELDS[1:], values, strict=True))
        )
        for node, *values in rows
    ]


def get_node_id_by_public_key(this: Any, public_key: bytes) -> int | None:
    """Return the id of the node that is registered with a key, or None if there is no such node."""
    with this.session() as session:
        found = executor(session)(_NODE_OF_KEY, (public_key,)).first()
    node: int | None = None if found is None else _flower().int64_to_uint64(found[0])
    return node


def acknowledge_node_heartbeat(this: Any, node_id: int, heartbeat_interval: float) -> bool:
    """Note that a node is online. Return whether there is such a node."""
    flower = _flower()
    now = flower.now()
    until = now.timestamp() + flower.HEARTBEAT_PATIENCE * heartbeat_interval
    node = flower.uint64_to_int64(node_id)
    with this.session() as session:
        execute = executor(session)
        return execute(_HEARTBEAT, (until, heartbeat_interval, now.isoformat(), node)).first() is not None
