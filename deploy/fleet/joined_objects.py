"""Lets SuperNodes and apps fetch or send several small objects of a message with one request.

A reply with a model of four arrays has 13 objects, and stock Flower sends a request for each. A request costs
both programs more CPU time than a small object itself, because the request is signed and verified.

A joined request names several objects in its `object_id`, separated by commas. Contents are joined by
`join`. A SuperLink without this patch finds no object with such a name, and the SuperNode or the ServerApp
then requests or sends the objects one by one. All objects of a joined request are read or stored in one
transaction.
"""

from __future__ import annotations

import importlib
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from functools import wraps
from logging import getLogger
from typing import TYPE_CHECKING, Any

from deploy.flower.patches.shared import InThisThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

MOST = 64  # the most objects of a request
THREADS = 4  # the most requests of a transfer at a time; fewer if the machine has fewer cores
PAUSE = 10.0  # seconds between two lines of the log about a slow transfer
ENOUGH = 1 << 20  # bytes of contents, after which no further object is added to a request or response

SEPARATOR = ","
_LENGTH = 8  # bytes that hold the length of a content
_MESSAGES = "flwr.proto.message_pb2"
_INFLATABLE = "flwr.supercore.inflatable.inflatable_utils"
USED = (
    *(f"{_MESSAGES}:{name}" for name in ("PullObjectRequest", "PullObjectResponse")),
    *(f"{_MESSAGES}:{name}" for name in ("PushObjectRequest", "PushObjectResponse")),
    *(f"{_INFLATABLE}:{name}" for name in ("ObjectPullError", "ObjectPushError", "ObjectUnavailableError")),
)


def join(contents: Iterable[bytes]) -> bytes:
    """Return the contents one after the other, each preceded by its length."""
    return b"".join(part for each in contents for part in (len(each).to_bytes(_LENGTH, "big"), each))


def split(joined: bytes) -> list[bytes]:
    """Return the contents that `join` has joined. Raises ValueError if the lengths are wrong."""
    contents, start = [], 0
    while start < len(joined):
        begin = start + _LENGTH
        start = begin + int.from_bytes(joined[start:begin], "big")
        if start > len(joined):
            raise ValueError(f"joined objects of {len(joined)} bytes: a length says {start - begin} bytes")
        contents.append(joined[begin:start])
    return contents


def parts(names: str, content: bytes) -> dict[str, bytes]:
    """Return the contents of a request's objects, by name. Raises ValueError if the request is not valid."""
    if SEPARATOR not in names:
        return {names: content}
    return dict(zip(_split_names(names), split(content), strict=True))


def answer_apps(handlers: Any) -> None:
    """Let this module of handlers answer joined requests of apps."""
    pull, push = handlers.pull_object, handlers.push_object

    @wraps(pull)
    def pulled(asked: Any, state: Any, task: Any) -> Any:
        return pull_each(asked, lambda one: pull(one, state, task), state)

    @wraps(push)
    def pushed(asked: Any, state: Any, task: Any) -> Any:
        return push_each(asked, lambda one: push(one, state, task), state)

    handlers.pull_object, handlers.push_object = pulled, pushed


def _split_names(names: str) -> list[str]:
    found = names.split(SEPARATOR)
    if len(found) > MOST:
        raise ValueError(f"{len(found)} objects in a request: at most {MOST} are allowed")
    return found


def _transaction(state: Any) -> AbstractContextManager[Any]:
    """Return a context manager in whose block all accesses to the state's database are one transaction."""
    session: Callable[[], AbstractContextManager[Any]] = getattr(state, "session", nullcontext)
    return session()


def pull_each(asked: Any, pull_one: Callable[[Any], Any], state: Any) -> Any:
    """Answer a request for objects with these objects in order, up to a missing one or `ENOUGH` bytes.

    `pull_one` answers a request for one object. Raises ValueError if the request is not valid.
    """
    if SEPARATOR not in asked.object_id:
        return pull_one(asked)
    messages = importlib.import_module(_MESSAGES)
    contents, size = [], 0
    names = _split_names(asked.object_id)
    with _transaction(state):
        for name in names:
            if size >= ENOUGH:
                break
            one = messages.PullObjectRequest(node=asked.node, run_id=asked.run_id, object_id=name)
            response = pull_one(one)
            if not response.object_available:
                break
            contents.append(response.object_content)
            size += len(response.object_content)
    return messages.PullObjectResponse(
        object_found=True, object_available=bool(contents), object_content=join(contents)
    )


def push_each(asked: Any, push_one: Callable[[Any], Any], state: Any) -> Any:
    """Store the objects of a request with `push_one`, which stores one object.

    Raises ValueError if the request is not valid.
    """
    if SEPARATOR not in asked.object_id:
        return push_one(asked)
    messages = importlib.import_module(_MESSAGES)
    contents = parts(asked.object_id, asked.object_content)
    with _transaction(state):
        for name, content in contents.items():
            one = messages.PushObjectRequest(
                node=asked.node,
                run_id=asked.run_id,
                session_id=asked.session_id,
                object_id=name,
                object_content=content,
            )
            if not push_one(one).stored:
                return messages.PushObjectResponse(stored=False)
    return messages.PushObjectResponse(stored=True)


def join_requests(puller: Any, pusher: Any, *, at_once: int = THREADS) -> None:
    """Let a program join its requests for objects, and report slow transfers.

    Stock Flower prepares all objects of a message before it sends them, which takes the memory of another
    copy of the model. Here at most one request for each thread is prepared.

    Parameters
    ----------
    puller, pusher : module
        The modules whose functions `pull_objects` and `push_object_contents_from_iterable` the program calls.
    at_once : int
        How many requests of a transfer are under way at a time, each in a thread of its own. With 1, no
        thread is started.
    """
    inflatable = importlib.import_module(_INFLATABLE)
    pull_one_by_one, push_each = puller.pull_objects, pusher.push_object_contents_from_iterable

    @wraps(pull_one_by_one)
    def pull(object_ids: Sequence[str], pull_object_fn: Callable[[str], bytes], **settings: Any) -> Any:
        progress = Progress("Received", len(object_ids))

        def pull_object(names: str) -> bytes:
            content = pull_object_fn(names)
            progress.add(content)
            return content

        def pull_some(missing: Sequence[str], requests: int | None = None) -> dict[str, bytes]:
            contents: dict[str, bytes] = {}
            while len(missing) > 1 and requests != 0:
                names = missing[:MOST]
                try:
                    found = split(pull_object(SEPARATOR.join(names)))
                except (inflatable.ObjectPullError, inflatable.ObjectUnavailableError):
                    break
                contents.update(zip(names, found, strict=False))
                missing = missing[len(found) :]
                requests = None if requests is None else requests - 1
            return contents

        contents = pull_some(object_ids, requests=1)
        if missing := object_ids[len(contents) :] if contents else []:
            # If the response had no room for all objects, they are large, so several requests run at a time.
            threads = inflatable.get_num_workers(at_once) if len(contents) < MOST else 1
            with _executor(threads) as executor:
                for some in executor.map(pull_some, [missing[each::threads] for each in range(threads)]):
                    contents |= some
        missing = [each for each in object_ids if each not in contents]
        return contents | (pull_one_by_one(missing, pull_object, **settings) if missing else {})

    @wraps(push_each)
    def push(
        object_contents: Iterable[tuple[str, bytes]],
        push_object_fn: Callable[[str, bytes], None],
        **settings: Any,
    ) -> None:
        progress = Progress("Sent")

        def push_joined(name: str, content: bytes) -> None:
            try:
                push_object_fn(name, content)
            except inflatable.ObjectPushError:
                if SEPARATOR not in name:
                    raise
                for each, part in parts(name, content).items():
                    push_object_fn(each, part)
            progress.add(content)

        threads = inflatable.get_num_workers(at_once)
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

    puller.pull_objects, pusher.push_object_contents_from_iterable = pull, push


def _executor(threads: int) -> Executor:
    return ThreadPoolExecutor(threads) if threads > 1 else InThisThread()


class Progress:
    """Logs every `PAUSE` seconds how many bytes of a message were transferred.

    Parameters
    ----------
    what : str
        "Received" or "Sent".
    objects : int or None
        The number of objects of the message, if it is known.
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


def joined(contents: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each request: of a large object, or of several small ones, joined."""
    small: dict[str, bytes] = {}

    def take() -> Iterator[tuple[str, bytes]]:
        if len(small) == 1:
            yield from small.items()
        elif small:
            yield SEPARATOR.join(small), join(small.values())
        small.clear()

    for name, content in contents:
        if len(content) >= ENOUGH:
            yield name, content
            continue
        if len(small) == MOST or sum(map(len, small.values())) + len(content) > ENOUGH:
            yield from take()
        small[name] = content
    yield from take()
