"""Tells a ServerApp how many bytes of the replies that it waits for have arrived.

A reply of 20 MB takes 40 s over a line of 500 kB/s, and the ServerApp receives it only when it is complete.
With these numbers, the ServerApp can wait for a reply that is on its way.

The ServerApp asks by a request for an object with the name `ASKED` and the ids of its messages, separated by
commas. The content of this object is JSON: the bytes that have arrived, by message. A SuperLink without this
patch knows no object with such a name; the ServerApp then knows nothing about the replies.
"""

from __future__ import annotations

import importlib
import json
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

ASKED = "received:"

_GRID = "flwr.superlink.grid.http_grid"
_MESSAGES = "flwr.proto.message_pb2"
_HANDLERS = "flwr.superlink.servicer.runtime.runtime_handlers"
USED_BY_SUPERLINK = (
    f"{_HANDLERS}:pull_object",
    f"{_MESSAGES}:PullObjectResponse",
)
USED_BY_SERVERAPP = (
    *(f"{_GRID}:HttpGrid.{name}" for name in ("_runtime_client", "run")),
    f"{_MESSAGES}:PullObjectRequest",
)


def answer(received: Callable[[int, Collection[str]], Mapping[str, int]]) -> None:
    """Let the SuperLink answer these requests.

    Parameters
    ----------
    received : Callable[[int, Collection[str]], Mapping[str, int]]
        Gets the id of a run and ids of messages. Returns the bytes that have arrived of the replies to those
        messages that are messages of this run, by message.
    """
    handlers: Any = importlib.import_module(_HANDLERS)
    pull = handlers.pull_object

    @wraps(pull)
    def pulled(asked: Any, state: Any, task: Any) -> Any:
        if not asked.object_id.startswith(ASKED):
            return pull(asked, state, task)
        names = asked.object_id.removeprefix(ASKED).split(",")
        content = json.dumps(received(task.run_id, frozenset(names))).encode()
        new = importlib.import_module(_MESSAGES).PullObjectResponse
        return new(object_found=True, object_available=True, object_content=content)

    handlers.pull_object = pulled


def received_bytes(grid: Any, message_ids: Collection[str]) -> dict[str, int]:
    """Return how many bytes have arrived of the replies to messages, for each reply that has begun to arrive.

    The number grows while the reply is on its way. Bytes that were sent a second time, because a connection
    broke, count again. The number begins at zero again if the SuperLink is restarted.

    Parameters
    ----------
    grid : HttpGrid
        The grid of the ServerApp. This function becomes its method.
    message_ids : Collection[str]
        The ids of messages that the ServerApp has sent.
    """
    asked = importlib.import_module(_MESSAGES).PullObjectRequest(
        node=grid.node, run_id=grid.run.run_id, object_id=ASKED + ",".join(message_ids)
    )
    response = grid._runtime_client.PullObject(asked)
    found: dict[str, int] = json.loads(response.object_content) if response.object_available else {}
    return found


def ask() -> None:
    """Give the ServerApp's grid the method `received_bytes`."""
    importlib.import_module(_GRID).HttpGrid.received_bytes = received_bytes
