"""What the patches of several programs use."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import time
from functools import partial, wraps
from logging import getLogger
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from deploy.flower import forking
from deploy.flower.channel import Channel
from deploy.flower.fork_server import CHANNEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

WRITTEN_FOR = "1.39.0"  # the version of Flower whose private names the patches use
LOOK = 1.0  # s between two checks of a condition that is normally notified
FIRST_RETRY, LONGEST_RETRY = 0.02, 0.5  # s until a missing part of a message is requested again

PLUGIN = "flwr.supercore.superexec.plugin"
EXECUTOR = "flwr.supercore.superexec.executor.subprocess_executor"
CORE_HANDLERS = "flwr.supercore.servicer.runtime.runtime_handlers"
RUNTIME_CLIENT = "flwr.supercore.runtime"
RETRY = "flwr.supercore.retry.http_retry"
USED_TO_START_APPS = (f"{EXECUTOR}:SubprocessExecutor", f"{EXECUTOR}:subprocess.Popen")
USED_BY_CHANNEL = (f"{RUNTIME_CLIENT}:RuntimeHttpClient._unary_unary",)
USED_TO_RETRY = (f"{RETRY}:_RETRYABLE_STATUS_CODES",)
# The requests of apps that are answered over their channel, and the name of the function that answers them.
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


def replace(module: str, **replaced: Any) -> None:
    """Replace names in the namespace of one of Flower's modules."""
    for name, value in replaced.items():
        setattr(importlib.import_module(module), name, value)


def like(module: Any, **changed: Any) -> SimpleNamespace:
    """Return a copy of a module's namespace with some names changed."""
    return SimpleNamespace(**{**vars(module), **changed})


def retry_soon(module: str, name: str) -> None:
    """Let a function that fetches the parts of a message retry after `FIRST_RETRY`; Flower waits 1 s."""
    original = getattr(importlib.import_module(module), name)
    replace(module, **{name: partial(original, initial_backoff=FIRST_RETRY, backoff_cap=LONGEST_RETRY)})


def retry_after_500() -> None:
    """Retry a request that failed because the SuperLink's database was locked; Flower would end the run."""
    replace(RETRY, _RETRYABLE_STATUS_CODES=frozenset({500, 503, 504}))


def use_channel() -> None:
    """Let this app send its requests over its channel, if it was given one."""
    descriptor = os.environ.pop(CHANNEL, None)
    if descriptor is None:
        return
    channel = Channel(socket.socket(fileno=int(descriptor)))
    client = importlib.import_module(RUNTIME_CLIENT).RuntimeHttpClient
    request_over_http = client._unary_unary

    @wraps(request_over_http)
    def send(this: Any, *, path: str, rpc_method: str, request: Any, response_type: Any) -> Any:
        method = rpc_method.rpartition("/")[2]
        answer = channel.ask(method, request.SerializeToString()) if method in SERVED else None
        if answer is None:
            return request_over_http(
                this, path=path, rpc_method=rpc_method, request=request, response_type=response_type
            )
        return response_type.FromString(answer)

    client._unary_unary = send


def remembered(function: Callable[..., Any], *, by: int = 0, but: object = ...) -> Callable[..., Any]:
    """Cache a function's results for `LOOK` seconds.

    Parameters
    ----------
    function : Callable[..., Any]
        Its result depends on one argument.
    by : int
        The position of that argument.
    but : object
        A result that is not cached.
    """
    known: dict[Any, tuple[float, Any]] = {}

    @wraps(function)
    def cached(*arguments: Any) -> Any:
        now, key = time.monotonic(), arguments[by]
        asked, answer = known.get(key, (-LOOK, None))
        if now - asked >= LOOK:
            answer = function(*arguments)
            if answer is but:
                known.pop(key, None)
            else:
                known[key] = now, answer
        return answer

    return cached


class _Apps:
    """Starts the processes of apps: forked by a fork server, or as Flower starts them if there is none."""

    def __init__(self) -> None:
        self._fork_server: forking.ForkServer | None = None
        self._names: Sequence[str] = ()
        self._module = ""

    def connect(
        self,
        names: Sequence[str],
        commands: Callable[[Iterable[str]], Mapping[str, Callable[[], Any]]],
        module: str,
    ) -> None:
        """Connect to the fork server that the environment names, or fork one. Call it before threads start.

        Parameters
        ----------
        names : Sequence[str]
            The programs to be forked.
        commands : Callable[[Iterable[str]], Mapping[str, Callable[[], Any]]]
            Returns the functions that run them.
        module : str
            The module that holds `commands`: a fork server in a new process imports it.
        """
        self._names, self._module = names, module
        if folder := os.environ.get(forking.VARIABLE):
            try:
                self._fork_server = forking.ForkServer.connect(Path(folder))
                return
            except OSError as error:
                getLogger("flwr").warning(
                    "%s=%s: %s; starting a fork server of our own", forking.VARIABLE, folder, error
                )
        self._fork_server = forking.fork_server(commands(names))

    def start(self, command: list[str], *, channel: socket.socket | None = None, **settings: Any) -> None:
        """Start a process as `subprocess.Popen` does; a forked one inherits its end of a channel."""
        if self._fork_server is None or command[0] not in self._names:
            subprocess.Popen(command, **settings)
            return
        silent = settings.get("stdout") == subprocess.DEVNULL
        output = os.open(os.devnull, os.O_WRONLY) if silent else None
        try:
            self._fork_server.run(
                command,
                output=(1, 2) if output is None else (output, output),
                channel=None if channel is None else channel.fileno(),
            )
        except forking.Gone:
            getLogger("flwr").warning("The fork server for %s is gone; starting a new one", command[0])
            self._fork_server.close()
            self._fork_server = forking.start_fork_server(self._module, self._names)
            subprocess.Popen(command, **settings)
        finally:
            if output is not None:
                os.close(output)


apps = _Apps()


def fork_apps() -> None:
    """Let Flower's executor start apps through the fork server."""
    replace(EXECUTOR, subprocess=like(subprocess, Popen=apps.start))
