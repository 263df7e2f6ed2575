"""`flower-superlink`: held requests, fewer database accesses, and a check of node keys."""

from __future__ import annotations

import importlib
import subprocess
import threading
import time
from functools import wraps
from logging import getLogger
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from deploy.flower.patches import held_requests
from deploy.flower.patches.held_requests import HeldRequests
from deploy.flower.patches.shared import LOOK, fork_apps, like, remembered, replace
from deploy.flower.patches.superexec import USED_BY_THREAD, SuperExecThread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SUPERLINK = "flwr.superlink.cli.flower_superlink"
_SUPERLINK_APP = "flwr.superlink.main"  # Flower imports it late
_SUPERLINK_API = "flwr.superlink.servicer.runtime.runtime_handlers"
_FLEET = "flwr.server.superlink.fleet.grpc_rere.fleet_servicer"
_FLEET_HANDLERS = "flwr.server.superlink.fleet.message_handler.message_handler"
_FLEET_MESSAGES = "flwr.proto.fleet_pb2"
_NODE_AUTH = "flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor"
_LINK_STATE = "flwr.server.superlink.linkstate"
_RUN_SUPEREXEC = "flwr.supercore.superexec.run_superexec"
USED = (
    f"{_SUPERLINK}:subprocess.Popen",
    f"{_SUPERLINK_APP}:create_app",
    f"{_SUPERLINK}:SuperLinkLifespan._start_superexec_if_needed",
    f"{_RUN_SUPEREXEC}:_get_task_poll_interval",
    f"{_FLEET}:FleetServicer.PullMessages",
    f"{_LINK_STATE}:SqlLinkState.store_message_and_object_tree",
    f"{_LINK_STATE}:InMemoryLinkState.store_message_and_object_tree",
    f"{_LINK_STATE}:SqlLinkState.store_object",
    f"{_LINK_STATE}:InMemoryLinkState.store_object",
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
    *held_requests.USED,
    *USED_BY_THREAD,
)


def patch() -> None:
    """Hold requests, save database accesses, check node keys, and replace the SuperExec by a thread."""
    fork_apps()
    handlers = importlib.import_module(_SUPERLINK_API)
    held = HeldRequests()
    for name in ("SqlLinkState", "InMemoryLinkState"):
        held.notice_messages_in(getattr(importlib.import_module(_LINK_STATE), name))
    held.hold_for_nodes(importlib.import_module(_FLEET).FleetServicer)
    held.hold_for_apps(handlers)

    # Flower does these in nearly every request. The first and the last take the database's only write lock.
    state = importlib.import_module(_LINK_STATE).SqlLinkState
    state._cleanup_expired_task_tokens = _rarely(state._cleanup_expired_task_tokens)
    state.get_node_id_by_public_key = remembered(state.get_node_id_by_public_key, by=1, but=None)
    check_abort: Any = vars(importlib.import_module(_FLEET_HANDLERS))["check_abort"]
    replace(_FLEET_HANDLERS, check_abort=remembered(check_abort))
    _Traffic(state)
    _guard_nodes(importlib.import_module(_NODE_AUTH).NodeAuthServerInterceptor)

    lifespan = importlib.import_module(_SUPERLINK).SuperLinkLifespan
    start = lifespan._start_superexec_if_needed

    @wraps(start)
    def start_superexec(this: Any) -> None:
        def superexec(command: Sequence[str], **_: Any) -> SuperExecThread:
            interval = importlib.import_module(_RUN_SUPEREXEC)._get_task_poll_interval()
            return SuperExecThread(command, this.state_factory.state(), handlers, threading.Event(), interval)

        replace(_SUPERLINK, subprocess=like(subprocess, Popen=superexec))
        start(this)

    lifespan._start_superexec_if_needed = start_superexec


def _guard_nodes(interceptor: Any) -> None:
    """Refuse to activate a node for a request with another node's key, and log all refusals.

    Flower checks that a request is signed with its own key, but not that this is the key of the node to be
    activated. So whoever knows a client's public key could take its node online and keep the client out.

    Parameters
    ----------
    interceptor : type
        The interceptor that authenticates the requests to the Fleet API.
    """
    intercept = interceptor.intercept_service
    key_header = importlib.import_module(_NODE_AUTH).PUBLIC_KEY_HEADER
    activation = importlib.import_module(_FLEET_MESSAGES).ActivateNodeRequest
    unauthenticated = importlib.import_module("grpc").StatusCode.UNAUTHENTICATED

    @wraps(intercept)
    def guarded(this: Any, continuation: Any, call: Any) -> Any:
        handler = intercept(this, continuation, call)
        if handler is None:  # no such method
            return None
        key = dict(call.invocation_metadata).get(key_header)

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


def _rarely(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """Skip calls of a method within `LOOK` seconds after a call for the same object."""
    last: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    @wraps(method)
    def rarely(this: Any) -> None:
        now = time.monotonic()
        if now - last.get(this, -LOOK) >= LOOK:
            last[this] = now
            method(this)

    return rarely


class _Traffic:
    """Sums the bytes sent and received, and stores the sums every `LOOK` seconds and when a task ends.

    Parameters
    ----------
    state : type
        The class whose `store_traffic` it replaces.
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
