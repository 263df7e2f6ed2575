"""Functions wait for a thread while as many threads are busy as may be, except for threads that wait."""

import threading

import pytest

from deploy.fleet import threads as tested
from deploy.fleet.threads import Threads
from deploy.processes.groups import wait_until


class Work:
    """Calls that last until they are told to end."""

    def __init__(self, threads):
        self._threads = threads
        self.begun = self.resumed = 0
        self.over, self.waits = threading.Event(), threading.Event()
        self._lock = threading.Lock()

    def begin(self, count, *, wait=False):
        return [self._threads.submit(self._work, wait=wait) for _ in range(count)]

    def _work(self, *, wait):
        with self._lock:
            self.begun += 1
        if wait:
            with self._threads.waiting():
                self.waits.wait(30)
            with self._lock:
                self.resumed += 1
        assert self.over.wait(30)
        return threading.get_ident()


def count():
    return sum(1 for each in threading.enumerate() if each.name == "fleet")


def test_a_flood_of_calls_starts_few_threads_and_all_are_called():
    threads = Threads(4)
    work, before = Work(threads), count()
    calls = work.begin(500)
    assert wait_until(lambda: work.begun == 4, 10)
    assert count() == before + 4
    work.over.set()
    assert len({call.result(10) for call in calls}) == 4
    assert work.begun == 500
    for _ in range(20):  # the threads are idle now, and are used again
        assert threads.submit(lambda: 7).result(10) == 7
    assert count() == before + 4


def test_a_thread_that_waits_leaves_its_place_and_ends_when_there_are_too_many():
    threads = Threads(4)
    waiting, others = Work(threads), Work(threads)
    before = count()
    calls = waiting.begin(10, wait=True)
    assert wait_until(lambda: waiting.begun == 10, 10)
    calls += others.begin(10)
    assert wait_until(lambda: others.begun == 4, 10)
    assert count() == before + 14
    waiting.waits.set()
    assert wait_until(lambda: waiting.resumed == 10, 10)
    waiting.over.set()
    others.over.set()
    for call in calls:
        call.result(10)
    assert wait_until(lambda: count() <= before + 4, 10)
    assert threads.submit(lambda: 7).result(10) == 7


def test_threads_that_wait_for_a_moment_let_no_others_start(monkeypatch):
    monkeypatch.setattr(tested, "SHORT", 1000.0)
    threads = Threads(4)
    work, before = Work(threads), count()
    calls = work.begin(100, wait=True)
    assert wait_until(lambda: work.begun == 4, 10)
    assert count() == before + 4
    work.waits.set()
    work.over.set()
    assert len({call.result(10) for call in calls}) == 4


def test_an_error_reaches_whoever_asks_for_the_result():
    threads = Threads(1)

    def fail():
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        threads.submit(fail).result(10)
    assert threads.submit(lambda: 7).result(10) == 7
