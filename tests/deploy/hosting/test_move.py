"""A server's state moves from its SQLite file into PostgreSQL: every row of every table, or nothing."""

from datetime import UTC, datetime
from itertools import count

import pytest
from flwr.supercore.state.alembic.utils import get_combined_metadata
from sqlalchemy import BigInteger, create_engine, func, inspect, select
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.fleet.admission import reply_admission
from deploy.hosting.server import DATABASE, Server
from deploy.processes.ports import free_ports
from tests.support.postgres import shared
from tests.support.states import made

ROWS = 3


def value(column, number):
    """Return a value of a column of the row with a number, which no other row of the table has."""
    for key in column.foreign_keys:
        return value(key.column, number)
    if column.name == "cancelled_at":  # Flower: a message is acknowledged or cancelled
        return None
    if column.name == "is_available":
        return number % 2
    kind = column.type.python_type
    if kind is datetime:
        return datetime(2026, 1, 1 + number, 12, 30, 0, 5000 + number, tzinfo=UTC)
    if kind is str:
        return f"{column.name} é\0 {number}"
    if kind is bytes:
        return b"\0\xff" * 1000 + bytes([number])
    # ids of nodes, runs and series are random, and may be negative
    signed = type(column.type) is BigInteger and column.autoincrement is not True
    return kind(-number - 1 if signed else number + 1)


@pytest.fixture
def server(tmp_path):
    """A server that does not run, whose database has rows in all tables."""
    port, control = free_ports(2)
    this = Server(tmp_path / "server", ("localhost",), port, control)
    this.save()
    state = made(this.folder / DATABASE)
    state.rows(reply_admission.TABLE)
    state.rows("INSERT INTO cohort_sent VALUES ('7', 5000000000, 3)")
    with state._engine.begin() as connection:
        for table in get_combined_metadata().sorted_tables:
            connection.execute(table.delete())
            rows = [
                {column.name: value(column, number) for column in table.columns} for number in range(ROWS)
            ]
            connection.execute(table.insert(), rows)
    for each in (state, state.objects):
        each._engine.dispose()
    return this


def moved(server, url):
    return CliRunner().invoke(cli, ["server", "move", "--dir", str(server.folder), "--database", url])


def contents(engine):
    found = {}
    with engine.connect() as connection:
        for table in get_combined_metadata().sorted_tables:
            found[table.name] = sorted(map(tuple, connection.execute(select(table))), key=repr)
    return found


def sqlite(server):
    return create_engine(f"sqlite:///{server.folder / DATABASE}")


def postgres_engine(url):
    return create_engine(url.replace("://", "+psycopg://"))


def test_every_row_is_there_and_new_ids_follow_the_last_ones(server, postgres):
    server.invite("phone", server.folder / "phone.invitation", 1.0, "")
    url = postgres.database(empty=True)
    done = moved(server, url)
    assert done.exit_code == 0, done.output
    tables = get_combined_metadata().sorted_tables
    assert f"{len(tables) * ROWS + 1} rows are in postgresql://" in done.output
    before, engine = contents(sqlite(server)), postgres_engine(url)
    assert {len(rows) for rows in before.values()} == {ROWS}
    clean = {
        name: sorted(
            [
                tuple(each.replace("\0", "\ufffd") if isinstance(each, str) else each for each in row)
                for row in rows
            ],
            key=repr,
        )
        for name, rows in before.items()
    }
    assert contents(engine) == clean
    with engine.begin() as connection:
        for table in tables:
            column = table.autoincrement_column
            if column is None or column.foreign_keys:
                continue
            name = func.pg_get_serial_sequence(table.name, column.name)
            last = connection.scalar(select(func.max(column)))
            assert connection.scalar(select(func.nextval(name))) == max(last, 0) + 1, table.name
    assert Server.load(server.folder).database == url
    state = shared(url, home=server.home, authority=server.fingerprint)  # the server's next start
    assert state.rows("SELECT run, bytes, objects FROM cohort_sent") == [("7", 5000000000, 3)]
    assert state.rows("SELECT DISTINCT home FROM cohort_run") == [(server.home,)]
    assert list(Server.load(server.folder).registry.invited()) == ["phone"]
    assert not list((server.folder / "invitations").glob("*.json"))
    again = moved(server, url)
    assert (again.exit_code, "is in PostgreSQL already" in again.output) == (2, True)


def refused(server, url, reason):
    """Check that a move is refused in one line, and leaves everything as it was."""
    before, saved = contents(sqlite(server)), (server.folder / "server.json").read_text()
    result = moved(server, url)
    (line,) = result.output.strip().splitlines()
    assert result.exit_code == 2
    assert reason in line
    assert contents(sqlite(server)) == before
    assert (server.folder / "server.json").read_text() == saved


def test_what_cannot_be_moved_is_refused_in_one_line(server, postgres):
    (port,) = free_ports(1)
    refused(server, f"postgresql://me@127.0.0.1:{port}/name", "cannot be used: connection")
    refused(server, "postgresql://me:secret@host/name", "holds a password")
    url = postgres.database()
    refused(server, url, "holds tables already; give `move` an empty database")
    shared(url, authority="b" * 64)
    refused(server, url, "belongs to a server with another authority")
    url = postgres.database(empty=True)
    with server.claimed():
        refused(server, url, "the server of this folder is running already")
    with sqlite(server).begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'of-2027'")
    refused(server, url, "superlink.db: holds the tables of another version than Flower")
    assert inspect(postgres_engine(url)).get_table_names() == []


def test_a_move_that_fails_in_the_middle_leaves_no_table_and_can_be_repeated(server, postgres, monkeypatch):
    from deploy.hosting import move

    url, calls, copy = postgres.database(empty=True), count(), move._copy

    def fails(old, new, table):
        if next(calls) == 9:
            new.exec_driver_sql("SELECT 1 / 0")
        return copy(old, new, table)

    with monkeypatch.context() as broken:
        broken.setattr(move, "_copy", fails)
        refused(server, url, "division by zero; nothing was moved")
    assert inspect(postgres_engine(url)).get_table_names() == []
    assert moved(server, url).exit_code == 0


def test_without_a_file_there_is_nothing_to_move(tmp_path, postgres):
    this = Server(tmp_path / "server", ("localhost",))
    this.save()
    result = moved(this, postgres.database(empty=True))
    assert (result.exit_code, "superlink.db: there is no such file" in result.output) == (2, True)
    assert not (this.folder / DATABASE).exists()
