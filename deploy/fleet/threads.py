"""The threads that answer requests."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

from deploy.flower.deferred_answers import alarms

# s that a thread may wait for a node and still counts as busy. Most bodies arrive sooner. If another thread
# began to work meanwhile, hundreds of requests that arrive together would each start a thread.
SHORT = 0.01


class Threads(Executor):
    """Calls functions in threads. No new thread starts while `busy` threads work.

    A pool of Python's library starts a thread for each function that finds all threads busy, so a flood of
    requests makes hundreds of threads, among which the machine's cores are divided. Here the requests wait
    instead. A thread that has waited for a node for `SHORT` does not count as busy. Up to `busy` idle threads
    are kept.

    `busy`: the most threads that work at a time, if none of them has just waited for a node.
    """

    def __init__(self, busy: int) -> None:
        self._busy = busy
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._count = self._idle = 0
        self._waiting: dict[object, float] = {}  # when each wait began, the earliest first
        self._looks = False  # whether `_look` is going to be called

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Let a thread call a function."""
        future: Future[Any] = Future()
        with self._changed:
            self._calls.append((future, lambda: function(*arguments, **named)))
            self._find_thread()
        return future

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Do not count the calling thread as busy, if this takes longer than `SHORT`."""
        wait = object()
        with self._changed:
            self._waiting[wait] = time.monotonic()
            self._look_later()
        try:
            yield
        finally:
            with self._changed:
                del self._waiting[wait]

    def _working(self) -> int:
        before = time.monotonic() - SHORT
        return self._count - self._idle - sum(1 for _ in takewhile(before.__gt__, self._waiting.values()))

    def _find_thread(self) -> None:
        """Wake an idle thread, or start a thread, unless enough threads work."""
        if self._working() >= self._busy:
            self._look_later()
        elif self._idle:
            self._idle -= 1
            self._changed.notify()
        else:
            self._count += 1
            threading.Thread(target=self._work, name="fleet", daemon=True).start()

    def _look_later(self) -> None:
        """Find threads for the calls that are still there after `SHORT`, if threads wait for nodes."""
        if self._calls and self._waiting and not self._looks:
            self._looks = True
            alarms.set(time.monotonic() + SHORT, [self._look])

    def _look(self) -> None:
        with self._changed:
            self._looks = False
            for _ in range(min(len(self._calls), self._busy - self._working())):
                self._find_thread()
            self._look_later()

    def _work(self) -> None:
        while True:
            with self._changed:
                # Too many threads work when others have ceased to wait.
                while not self._calls or self._working() > self._busy:
                    if self._idle >= self._busy:
                        self._count -= 1
                        return
                    self._idle += 1
                    self._changed.wait()
                future, call = self._calls.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del future, call  # a request counts as under way while anything refers to it
