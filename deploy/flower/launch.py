"""Flower's programs without their waiting: what this project changes inside Flower, and nothing else does.

``python -m deploy.flower.launch flower-supernode ARGUMENTS`` runs Flower's own `flower-supernode` (or another of
`LAUNCHED`) with these differences.

SuperNode:

- It asks for messages again as soon as it has its answer, if the SuperLink holds such requests (see below).
  Other SuperLinks it asks at intervals that grow with the time since the last message, from `FIRST_PAUSE` to
  `LONGEST_PAUSE`; Flower waits 3 s.
- It notices a message to work on and a reply to send at once; Flower looks every 1 s and every 0.5 s. And it
  notices a ClientApp that was killed, which Flower takes for busy for a minute, and the round with it.

SuperLink:

- It holds a SuperNode's request for messages, and a ServerApp's for replies, until there is one with all its
  parts, for at most `HOLD` and `LOOK` seconds.
- What it asks and tells its database in every request, and need not, it does once in `LOOK` seconds: whether
  the run goes on, whose key this is, which tasks have expired, how many bytes were sent. A revoked key is
  good for so long.
- It refuses a node that shows one key and asks to be activated with another's, which Flower lets anybody do,
  and logs whom it refuses for what they show.

Both:

- Apps are forked from a process that has imported Flower already (`deploy.flower.fork_server`), by a thread instead of the
  process `flower-superexec`, and talk over a socket pair (`deploy.flower.channel`) instead of HTTP.
- Whoever finds that a part of a message has not arrived yet asks again after `FIRST_RETRY`; Flower waits 1 s.

Between the machines all is as Flower has it: fast and ordinary programs work together, each as fast as the
other lets it. If this is not the Flower that this file was written for, a warning says so and the ordinary
program runs.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import threading
import time
from functools import partial, wraps
from importlib.metadata import entry_points, version
from itertools import pairwise
from logging import WARNING, getLogger
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, get_type_hints
from weakref import WeakKeyDictionary

from deploy.flower import fork_server
from deploy.flower.channel import Line, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    _Receiver = tuple[str, int]  # of messages: a "node", or the ServerApp of a "run"

WRITTEN_FOR = "1.39.0"
# What is launched here, and what it starts by itself.
LAUNCHED = {
    "flower-supernode": ("flwr-clientapp",),
    "flower-superlink": ("flwr-serverapp",),
    "flower-superexec": ("flwr-serverapp", "flwr-clientapp"),
}
ALL = (*LAUNCHED, "flwr-clientapp", "flwr-serverapp", "flwr")
SERVER = "COHORT_WARM"  # environment variable: the folder of the `deploy.flower.fork_server` server that starts helpers

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 0.5  # s between two requests for messages ...
PAUSE_SHARE = 0.05  # ... as a share of the time that there has been none
FIRST_RETRY, LONGEST_RETRY = 0.02, 0.5  # s until a missing part of a message is asked for again
HOLD = 5.0  # s
MAX_HELD = 256  # requests, each in a thread of its own; Flower's server has 1000 for all purposes
GATHER = 0.1  # s that a ServerApp's request is held for the other replies when the first has come
MAX_INCOMPLETE = 4096  # push sessions
LOOK = 1.0  # s between two looks, where a notice should come but is not relied on

_SUPERNODE = "flwr.supernode.cli.flower_supernode"
_SUPERNODE_LOOP = "flwr.supernode.start_client_internal"
_SUPERNODE_API = "flwr.supernode.servicer.runtime.runtime_handlers"
_SUPERNODE_APP = "flwr.supernode.main"  # imported late by Flower
_NODE_STATE = "flwr.supernode.nodestate.in_memory_nodestate"
_PLUGIN = "flwr.supercore.superexec.plugin"
_EXECUTOR = "flwr.supercore.superexec.executor.subprocess_executor"
_CLIENTAPP = "flwr.supernode.runtime.run_clientapp"
_GRID = "flwr.superlink.grid.http_grid"
_SUPERLINK = "flwr.superlink.cli.flower_superlink"
_SUPERLINK_APP = "flwr.superlink.main"  # imported late by Flower
_FLEET = "flwr.server.superlink.fleet.grpc_rere.fleet_servicer"
_FLEET_HANDLERS = "flwr.server.superlink.fleet.message_handler.message_handler"
_NODE_AUTH = "flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor"
_LINK_STATE = "flwr.server.superlink.linkstate"
_SUPERLINK_API = "flwr.superlink.servicer.runtime.runtime_handlers"
_RUN_SUPEREXEC = "flwr.supercore.superexec.run_superexec"
_CONSTANTS = "flwr.common.constant"
_FLEET_MESSAGES = "flwr.proto.fleet_pb2"
_APP_MESSAGES = "flwr.proto.runtime_pb2"
_CORE_HANDLERS = "flwr.supercore.servicer.runtime.runtime_handlers"
_RUNTIME_CLIENT = "flwr.supercore.runtime"
_RETRY = "flwr.supercore.retry.http_retry"
_DATABASE = "flwr.supercore.object_store.sql_object_store"
# The requests of apps that are answered over their line, and the function that does.
_SERVED = {
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
# What is used of Flower, by program: if any of it is missing, the program stays as it is.
_LINE = (f"{_RUNTIME_CLIENT}:RuntimeHttpClient._unary_unary",)
_LAUNCH = (f"{_EXECUTOR}:SubprocessExecutor", f"{_EXECUTOR}:subprocess.Popen")
_TASKS = (f"{_PLUGIN}:AutoExecPlugin.launch_task", f"{_CORE_HANDLERS}:send_task_heartbeat", *_LAUNCH)
_USED = {
    "flower-supernode": (
        f"{_SUPERNODE}:start_client_internal",
        f"{_SUPERNODE_APP}:create_app",
        f"{_SUPERNODE_LOOP}:time.sleep",
        f"{_SUPERNODE_LOOP}:subprocess.Popen",
        f"{_SUPERNODE_LOOP}:pull_objects",
        f"{_SUPERNODE_API}:acquire_task",
        f"{_NODE_STATE}:InMemoryNodeState.store_message",
        f"{_NODE_STATE}:InMemoryNodeState.store_object",
        f"{_NODE_STATE}:InMemoryNodeState.get_task_by_token",
        f"{_NODE_STATE}:InMemoryNodeState.finish_task",
        f"{_NODE_STATE}:InMemoryNodeState._on_task_tokens_expired",
        *_TASKS,
    ),
    "flower-superlink": (
        f"{_SUPERLINK}:subprocess.Popen",
        f"{_SUPERLINK_APP}:create_app",
        f"{_SUPERLINK}:SuperLinkLifespan._start_superexec_if_needed",
        f"{_RUN_SUPEREXEC}:_get_task_poll_interval",
        f"{_FLEET}:FleetServicer.PullMessages",
        f"{_LINK_STATE}:SqlLinkState.store_message_and_object_tree",
        f"{_LINK_STATE}:InMemoryLinkState.store_message_and_object_tree",
        f"{_LINK_STATE}:SqlLinkState.store_object",
        f"{_LINK_STATE}:InMemoryLinkState.store_object",
        f"{_CONSTANTS}:SUPERLINK_NODE_ID",
        f"{_FLEET_MESSAGES}:PullMessagesResponse",
        f"{_APP_MESSAGES}:PullAppMessagesResponse",
        f"{_LINK_STATE}:SqlLinkState.get_task_by_token",
        f"{_SUPERLINK_API}:acquire_task",
        f"{_SUPERLINK_API}:pull_messages",
        f"{_LINK_STATE}:SqlLinkState._cleanup_expired_task_tokens",
        f"{_LINK_STATE}:SqlLinkState.get_node_id_by_public_key",
        f"{_LINK_STATE}:SqlLinkState.store_traffic",
        f"{_LINK_STATE}:SqlLinkState.finish_task",
        f"{_FLEET_HANDLERS}:check_abort",
        f"{_NODE_AUTH}:NodeAuthServerInterceptor.intercept_service",
        f"{_NODE_AUTH}:PUBLIC_KEY_HEADER",
        f"{_FLEET_MESSAGES}:ActivateNodeRequest",
        *_TASKS,
    ),
    "flower-superexec": (f"{_RETRY}:_RETRYABLE_STATUS_CODES", *_LAUNCH),
    "flwr-clientapp": (f"{_CLIENTAPP}:pull_and_inflate_object_from_tree", *_LINE),
    "flwr-serverapp": (f"{_RETRY}:_RETRYABLE_STATUS_CODES", f"{_GRID}:pull_objects", *_LINE),
    "flwr": (),
}


def unsupported(names: Iterable[str]) -> str | None:
    """Return why these programs must stay as Flower has them, or None if they need not. Imports them."""
    if sys.platform == "win32":
        return "Windows cannot fork processes"
    if version("flwr") != WRITTEN_FOR:
        return f"Flower is {version('flwr')}, and this was written for {WRITTEN_FOR}"
    for used in (each for name in names for each in _USED[name]):
        module, _, attributes = used.partition(":")
        try:
            found = importlib.import_module(module)
            for attribute in attributes.split("."):
                found = getattr(found, attribute)
        except (ImportError, AttributeError) as error:
            return f"Flower has no {used} ({error})"
    return None


def commands(names: Iterable[str]) -> dict[str, Callable[[], Any]]:
    """Return these programs, changed where that is supported. Imports all that they need."""
    names = list(names)
    scripts = entry_points(group="console_scripts")
    programs: dict[str, Callable[[], Any]] = {name: scripts[name].load() for name in names}
    if reason := unsupported(names):
        _warn(reason)
        return programs
    return {name: partial(_run, name, program) for name, program in programs.items()}


def _run(name: str, program: Callable[[], Any]) -> Any:
    for change in _CHANGES[name]:
        change()
    return program()


def main(arguments: Sequence[str]) -> Any:
    """Run one of Flower's programs; see the module's docstring."""
    if not arguments or arguments[0] not in LAUNCHED:
        raise SystemExit(f"usage: python -m deploy.flower.launch {{{','.join(LAUNCHED)}}} ARGUMENTS")
    name = arguments[0]
    if reason := unsupported([name, *LAUNCHED[name]]):
        _warn(reason)
        os.execvp(name, list(arguments))
    if sys.path[0] in ("", str(Path.cwd())):  # as for an installed command: not a place to import from
        del sys.path[0]
    sys.argv = list(arguments)
    return commands([name])[name]()


def leave_out_the_database() -> None:
    """Let Flower import nothing where it would import what only a SuperLink with --database uses: 30 MB."""
    if version("flwr") != WRITTEN_FOR:
        return

    class SqlObjectStore:
        def __init__(self, *_: object) -> None:
            raise RuntimeError("this program keeps its state in memory")

    module = ModuleType(_DATABASE)
    module.SqlObjectStore = SqlObjectStore  # type: ignore[attr-defined]
    sys.modules[_DATABASE] = module


def _warn(reason: str) -> None:
    getLogger("flwr").log(WARNING, "Rounds will wait as Flower's do: %s", reason)


class _Helpers:
    """Starts the processes that a Flower program needs: forked by a server, or if there is none, as usual."""

    def __init__(self) -> None:
        self._connection: fork_server.Connection | None = None
        self._names: Sequence[str] = ()

    def connect(self, names: Sequence[str]) -> None:
        """Find a server for these, or make one. To be called before there are threads."""
        self._names = names
        if folder := os.environ.get(SERVER):
            try:
                self._connection = fork_server.Connection.open(Path(folder))
                return
            except OSError as error:
                getLogger("flwr").warning("%s=%s: %s; a server of its own is used", SERVER, folder, error)
        self._connection = fork_server.fork_server(commands(names))

    def start(self, command: list[str], *, line: socket.socket | None = None, **settings: Any) -> None:
        """Start a process, as `subprocess.Popen` does, that is to have an end of a line where it can."""
        if self._connection is None or command[0] not in self._names:
            subprocess.Popen(command, **settings)
            return
        silent = settings.get("stdout") == subprocess.DEVNULL
        output = os.open(os.devnull, os.O_WRONLY) if silent else None
        try:
            self._connection.run(
                command,
                output=(1, 2) if output is None else (output, output),
                line=None if line is None else line.fileno(),
            )
        except fork_server.Gone:
            getLogger("flwr").warning(
                "The process that forks %s is gone; there will be a new one", command[0]
            )
            self._connection.close()
            self._connection = fork_server.start_server(self._names)
            subprocess.Popen(command, **settings)
        finally:
            if output is not None:
                os.close(output)


_helpers = _Helpers()


def _replace(module: str, **replaced: Any) -> None:
    """Replace what a module of Flower's finds under these names, for that module only."""
    for name, value in replaced.items():
        setattr(importlib.import_module(module), name, value)


def _start_helpers_for(program: str) -> None:
    _helpers.connect(LAUNCHED[program])
    _replace(_EXECUTOR, subprocess=_like(subprocess, Popen=_helpers.start))


def _like(module: Any, **changed: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(module), **changed})


def _retry_soon(module: str, name: str) -> None:
    original = getattr(importlib.import_module(module), name)
    _replace(module, **{name: partial(original, initial_backoff=FIRST_RETRY, backoff_cap=LONGEST_RETRY)})


# --- Runtime API: between a SuperNode and its ClientApps, a SuperLink and its ServerApps -------------------


class _SuperExec(threading.Thread):
    """Does what the process `flower-superexec` is there for: starts an app's process for each task.

    Its apps talk to it over a line. What that does not serve, or cannot answer, they ask over HTTP as always.

    Parameters
    ----------
    command : Sequence[str]
        How the process would have been started.
    state : flwr.supercore.corestate.CoreState
        Of the SuperNode or SuperLink.
    handlers : module
        Its functions that answer the requests of apps.
    due : threading.Event
        Set when there is a task; it is looked for every `interval` seconds all the same.
    lost : Callable[[Any], None]
        Called with the task of an app that is gone and had not finished it.
    """

    def __init__(
        self,
        command: Sequence[str],
        state: Any,
        handlers: Any,
        due: threading.Event,
        interval: float,
        lost: Callable[[Any], None] = lambda task: None,
    ) -> None:
        super().__init__(name="superexec", daemon=True)
        options = dict(pairwise(command))
        self._plugin = importlib.import_module(_PLUGIN).AutoExecPlugin(
            runtime_api_address=options["--runtime-api-address"],
            insecure="--insecure" in command,
            root_certificates_path=options.get("--root-certificates"),
            runtime_dependency_install="--allow-runtime-dependency-installation" in command,
            executor=importlib.import_module(_EXECUTOR).SubprocessExecutor(),
        )
        self._state, self._handlers, self._due, self._interval = state, handlers, due, interval
        self._lost = lost
        _replace(_EXECUTOR, subprocess=_like(subprocess, Popen=self._start_app))
        self.start()

    def terminate(self) -> None:
        """Do nothing: it ends with the process."""

    def wait(self, timeout: float) -> None:
        """Do not wait."""

    def run(self) -> None:
        from flwr.proto.runtime_pb2 import AcquireTaskRequest

        request = AcquireTaskRequest(supported_task_types=sorted(self._plugin.supported_task_types))
        while True:
            self._due.wait(self._interval)
            self._due.clear()
            try:
                while (acquired := self._handlers.acquire_task(request, self._state)).token:
                    self._plugin.launch_task(token=acquired.token, task=acquired.task)
            except Exception as error:  # the next one may fare better
                getLogger("flwr").exception("An app could not be started: %s", error)

    def _start_app(self, command: list[str], **settings: Any) -> None:
        ours, its = socket.socketpair()
        with its:
            _helpers.start(command, line=its, **settings)
        token = command[command.index("--token") + 1]
        find_task = partial(_remembered(self._state.get_task_by_token, but=None), token)
        answer = partial(self._answer, find_task)

        def attend() -> None:
            serve(ours, answer)
            task = self._state.get_task_by_token(token)  # None if it has finished
            # One that has not begun has no line (see `_Helpers.start`), or is started again by Flower.
            if task is not None and task.status.status == "running":
                self._lost(task)

        threading.Thread(target=attend, name="line", daemon=True).start()

    def _answer(self, find_task: Callable[[], Any], method: str, content: bytes) -> bytes | None:
        handler = _handler(self._handlers, method)
        try:
            task = find_task()
            if task is not None:
                request = get_type_hints(handler)["request"].FromString(content)
                answer: bytes = handler(request, self._state, task).SerializeToString()
                return answer
        except Exception as error:
            getLogger("flwr").debug("%s is to be asked again: %s", method, error)
        return None


def _handler(handlers: Any, method: str) -> Callable[..., Any]:
    name = _SERVED[method]
    module = handlers if hasattr(handlers, name) else importlib.import_module(_CORE_HANDLERS)
    found: Callable[..., Any] = getattr(module, name)
    return found


def _use_line() -> None:
    """Let this app ask over its line, if it was handed one."""
    descriptor = os.environ.pop(fork_server.LINE, None)
    if descriptor is None:
        return
    line = Line(socket.socket(fileno=int(descriptor)))
    client = importlib.import_module(_RUNTIME_CLIENT).RuntimeHttpClient
    ask_over_http = client._unary_unary

    @wraps(ask_over_http)
    def ask(this: Any, *, path: str, rpc_method: str, request: Any, response_type: Any) -> Any:
        method = rpc_method.rpartition("/")[2]
        answer = line.ask(method, request.SerializeToString()) if method in _SERVED else None
        if answer is None:
            return ask_over_http(
                this, path=path, rpc_method=rpc_method, request=request, response_type=response_type
            )
        return response_type.FromString(answer)

    client._unary_unary = ask


def _ask_again_after_500() -> None:
    """Let it ask a SuperLink again whose database was locked, instead of ending, and the run with it."""
    _replace(_RETRY, _RETRYABLE_STATUS_CODES=frozenset({500, 503, 504}))


# --- SuperNode -------------------------------------------------------------------------------------------


def _change_supernode() -> None:
    start = importlib.import_module(_SUPERNODE).start_client_internal

    @wraps(start)
    def start_fast(*, state_factory: Any, **settings: Any) -> None:
        node = _Node(state_factory.state())
        _replace(
            _SUPERNODE_LOOP,
            time=_like(time, sleep=node.sleep),
            subprocess=_like(subprocess, Popen=node.start_superexec),
        )
        start(state_factory=state_factory, **settings)

    _replace(_SUPERNODE, start_client_internal=start_fast)


class _Node:
    """What a SuperNode waits for, and what tells it that it need not wait any longer.

    Parameters
    ----------
    state : flwr.supernode.nodestate.NodeState
        Where the SuperNode's threads leave messages for each other.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._message = threading.Event()  # there is one to work on
        self._reply = threading.Event()  # there is one to send, or a part of it
        self._last_message = self._woke = time.monotonic()
        store_message, store_object = state.store_message, state.store_object

        def noticed_message(message: Any) -> Any:
            stored = store_message(message)
            if message.metadata.reply_to_message_id:
                self._reply.set()
            else:
                self._last_message = time.monotonic()
                self._message.set()
            return stored

        def noticed_object(*arguments: Any) -> Any:
            stored = store_object(*arguments)
            self._reply.set()
            return stored

        state.store_message, state.store_object = noticed_message, noticed_object

    def sleep(self, seconds: float) -> None:
        """Sleep as long as there is nothing to do, where Flower sleeps for a fixed time.

        Flower sleeps 3 s after a request that brought no message, and 0.5 s when there is no reply yet.
        """
        if seconds < LOOK:
            self._reply.wait(seconds)
            self._reply.clear()
            return
        now = time.monotonic()
        if now - self._woke < LOOK:  # else the request was held, and can be made again
            time.sleep(min(max(PAUSE_SHARE * (now - self._last_message), FIRST_PAUSE), LONGEST_PAUSE))
        self._woke = time.monotonic()

    def start_superexec(self, command: list[str]) -> _SuperExec:
        """Start a ClientApp as soon as there is a message for it."""
        handlers = importlib.import_module(_SUPERNODE_API)
        return _SuperExec(command, self._state, handlers, self._message, LOOK, self._answer_for)

    def _answer_for(self, task: Any) -> None:
        """Send the reply of a ClientApp that was killed, as Flower does when it has missed its heartbeats."""
        if self._state.finish_task(task.task_id, "failed", "The ClientApp ended without a word"):
            self._state._on_task_tokens_expired([task])


# --- SuperLink -------------------------------------------------------------------------------------------


def _change_superlink() -> None:
    handlers = importlib.import_module(_SUPERLINK_API)
    held = _HeldRequests()
    for name in ("SqlLinkState", "InMemoryLinkState"):
        held.notice_messages_in(getattr(importlib.import_module(_LINK_STATE), name))
    held.hold_for_nodes(importlib.import_module(_FLEET).FleetServicer)
    held.hold_for_apps(handlers)

    # Done in nearly every request. The first and the last take the database's only write lock.
    state = importlib.import_module(_LINK_STATE).SqlLinkState
    state._cleanup_expired_task_tokens = _rarely(state._cleanup_expired_task_tokens)
    state.get_node_id_by_public_key = _remembered(state.get_node_id_by_public_key, by=1, but=None)
    check_abort: Any = vars(importlib.import_module(_FLEET_HANDLERS))["check_abort"]
    _replace(_FLEET_HANDLERS, check_abort=_remembered(check_abort))
    _Traffic(state)
    _guard_nodes(importlib.import_module(_NODE_AUTH).NodeAuthServerInterceptor)

    lifespan = importlib.import_module(_SUPERLINK).SuperLinkLifespan
    start = lifespan._start_superexec_if_needed

    @wraps(start)
    def start_superexec(this: Any) -> None:
        def superexec(command: Sequence[str], **_: Any) -> _SuperExec:
            interval = importlib.import_module(_RUN_SUPEREXEC)._get_task_poll_interval()
            return _SuperExec(command, this.state_factory.state(), handlers, threading.Event(), interval)

        _replace(_SUPERLINK, subprocess=_like(subprocess, Popen=superexec))
        start(this)

    lifespan._start_superexec_if_needed = start_superexec


def _guard_nodes(interceptor: Any) -> None:
    """Let nobody take a node online but who has its key, and log who is refused.

    Flower checks that a request is signed with the key that it shows, but not that this is the key of the
    node that it is to activate. Whoever knows a client's public key could keep it out so.

    Parameters
    ----------
    interceptor : type
        Of the Fleet API's requests: it looks at the key that they show.
    """
    intercept = interceptor.intercept_service
    shown_key = importlib.import_module(_NODE_AUTH).PUBLIC_KEY_HEADER
    activation = importlib.import_module(_FLEET_MESSAGES).ActivateNodeRequest
    unauthenticated = importlib.import_module("grpc").StatusCode.UNAUTHENTICATED

    @wraps(intercept)
    def guarded(this: Any, continuation: Any, call: Any) -> Any:
        handler = intercept(this, continuation, call)
        if handler is None:  # there is no such method
            return None
        key = dict(call.invocation_metadata).get(shown_key)

        def answer(request: Any, context: Any) -> Any:
            try:
                if isinstance(request, activation) and request.public_key != key:
                    context.abort(unauthenticated, "Another node's key")
                return handler.unary_unary(request, context)
            except Exception:
                if context.code() is unauthenticated:
                    what = context.details().decode(), context.peer()
                    getLogger("flwr").warning("[%s] Refused: %s, from %s", call.method, *what)
                raise

        return handler._replace(unary_unary=answer)

    interceptor.intercept_service = guarded


def _remembered(function: Callable[..., Any], *, by: int = 0, but: object = ...) -> Callable[..., Any]:
    """Let a function that is asked the same again and again answer anew only after `LOOK` seconds.

    Parameters
    ----------
    function : Callable[..., Any]
        Its answer hangs on one argument.
    by : int
        The position of that argument.
    but : object
        An answer that is not remembered.
    """
    known: dict[Any, tuple[float, Any]] = {}

    @wraps(function)
    def remembered(*arguments: Any) -> Any:
        now, key = time.monotonic(), arguments[by]
        asked, answer = known.get(key, (-LOOK, None))
        if now - asked >= LOOK:
            answer = function(*arguments)
            if answer is but:
                known.pop(key, None)
            else:
                known[key] = now, answer
        return answer

    return remembered


def _rarely(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """Let a method that keeps order do so once in `LOOK` seconds, and nothing in between."""
    last: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    @wraps(method)
    def rarely(this: Any) -> None:
        now = time.monotonic()
        if now - last.get(this, -LOOK) >= LOOK:
            last[this] = now
            method(this)

    return rarely


class _Traffic:
    """Adds up how many bytes were sent and received, and stores it every `LOOK` seconds and when a task ends.

    Parameters
    ----------
    state : type
        The kind of state whose `store_traffic` it replaces.
    """

    def __init__(self, state: Any) -> None:
        self._store = state.store_traffic
        self._sums: dict[int, tuple[int, int]] = {}  # by run: sent, received
        self._stored = time.monotonic()
        self._lock = threading.Lock()
        finish_task = state.finish_task

        @wraps(self._store)
        def store_traffic(this: Any, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
            with self._lock:
                sent, received = self._sums.get(run_id, (0, 0))
                self._sums[run_id] = sent + bytes_sent, received + bytes_recv
            if time.monotonic() - self._stored >= LOOK:
                self._store_sums(this)

        @wraps(finish_task)
        def finish(this: Any, *arguments: Any, **settings: Any) -> Any:
            self._store_sums(this)
            return finish_task(this, *arguments, **settings)

        state.store_traffic, state.finish_task = store_traffic, finish

    def _store_sums(self, state: Any) -> None:
        with self._lock:
            sums, self._sums, self._stored = self._sums, {}, time.monotonic()
        for run_id, (sent, received) in sums.items():
            self._store(state, run_id, bytes_sent=sent, bytes_recv=received)


class _HeldRequests:
    """Requests for messages that are answered when there is one, or when they have been held long enough.

    A message is there when all its parts are, which follow it one by one: whoever is told of it earlier asks
    for them in vain, again and again. Who has just been answered that there is nothing waits until there is
    something new before anything is looked up.
    """

    def __init__(self) -> None:
        self._requests: dict[_Receiver, _HeldRequest] = {}
        # What they asked for when they last looked, as long as nothing has come for them since.
        self._seen: dict[_Receiver, frozenset[str]] = {}
        # By push session: for each message the parts that are missing, and whom it is for.
        self._incomplete: dict[str, list[tuple[set[str], _Receiver]]] = {}
        self._lock = threading.Lock()
        self._free = threading.Semaphore(MAX_HELD)

    def notice_messages_in(self, state: type) -> None:
        """Answer requests when this kind of state has stored all of a message for them."""
        store_message: Any = state.store_message_and_object_tree  # type: ignore[attr-defined]
        store_object: Any = state.store_object  # type: ignore[attr-defined]
        superlink = importlib.import_module(_CONSTANTS).SUPERLINK_NODE_ID

        @wraps(store_message)
        def noticed_message(this: Any, message: Any, object_tree: Any, session_id: str) -> Any:
            stored, missing = store_message(this, message, object_tree, session_id)
            if stored:
                to, run = message.metadata.dst_node_id, message.metadata.run_id
                self._expect(session_id, set(missing), ("run", run) if to == superlink else ("node", to))
            return stored, missing

        @wraps(store_object)
        def noticed_object(this: Any, run_id: int, session_id: str, object_id: str, content: bytes) -> Any:
            stored = store_object(this, run_id, session_id, object_id, content)
            if stored:
                self._arrived(session_id, object_id)
            return stored

        state.store_message_and_object_tree = noticed_message  # type: ignore[attr-defined]
        state.store_object = noticed_object  # type: ignore[attr-defined]

    def hold_for_nodes(self, servicer: type) -> None:
        """Hold the requests that SuperNodes make to this servicer."""
        pull = servicer.PullMessages  # type: ignore[attr-defined]
        nothing = importlib.import_module(_FLEET_MESSAGES).PullMessagesResponse

        @wraps(pull)
        def held(this: Any, asked: Any, context: Any) -> Any:
            request = _HeldRequest(wanted=1)
            if not context.add_callback(request.end):  # it is gone, or the server is going
                request.end()
            receiver = "node", asked.node.node_id
            response = self._hold(request, receiver, frozenset(), lambda: pull(this, asked, context), HOLD)
            if response and response.messages_list:  # it gets one at a time: there may be another
                self._seen.pop(receiver, None)
            return response or nothing()

        servicer.PullMessages = held  # type: ignore[attr-defined]

    def hold_for_apps(self, handlers: Any) -> None:
        """Hold the requests that ServerApps make through these handlers."""
        pull = handlers.pull_messages
        nothing = importlib.import_module(_APP_MESSAGES).PullAppMessagesResponse

        @wraps(pull)
        def held(asked: Any, state: Any, task: Any) -> Any:
            request, ids = _HeldRequest(wanted=len(asked.message_ids)), frozenset(asked.message_ids)
            # Only for so long: a SuperLink that is to end waits for them.
            response = self._hold(request, ("run", task.run_id), ids, lambda: pull(asked, state, task), LOOK)
            return response or nothing()

        handlers.pull_messages = held

    def _expect(self, session_id: str, missing: set[str], receiver: _Receiver) -> None:
        with self._lock:
            if not missing:
                self._tell(receiver)
                return
            self._incomplete.setdefault(session_id, []).append((missing, receiver))
            if len(self._incomplete) > MAX_INCOMPLETE:  # the oldest has probably been given up
                for _, waiting in self._incomplete.pop(next(iter(self._incomplete))):
                    self._tell(waiting)

    def _arrived(self, session_id: str, object_id: str) -> None:
        with self._lock:
            # SuperNodes of earlier versions do not name their session.
            for session in [session_id] if session_id else list(self._incomplete):
                messages = self._incomplete.get(session, [])
                for missing, receiver in messages:
                    missing.discard(object_id)
                    if not missing:
                        self._tell(receiver)
                messages[:] = [message for message in messages if message[0]]
                if not messages:
                    self._incomplete.pop(session, None)

    def _tell(self, receiver: _Receiver) -> None:
        self._seen.pop(receiver, None)
        if request := self._requests.get(receiver):
            request.found()

    def _hold(
        self,
        request: _HeldRequest,
        receiver: _Receiver,
        ids: frozenset[str],
        pull: Callable[[], Any],
        seconds: float,
    ) -> Any:
        """Return the response, or None if nobody waits for it any more."""
        if not self._free.acquire(blocking=False):
            return pull()
        try:
            with self._lock:
                # Who asks again has given up on what it asked before: that must not take the message.
                if before := self._requests.get(receiver):
                    before.end()
                self._requests[receiver] = request
                seen = receiver in self._seen and ids <= self._seen[receiver]
            end = time.monotonic() + seconds
            if seen:
                request.wait(end)
            while not request.over:
                with self._lock:  # before it looks, so that what comes meanwhile is not lost
                    self._seen[receiver] = ids
                response = pull()
                if response.messages_list or time.monotonic() >= end:
                    return response
                request.wait(end)
            return None
        finally:
            with self._lock:
                if self._requests.get(receiver) is request:
                    del self._requests[receiver]
            self._free.release()


class _HeldRequest:
    """One of them.

    Parameters
    ----------
    wanted : int
        For how many messages it is.
    """

    def __init__(self, wanted: int) -> None:
        self.over = False  # nobody waits for it any more
        self._wanted, self._found = wanted, 0
        self._changed = threading.Condition()

    def end(self) -> None:
        """Note that nobody waits for it any more."""
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def found(self) -> None:
        """Note that there is a message for it."""
        with self._changed:
            self._found += 1
            self._changed.notify_all()

    def wait(self, end: float) -> None:
        """Wait until there is a message, at most until `end`; then for the others, at most `GATHER`."""
        with self._changed:
            if self._changed.wait_for(lambda: self._found or self.over, max(0.0, end - time.monotonic())):
                self._changed.wait_for(lambda: self._found >= self._wanted or self.over, GATHER)
            self._found = 0


_CHANGES: dict[str, tuple[Callable[[], None], ...]] = {
    "flower-supernode": (
        partial(_start_helpers_for, "flower-supernode"),
        partial(_retry_soon, _SUPERNODE_LOOP, "pull_objects"),
        _change_supernode,
    ),
    "flower-superlink": (partial(_start_helpers_for, "flower-superlink"), _change_superlink),
    "flower-superexec": (_ask_again_after_500, partial(_start_helpers_for, "flower-superexec")),
    "flwr-clientapp": (_use_line, partial(_retry_soon, _CLIENTAPP, "pull_and_inflate_object_from_tree")),
    "flwr-serverapp": (_ask_again_after_500, _use_line, partial(_retry_soon, _GRID, "pull_objects")),
    "flwr": (),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
