"""Checks each reply in the ServerApp before the reply is inflated, and replaces bad ones by error replies.

In Flower, to inflate a message means to make Python objects from the bytes of its parts.

Flower sends equal parts of a message once. A zero-initialised model of 48 MB travels as 11 MB, and the model
after training as 48 MB. So the size of a message is its size after inflation, in which each part counts as
often as other parts refer to it: equal chunks of an array, equal arrays (tied weights, LoRA's B matrices).
"""

from __future__ import annotations

import importlib
import json
import os
from collections import Counter, OrderedDict
from collections.abc import Mapping
from functools import wraps
from logging import getLogger
from typing import Any, NamedTuple

from flwr.proto.error_pb2 import Error
from flwr.proto.message_pb2 import Message

from deploy.fleet.admission.refusal_log import make_safe, printable
from deploy.fleet.duties.joined_objects import parts
from deploy.fleet.protocol import MESSAGE_UNAVAILABLE, head
from deploy.flower.patches.shared import RUNTIME_CLIENT, replace

FACTOR = 4  # a reply may have this many times the bytes of the ServerApp's largest message
BYTES = 1024 * 1024  # bytes that a reply may have in any case
VARIABLE = "COHORT_REPLY_BYTES"  # the environment variable that can raise `BYTES`
_CHUNK = b"ArrayChunk "  # the first bytes of an object that holds data of an array
MOST_REPLIES = 100_000  # the most replies whose metadata are remembered

_GRID = "flwr.superlink.grid.http_grid"
_SERDE = "flwr.common.serde"


def allowed_bytes(sent: int) -> int:
    """Return how many bytes a reply may have if the largest message of its ServerApp had `sent` bytes."""
    return max(FACTOR * sent, BYTES, int(os.environ.get(VARIABLE) or 0))


def check_setting() -> None:
    """Raise SystemExit if the value of `VARIABLE` is not a whole number of bytes."""
    if not (value := os.environ.get(VARIABLE) or "0").isdecimal():
        raise SystemExit(f"{VARIABLE} = {value}: must be a whole number of bytes")


def patch() -> None:
    """Let the ServerApp check each reply that it pulls, before it inflates the reply."""
    check_setting()
    make_safe(getLogger("flwr"))
    grid = importlib.import_module(_GRID)
    client = importlib.import_module(RUNTIME_CLIENT).RuntimeHttpClient
    push, pull, inflate = grid.push_objects, client.PullMessages, grid.inflate_object_from_contents
    message_of = importlib.import_module(_SERDE).message_from_proto
    # The metadata of replies, which the SuperLink has checked, by message id.
    metadata: OrderedDict[str, Any] = OrderedDict()
    message_type = importlib.import_module("flwr.app").Message
    sent = Size()  # the maxima over the messages that the ServerApp has sent

    @wraps(push)
    def push_counted(
        objects: Any, push_object_fn: Any, *, object_ids_to_push: set[str] | None = None, **settings: Any
    ) -> None:
        nonlocal sent
        messages = [name for name, each in objects.items() if isinstance(each, message_type)]
        pushed = set(objects) if object_ids_to_push is None else object_ids_to_push
        found = {name: part_of(each.deflate()) for name, each in objects.items() if name not in pushed}

        def push_object(name: str, content: bytes) -> None:
            found.update((each, part_of(one)) for each, one in parts(name, content).items())
            push_object_fn(name, content)

        push(objects, push_object, object_ids_to_push=object_ids_to_push, **settings)
        for name in messages:
            sent = sent.largest(inflated_size(name, found))

    @wraps(pull)
    def pull_noted(this: Any, *arguments: Any, **settings: Any) -> Any:
        response = pull(this, *arguments, **settings)
        for message in response.messages_list:
            metadata[message.metadata.message_id] = message.metadata
            if len(metadata) > MOST_REPLIES:
                metadata.popitem(last=False)
        return response

    @wraps(inflate)
    def inflate_checked(object_id: str, contents: dict[str, bytes], **settings: Any) -> Any:
        expected = metadata.pop(object_id)
        try:
            check_size(object_id, contents, sent)
            message = inflate(object_id, contents, **settings)
            stated = message.metadata
            for name in ("run_id", "src_node_id", "dst_node_id", "reply_to_message_id", "message_type"):
                if getattr(stated, name) != getattr(expected, name):
                    raise ValueError(f"it states another {name}")
            return message
        except Exception as error:  # a node may send anything
            what = printable(f"{type(error).__name__}: {error}")[:500]
            reason = f"The reply of node {expected.src_node_id} cannot be used: {what}"
            getLogger("flwr").warning("%s", reason)
            error = Error(code=MESSAGE_UNAVAILABLE, reason=reason)
            return message_of(Message(metadata=expected, error=error))

    replace(_GRID, push_objects=push_counted, inflate_object_from_contents=inflate_checked)
    client.PullMessages = pull_noted


class Size(NamedTuple):
    """The size of a message or of a part of a message after inflation."""

    bytes: int = 0
    beside: int = 0
    """The bytes without the data of arrays."""
    objects: int = 0

    def largest(self, other: Size) -> Size:
        """Return the maxima of both sizes."""
        return Size(*map(max, self, other))


class Part(NamedTuple):
    """An object without its content."""

    size: Size
    """Without the objects to which it refers."""
    refers: Mapping[str, int]
    """How often it refers to other objects, by their names."""


def part_of(content: bytes) -> Part:
    """Return the size of a deflated object, and the objects to which it refers."""
    kind, children = head(content)
    length = len(content)
    if kind == "ArrayChunk":
        return Part(Size(length, 0, 1), {})
    refers = Counter[str]()
    if children and kind != "Message":
        body = json.loads(content.partition(b"\x00")[2])
        refers.update([children[at] for at in body["arraychunk_ids"]] if kind == "Array" else body.values())
    # Flower also inflates children that the body does not name.
    return Part(Size(length, length, 1), dict.fromkeys(children, 1) | refers)


def inflated_size(name: str, found: Mapping[str, Part]) -> Size:
    """Return the size of an object with the objects to which it refers, each as often as it is referred to.

    `found` holds all these objects, by name. Raises KeyError if one is missing.
    """
    sizes: dict[str, Size] = {}

    def size_of(name: str) -> Size:
        if name not in sizes:
            own, refers = found[name]
            inner = [[count * each for each in size_of(other)] for other, count in refers.items()]
            sizes[name] = Size(*map(sum, zip(own, *inner, strict=True)))
        return sizes[name]

    return size_of(name)


def check_size(name: str, contents: Mapping[str, bytes], sent: Size) -> None:
    """Raise an error if a reply is too large after inflation, or cannot be inflated."""

    def check(found: int, most: int, what: str = "") -> None:
        if found > most:
            raise ValueError(f"it has {found} bytes{what}, and at most {most} are allowed")

    # A metric of 13 bytes takes 350 bytes of memory after inflation, which takes 10 us. So with a large
    # model, a limit for all bytes together would allow far too many metrics.
    beside, what = allowed_bytes(sent.beside), " beside its arrays"
    # Before anything is parsed
    check(sum(len(each) for each in contents.values() if not each.startswith(_CHUNK)), beside, what)
    size = inflated_size(name, {each: part_of(content) for each, content in contents.items()})
    check(size.beside, beside, what)
    check(size.bytes, allowed_bytes(sent.bytes))
