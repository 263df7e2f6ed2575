"""Ends a SuperLink whose database is corrupt, and moves the database aside before the next start."""

import contextlib
import importlib
import itertools
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PATIENCE = 2.0  # seconds to wait until a lock on the database is released
ERRORS = 3  # the SuperLink ends when SQLite has reported this many errors about a corrupt database
EXIT_CODE = 65  # the exit code of a SuperLink whose database is corrupt (EX_DATAERR)
_ends: list[Iterator[int]] = []  # empty until `end_if_corrupt` is called, which adds a counter of errors
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_corrupt(database: Path) -> bool:
    """Tell whether SQLite finds the structure of a database damaged. The check reads the whole file.

    A file that is missing, empty, locked or unreadable is not corrupt.
    """
    address = f"{database.resolve().as_uri()}?mode=rw"  # mode=rw: a missing file is not created
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=PATIENCE)) as connection:
            return bool(connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)])
    except sqlite3.Error as error:
        return _says_corrupt(error)


def end_if_corrupt() -> None:
    """End this process, a SuperLink, once SQLite has reported `ERRORS` times that the database is corrupt.

    A stock SuperLink would keep running and answer every request with an error.
    """
    sql = importlib.import_module("sqlalchemy")

    def note(context: Any) -> None:
        note_error(context.original_exception, context.engine.url.database)

    _ends.append(itertools.count(1))
    sql.event.listen(sql.Engine, "handle_error", note)


def note_error(error: BaseException, database: str | None) -> None:
    """Count an error if it means that the database is corrupt; end this process as `end_if_corrupt` says.

    If `end_if_corrupt` was not called, do nothing.
    """
    if _ends and _says_corrupt(error) and next(_ends[-1]) >= ERRORS:
        print(f"{database} is corrupt ({error}): the SuperLink ends", flush=True)
        sys.stderr.flush()
        os._exit(EXIT_CODE)  # without cleanup: any further write might damage the database more


def _says_corrupt(error: BaseException) -> bool:
    # The lowest byte of an extended error code of SQLite is the primary error code.
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _CORRUPT


def move_aside_if_corrupt(database: Path, say: Callable[[str], None], registered: Path | None = None) -> None:
    """Move a corrupt database to `NAME.corrupt-YYYYMMDD-HHMMSS`, so that the SuperLink starts with a new one.

    `database`: the database's file. No program may be using it. `registered`: a file or folder that records
    which keys the database holds. It is moved aside as well, so that these keys are registered again.
    """
    if not is_corrupt(database):
        return
    aside = database.with_name(f"{database.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}")
    # The database is moved last. If the moves are interrupted, the next start still finds a corrupt database.
    files = [(database.with_name(f"{database.name}-{part}"), f"-{part}") for part in ("wal", "shm")]
    files += [] if registered is None else [(registered, f"-{registered.name}")]
    try:
        for file, suffix in (*files, (database, "")):
            if file.exists():
                file.rename(aside.with_name(f"{aside.name}{suffix}"))
    except OSError as error:
        say(f"{database} is corrupt and cannot be moved aside: {error}")
        return
    say(
        f"{database} was corrupt and is now {aside.name}; the SuperLink starts with a new database, in which "
        "the registered clients are registered again; the runs in the old database are lost"
    )
