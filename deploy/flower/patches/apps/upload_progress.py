"""Tells a ServerApp how many bytes of the replies that it waits for have arrived.

A reply of 20 MB takes 40 s over a line of 500 kB/s, and the ServerApp receives it only when it is complete.
With these numbers, the ServerApp can wait for a reply that is on its way.

The ServerApp asks by a request for an object with the name `ASKED` and the ids of its messages, separated by
semicolons. The content of this object is JSON: the bytes that have arrived, by message
(`answer_apps`). A stock SuperLink knows no object with such a name; the
ServerApp then knows nothing about the replies.
"""

import importlib
import json
from collections.abc import Collection
from functools import wraps
from typing import Any

ASKED = "received:"
_SEPARATOR = ";"  # not a comma, which separates the objects of a joined request (`joined_objects`)

_GRID = "flwr.superlink.grid.http_grid"
_MESSAGES = "flwr.proto.message_pb2"


def asked_messages(object_id: str) -> frozenset[str] | None:
    """Return the messages about which a request for an object asks; None if it asks for an object."""
    if not object_id.startswith(ASKED):
        return None
    return frozenset(object_id.removeprefix(ASKED).split(_SEPARATOR))


def answer_apps(handlers: Any) -> None:
    """Let this module of handlers, the SuperLink's, answer how much of replies has arrived."""
    pull = handlers.pull_object

    @wraps(pull)
    def pulled(asked: Any, state: Any, task: Any) -> Any:
        if (messages := asked_messages(asked.object_id)) is None:
            return pull(asked, state, task)
        content = json.dumps(dict(state.received(task.run_id, messages))).encode()
        response = importlib.import_module(_MESSAGES).PullObjectResponse
        return response(object_found=True, object_available=True, object_content=content)

    handlers.pull_object = pulled


def received_bytes(grid: Any, message_ids: Collection[str]) -> dict[str, int]:
    """Return how many bytes have arrived of the replies to messages, for each reply that has begun to arrive.

    The number grows while the reply is on its way. Bytes that were sent a second time, because a connection
    broke, count again. The number begins at zero again if the SuperLink is restarted.
    """
    asked = importlib.import_module(_MESSAGES).PullObjectRequest(
        node=grid.node, run_id=grid.run.run_id, object_id=ASKED + _SEPARATOR.join(message_ids)
    )
    response = grid._runtime_client.PullObject(asked)
    found: dict[str, int] = json.loads(response.object_content) if response.object_available else {}
    return found


def ask() -> None:
    """Give the ServerApp's grid the method `received_bytes`."""
    importlib.import_module(_GRID).HttpGrid.received_bytes = received_bytes
