"""`flower-supernode`: nothing waits for a timer, and a killed ClientApp is noticed at once."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
import time
from functools import wraps
from importlib.metadata import version
from types import ModuleType
from typing import Any

from deploy.flower.patches.shared import LOOK, WRITTEN_FOR, fork_apps, like, replace, retry_soon
from deploy.flower.patches.superexec import USED_BY_THREAD, SuperExecThread

FIRST_PAUSE, LONGEST_PAUSE = (
    0.1,
    0.5,
)  # s between two requests for messages, if the SuperLink does not hold them (held_requests.HOLD) ...
PAUSE_SHARE = 0.05  # ... as a share of the time since the last message

_SUPERNODE = "flwr.supernode.cli.flower_supernode"
_LOOP = "flwr.supernode.start_client_internal"
_HANDLERS = "flwr.supernode.servicer.runtime.runtime_handlers"
_APP = "flwr.supernode.main"  # Flower imports it late
_STATE = "flwr.supernode.nodestate.in_memory_nodestate"
_DATABASE = "flwr.supercore.object_store.sql_object_store"
USED = (
    f"{_SUPERNODE}:start_client_internal",
    f"{_APP}:create_app",
    f"{_LOOP}:time.sleep",
    f"{_LOOP}:subprocess.Popen",
    f"{_LOOP}:pull_objects",
    f"{_HANDLERS}:acquire_task",
    f"{_STATE}:InMemoryNodeState.store_message",
    f"{_STATE}:InMemoryNodeState.store_object",
    f"{_STATE}:InMemoryNodeState.get_task_by_token",
    f"{_STATE}:InMemoryNodeState.finish_task",
    f"{_STATE}:InMemoryNodeState._on_task_tokens_expired",
    *USED_BY_THREAD,
)


def patch() -> None:
    """Replace the timers of the SuperNode's loop by notifications, and its SuperExec by a thread."""
    fork_apps()
    retry_soon(_LOOP, "pull_objects")
    start = importlib.import_module(_SUPERNODE).start_client_internal

    @wraps(start)
    def start_patched(*, state_factory: Any, **settings: Any) -> None:
        node = Node(state_factory.state())
        replace(
            _LOOP,
            time=like(time, sleep=node.sleep),
            subprocess=like(subprocess, Popen=node.start_superexec),
        )
        start(state_factory=state_factory, **settings)

    replace(_SUPERNODE, start_client_internal=start_patched)


def leave_out_the_database() -> None:
    """Skip the import of the database layer, which only a SuperLink with --database uses: saves 30 MB."""
    if version("flwr") != WRITTEN_FOR:
        return

    class SqlObjectStore:
        def __init__(self, *_: object) -> None:
            raise RuntimeError("this program keeps its state in memory")

    module = ModuleType(_DATABASE)
    module.SqlObjectStore = SqlObjectStore  # type: ignore[attr-defined]
    sys.modules[_DATABASE] = module


class Node:
    """Wakes the SuperNode's loop when there is something to do.

    Parameters
    ----------
    state : flwr.supernode.nodestate.NodeState
        Where the SuperNode's threads leave messages for each other.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._message = threading.Event()  # a message to work on has arrived
        self._reply = threading.Event()  # a reply to send, or a part of one, is there
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
        """Sleep until there is something to do, where Flower sleeps for a fixed time.

        Flower sleeps 3 s after a request that brought no message, and 0.5 s when there is no reply yet.
        """
        if seconds < LOOK:
            self._reply.wait(seconds)
            self._reply.clear()
            return
        now = time.monotonic()
        if now - self._woke < LOOK:  # else the SuperLink held the request: the next one can follow at once
            time.sleep(min(max(PAUSE_SHARE * (now - self._last_message), FIRST_PAUSE), LONGEST_PAUSE))
        self._woke = time.monotonic()

    def start_superexec(self, command: list[str]) -> SuperExecThread:
        """Start the thread that starts a ClientApp as soon as there is a message for it."""
        handlers = importlib.import_module(_HANDLERS)
        return SuperExecThread(command, self._state, handlers, self._message, LOOK, self._report_lost)

    def _report_lost(self, task: Any) -> None:
        """Send the error reply for a killed ClientApp, as Flower does once its heartbeats are missing."""
        if self._state.finish_task(task.task_id, "failed", "The ClientApp process ended unexpectedly"):
            self._state._on_task_tokens_expired([task])
