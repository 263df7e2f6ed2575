"""Stores, looks up and deletes the objects of messages with a few statements.

Flower splits a message into a tree of objects: the message, its records, their arrays, and so on. The name of
an object (`object_id`) is the hash of its content. A sender first sends the tree with all names, and then
pushes the contents one by one, in a push session.

A reply with a model of four arrays has 13 objects. Stock Flower stores and deletes them with several
statements for each object, which took most of the SuperLink's CPU time. Here one statement serves all objects
of a message. The statement gets the list of objects as JSON, because SQLite limits the number of parameters.

For each object that is fetched or stored, stock Flower builds four to eight statements with SQLAlchemy's ORM.
Here the statements are fixed texts.

When an object is deleted, SQLite also deletes the rows of other tables that refer to the object. Stock Flower
has no index of these rows, so each deletion reads two whole tables. `add_indexes` adds the indexes.
"""

from __future__ import annotations

import importlib
import json
from datetime import timedelta
from functools import wraps
from logging import getLogger
from typing import Any

from deploy.fleet.storage import times
from deploy.fleet.storage.statements import AMONG, executor

_STORE = "flwr.supercore.object_store.sql_object_store"
_TREES = "flwr.supercore.inflatable.inflatable_object"
_MESSAGES = "flwr.proto.message_pb2"
_UTILS = "flwr.supercore.utils"
_CORE_STATE = "flwr.supercore.corestate.sql_corestate"
_SESSIONS = "flwr.supercore.state.schema.corestate_models"
_CONTENTS = "flwr.supercore.inflatable.inflatable_utils:validate_object_content"
_DATE = "flwr.supercore.date"
_NO_OBJECT = "flwr.supercore.object_store:NoObjectInStoreError"
USED = (
    *(f"{_STORE}:SqlObjectStore.{name}" for name in ("preregister", "get_object_tree", "delete")),
    *(f"{_STORE}:SqlObjectStore.{name}" for name in ("_mutation_session", "session", "initialize")),
    f"{_STORE}:SqlObjectStore._lock_objectstore_mutation",
    f"{_STORE}:StoredObject",
    f"{_STORE}:ObjectChild",
    f"{_STORE}:RunObject",
    *(f"{_TREES}:{name}" for name in ("is_valid_sha256_hash", "iterate_object_tree")),
    f"{_MESSAGES}:ObjectTree",
    f"{_UTILS}:uint64_to_int64",
    f"{_TREES}:get_object_id",
    *(f"{_STORE}:SqlObjectStore.{name}" for name in ("put", "get")),
    *(f"{_CORE_STATE}:SqlCoreState.{name}" for name in ("store_object", "get_object")),
    f"{_CORE_STATE}:OBJECT_PUSH_SESSION_TTL_SECONDS",
    *times.USED,
    f"{_SESSIONS}:ObjectPushSessionPending",
    f"{_DATE}:now",
    _CONTENTS,
    _NO_OBJECT,
)

_INDEXES = (
    "CREATE INDEX IF NOT EXISTS cohort_parents ON object_children (child_id)",
    "CREATE INDEX IF NOT EXISTS cohort_runs ON run_objects (object_id)",
)
_LOCK = (
    "INSERT INTO objectstore_locks (lock_id, lock_value) VALUES ('mutation', 0) "
    "ON CONFLICT (lock_id) DO UPDATE SET lock_value = lock_value"
)
_KNOWN = f"SELECT object_id, is_available FROM objects WHERE object_id {AMONG}"
_CHILDREN = f"SELECT parent_id, child_id FROM object_children WHERE parent_id {AMONG}"
_ADD = "INSERT INTO objects (object_id, content, is_available, ref_count) VALUES (?, x'', 0, ?)"
_ADD_CHILD = "INSERT INTO object_children (parent_id, child_id) VALUES (?, ?)"
_COUNT = "UPDATE objects SET ref_count = ref_count + ? WHERE object_id = ?"
_ADD_TO_RUN = "INSERT INTO run_objects (run_id, object_id) VALUES (?, ?) ON CONFLICT DO NOTHING"
_TREE = (
    "WITH RECURSIVE part (id) AS "
    "(VALUES (?) UNION SELECT child_id FROM object_children JOIN part ON parent_id = id) "
    "SELECT parent_id, child_id FROM part JOIN object_children ON parent_id = id ORDER BY 1, 2"
)
_EXISTS = "SELECT 1 FROM objects WHERE object_id = ?"
_IS_UNUSED = "SELECT 1 FROM objects WHERE object_id = ? AND ref_count = 0"
_REFERENCES = (
    "WITH RECURSIVE part (id) AS "
    "(VALUES (?) UNION SELECT child_id FROM object_children JOIN part ON parent_id = id) "
    "SELECT parent_id, child_id, ref_count FROM part JOIN object_children ON parent_id = id "
    "JOIN objects ON object_id = child_id"
)
_DELETE = f"DELETE FROM objects WHERE object_id {AMONG}"
_SET_COUNT = "UPDATE objects SET ref_count = ? WHERE object_id = ?"
_GET = "SELECT content FROM objects WHERE object_id = ?"
_PUT = "UPDATE objects SET content = ?, is_available = 1 WHERE object_id = ? AND is_available = 0"
_CLAIM = "DELETE FROM object_push_session_pending WHERE session_id = ? AND object_id = ?"
_REFRESH = (
    "UPDATE object_push_sessions SET pending_count = pending_count - 1, expires_at = ? "
    "WHERE session_id = ? AND run_id = ? AND expires_at > ? RETURNING pending_count"
)
_END = "DELETE FROM object_push_sessions WHERE session_id = ?"


class _Expired(Exception):  # noqa: N818
    """The push session in which an object arrived has expired, or belongs to another run."""


def patch() -> None:
    """Let Flower's classes SqlObjectStore and SqlCoreState use the functions of this module."""
    store = importlib.import_module(_STORE).SqlObjectStore
    state = importlib.import_module(_CORE_STATE).SqlCoreState
    store.put, store.get = put, get
    store_objects(state)
    find_objects(state)
    add_indexes(store)
    store._lock_objectstore_mutation = _lock
    store.preregister, store.get_object_tree, store.delete = preregister, get_object_tree, delete


def find_objects(state: Any) -> None:
    """Let instances of `state` use one statement to look up an object whose content has arrived.

    Parameters
    ----------
    state : type
        Flower's class SqlCoreState.
    """
    find = state.get_object

    @wraps(find)
    def found(this: Any, run_id: int, object_id: str) -> bytes | None:
        content: bytes | None = this.object_store.get(object_id)
        return find(this, run_id, object_id) if content == b"" else content

    state.get_object = found


def store_objects(state: Any) -> None:
    """Let instances of `state` store the content of an object with three to five statements.

    Flower's method is still called in two cases: if the request names no push session, to look for the
    session; and if the session has expired or belongs to another run, to refuse the object.

    Parameters
    ----------
    state : type
        Flower's class SqlCoreState.
    """
    store = state.store_object
    lifetime = timedelta(seconds=importlib.import_module(_CORE_STATE).OBJECT_PUSH_SESSION_TTL_SECONDS)
    now = importlib.import_module(_DATE).now
    signed = importlib.import_module(_UTILS).uint64_to_int64

    @wraps(store)
    def stored(this: Any, run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool:
        if not session_id:
            return bool(store(this, run_id, session_id, object_id, object_content))
        moment = now()
        which = times.stored_time(moment + lifetime), session_id, signed(run_id), times.stored_time(moment)
        try:
            with this.session() as session:
                execute = executor(session)
                if not execute(_CLAIM, (session_id, object_id)).rowcount:
                    return False
                left = execute(_REFRESH, which).scalar()
                if left is None:
                    raise _Expired
                this.object_store.put(object_id, object_content)
                if not left:
                    execute(_END, (session_id,))
                return True
        except _Expired:
            return bool(store(this, run_id, session_id, object_id, object_content))
        except Exception as error:
            getLogger("flwr").error("Failed to store object %s: %s", object_id, error)
            return False

    state.store_object = stored


def put(this: Any, object_id: str, object_content: bytes) -> None:
    """Store the content of an object whose name is already stored. Replaces the method of SqlObjectStore.

    Raises
    ------
    ValueError
        If the name is not the hash of the content, or the content is not that of an object. (Checked only if
        `this.verify` is true)
    NoObjectInStoreError
        If the store does not know the name.
    """
    if this.verify:
        if object_id != importlib.import_module(_TREES).get_object_id(object_content):
            raise ValueError(f"Object ID {object_id} does not match content hash")
        module, _, name = _CONTENTS.partition(":")
        getattr(importlib.import_module(module), name)(content=object_content)
    with this.session() as session:
        execute = executor(session)
        if execute(_PUT, (object_content, object_id)).rowcount:
            return
        if execute(_EXISTS, (object_id,)).first() is None:
            raise _unknown(object_id)


def get(this: Any, object_id: str) -> bytes | None:
    """Return the content of an object: b"" if it has not arrived, None if the store does not know the name.

    Replaces the method of SqlObjectStore.
    """
    with this.session() as session:
        content: bytes | None = executor(session)(_GET, (object_id,)).scalar()
        return content


def _unknown(object_id: str) -> Exception:
    module, _, name = _NO_OBJECT.partition(":")
    error: Exception = getattr(importlib.import_module(module), name)(
        f"Object {object_id} was not pre-registered."
    )
    return error


def add_indexes(store: Any) -> None:
    """Let instances of `store`, Flower's class SqlObjectStore, add the indexes to their database."""
    initialize = store.initialize

    @wraps(initialize)
    def initialized(this: Any, *arguments: Any, **settings: Any) -> Any:
        tables = initialize(this, *arguments, **settings)
        with this.session() as session:
            for each in _INDEXES:
                executor(session)(each)
        return tables

    store.initialize = initialized


def preregister(this: Any, run_id: int, object_tree: Any) -> list[str]:
    """Store the names and children of a message's objects. Return the names whose contents are missing.

    Replaces the method of SqlObjectStore.

    Parameters
    ----------
    this : SqlObjectStore
        The store.
    run_id : int
        The run of the message.
    object_tree : ObjectTree
        The message's objects.

    Raises
    ------
    ValueError
        If the name of an object is not a SHA-256 hash, or if an object has the same child twice, or other
        children than the store knows.
    """
    trees = importlib.import_module(_TREES)
    children: dict[str, set[str]] = {}
    for node in trees.iterate_object_tree(object_tree):
        name = node.object_id
        if not trees.is_valid_sha256_hash(name):
            raise ValueError(f"Invalid object ID format: {name}")
        parts = {child.object_id for child in node.children}
        if len(parts) != len(node.children):
            raise ValueError(f"Object {name} has duplicate children.")
        if children.setdefault(name, parts) != parts:
            raise ValueError(f"Object {name} was preregistered with different children.")
    names = json.dumps(list(children))
    with this._mutation_session() as session:
        execute = executor(session)
        known: dict[str, int] = dict(execute(_KNOWN, (names,)).all())
        stated: dict[str, set[str]] = {name: set() for name in known}
        for parent, child in execute(_CHILDREN, (names,)) if known else ():
            stated[parent].add(child)
        for name, parts in stated.items():
            if parts != children[name]:
                raise ValueError(f"Object {name} was preregistered with different children.")
        new = {name: parts for name, parts in children.items() if name not in known}
        references = dict.fromkeys(children, 0)
        for parts in new.values():
            for part in parts:
                references[part] += 1
        if new:
            execute(_ADD, [(name, references.pop(name)) for name in new])
        if pairs := [(name, part) for name, parts in new.items() for part in sorted(parts)]:
            execute(_ADD_CHILD, pairs)
        if counts := [(count, name) for name, count in references.items() if count]:
            execute(_COUNT, counts)
        run = importlib.import_module(_UTILS).uint64_to_int64(run_id)
        execute(_ADD_TO_RUN, [(run, name) for name in children])
    return [name for name in children if not known.get(name)]


def get_object_tree(this: Any, object_id: str) -> Any:
    """Return an object with its descendants. Replaces the method of SqlObjectStore.

    Raises NoObjectInStoreError if the store does not know the object.
    """
    new = importlib.import_module(_MESSAGES).ObjectTree
    with this.session() as session:
        execute = executor(session)
        children: dict[str, list[str]] = {}
        for parent, child in execute(_TREE, (object_id,)):
            children.setdefault(parent, []).append(child)
        if not children and execute(_EXISTS, (object_id,)).first() is None:
            raise _unknown(object_id)

    def tree(name: str) -> Any:
        return new(object_id=name, children=map(tree, children.get(name, ())))

    return tree(object_id)


def delete(this: Any, object_id: str) -> None:
    """Delete an object, and those of its descendants that no remaining object contains.

    An object that is itself a child of another object is not deleted. Replaces the method of SqlObjectStore.
    """
    with this._mutation_session() as session:
        execute = executor(session)
        if execute(_IS_UNUSED, (object_id,)).first() is None:
            return
        references: dict[str, int] = {}  # by object: how many stored objects have it as a child
        children: dict[str, list[str]] = {}
        for parent, child, count in execute(_REFERENCES, (object_id,)):
            references[child] = count
            children.setdefault(parent, []).append(child)
        gone = [object_id]
        for name in gone:  # grows in the loop
            for child in children.get(name, ()):
                references[child] -= 1
                if references[child] == 0:
                    gone.append(child)
        execute(_DELETE, (json.dumps(gone),))
        if kept := [(count, name) for name, count in references.items() if count]:
            execute(_SET_COUNT, kept)


def _lock(this: Any) -> None:
    """Take the database's write lock. Replaces the method of SqlObjectStore; the statement is the same."""
    with this.session() as session:
        executor(session)(_LOCK)
