"""Names and functions that the patches of several of Flower's programs use."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Executor, Future
from functools import partial, wraps
from logging import getLogger
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from deploy.flower import fork_client
from deploy.flower.channel import Channel
from deploy.flower.commands import patched
from deploy.flower.fork_server import CHANNEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

LOOK = 1.0  # s between two checks for a change, in case nothing announces the change
MOST_CACHED = 10_000  # the most results of a function that are cached
NO_PARTS = 30.0  # s without a new part, after which an incomplete message is given up
FAILING = 60.0  # s of errors from the SuperLink, after which a request is given up
FIRST_RETRY, LONGEST_RETRY = 0.02, 0.5  # s, the first and the longest pause before a part is requested again

PLUGIN = "flwr.supercore.superexec.plugin"
EXECUTOR = "flwr.supercore.superexec.executor.subprocess_executor"
CORE_HANDLERS = "flwr.supercore.servicer.runtime.runtime_handlers"
RUNTIME_CLIENT = "flwr.supercore.runtime"
INFLATABLE = "flwr.supercore.inflatable.inflatable_utils"
RETRY = "flwr.supercore.retry.http_retry"
USED_TO_START_APPS = (f"{EXECUTOR}:SubprocessExecutor", f"{EXECUTOR}:subprocess.Popen")
# Programs that a SuperLink or its executor starts. They must not run without their guards.
GUARDED = ("flower-superexec", "flwr-serverapp")
HTTP = "flwr.supercore.protobuf.client"
USED_BY_CHANNEL = (
    f"{RUNTIME_CLIENT}:RuntimeHttpClient._unary_unary",
    f"{HTTP}:httpx.Client",
    f"{INFLATABLE}:concurrent.futures.ThreadPoolExecutor",
    f"{INFLATABLE}:concurrent.futures.as_completed",
)
USED_TO_GIVE_UP = (f"{INFLATABLE}:ObjectUnavailableError", f"{INFLATABLE}:ObjectPullError")
RETRY_INVOKER = "flwr.supercore.retry.retry_invoker"
USED_TO_RETRY = (f"{RETRY}:_RETRYABLE_STATUS_CODES", f"{RETRY_INVOKER}:RetryInvoker.invoke")
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


def replace(module: str, **replaced: Any) -> None:
    """Replace names in the namespace of one of Flower's modules."""
    for name, value in replaced.items():
        setattr(importlib.import_module(module), name, value)


def like(module: Any, **changed: Any) -> SimpleNamespace:
    """Return an object with the attributes of a module, some of them with other values."""
    return SimpleNamespace(**{**vars(module), **changed})


def skip_unseen_lines() -> None:
    """Let Flower's logger skip at once the lines that none of its handlers writes.

    Flower logs each request at the level DEBUG, and makes a record of the line before the handlers drop it.
    """
    logger = getLogger("flwr")
    logger.setLevel(max(logger.level, min((each.level for each in logger.handlers), default=0)))


def retry_soon(module: str, name: str) -> None:
    """Shorten the pauses after which a module's function `name` requests a missing part of a message again.

    The pauses grow from `FIRST_RETRY` to `LONGEST_RETRY`. In stock Flower the first pause is 1 s.
    """
    original = getattr(importlib.import_module(module), name)
    replace(module, **{name: partial(original, initial_backoff=FIRST_RETRY, backoff_cap=LONGEST_RETRY)})


def give_up_without_parts(module: str) -> None:
    """Let a module's `pull_objects` fail if no part of the message has arrived for `NO_PARTS` seconds.

    Flower itself gives up after 500 attempts to fetch a part. With Flower's pauses, 500 attempts take more
    than an hour; with the pauses of `retry_soon`, 4 minutes.
    """
    pull_objects = importlib.import_module(module).pull_objects
    inflatable = importlib.import_module(INFLATABLE)

    @wraps(pull_objects)
    def pull_while_they_come(object_ids: Any, pull_object_fn: Callable[[str], bytes], **settings: Any) -> Any:
        latest = time.monotonic()

        def pull(object_id: str) -> bytes:
            nonlocal latest
            try:
                content = pull_object_fn(object_id)
            except inflatable.ObjectUnavailableError:
                if time.monotonic() - latest > NO_PARTS:
                    reason = f"no part of its message has come for {NO_PARTS:g} s"
                    raise inflatable.ObjectPullError(object_id, reason) from None
                raise
            latest = time.monotonic()
            return content

        return pull_objects(object_ids, pull, **settings)

    replace(module, pull_objects=pull_while_they_come)


def retry_after_500() -> None:
    """Let this process repeat a request that the SuperLink answers with status 500.

    The SuperLink's database may be locked for a while. In stock Flower the first such answer ends the run.
    Here the run ends only if the request has failed for `FAILING` seconds.
    """
    replace(RETRY, _RETRYABLE_STATUS_CODES=frozenset({500, 503, 504}))
    invoker = importlib.import_module(RETRY_INVOKER).RetryInvoker
    invoke = invoker.invoke

    @wraps(invoke)
    def invoke_for_a_while(this: Any, target: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        began: float | None = None

        def attempt(*arguments: Any, **named: Any) -> Any:
            nonlocal began
            try:
                return target(*arguments, **named)
            except Exception as error:
                if getattr(getattr(error, "response", None), "status_code", None) != 500:
                    began = None  # another failure, such as an absent SuperLink, is not limited here
                    raise
                now = time.monotonic()
                began = now if began is None else began
                if now - began > FAILING:
                    raise RuntimeError(f"The SuperLink has failed to answer for {FAILING:g} s") from error
                raise

        return invoke(this, attempt, *arguments, **named)

    invoker.invoke = invoke_for_a_while


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
    httpx = importlib.import_module(HTTP).httpx
    replace(HTTP, httpx=like(httpx, Client=partial(_LazyClient, httpx.Client)))
    # A channel carries one request at a time, so threads that send requests would only wait for each other.
    futures = SimpleNamespace(ThreadPoolExecutor=InThisThread, as_completed=list)
    replace(INFLATABLE, concurrent=SimpleNamespace(futures=futures))
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


def remembered(function: Callable[..., Any], *, by: int = 0, but: object = ...) -> Callable[..., Any]:
    """Return a function that caches the results of another function for `LOOK` seconds.

    Parameters
    ----------
    function : Callable[..., Any]
        The other function. Its result depends on one of its arguments only.
    by : int
        The position of the argument on which the result depends. (default: the first argument)
    but : object
        A result that is not cached. (default: all results are cached)
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
                if len(known) >= MOST_CACHED:  # clients choose the arguments, and could fill the memory
                    known.clear()
                known[key] = now, answer
        return answer

    return cached


def start_program(command: list[str], **settings: Any) -> subprocess.Popen[bytes]:
    """Start one of Flower's programs as `subprocess.Popen` does, with two differences.

    A program of `GUARDED` is started with its guards. The token of a task is passed in a file instead of the
    command line, which every user of the machine can read.
    """
    if command[0] in GUARDED:
        # With the option -P if this process has it.
        command = patched(command, installed=bool(sys.flags.safe_path))
    if "--token" not in command:
        return subprocess.Popen(command, **settings)
    place = command.index("--token")
    with tempfile.TemporaryFile() as file:  # without a name: other users cannot open it
        file.write(command[place + 1].encode())
        file.seek(0)
        command = [*command[:place], "--token-file", f"/dev/fd/{file.fileno()}", *command[place + 2 :]]
        return subprocess.Popen(command, pass_fds=[file.fileno()], **settings)


def guard_apps() -> None:
    """Let Flower's executor start ServerApps with their guards."""
    replace(EXECUTOR, subprocess=like(subprocess, Popen=start_program))


class _Apps:
    """Starts the processes of apps: by a fork server if there is one, else by `start_program`."""

    def __init__(self) -> None:
        self._fork_server: fork_client.ForkServer | None = None
        self._names: Sequence[str] = ()
        self._module = ""

    def connect(
        self,
        names: Sequence[str],
        commands: Callable[[Iterable[str]], Mapping[str, Callable[[], Any]]],
        module: str,
    ) -> None:
        """Connect to the fork server that the environment names (`fork_client.VARIABLE`), or fork one.

        Call this before the process starts threads.

        Parameters
        ----------
        names : Sequence[str]
            The names of the programs that are to be forked.
        commands : Callable[[Iterable[str]], Mapping[str, Callable[[], Any]]]
            Gets names of programs. Returns a dictionary with the function that runs each program, by name.
        module : str
            The name of the module that holds `commands`. If the fork server ends, a new one imports this
            module.
        """
        self._names, self._module = names, module
        if folder := os.environ.get(fork_client.VARIABLE):
            try:
                self._fork_server = fork_client.ForkServer.connect(Path(folder))
                return
            except OSError as error:
                getLogger("flwr").warning(
                    "%s=%s: %s; starting a fork server of our own", fork_client.VARIABLE, folder, error
                )
        self._fork_server = fork_client.fork_server(commands(names))

    def start(
        self,
        command: list[str],
        *,
        channel: socket.socket | None = None,
        fork: Callable[[fork_client.ForkServer, list[str], int | None, int], bool] | None = None,
        **settings: Any,
    ) -> None:
        """Start a process: by the fork server if it has the program, else as `subprocess.Popen` does.

        Only a forked process inherits `channel`, its end of a socket pair. `fork` may start the process in
        another way. It gets the fork server, the command, and two file descriptors: of the output (None: this
        process's output) and of `channel`. It returns whether it has started the process.
        """
        if self._fork_server is None or command[0] not in self._names:
            start_program(command, **settings)
            return
        silent = settings.get("stdout") == subprocess.DEVNULL
        output = os.open(os.devnull, os.O_WRONLY) if silent else None
        try:
            if fork and channel and fork(self._fork_server, command, output, channel.fileno()):
                return
            self._fork_server.run(
                command,
                output=(1, 2) if output is None else (output, output),
                channel=None if channel is None else channel.fileno(),
            )
        except fork_client.Gone:
            getLogger("flwr").warning("The fork server for %s is gone; starting a new one", command[0])
            self._fork_server.close()
            self._fork_server = fork_client.start_fork_server(self._module, self._names)
            start_program(command, **settings)
        finally:
            if output is not None:
                os.close(output)


apps = _Apps()


def fork_apps() -> None:
    """Let Flower's executor start apps through the fork server."""
    replace(EXECUTOR, subprocess=like(subprocess, Popen=apps.start))
