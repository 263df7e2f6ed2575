"""Hands the SuperLink's app this project's state (`deploy.fleet.state`) instead of Flower's.

Flower's app gets its state from factories, which `flwr.superlink.main.get_objectstore_linkstate_factories`
makes. `hand_over` replaces this function. Some settings of the state are constants in Flower's modules, which
no subclass can change; `hand_over` replaces them too.
"""

from __future__ import annotations

import importlib
import os
import sqlite3
from typing import TYPE_CHECKING, Any

from deploy.fleet.duties.front_ends import FrontEnd
from deploy.fleet.storage import postgres
from deploy.fleet.storage.clock_jumps import MISSED_HEARTBEATS
from deploy.flower.commands import AUTHORITY, FRONT_END, NO_START
from deploy.flower.patches.shared import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from deploy.fleet.duties.duties import Duties

LOG = 64 * 1024 * 1024  # bytes of the log after which SQLite copies changed pages into the file
_PAGE = 4096  # bytes of a page of the database
_APP = "flwr.superlink.main"  # imported by Flower inside a function, after the program's start
_CORE_STATE = "flwr.supercore.corestate.sql_corestate"
_VALIDATOR = "flwr.server.utils.validator"
_STATE = "deploy.fleet.state"
_STORE = "deploy.fleet.storage.objects"
_SHARED = "deploy.fleet.storage.shared_state"


def write_less() -> None:
    """Let the SuperLink open its database with settings with which a round writes much less to the disk.

    A round writes each client's model into the database and deletes it again. SQLite first writes changed
    pages into a log (WAL). After every 4 MB of the log, it copies these pages into the database's file, and
    waits for the disk twice. Here it copies after `LOG` bytes, so pages that were deleted in the meantime are
    not copied. As in stock Flower, a crash of the machine may lose the last transactions, but never damages
    the file.

    Debian's SQLite overwrites deleted content with zeros, which writes each model twice. With secure_delete =
    FAST, it does so only in pages that it writes anyway. The content that stays in the file is no secret from
    those who can read the file: they could also have read it before it was deleted.
    """
    from sqlalchemy import Engine, event  # not at the top: of this module's importers, only this needs it

    if not event.contains(Engine, "connect", _connected):
        event.listen(Engine, "connect", _connected)


def _connected(connection: Any, _: Any) -> None:
    if not isinstance(connection, sqlite3.Connection):
        return
    connection.execute(f"PRAGMA wal_autocheckpoint = {LOG // _PAGE}")
    connection.execute("PRAGMA secure_delete = FAST")


def hand_over(duties: Duties) -> Callable[[], Any]:
    """Let the SuperLink's app use this project's state, which calls `duties`.

    Returns a function that gives the state, as soon as the app has made it.
    """
    write_less()
    handed = list[Factory]()
    replace(_CORE_STATE, HEARTBEAT_PATIENCE=MISSED_HEARTBEATS)

    def factories(database: str, federation_manager: Any) -> tuple[Any, Any]:
        made = make(database, federation_manager, duties)
        replace(_VALIDATOR, now=made.state().clock_jumps.now_for_messages)
        handed.append(made)
        return made, made

    replace(_APP, get_objectstore_linkstate_factories=factories)
    return lambda: handed[-1].state()


def make(database: str, federation_manager: Any, duties: Duties) -> Factory:
    """Return a factory that holds this project's store and state."""
    from alembic.util import CommandError  # not at the top: of this module's importers, only this needs it
    from sqlalchemy.exc import DBAPIError

    if database.startswith(":"):  # Flower's names for databases in memory
        raise SystemExit(f"{NO_START} it needs --database")
    store, state = (_shared if postgres.is_url(database) else _own)(database, federation_manager, duties)
    try:
        store.initialize()  # brings the tables of an older Flower up to date
        state.initialize()
    except CommandError as error:
        raise SystemExit(
            f"{NO_START} a newer version has changed {database} ({error}): install that version again, or "
            "restore the backup that was made before (docs/upgrading.md)"
        ) from error
    except (postgres.DatabaseError, DBAPIError) as error:
        if not postgres.is_url(database):
            raise
        raise SystemExit(f"{NO_START} {postgres.line(getattr(error, 'orig', error))}") from error
    return Factory(store, state)


def _own(database: str, federation_manager: Any, duties: Duties) -> tuple[Any, Any]:
    store = importlib.import_module(_STORE).CohortObjectStore(database)
    return store, importlib.import_module(_STATE).CohortLinkState(database, federation_manager, store, duties)


def _shared(database: str, federation_manager: Any, duties: Duties) -> tuple[Any, Any]:
    missing = {FRONT_END, AUTHORITY} - os.environ.keys()
    if missing:
        raise SystemExit(f"{NO_START} with PostgreSQL it needs the variables {', '.join(sorted(missing))}")
    module = importlib.import_module(_SHARED)
    front_end = FrontEnd(database, os.environ[FRONT_END], os.environ[AUTHORITY])
    store = module.SharedStore(database)
    return store, module.SharedState(database, federation_manager, store, duties, front_end)


class Factory:
    """Gives Flower the store of objects and the state, as its own ObjectStoreFactory and LinkStateFactory."""

    def __init__(self, store: Any, state: Any) -> None:
        self._store, self._state = store, state
        self.objectstore_factory = self

    def store(self) -> Any:
        """Return the store of objects."""
        return self._store

    def state(self) -> Any:
        """Return the state."""
        return self._state


def is_handed_over(state: Any) -> bool:
    """Tell whether a state is this project's."""
    return isinstance(state, importlib.import_module(_STATE).CohortLinkState)
