"""Moves a server's state from the SQLite file of its folder into an empty PostgreSQL database.

Everything happens in one transaction of PostgreSQL: Flower's tables are made by its own migrations, this
project's tables are added, and all rows are copied, table by table, each after those to which its rows refer.
The SQLite file stays as it is.
"""

from __future__ import annotations

import importlib
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from deploy.fleet.storage import postgres, shared_registry
from deploy.fleet.storage.statements import executor
from deploy.hosting.server import DATABASE, Server, ServerError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

ROWS = 50  # are read and written at a time; a row may hold a large object
_MIGRATIONS = "flwr.supercore.state.alembic.utils"
_SUBMITTED = "INSERT INTO cohort_run SELECT run_id, ? FROM run"
_LAST = (
    "SELECT setval(pg_get_serial_sequence('{table}', '{column}'), max({column})) FROM {table} "
    "HAVING max({column}) > 0"  # ids that Flower draws at random may all be negative
)


def move(server: Server, url: str) -> int:
    """Move the state of a server, which must not run, and let it use the database from now on.

    Returns the number of rows that were copied. Raises ServerError if the database cannot be used or is not
    empty, or the file is missing or of another version of Flower; then nothing has changed.
    """
    sql = importlib.import_module("sqlalchemy")
    file, there = server.folder / DATABASE, replace(server, database=url)
    if server.database:
        raise ServerError(f"database = {server.database}: the state of this server is in PostgreSQL already")
    if not file.exists():
        raise ServerError(
            f"{file}: there is no such file, so there is nothing to move; "
            f"`{server.command('up', '--database', url)}` starts with an empty database"
        )
    there.check_database()
    authority = there.fingerprint
    if authority is None:
        raise ServerError(f"{server.authority}: is missing; put the backup of pki/ back")
    source = sql.create_engine(f"sqlite:///{file}")
    target = sql.create_engine(
        url.replace("://", "+psycopg://", 1), connect_args=postgres.settings(url), poolclass=sql.pool.NullPool
    )
    try:
        with source.connect() as old, target.begin() as new:
            _check_empty(new, url)
            _make_tables(old, new, file)
            with closing(importlib.import_module("sqlalchemy.orm").Session(new)) as session:
                execute = executor(session)
                shared = importlib.import_module("deploy.fleet.storage.shared_state")
                shared.claim(execute, url, authority)
                count = sum(_copy(old, new, table) for table in _tables(old, new))
                execute(_SUBMITTED, (server.home,))
                invitations = server.registry.all_invitations()
                execute(
                    shared_registry.MOVED,
                    [
                        (file.stem, each["name"], each["expires"], each["key"], each.get("used"))
                        for file, each in invitations
                    ],
                )
    except (sql.exc.DBAPIError, postgres.DatabaseError) as error:
        reason = postgres.line(getattr(error, "orig", error))
        raise ServerError(f"{file} to {url}: {reason}; nothing was moved") from error
    finally:
        source.dispose()
    there.save()
    for file, _ in invitations:  # only now: until here the server could go on with its file
        file.unlink(missing_ok=True)
    return count


def _check_empty(new: Connection, url: str) -> None:
    if importlib.import_module("sqlalchemy").inspect(new).get_table_names():
        raise ServerError(f"database = {url}: holds tables already; give `move` an empty database")


def _make_tables(old: Connection, new: Connection, file: Any) -> None:
    """Make Flower's tables, if the file has those of the same version."""
    sql, migrations = importlib.import_module("sqlalchemy"), importlib.import_module(_MIGRATIONS)
    script, command = (importlib.import_module(f"alembic.{name}") for name in ("script", "command"))
    config = migrations.build_alembic_config(new.engine)
    versions = sql.Table("alembic_version", sql.MetaData(), sql.Column("version_num", sql.String))
    known = set(script.ScriptDirectory.from_config(config).get_heads())
    if not sql.inspect(old).has_table(versions.name) or set(old.scalars(sql.select(versions))) != known:
        raise ServerError(
            f"{file}: holds the tables of another version than Flower {postgres.flower_version()}; start the "
            "server once with the version that is installed, or install the one that wrote it"
        )
    config.attributes["connection"] = new
    command.upgrade(config, "heads")


def _tables(old: Connection, new: Connection) -> list[Table]:
    """Return the tables to copy: Flower's, those that others refer to first, and then this project's."""
    sql = importlib.import_module("sqlalchemy")
    flowers = importlib.import_module(_MIGRATIONS).get_combined_metadata()
    ours = sql.MetaData()
    both = set(sql.inspect(old).get_table_names()).intersection(sql.inspect(new).get_table_names())
    ours.reflect(new, only=sorted(name for name in both if name.startswith("cohort_")))
    return [*(each for each in flowers.sorted_tables if each.name in both), *ours.sorted_tables]


def _copy(old: Connection, new: Connection, table: Table) -> int:
    """Copy the rows of a table, and return how many there are."""
    count = 0
    new.execute(table.delete())  # migrations write rows, too
    for rows in old.execution_options(yield_per=ROWS).execute(table.select()).mappings().partitions():
        new.execute(table.insert(), [{name: _storable(value) for name, value in row.items()} for row in rows])
        count += len(rows)
    column = table.autoincrement_column
    if column is not None:
        new.exec_driver_sql(_LAST.format(table=table.name, column=column.name))
    return count


def _storable(value: Any) -> Any:
    """Return a value that PostgreSQL stores: no text with NUL characters, which become others as always."""
    return postgres.without_nul(value) if isinstance(value, str) else value
