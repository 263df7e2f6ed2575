"""The threads that answer requests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any


class Threads(Executor):
    """Calls functions in threads. No new thread starts while `busy` threads work.

    A pool of Python's library starts a thread for each function that finds all threads busy, so a flood of
    requests makes hundreds of threads, among which the machine's cores are divided. Here the requests wait
    instead. A thread that only waits for a node does not count as busy. Up to `busy` idle threads are kept.

    `busy`: the most threads that work at a time, if none of them has just waited for a node.
    """

    def __init__(self, busy: int) -> None:
        self._busy = busy
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._count = self._idle = self._waiting = 0

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Let a thread call a function."""
        future: Future[Any] = Future()
        with self._changed:
            self._calls.append((future, lambda: function(*arguments, **named)))
            self._find_thread()
        return future

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Do not count the calling thread as busy."""
        with self._changed:
            self._waiting += 1
            if self._calls:
                self._find_thread()
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1

    def _find_thread(self) -> None:
        """Wake an idle thread, or start a thread, unless enough threads work."""
        if self._count - self._idle - self._waiting >= self._busy:
            return
        if self._idle:
            self._idle -= 1
            self._changed.notify()
        else:
            self._count += 1
            threading.Thread(target=self._work, name="fleet", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                # Too many threads work when others have ceased to wait.
                while not self._calls or self._count - self._idle - self._waiting > self._busy:
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
