"""Lets a ClientApp or ServerApp send its requests over a channel (`deploy.flower.channel`), not over HTTP."""

import importlib
import os
import socket
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from deploy.flower.channel import Channel
from deploy.flower.fork_server import CHANNEL
from deploy.flower.patches.shared import RUNTIME_CLIENT, like, replace

_HTTP = "flwr.supercore.protobuf.client"
# The requests that an app may send over its channel. The value of each request is the name of the function,
# in Flower's module of handlers, that answers the request.
SERVED = {
    "SendTaskHeartbeat": "send_task_heartbeat",
    "PullTaskInput": "pull_task_input",
    "PushTaskOutput": "push_task_output",
    "PushObject": "push_object",
    "PullObject": "pull_object",
    "ConfirmMessageReceived": "confirm_message_received",
    "PushMessages": "push_messages",
    "PullMessages": "pull_messages",
    "PushLogs": "push_logs",
    "GetNodes": "get_nodes",
}


def use_channel() -> Channel | None:
    """Let this app send its requests over the channel that its environment names (`CHANNEL`).

    A request that is not in `SERVED`, or that the other end does not answer, is sent over HTTP. Returns the
    channel; None if the environment names none.
    """
    descriptor = os.environ.pop(CHANNEL, None)
    if descriptor is None:
        return None
    channel = Channel(socket.socket(fileno=int(descriptor)))
    client = importlib.import_module(RUNTIME_CLIENT).RuntimeHttpClient
    request_over_http = client._unary_unary

    @wraps(request_over_http)
    def send(this: Any, *, path: str, rpc_method: str, request: Any, response_type: Any, **more: Any) -> Any:
        method = rpc_method.rpartition("/")[2]
        answer = channel.ask(method, request.SerializeToString()) if method in SERVED else None
        if answer is None:
            return request_over_http(
                this, path=path, rpc_method=rpc_method, request=request, response_type=response_type, **more
            )
        return response_type.FromString(answer)

    client._unary_unary = send
    httpx = importlib.import_module(_HTTP).httpx
    replace(_HTTP, httpx=like(httpx, Client=partial(_LazyClient, httpx.Client)))
    return channel


class _LazyClient:
    """An HTTP client that is made only when it is used: making one takes 10 ms of CPU time."""

    def __init__(self, make: Callable[..., Any], **settings: Any) -> None:
        self._make = partial(make, **settings)
        self._made: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._made is None:
            self._made = self._make()
        return getattr(self._made, name)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()
