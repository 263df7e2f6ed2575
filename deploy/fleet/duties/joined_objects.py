"""Answers requests for several small objects of a message at once, from SuperNodes and apps.

A joined request names several objects in its `object_id`, separated by commas. Contents are joined by
`join`. A SuperLink without this patch finds no object with such a name, and the SuperNode or the ServerApp
then requests or sends the objects one by one. All objects of a joined request are read or stored in one
transaction. `deploy.fleet.supernode.transfers` sends these requests.

A small message needs no request for its objects: the answer with the message carries them, joined, in the
order of `protocol.names_in`. So does the announcement of a small reply.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

MOST = 64  # the most objects of a request
ENOUGH = 1 << 20  # bytes of contents, after which no further object is added to a request or response
# The most bytes of objects that the announcement of a reply carries (`wire.carry`), below the limit of such
# requests (`ReplyAdmission.largest_request`). Of a larger reply, the ServerApp sees how much has arrived.
CARRIED = 64 * 1024

SEPARATOR = ","
_LENGTH = 8  # bytes that hold the length of a content
_MESSAGES = "flwr.proto.message_pb2"


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
        store = getattr(state, "objects", None)  # a SuperNode's state has none
        find = None if store is None else store.first  # its truth value would count all objects
        return pull_each(asked, lambda one: pull(one, state, task), state, find)

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


def pull_each(
    asked: Any,
    pull_one: Callable[[Any], Any],
    state: Any,
    find: Callable[[list[str], int], list[bytes]] | None = None,
) -> Any:
    """Answer a request for objects with these objects in order, up to a missing one or `ENOUGH` bytes.

    `pull_one` answers a request for one object. `find` returns the contents of the objects after the first,
    as `CohortObjectStore.first` does. (default: `pull_one` is asked for each)

    Raises ValueError if the request is not valid.
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
            if find is not None:
                contents += find(names[1:], ENOUGH - size)
                break
    return messages.PullObjectResponse(
        object_found=True, object_available=bool(contents), object_content=join(contents)
    )


def push_each(
    asked: Any,
    push_one: Callable[[Any], Any],
    state: Any,
    push_all: Callable[[dict[str, bytes]], bool] | None = None,
) -> Any:
    """Store the objects of a request with `push_one`, which stores one object.

    `push_all` is tried before, if it is given: it stores all objects, or none, and returns whether it did.

    Raises ValueError if the request is not valid.
    """
    if SEPARATOR not in asked.object_id:
        return push_one(asked)
    messages = importlib.import_module(_MESSAGES)
    contents = parts(asked.object_id, asked.object_content)
    if push_all is not None and push_all(contents):
        return messages.PushObjectResponse(stored=True)
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
