"""Hands the SuperLink's app this project's state (`deploy.fleet.state`) instead of Flower's.

Flower's app gets its state from factories, which `flwr.superlink.main.get_objectstore_linkstate_factories`
makes. `hand_over` replaces this function. Some settings of the state are constants in Flower's modules, which
no subclass can change; `hand_over` replaces them too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from deploy.fleet.admission import object_trees
from deploy.fleet.storage import clock_jumps, past_rounds, sqlite_settings, times
from deploy.flower.commands import NO_START
from deploy.flower.patches.shared import replace

if TYPE_CHECKING:
    from deploy.fleet.duties.duties import Duties

MISSED_HEARTBEATS = 4
"""A ServerApp counts as dead after this many times 30 s without a heartbeat. Stock Flower has 2 times 30 s.

A ServerApp sends a heartbeat every 17 to 23 s. While the database is locked, it repeats the heartbeat for up
to `shared.FAILING` s."""

_APP = "flwr.superlink.main"  # imported by Flower inside a function, after the program's start
_CORE_STATE = "flwr.supercore.corestate.sql_corestate"
_LINK_STATE = "flwr.server.superlink.linkstate"
_OBJECTS = "flwr.supercore.object_store"
_INFLATABLE = "flwr.supercore.inflatable"
_TABLES = "flwr.supercore.state.schema"
_VALIDATOR = "flwr.server.utils.validator"
_STATE = "deploy.fleet.state"
_STORE = "deploy.fleet.storage.objects"
_MESSAGES = "deploy.fleet.storage.messages"
_IN_MEMORY = "flwr.supercore.constant:FLWR_IN_MEMORY_DB_NAME"
OVERRIDDEN = {
    f"{_LINK_STATE}:SqlLinkState": (
        "initialize",
        "session",
        "store_message_and_object_tree",
        "store_message_ins",
        "store_message_res",
        "get_message_ins",
        "get_valid_message_ins",
        "preregister_object_tree",
        "acknowledge_node_heartbeat",
        "get_message_res",
        "delete_messages",
        "store_object",
        "get_object",
        "activate_node",
        "delete_node",
        "get_node_id_by_public_key",
        "store_traffic",
        "add_clientapp_runtime",
        "finish_task",
        "get_task_by_token",
        "_cleanup_expired_task_tokens",
    ),
    f"{_OBJECTS}.sql_object_store:SqlObjectStore": (
        "initialize",
        "session",
        "put",
        "get",
        "preregister",
        "get_object_tree",
        "delete",
    ),
}
"""By class of Flower: the methods that this project's subclasses override.

A method that is missing from Flower's class would not be called any more."""
USED = (
    f"{_APP}:get_objectstore_linkstate_factories",
    *(f"{kind}.{name}" for kind, names in OVERRIDDEN.items() for name in names),
    # Names that the modules of the state import.
    *(f"{_LINK_STATE}:SqlLinkState.{name}" for name in ("federation_manager", "object_store")),
    *(f"{_LINK_STATE}:SqlLinkState.{name}" for name in ("_cleanup_push_session", "_store_generated_message")),
    *(f"{_LINK_STATE}.utils:{name}" for name in ("dict_to_message", "message_to_dict")),
    f"{_LINK_STATE}.utils:create_message_error_unavailable_ins_message",
    f"{_LINK_STATE}.utils:create_message_error_unavailable_res_message",
    f"{_VALIDATOR}:validate_message",
    *(f"flwr.common.constant:{name}" for name in ("MESSAGE_TTL_TOLERANCE", "SUPERLINK_NODE_ID")),
    "flwr.common.constant:HEARTBEAT_PATIENCE",
    *(f"flwr.supercore.utils:{name}" for name in ("uint64_to_int64", "int64_to_uint64")),
    *("flwr.supercore:log", "flwr.supercore.date:now", "flwr.proto.message_pb2:ObjectTree"),
    f"{_OBJECTS}.sql_object_store:SqlObjectStore._mutation_session",
    f"{_OBJECTS}:NoObjectInStoreError",
    *(f"{_INFLATABLE}.inflatable_object:{name}" for name in ("get_object_id", "is_valid_sha256_hash")),
    f"{_INFLATABLE}.inflatable_object:iterate_object_tree",
    f"{_INFLATABLE}.inflatable_utils:validate_object_content",
    *(f"flwr.supercore.sql_mixin:{name}" for name in ("SqlMixin.session", "_current_sessions")),
    # Tables that their statements name.
    *(f"{_TABLES}.linkstate_models:{name}" for name in ("MessageIns", "MessageRes", "Node", "Run")),
    *(f"{_TABLES}.corestate_models:{name}" for name in ("ObjectPushSessionRoot", "ObjectPushSessionPending")),
    *(f"{_TABLES}.corestate_models:{name}" for name in ("ObjectPushSession", "Task")),
    *(f"{_TABLES}.objectstore_models:{name}" for name in ("StoredObject", "ObjectChild", "RunObject")),
    f"{_LINK_STATE}:LinkStateFactory",
    f"{_OBJECTS}:ObjectStoreFactory",
    _IN_MEMORY,
    f"{_CORE_STATE}:OBJECT_PUSH_SESSION_TTL_SECONDS",
    f"{_CORE_STATE}:HEARTBEAT_PATIENCE",
    f"{_VALIDATOR}:now",
    *clock_jumps.USED,
    *object_trees.USED,
    *past_rounds.USED,
    *sqlite_settings.USED,
    *times.USED,
)


def hand_over(duties: Duties) -> None:
    """Let the SuperLink's app use this project's state, which calls `duties`."""
    sqlite_settings.patch()
    replace(_CORE_STATE, OBJECT_PUSH_SESSION_TTL_SECONDS=importlib.import_module(_MESSAGES).LONGEST_PART)
    replace(_CORE_STATE, HEARTBEAT_PATIENCE=MISSED_HEARTBEATS)

    def factories(database: str, federation_manager: Any) -> tuple[Any, Any]:
        stores, states = make(database, federation_manager, duties)
        replace(_VALIDATOR, now=states.state().clock_jumps.now_for_messages)
        return stores, states

    replace(_APP, get_objectstore_linkstate_factories=factories)


def make(database: str, federation_manager: Any, duties: Duties) -> tuple[Any, Any]:
    """Return an ObjectStoreFactory and a LinkStateFactory, which hold this project's store and state.

    `database`: the database's file, or a URL of SQLite.

    Raises SystemExit if no database is named, and Flower would keep its state in memory; or if the tables of
    the database are those of a newer Flower.
    """
    from alembic.util import CommandError  # not at the top: of this module's importers, only this needs it

    module, _, name = _IN_MEMORY.partition(":")
    if database == getattr(importlib.import_module(module), name):
        raise SystemExit(f"{NO_START} it needs --database")
    store = importlib.import_module(_STORE).CohortObjectStore(database)
    try:
        store.initialize()  # brings the tables of an older Flower up to date
    except CommandError as error:
        raise SystemExit(
            f"{NO_START} a newer version has changed {database} ({error}): install that version again, or "
            "restore the backup that was made before (docs/upgrading.md)"
        ) from error
    stores = importlib.import_module(_OBJECTS).ObjectStoreFactory(database)
    stores.store_instance = store
    state = importlib.import_module(_STATE).CohortLinkState(database, federation_manager, store, duties)
    state.initialize()
    states = importlib.import_module(_LINK_STATE).LinkStateFactory(database, federation_manager, stores)
    states.state_instance = state
    return stores, states


def is_handed_over(state: Any) -> bool:
    """Tell whether a state is this project's."""
    return isinstance(state, importlib.import_module(_STATE).CohortLinkState)
