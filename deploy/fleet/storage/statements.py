"""Executes statements whose texts are fixed, by the database's driver instead of SQLAlchemy.

SQLAlchemy takes several times as long for such a statement as SQLite itself. The statements belong to the
transaction of a SQLAlchemy session, and raise SQLAlchemy's errors.

The statements are in SQLite's dialect. `deploy.fleet.storage.postgres` translates them for PostgreSQL.
"""

import importlib
import json
import sqlite3
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from deploy.flower.corrupt_database import note_error

AMONG = "IN (SELECT value FROM json_each(?))"  # the value of the parameter comes from `listed`
UNLOCKED = " /* FOR UPDATE SKIP LOCKED */"
"""Ends a query for a row to claim. Only PostgreSQL reads it: there, two processes claim at the same time."""
_POSTGRES = "deploy.fleet.storage.postgres"  # not imported where SQLite is used: it needs psycopg
_KEY = "cohort_execute"  # the key under which `session.info` keeps the function that `executor` returns


class Listed(str):
    """Values as JSON, for SQLite. `values` are the same, for PostgreSQL."""

    values: list[Any]


def listed(values: Iterable[Any]) -> Listed:
    """Return values as the value of one parameter, because SQLite limits the number of parameters."""
    each = list(values)
    found = Listed(json.dumps(each))
    found.values = each
    return found


class Rows(sqlite3.Cursor):
    """The rows that a statement returns, as tuples. Iterate over them, or call one of these methods, once."""

    def first(self) -> Any:
        """Return the first row, or None if there is none."""
        row = self.fetchone()
        self.close()  # otherwise a statement with further rows would keep the transaction open
        return row

    def scalar(self) -> Any:
        """Return the first value of the first row, or None if there is no row."""
        row = self.first()
        return None if row is None else row[0]

    def all(self) -> list[Any]:
        """Return all rows."""
        return self.fetchall()


def executor(session: Any) -> Callable[..., Any]:
    """Return a function that executes a statement in a session's transaction, and returns its `Rows`.

    The function's arguments are the statement and the values of its parameters: a tuple, or a list of tuples
    to execute the statement with each of them.
    """
    known: Callable[..., Any] | None = session.info.get(_KEY)
    if known is not None:
        return known
    connection = session.connection()
    driver = connection.connection.driver_connection
    if not isinstance(driver, sqlite3.Connection):
        execute: Callable[..., Any] = importlib.import_module(_POSTGRES).executor(connection, driver)
        session.info[_KEY] = execute
        return execute

    def execute_directly(statement: str, values: Any = ()) -> Rows:
        rows = driver.cursor(Rows)
        try:
            return (
                rows.executemany(statement, values)
                if isinstance(values, list)
                else rows.execute(statement, values)
            )
        except sqlite3.Error as error:
            note_error(error, connection.engine.url.database)
            wrapped = importlib.import_module("sqlalchemy").exc.DBAPIError.instance
            raise wrapped(statement, None, error, sqlite3.Error, hide_parameters=True) from error

    session.info[_KEY] = execute_directly
    return execute_directly


def stored_time(moment: datetime) -> str:
    """Return a time in UTC as the database stores times, for example in the column `expires_at`."""
    return moment.isoformat(sep=" ")
