"""Begins push sessions, in which the objects of messages arrive, with statements whose texts are fixed.

The functions with a parameter `this` replace the methods of the same name of Flower's class SqlLinkState.
"""

from __future__ import annotations

import importlib
from datetime import timedelta
from typing import Any
from uuid import uuid4

from deploy.fleet.storage import times
from deploy.fleet.storage.statements import executor, listed

_LINK_STATE = "flwr.server.superlink.linkstate"
_SQL_LINK_STATE = f"{_LINK_STATE}.sql_linkstate"
_CORE_STATE = "flwr.supercore.corestate.sql_corestate"
REPLACED = ("start_session", "preregister_object_tree")
USED = (
    *(f"{_LINK_STATE}:SqlLinkState.{name}" for name in (*REPLACED, "session", "object_store")),
    f"{_LINK_STATE}:SqlLinkState._cleanup_push_session",
    *(f"{_SQL_LINK_STATE}:{name}" for name in ("now", "uint64_to_int64", "int64_to_uint64")),
    f"{_CORE_STATE}:OBJECT_PUSH_SESSION_TTL_SECONDS",
    *times.USED,
)

_BEGIN_PUSH = (
    "INSERT INTO object_push_sessions (session_id, run_id, expires_at, pending_count) VALUES (?, ?, ?, 0)"
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


def patch() -> None:
    """Let Flower's class SqlLinkState use the functions of this module."""
    state = importlib.import_module(_LINK_STATE).SqlLinkState
    for name in REPLACED:
        setattr(state, name, globals()[name])


def _flower() -> Any:
    return importlib.import_module(_SQL_LINK_STATE)


def start_session(this: Any, run_id: int) -> str:
    """Begin a push session of a run, and return the session's id."""
    flower, session_id = _flower(), str(uuid4())
    lifetime = timedelta(seconds=importlib.import_module(_CORE_STATE).OBJECT_PUSH_SESSION_TTL_SECONDS)
    until = times.stored_time(flower.now() + lifetime)
    with this.session() as session:
        values = (session_id, flower.uint64_to_int64(run_id), until)
        executor(session)(_BEGIN_PUSH, values)
    return session_id


def preregister_object_tree(this: Any, object_tree: Any, session_id: str) -> list[str]:
    """Store the names of a message's objects. Return the names whose contents are to arrive in the session.

    Raises
    ------
    ValueError
        If there is no such session, or the tree is not valid.
    """
    with this.session() as session:
        execute = executor(session)
        if (run := execute(_RUN_OF_PUSH, (session_id,)).first()) is None:
            raise ValueError(f"Unknown object push session: {session_id}")
        missing: list[str] = this.object_store.preregister(_flower().int64_to_uint64(run[0]), object_tree)
        root = object_tree.object_id
        if (older := execute(_OLDER_PUSH, (root, session_id)).first()) is not None:
            this._cleanup_push_session(older[0], cleanup_messages=False)
        execute(_ADD_ROOT, (session_id, root))
        if missing:
            execute(_ADD_PENDING, (session_id, listed(missing)))
        execute(_COUNT_PENDING, (session_id, session_id))
    return missing
