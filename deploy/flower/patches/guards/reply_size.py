"""Checks each reply in the ServerApp before the reply is inflated, and replaces bad ones by error replies.

In Flower, to inflate a message means to make Python objects from the bytes of its parts.
"""

from __future__ import annotations

import importlib
import json
import os
from collections import OrderedDict
from functools import wraps
from logging import getLogger
from typing import Any

from deploy.flower.patches.guards.refusal_log import make_safe, printable
from deploy.flower.patches.joined_objects import parts
from deploy.flower.patches.shared import RUNTIME_CLIENT, replace

FACTOR = 4  # a reply may have this many times the bytes of the ServerApp's largest message
BYTES = 1024 * 1024  # bytes that a reply may have in any case
VARIABLE = "COHORT_REPLY_BYTES"  # the environment variable that can raise `BYTES`
_CHUNK = b"ArrayChunk "  # the first bytes of an object that holds data of an array
MOST_REPLIES = 100_000  # the most replies whose metadata are remembered

_GRID = "flwr.superlink.grid.http_grid"
_OBJECTS = "flwr.supercore.inflatable.inflatable_object"
_CONSTANTS = "flwr.common.constant"
_SERDE = "flwr.common.serde"
USED = (
    f"{_GRID}:HttpGrid.pull_messages",
    f"{_GRID}:push_objects",
    f"{_GRID}:inflate_object_from_contents",
    f"{_GRID}:make_message",
    f"{_GRID}:Error",
    *(
        f"{_OBJECTS}:{name}"
        for name in (
            "get_object_head_values_from_object_content",
            "iterate_object_tree",
            "get_object_tree",
        )
    ),
    f"{_CONSTANTS}:ErrorCode.MESSAGE_UNAVAILABLE",
    f"{_SERDE}:metadata_from_proto",
    f"{RUNTIME_CLIENT}:RuntimeHttpClient.PullMessages",
)


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
    metadata_of = importlib.import_module(_SERDE).metadata_from_proto
    # The metadata of replies, which the SuperLink has checked, by message id.
    metadata: OrderedDict[str, Any] = OrderedDict()
    iterate, tree_of = (
        getattr(importlib.import_module(_OBJECTS), f"{name}_object_tree") for name in ("iterate", "get")
    )
    message_type = importlib.import_module("flwr.app").Message
    # Two maxima over the messages that the ServerApp has sent: the bytes of a message, and the bytes of a
    # message without the data of its arrays.
    sent = beside = 0

    @wraps(push)
    def push_counted(
        objects: Any, push_object_fn: Any, *, object_ids_to_push: set[str] | None = None, **settings: Any
    ) -> None:
        nonlocal sent, beside
        trees = [tree_of(each) for each in objects.values() if isinstance(each, message_type)]
        pushed = set(objects) if object_ids_to_push is None else object_ids_to_push
        sizes: dict[str, int] = {}
        chunks: set[str] = set()  # names of the objects that are data of arrays

        def measure(name: str, content: bytes) -> None:
            sizes[name] = len(content)
            if content.startswith(_CHUNK):
                chunks.add(name)

        for name, each in objects.items():
            if name not in pushed:
                measure(name, each.deflate())

        def push_object(name: str, content: bytes) -> None:
            for each, part in parts(name, content).items():
                measure(each, part)
            push_object_fn(name, content)

        push(objects, push_object, object_ids_to_push=object_ids_to_push, **settings)
        for tree in trees:
            names = {each.object_id for each in iterate(tree)}
            sent = max(sent, sum(sizes.get(name, 0) for name in names))
            beside = max(beside, sum(sizes.get(name, 0) for name in names - chunks))

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
            if (size := inflated_size(contents)) > allowed_bytes(sent):
                raise ValueError(f"it has {size} bytes, and at most {allowed_bytes(sent)} are allowed")
            # A metric of 13 bytes takes 350 bytes of memory after inflation, which takes 10 us. So with a
            # large model, a limit for all bytes together would allow far too many metrics.
            if (size := size_beside_arrays(contents)) > allowed_bytes(beside):
                raise ValueError(
                    f"it has {size} bytes beside its arrays, and at most {allowed_bytes(beside)} are allowed"
                )
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
            unavailable = importlib.import_module(_CONSTANTS).ErrorCode.MESSAGE_UNAVAILABLE
            return grid.make_message(
                metadata=metadata_of(expected), error=grid.Error(code=unavailable, reason=reason)
            )

    replace(_GRID, push_objects=push_counted, inflate_object_from_contents=inflate_checked)
    client.PullMessages = pull_noted


def size_beside_arrays(contents: dict[str, bytes]) -> int:
    """Return the total size, in bytes, of a reply's objects that hold no data of arrays."""
    return sum(len(content) for content in contents.values() if not content.startswith(_CHUNK))


def inflated_size(contents: dict[str, bytes]) -> int:
    """Return the total size, in bytes, of a reply's objects once they are inflated.

    A chunk counts as often as arrays refer to it. `contents` are the deflated objects, by id.
    """
    head = importlib.import_module(_OBJECTS).get_object_head_values_from_object_content
    size = 0
    for content in contents.values():
        kind, children, _ = head(content)
        if kind != "ArrayChunk":
            size += len(content)
        if kind == "Array":
            body = json.loads(content.partition(b"\x00")[2])
            lengths = [len(contents[child]) for child in children]
            size += sum(lengths[index] for index in body["arraychunk_ids"])
    return size
