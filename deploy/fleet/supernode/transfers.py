"""Fetches and sends the objects of a message: several small ones with one request, several requests at once.

A reply with a model of four arrays has 13 objects, and stock Flower sends a request for each. A request costs
both programs more CPU time than a small object itself, even if the signature is an earlier one.
`deploy.fleet.duties.joined_objects` describes a joined request.
"""

from __future__ import annotations

import importlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from logging import getLogger
from typing import Any

from deploy.fleet.duties.joined_objects import MOST, SEPARATOR, joined, parts, split

THREADS = 4  # the most requests of a transfer at a time; fewer if the machine has fewer cores
# s without a new object, after which an incomplete message is given up. A ServerApp goes on sending it when
# its SuperLink is back; if the run has ended, the SuperLink says so at once.
NO_PARTS = 120.0
FIRST_RETRY, LONGEST_RETRY = 0.02, 0.5  # s, the first and the longest pause before an object is asked again
PAUSE = 10.0  # s between two lines of the log about a slow transfer

_INFLATABLE = "flwr.supercore.inflatable.inflatable_utils"


def pull(
    names: Sequence[str],
    pull_object: Callable[[str], bytes],
    keep: Callable[[str, bytes], None],
    *,
    at_once: int = THREADS,
    patience: float = NO_PARTS,
) -> None:
    """Fetch objects.

    An object that is not there yet is asked again, after a pause that grows from `FIRST_RETRY` to
    `LONGEST_RETRY` while no object comes.

    `pull_object`: sends a request for one object or for several (`joined_objects`), and returns the content.
    Raises Flower's ObjectUnavailableError for an object that is not there yet, and ObjectPullError for one
    that is not known. `keep`: gets each object's id and content as soon as the object has arrived, in any of
    the threads. `at_once`: how many requests are under way at a time, each in a thread of its own. With 1, no
    thread is started. `patience`: seconds without an object, after which the transfer is given up.

    Raises ObjectPullError if an object is not known, or none has come for `patience` seconds.
    """
    _Pull(pull_object, keep, patience, Progress("Received", len(names))).run(names, at_once)


def pull_all(
    object_ids: Sequence[str],
    pull_object_fn: Callable[[str], bytes],
    *,
    at_once: int = THREADS,
    patience: float = NO_PARTS,
    **_: object,
) -> dict[str, bytes]:
    """Fetch objects as `pull` does, and return their contents. This is a substitute for Flower's function.

    The other settings, for Flower's threads and pauses, have no effect.
    """
    contents: dict[str, bytes] = {}
    pull(object_ids, pull_object_fn, contents.__setitem__, at_once=at_once, patience=patience)
    return contents


class _Pull:
    """A transfer of objects to this program. The parameters are those of `pull`."""

    def __init__(
        self,
        pull_object: Callable[[str], bytes],
        keep: Callable[[str, bytes], None],
        patience: float,
        progress: Progress,
    ) -> None:
        self._pull_object, self._keep, self._patience, self._progress = pull_object, keep, patience, progress
        inflatable = importlib.import_module(_INFLATABLE)
        self._unavailable, self._unknown = inflatable.ObjectUnavailableError, inflatable.ObjectPullError
        self._latest = time.monotonic()  # when the latest object came
        self._joins = True  # whether the other side seems to know joined requests
        self._over = threading.Event()  # set when one of the threads has failed

    def run(self, names: Sequence[str], at_once: int) -> None:
        left = self._fetch(names, requests=1)
        # If the response had no room for all objects, they are large, so several requests run at a time.
        large = 0 < len(names) - len(left) < min(MOST, len(names))
        threads = _threads(at_once) if large else 1
        with _executor(threads) as executor:
            list(executor.map(self._fetch, [left[each::threads] for each in range(threads)]))

    def _fetch(self, names: Sequence[str], requests: int | None = None) -> Sequence[str]:
        """Fetch objects in this thread. Return those that are left after at most so many requests."""
        alone, pause = False, FIRST_RETRY
        try:
            while names and requests != 0 and not self._over.is_set():
                asked = names[: MOST if self._joins and not alone else 1]
                requests = None if requests is None else requests - 1
                try:
                    found = self._ask(asked)
                except self._unknown:
                    if len(asked) == 1:
                        raise
                    self._joins, found = False, []
                if found:
                    for name, content in zip(asked, found, strict=False):
                        self._keep(name, content)
                    names, alone, pause = names[len(found) :], False, FIRST_RETRY
                    self._latest = time.monotonic()
                elif len(asked) > 1:
                    alone = True  # because the answer to a joined request does not tell an unknown object
                else:
                    self._wait(asked[0], pause)
                    pause = min(2 * pause, LONGEST_RETRY)
        except BaseException:
            self._over.set()
            raise
        return names

    def _ask(self, asked: Sequence[str]) -> list[bytes]:
        """Return the contents of the first of these objects; none if the first one is not there yet."""
        try:
            content = self._pull_object(SEPARATOR.join(asked))
        except self._unavailable:
            return []
        self._progress.add(content)
        return split(content) if len(asked) > 1 else [content]

    def _wait(self, name: str, pause: float) -> None:
        if time.monotonic() - self._latest > self._patience:
            raise self._unknown(name, f"no part of its message has come for {self._patience:g} s")
        self._over.wait(pause * random.uniform(0.8, 1.2))


def push(
    object_contents: Iterable[tuple[str, bytes]],
    push_object_fn: Callable[[str, bytes], None],
    *,
    at_once: int = THREADS,
    **_: object,
) -> None:
    """Send objects. This is a substitute for Flower's function; the other settings have no effect.

    Stock Flower prepares all objects of a message before it sends them, which takes the memory of another
    copy of the model. Here at most one request for each thread is prepared.

    `object_contents`: the objects' ids and contents. `push_object_fn`: sends a request with one object or
    with several (`joined_objects`). Raises Flower's ObjectPushError if the objects are not stored. `at_once`:
    as in `pull`.
    """
    refused = importlib.import_module(_INFLATABLE).ObjectPushError
    progress = Progress("Sent")

    def push_joined(name: str, content: bytes) -> None:
        try:
            push_object_fn(name, content)
        except refused:
            if SEPARATOR not in name:
                raise
            for each, part in parts(name, content).items():
                push_object_fn(each, part)
        progress.add(content)

    threads = _threads(at_once)
    with _executor(threads) as executor:
        under_way: set[Future[None]] = set()
        for name, content in joined(object_contents):
            under_way.add(executor.submit(push_joined, name, content))
            if len(under_way) >= threads:
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for each in done:
                    each.result()
        for each in under_way:
            each.result()


class Progress:
    """Logs every `PAUSE` seconds how many bytes of a message were transferred.

    `objects`: the number of objects of the message, if it is known.
    """

    def __init__(self, what: str, objects: int | None = None) -> None:
        self._what, self._objects = what, objects
        self._began = self._logged = time.monotonic()
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, content: bytes) -> None:
        """Note the content of a request or response."""
        now = time.monotonic()
        with self._lock:
            self._bytes += len(content)
            if now - self._logged < PAUSE:
                return
            self._logged, size = now, self._bytes / 1e6
        seconds = now - self._began
        of = f" of a message of {self._objects} objects" if self._objects else " of a message"
        getLogger("flwr").info("%s %.0f MB%s in %.0f s", self._what, size, of, seconds)


class InThisThread(Executor):
    """An executor that calls each function at once, in the thread that submits the function."""

    def __init__(self, max_workers: int = 1) -> None:
        pass

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*arguments, **named))
        except BaseException as error:
            done.set_exception(error)
        return done


def _threads(at_once: int) -> int:
    return min(at_once, os.cpu_count() or 1)


def _executor(threads: int) -> Executor:
    return ThreadPoolExecutor(threads) if threads > 1 else InThisThread()
