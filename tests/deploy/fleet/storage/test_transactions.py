"""Threads take turns at the database, and none fails because another one writes."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from sqlalchemy import event, exc, text

from deploy.fleet.storage import transactions
from deploy.fleet.storage.statements import executor
from deploy.processes.groups import wait_until

THREADS, TIMES = 40, 5


class InTurn(transactions.TakesTurns, SqlObjectStore):
    """A store whose transactions take turns."""


class Disk(sqlite3.Connection):
    """A connection to a database on a disk that is sometimes full."""

    fails = ""  # the method that fails

    def commit(self):
        self._try("commit")
        super().commit()

    def rollback(self):
        self._try("rollback")
        super().rollback()

    def _try(self, method):
        if method == Disk.fails:
            raise sqlite3.OperationalError("database or disk is full")


@pytest.fixture
def counter(tmp_path, monkeypatch):
    """Return a function that gives the rows of a table, and a store with this table on a `Disk`."""
    store, other = InTurn(str(tmp_path / "database")), InTurn(str(tmp_path / "database"))
    store.initialize(connect_args={"factory": Disk, "check_same_thread": False})
    other.initialize(connect_args={"timeout": 0, "check_same_thread": False})  # fails at once if it is locked
    store.query("CREATE TABLE counter (n INTEGER)")
    monkeypatch.setattr(Disk, "fails", "")
    return store, lambda: [row["n"] for row in other.query("SELECT n FROM counter")]


def add(store, *numbers):
    with store.session() as database:
        for number in numbers:
            executor(database)("INSERT INTO counter VALUES (?)", (number,))


def test_one_thread_at_a_time_is_in_a_transaction(tmp_path):
    store = InTurn(str(tmp_path / "database"))
    store.initialize()
    store.query("CREATE TABLE counter (n INTEGER)")
    store.query("INSERT INTO counter VALUES (0)")
    inside = set()
    most = 0

    def count():
        nonlocal most
        for _ in range(TIMES):
            with (
                store.session() as outer,
                store.session() as database,
            ):  # the second one is a part of the first
                assert outer is database
                inside.add(threading.get_ident())
                most = max(most, len(inside))
                (before,) = database.execute(text("SELECT n FROM counter")).one()
                database.execute(text("UPDATE counter SET n = :n"), {"n": before + 1})
                inside.discard(threading.get_ident())

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(count) for _ in range(THREADS)]:
            done.result(60)
    assert most == 1
    assert store.query("SELECT n FROM counter")[0]["n"] == THREADS * TIMES


def test_threads_get_their_turn_in_the_order_in_which_they_ask():
    turns, order = transactions.Turns(), list[int]()

    def take(number):
        with turns, turns:
            order.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    with turns:
        for number, thread in enumerate(threads):
            thread.start()
            assert wait_until(lambda number=number: len(turns._waiting) == number + 1, 10)  # type: ignore[misc]
    for thread in threads:
        thread.join(10)
    assert order == list(range(8))


def test_flowers_statements_and_fixed_ones_are_one_transaction(counter):
    store, rows = counter
    add(store, 1)
    with suppress(KeyError), store.session() as database:
        executor(database)("INSERT INTO counter VALUES (2)")
        database.execute(text("INSERT INTO counter VALUES (3)"))
        assert [row["n"] for row in store.query("SELECT n FROM counter")] == [1, 2, 3]
        raise KeyError
    assert rows() == [1]
    with store.session() as database:
        database.execute(text("INSERT INTO counter VALUES (4)"))
        executor(database)("INSERT INTO counter VALUES (5)")
    assert rows() == [1, 4, 5]


@pytest.mark.parametrize("use", [executor, lambda database: lambda sql: database.execute(text(sql))])
@pytest.mark.parametrize("fails", ["commit", "rollback"])
def test_a_connection_that_cannot_end_a_transaction_is_replaced(counter, monkeypatch, fails, use):
    store, rows = counter
    add(store, 1)
    noted = []  # as `corrupt_database` notes errors
    event.listen(store._engine, "handle_error", lambda found: noted.append(str(found.original_exception)))

    def insert():
        with store.session() as database, store.session() as same:
            assert same is database
            use(database)("INSERT INTO counter VALUES (2)")
            if fails == "rollback":
                raise KeyError

    for _ in range(3):
        monkeypatch.setattr(Disk, "fails", fails)
        with pytest.raises(exc.OperationalError, match="disk is full"):
            insert()
        monkeypatch.setattr(Disk, "fails", "")
        assert rows() == [1]
    assert len(noted) == 3
    add(store, 3)
    assert rows() == [1, 3]


def test_a_transaction_that_flower_has_rolled_back_fails_as_a_whole(counter):
    store, rows = counter

    def insert():
        with store.session() as database:
            database.execute(text("INSERT INTO counter VALUES (1)"))
            database.rollback()
            executor(database)("INSERT INTO counter VALUES (2)")

    with pytest.raises(exc.InvalidRequestError):
        insert()
    add(store, 3)
    assert rows() == [3]


def test_a_full_database_takes_transactions_again_when_there_is_room(counter):
    store, rows = counter
    (pages,) = store.query("PRAGMA page_count")
    store.query(f"PRAGMA max_page_count = {pages['page_count'] + 2}")
    with pytest.raises(exc.OperationalError, match="full"):
        add(store, *range(10_000))
    assert rows() == []
    add(store, *range(10_000))  # on another connection, without the limit
    assert len(rows()) == 10_000
