"""Lets a SuperNode and the SuperLink exchange several small objects of a message in one request.

A message with a model of four arrays has 13 objects, and stock Flower sends a request for each. A request
costs both programs more CPU time than a small object does: a signature, a check of the signature, threads.

A joined request names several objects in its `object_id`, separated by commas. Contents are joined by
`join`. A SuperLink without this patch finds no such object, and the SuperNode then requests or sends the
objects one by one.
"""

from __future__ import annotations

import importlib
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

MOST = 64  # objects of a request
ENOUGH = 1 << 20  # bytes of contents, after which no further object is added to a request or response

_SEPARATOR = ","
_LENGTH = 8  # bytes that hold the length of a content
_FLEET_MESSAGES = "flwr.proto.message_pb2"
_INFLATABLE = "flwr.supercore.inflatable.inflatable_utils"
USED = (
    *(f"{_FLEET_MESSAGES}:{name}" for name in ("PullObjectRequest", "PullObjectResponse")),
    *(f"{_FLEET_MESSAGES}:{name}" for name in ("PushObjectRequest", "PushObjectResponse")),
    *(f"{_INFLATABLE}:{name}" for name in ("ObjectPullError", "ObjectPushError", "ObjectUnavailableError")),
)


def join(contents: Iterable[bytes]) -> bytes:
    """Return the contents one after the other, each after its length."""
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


def answer_joined_requests(servicer: Any) -> None:
    """Let this servicer of the Fleet API answer joined requests."""
    messages = importlib.import_module(_FLEET_MESSAGES)
    pull, push = servicer.PullObject, servicer.PushObject

    def named(asked: Any, context: Any) -> list[str]:
        names: list[str] = asked.object_id.split(_SEPARATOR)
        if len(names) > MOST:
            _refuse(context, f"{len(names)} objects in a request: at most {MOST} are allowed")
        return names

    @wraps(pull)
    def pulled(this: Any, asked: Any, context: Any) -> Any:
        if _SEPARATOR not in asked.object_id:
            return pull(this, asked, context)
        contents, size = [], 0
        for name in named(asked, context):
            if size >= ENOUGH:
                break
            one = messages.PullObjectRequest(node=asked.node, run_id=asked.run_id, object_id=name)
            response = pull(this, one, context)
            if not response.object_available:
                break
            contents.append(response.object_content)
            size += len(response.object_content)
        return messages.PullObjectResponse(
            object_found=True, object_available=bool(contents), object_content=join(contents)
        )

    @wraps(push)
    def pushed(this: Any, asked: Any, context: Any) -> Any:
        if _SEPARATOR not in asked.object_id:
            return push(this, asked, context)
        try:
            contents = dict(zip(named(asked, context), split(asked.object_content), strict=True))
        except ValueError as error:
            _refuse(context, str(error))
        for name, content in contents.items():
            one = messages.PushObjectRequest(
                node=asked.node,
                run_id=asked.run_id,
                session_id=asked.session_id,
                object_id=name,
                object_content=content,
            )
            if not push(this, one, context).stored:
                return messages.PushObjectResponse(stored=False)
        return messages.PushObjectResponse(stored=True)

    servicer.PullObject, servicer.PushObject = pulled, pushed


def _refuse(context: Any, reason: str) -> None:
    context.abort(importlib.import_module("grpc").StatusCode.INVALID_ARGUMENT, reason)


def join_requests(loop: Any) -> None:
    """Let the loop of a SuperNode join its requests for objects.

    Parameters
    ----------
    loop : module
        The module of the SuperNode's loop.
    """
    inflatable = importlib.import_module(_INFLATABLE)
    pull_one_by_one, push_each = loop.pull_objects, loop.push_object_contents_from_iterable

    @wraps(pull_one_by_one)
    def pull(object_ids: Sequence[str], pull_object_fn: Callable[[str], bytes], **settings: Any) -> Any:
        contents: dict[str, bytes] = {}
        missing = list(object_ids)
        while len(missing) > 1:
            names = missing[:MOST]
            try:
                found = split(pull_object_fn(_SEPARATOR.join(names)))
            except (inflatable.ObjectPullError, inflatable.ObjectUnavailableError):
                break
            contents.update(zip(names, found, strict=False))
            missing = missing[len(found) :]
        return contents | (pull_one_by_one(missing, pull_object_fn, **settings) if missing else {})

    @wraps(push_each)
    def push(
        object_contents: Iterable[tuple[str, bytes]],
        push_object_fn: Callable[[str, bytes], None],
        **settings: Any,
    ) -> None:
        def push_joined(name: str, content: bytes) -> None:
            try:
                push_object_fn(name, content)
            except inflatable.ObjectPushError:
                if _SEPARATOR not in name:
                    raise
                for each, part in zip(name.split(_SEPARATOR), split(content), strict=True):
                    push_object_fn(each, part)

        push_each(_joined(object_contents), push_joined, **settings)

    loop.pull_objects, loop.push_object_contents_from_iterable = pull, push


def _joined(contents: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Yield a name and a content for each request: of a large object, or of several small ones joined."""
    small: dict[str, bytes] = {}

    def take() -> Iterator[tuple[str, bytes]]:
        if len(small) == 1:
            yield from small.items()
        elif small:
            yield _SEPARATOR.join(small), join(small.values())
        small.clear()

    for name, content in contents:
        if len(content) >= ENOUGH:
            yield name, content
            continue
        if len(small) == MOST or sum(map(len, small.values())) + len(content) > ENOUGH:
            yield from take()
        small[name] = content
    yield from take()
