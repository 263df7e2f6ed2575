"""Answers that are not known yet: a request that waits for an event occupies no thread."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from logging import getLogger
from typing import Any

FEW = 1024  # calls of which cancelled ones are kept until their time


class Later:
    """The answer to a request: due after an event, or at a given time at the latest.

    `until`: the given time (time.monotonic(), s). `answer`: called once, after the event or at the given
    time. Returns the answer, or another `Later` if the request waits on.
    """

    def __init__(self, until: float, answer: Callable[[], Any]) -> None:
        self._until, self._answer = until, answer
        self._changes: list[Callable[[Any], Any]] = []
        self._woken = threading.Event()
        self._resume: Callable[[], None] | None = None
        self._alarm: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def wake(self) -> None:
        """Note that the event has happened, and begin to look for the answer. Further calls do nothing."""
        with self._lock:
            if self._woken.is_set():
                return
            self._woken.set()
            resume, self._resume = self._resume, None
        self._alarm.clear()
        if resume is not None:
            resume()

    def then(self, change: Callable[[Any], Any]) -> Later:
        """Apply a function to the answer, and return this object. Call this before `run` or `wait`."""
        self._changes.append(change)
        return self

    def wait(self) -> Any:
        """Wait for the answer in this thread, and return it."""
        self._woken.wait(max(0.0, self._until - time.monotonic()))
        answer = self._next()
        return answer.wait() if isinstance(answer, Later) else answer

    def run(
        self,
        start: Callable[[Callable[[], None]], Any],
        done: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Return at once, and give the answer to a function when it is known.

        `start`: receives a function that looks for the answer. `start` must let another thread call the
        function, and must not call it itself, because the caller of `wake` may hold locks. `done`: receives
        the answer, in the thread that called the function. `failed`: receives the error instead, if there is
        no answer because of an error.
        """

        def look() -> None:
            try:
                answer = self._next()
                if not isinstance(answer, Later):
                    done(answer)
                    return
            except Exception as error:
                failed(error)
                return
            answer.run(start, done, failed)

        with self._lock:
            woken = self._woken.is_set()
            if not woken:
                self._resume = lambda: start(look)
        if woken:
            start(look)
        else:
            self._alarm.append(self.wake)
            alarms.set(self._until, self._alarm)
            if self._woken.is_set():  # woken since the lock was released
                self._alarm.clear()

    def _next(self) -> Any:
        answer, changes = self._answer(), self._changes
        # These functions refer to the request, and gRPC counts the request as under way while anything refers
        # to it.
        del self._answer, self._changes
        if isinstance(answer, Later):
            answer._changes += changes
            return answer
        for change in changes:
            answer = change(answer)
        return answer


def after(answer: Any, change: Callable[[Any], Any]) -> Any:
    """Apply a function to an answer: now, or when the answer is known if it is a `Later`."""
    return answer.then(change) if isinstance(answer, Later) else change(answer)


class _Alarms:
    """Calls functions at given times, all in one thread. The functions must return at once.

    `set` receives the functions in a list. To cancel the calls, empty this list.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = itertools.count()
        self._calls: list[tuple[float, int, list[Callable[[], None]]]] = []  # a heap
        self._most = FEW  # if there are more calls, the cancelled ones are removed
        self._thread: threading.Thread | None = None

    def set(self, when: float, functions: list[Callable[[], None]]) -> None:
        """Call the functions when time.monotonic() reaches ``when``."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="alarms", daemon=True)
                self._thread.start()
            heapq.heappush(self._calls, (when, next(self._count), functions))
            if len(self._calls) > self._most:
                self._calls = [call for call in self._calls if call[2]]
                heapq.heapify(self._calls)
                self._most = max(FEW, 2 * len(self._calls))
            if self._calls[0][0] == when:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._calls or self._calls[0][0] > time.monotonic():
                    wait = self._calls[0][0] - time.monotonic() if self._calls else None
                    self._changed.wait(None if wait is None else max(0.0, wait))
                _, _, functions = heapq.heappop(self._calls)
            for function in functions[:]:
                try:
                    function()
                except Exception as error:  # such as a pool of threads that has been shut down
                    getLogger("flwr").debug("A held request was not answered: %s", error)
            del functions


alarms = _Alarms()
