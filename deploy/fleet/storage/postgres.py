"""PostgreSQL as the database of a server: its address, the check before a start, and its statements.

Several SuperLinks, which are called front ends, share one such database. Everything here belongs to
PostgreSQL; the statements of this project and Flower's classes are the same for both databases.

The driver is psycopg, which is installed with the extra `postgres`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from deploy.fleet.storage.statements import AMONG, Listed

SCHEME = "postgresql"
OLDEST = 140_000  # the oldest version of PostgreSQL, as `server_version_num`
CONNECT = 10  # s that a connection may take to be made
# The settings of each connection, for libpq, unless the address has others. A front end whose machine has
# died or hangs must not keep its locks, for which the others wait, and no request may wait for ever.
_SETTINGS = {
    "connect_timeout": str(CONNECT),
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "cohort",
    "options": "-c idle_in_transaction_session_timeout=30s -c lock_timeout=30s -c tcp_keepalives_idle=10 "
    "-c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c timezone=UTC "
    r"-c default_transaction_isolation=read\ committed",
}
_FILES = ("passfile", "sslrootcert", "sslcert", "sslkey", "sslcrl", "service_file")
_HAS_SERVER = "SELECT to_regclass('cohort_server') IS NOT NULL"
_TABLES = "SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = current_schema()"
_AUTHORITY = "SELECT authority FROM cohort_server"
CHANNEL = "cohort"  # of notifications
# Front ends are alive if they have been seen within this many seconds.
LEASE = 6.0
NOW = "extract(epoch FROM clock_timestamp())"
_OTHERS = f"SELECT home, version FROM cohort_front_end WHERE seen > {NOW} - {LEASE} AND version != %s LIMIT 1"


class DatabaseError(RuntimeError):
    """The database cannot be used. The message is one line and says why."""


def is_url(database: str) -> bool:
    """Tell whether a database is named by an address of PostgreSQL and not by a file."""
    return database.startswith(f"{SCHEME}://")


def checked_url(text: str) -> str:
    """Return the address of a PostgreSQL database. Raises ValueError if it is not valid, or holds a password.

    Other users of the machine see the password of an address, in the list of processes.
    """
    try:
        parts = urlsplit(text.strip())
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        secret = parts.password is not None or "password" in query
        _ = parts.port  # raises ValueError if it is no number
    except ValueError:
        raise ValueError("database: must be an address such as postgresql://USER@HOST:5432/NAME") from None
    if secret:
        raise ValueError(
            "database: holds a password, which other users of this machine could see; put it into a file, "
            "and add ?passfile=/PATH to the address (or set PGPASSFILE)"
        )
    if parts.scheme not in (SCHEME, "postgres"):
        raise ValueError(f"database = {text}: must begin with {SCHEME}://")
    for name in _FILES:
        if name in query and not Path(query[name]).is_absolute() and query[name] != "system":
            raise ValueError(f"database = {text}: {name} must be an absolute path")
    return f"{SCHEME}://{text.strip().partition('://')[2]}"


def settings(url: str) -> dict[str, str]:
    """Return libpq's settings of each connection, except those that the address has."""
    given = dict(parse_qsl(urlsplit(url).query))
    return {name: value for name, value in _SETTINGS.items() if name not in given}


def connect(url: str) -> Any:
    """Return a connection of psycopg to a database; each statement is a transaction of its own.

    Raises DatabaseError if that is not possible.
    """
    with in_one_line(url):
        return _driver().connect(url, autocommit=True, **settings(url))


@contextmanager
def in_one_line(url: str) -> Iterator[None]:
    """Inside a `with` block, raise DatabaseError instead of the driver's errors."""
    try:
        yield
    except _driver().Error as error:
        raise DatabaseError(f"database = {url}: cannot be used: {line(error)}") from None


def line(error: BaseException) -> str:
    """Return the text of an error of PostgreSQL as one line."""
    return "; ".join(filter(None, (each.strip() for each in str(error).splitlines())))


def check(url: str, authority: str | None) -> None:
    """Check whether a server can use a database, and change nothing. Raises DatabaseError if it cannot.

    `authority`: the fingerprint of the authority of the server's certificates; None if there is none yet.
    """
    with connect(url) as connection:
        number = connection.info.server_version
        if number < OLDEST:
            version = connection.info.parameter_status("server_version")
            raise DatabaseError(
                f"database = {url}: PostgreSQL {version} is too old: {OLDEST // 10_000} or newer"
            )
        if not connection.execute(_HAS_SERVER).fetchone()[0]:
            if connection.execute(_TABLES).fetchone()[0]:
                raise DatabaseError(
                    f"database = {url}: holds tables of another program; give this server an empty database"
                )
            return
        check_authority(lambda query: connection.execute(query).fetchone(), url, authority)
        for home, version in connection.execute(_OTHERS, (flower_version(),)):
            raise DatabaseError(
                f"database = {url}: the front end {home} runs Flower {version}, and this one "
                f"{flower_version()}; install the same version"
            )


def rows(connection: Any, statement: str, values: Any = ()) -> list[Any]:
    """Execute a statement in SQLite's dialect with a connection of psycopg, and return the rows it finds.

    Raises DatabaseError if that is not possible.
    """
    try:
        found = connection.execute(translated(statement), _given(values))
        return list(found.fetchall()) if found.description else []
    except _driver().Error as error:
        raise DatabaseError(f"database: {line(error)}; is the server up?") from None


def check_authority(first: Callable[[str], Any], url: str, authority: str | None) -> None:
    """Raise DatabaseError if a database belongs to a server with another authority.

    `first`: returns the first row that a query finds, or None.
    """
    found = first(_AUTHORITY)
    if found is not None and found[0] != authority:
        raise DatabaseError(
            f"database = {url}: belongs to a server with another authority (SHA-256 {found[0][:16]}…); copy "
            "pki/ of that server's folder into this one's, or use another database"
        )


def flower_version() -> str:
    """Return the version of Flower, on which the tables depend."""
    version: str = importlib.import_module("importlib.metadata").version("flwr")
    return version


def _driver() -> Any:
    try:
        return importlib.import_module("psycopg")
    except ImportError:
        raise DatabaseError(
            "database: PostgreSQL needs psycopg: pip install -c requirements.lock '.[postgres]'"
        ) from None


@cache
def translated(statement: str) -> str:
    """Return a statement in the dialect of PostgreSQL, with parameters as psycopg wants them.

    `statement`: a fixed text in SQLite's dialect.
    """
    for before, after in (
        ("%", "%%"),
        (AMONG, "= ANY (?)"),
        ("json_each(?)", "unnest(CAST(? AS VARCHAR[])) AS value"),
        ("x''", "''"),
        ("/*", ""),
        ("*/", ""),
        ("?", "%s"),
    ):
        statement = statement.replace(before, after)
    return statement


def executor(connection: Any, driver: Any) -> Callable[..., Any]:
    """Return what `deploy.fleet.storage.statements.executor` returns, for a connection of psycopg.

    `connection`: SQLAlchemy's. `driver`: psycopg's.
    """
    psycopg, rows_of = _driver(), _rows()

    def execute(statement: str, values: Any = ()) -> Any:
        rows = rows_of(driver)
        text = translated(statement)
        try:
            if isinstance(values, list):
                rows.executemany(text, [_given(each) for each in values])
            else:
                rows.execute(text, _given(values))
        except psycopg.Error as error:
            if driver.closed:  # so are all others, probably: each would fail a request
                connection.engine.dispose()
            wrapped = importlib.import_module("sqlalchemy").exc.DBAPIError.instance
            raise wrapped(statement, None, error, psycopg.Error, hide_parameters=True) from error
        return rows

    return execute


def without_nul(text: str) -> str:
    """Return a text without NUL characters, which nodes may send and PostgreSQL refuses."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _given(values: Any) -> list[Any]:
    """Return the values of a statement's parameters as psycopg takes them."""
    return [
        each.values if isinstance(each, Listed) else without_nul(each) if isinstance(each, str) else each
        for each in values
    ]


@cache
def _rows() -> Any:
    psycopg = _driver()

    class Rows(psycopg.Cursor):  # type: ignore[misc,name-defined]
        """The rows that a statement returns, with the methods of `deploy.fleet.storage.statements.Rows`."""

        def __init__(self, driver: Any) -> None:
            super().__init__(driver)
            self.format = psycopg.pq.Format.BINARY  # contents would be sent as hexadecimal text

        def first(self) -> Any:
            return self.fetchone() if self.description else None

        def scalar(self) -> Any:
            row = self.first()
            return None if row is None else row[0]

        def all(self) -> list[Any]:
            return list(self.fetchall()) if self.description else []

    return Rows
