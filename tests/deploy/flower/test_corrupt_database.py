"""A corrupt database is told from a healthy, missing, empty, locked or unreadable one, and moved aside."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from deploy.container import superlink
from deploy.flower import corrupt_database as tested
from deploy.flower.corrupt_database import is_corrupt, move_aside_if_corrupt

PAGE = 4096


@pytest.fixture
def database(tmp_path):
    """Return a database of many pages in WAL mode, as the SuperLink leaves it."""
    path = tmp_path / "super link?.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE node (id INTEGER PRIMARY KEY, public_key BLOB UNIQUE NOT NULL)")
        rows = [(number, number.to_bytes(2, "big") * 200) for number in range(500)]
        connection.executemany("INSERT INTO node VALUES (?, ?)", rows)
        connection.commit()
    assert path.stat().st_size > 40 * PAGE
    return path


def overwrite(path, start, length):
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xa5" * length)


def test_a_database_in_order_is_not_corrupt(database, tmp_path):
    assert not is_corrupt(database)
    missing = tmp_path / "none.db"
    assert not is_corrupt(missing)
    assert not missing.exists()
    (tmp_path / "empty.db").touch()
    assert not is_corrupt(tmp_path / "empty.db")
    assert not is_corrupt(tmp_path)  # cannot be opened


def test_a_locked_database_is_not_corrupt(database, monkeypatch):
    monkeypatch.setattr(tested, "PATIENCE", 0.05)
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM node")
        assert not is_corrupt(database)
        connection.execute("ROLLBACK")
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("DELETE FROM node WHERE id = 1")
        assert not is_corrupt(database)


READ = """
import sys, sqlalchemy
from deploy.flower.corrupt_database import end_if_corrupt
end_if_corrupt()
engine = sqlalchemy.create_engine(sqlalchemy.URL.create("sqlite", database=sys.argv[1]))
for statement in sys.argv[2:]:
    try:
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text(statement)).all()
        print("read", flush=True)
    except sqlalchemy.exc.DatabaseError:
        print("error", flush=True)
"""


def test_a_program_ends_once_its_database_has_often_been_found_corrupt(database):
    def read(*statements):
        command = [sys.executable, "-c", READ, str(database), *statements]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    whole, missing = "SELECT sum(length(public_key)) FROM node", "SELECT * FROM nothing"
    found = read(*[missing] * 5, whole)
    assert (found.returncode, found.stdout.split()) == (0, ["error"] * 5 + ["read"])
    overwrite(database, 20 * PAGE, 10 * PAGE)
    found = read(whole, missing, whole, missing, whole, whole)
    assert found.returncode == tested.EXIT_CODE
    *errors, last = found.stdout.splitlines()
    assert errors == ["error"] * 4
    assert last == f"{database} is corrupt (database disk image is malformed): the SuperLink ends"


@pytest.mark.parametrize("damage", ["first page", "inner page", "all but the start", "truncated", "text"])
def test_a_damaged_database_is_moved_aside_with_its_files(database, damage):
    size = database.stat().st_size
    if damage == "first page":
        overwrite(database, 0, 100)
    elif damage == "inner page":
        overwrite(database, 20 * PAGE - 100, 600)  # from within one page into the next
    elif damage == "all but the start":
        overwrite(database, PAGE, size - PAGE)
    elif damage == "truncated":
        with database.open("r+b") as file:
            file.truncate(size // 2 + 100)
    else:
        database.write_text("no database\n" * 1000)
    damaged = database.read_bytes()
    database.with_name(f"{database.name}-wal").write_bytes(b"")
    registered = database.parent / "registered"
    registered.mkdir()
    said = []
    move_aside_if_corrupt(database, said.append, registered)
    assert len(said) == 1
    assert "was corrupt and is now" in said[0]
    (aside,) = database.parent.glob("*.corrupt-????????-??????")
    assert aside.read_bytes() == damaged
    assert aside.with_name(f"{aside.name}-registered").is_dir()
    assert not database.exists()
    assert not registered.exists()
    assert not list(database.parent.glob("*.db-*"))
    move_aside_if_corrupt(database, said.append, registered)
    assert len(said) == 1


def test_a_database_that_cannot_be_moved_is_left_with_a_message(database, monkeypatch):
    def fail(*_):
        raise OSError(30, "Read-only file system")

    overwrite(database, 0, 100)
    monkeypatch.setattr(Path, "rename", fail)
    said = []
    move_aside_if_corrupt(database, said.append)
    assert "cannot be moved aside: [Errno 30] Read-only file system" in said[0]
    assert database.exists()


def test_the_containers_superlink_registers_its_clients_again(database, tmp_path, monkeypatch, capsys):
    registered = tmp_path / "registered"
    registered.mkdir()
    (registered / "client-00").touch()
    monkeypatch.setattr(superlink, "DATABASE", database)
    monkeypatch.setattr(superlink, "REGISTERED", registered)
    monkeypatch.setattr(superlink, "CONTROL_HOST", "localhost")
    superlink._command()
    assert registered.exists()
    assert database.exists()
    overwrite(database, 20 * PAGE, PAGE)
    assert str(database) in superlink._command()
    assert not registered.exists()
    assert not database.exists()
    assert "was corrupt and is now" in capsys.readouterr().out
