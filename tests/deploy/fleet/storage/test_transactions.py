"""Threads take turns at the database, and none fails because another one writes."""

import threading
from concurrent.futures import ThreadPoolExecutor

from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from sqlalchemy import text

from deploy.fleet.storage import transactions
from deploy.processes.groups import wait_until

THREADS, TIMES = 40, 5


class InTurn(transactions.TakesTurns, SqlObjectStore):
    """A store whose transactions take turns."""


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
