"""The patch of `flower-supernode`: events replace timers, and a killed ClientApp is noticed at once."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import threading
import time
import traceback
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from deploy.fleet import joined_objects
from deploy.flower.patches import connection
from deploy.flower.patches.shared import (
    LOOK,
    USED_TO_GIVE_UP,
    fork_apps,
    give_up_without_parts,
    like,
    replace,
    retry_soon,
    skip_unseen_lines,
)
from deploy.flower.patches.superexec import USED_BY_THREAD, SuperExecThread
from deploy.flower.versions import refusal
from deploy.processes.groups import LOST

if TYPE_CHECKING:
    from collections.abc import Callable

# If the SuperLink does not hold requests for messages (held_requests.HOLD), the SuperNode pauses between two
# requests. The pause is PAUSE_SHARE of the time since the last message, but at least SHORTEST_IDLE and at
# most LONGEST_IDLE seconds.
SHORTEST_IDLE, LONGEST_IDLE = 0.1, 0.5
PAUSE_SHARE = 0.05
LONGEST_SILENCE = 120
"""The longest time in seconds until a ClientApp's process begins its task, and between two of its heartbeats.

In stock Flower these are 30 and 60 s. While a fork server imports torch, it forks no process. On a slow
device the import takes longer than 30 s, so the task would expire before its process is forked."""

_SUPERNODE = "flwr.supernode.cli.flower_supernode"
_LOOP = "flwr.supernode.start_client_internal"
_CONSTANTS = "flwr.common.constant"
_HANDLERS = "flwr.supernode.servicer.runtime.runtime_handlers"
_APP = "flwr.supernode.main"  # imported by Flower inside a function, after the program's start
_CORE_STATE = "flwr.supercore.corestate.in_memory_corestate"
_STATE = "flwr.supernode.nodestate.in_memory_nodestate"
_DATABASE = "flwr.supercore.object_store.sql_object_store"
USED = (
    f"{_SUPERNODE}:start_client_internal",
    f"{_APP}:create_app",
    f"{_LOOP}:time.sleep",
    f"{_LOOP}:subprocess.Popen",
    f"{_LOOP}:pull_objects",
    f"{_LOOP}:_pull_and_store_message",
    f"{_LOOP}:_insert_message",
    f"{_LOOP}:_push_messages",
    f"{_LOOP}:RunNotRunningException",
    f"{_CONSTANTS}:ErrorCode.MESSAGE_UNAVAILABLE",
    *USED_TO_GIVE_UP,
    f"{_HANDLERS}:acquire_task",
    f"{_HANDLERS}:push_object",
    f"{_HANDLERS}:pull_object",
    f"{_CORE_STATE}:HEARTBEAT_DEFAULT_INTERVAL",
    f"{_CORE_STATE}:HEARTBEAT_PATIENCE",
    f"{_STATE}:InMemoryNodeState.store_message",
    f"{_STATE}:InMemoryNodeState.store_object",
    f"{_STATE}:InMemoryNodeState.get_task_by_token",
    f"{_STATE}:InMemoryNodeState.finish_task",
    f"{_STATE}:InMemoryNodeState._on_task_tokens_expired",
    *connection.USED,
    *joined_objects.USED,
    f"{_LOOP}:push_object_contents_from_iterable",
    *USED_BY_THREAD,
)


def patch() -> None:
    """Apply all patches of the SuperNode except its guards."""
    fork_apps()
    skip_unseen_lines()
    wait_for_slow_apps()
    connection.patch()
    give_up_without_parts(_LOOP)
    retry_soon(_LOOP, "pull_objects")
    joined_objects.join_requests(importlib.import_module(_LOOP), importlib.import_module(_LOOP))
    joined_objects.answer_apps(importlib.import_module(_HANDLERS))
    reply_to_unreceived_messages(importlib.import_module(_LOOP))
    await_replies(importlib.import_module(_LOOP))
    start = importlib.import_module(_SUPERNODE).start_client_internal

    @wraps(start)
    def start_patched(*, state_factory: Any, **settings: Any) -> None:
        node = Node(state_factory.state())
        replace(
            _LOOP,
            time=like(time, sleep=node.sleep),
            subprocess=like(subprocess, Popen=node.start_superexec),
        )
        end_with(lambda: start(state_factory=state_factory, **settings))

    replace(_SUPERNODE, start_client_internal=start_patched)


def wait_for_slow_apps() -> None:
    """Let a ClientApp's task expire after `LONGEST_SILENCE` seconds without a sign of life."""
    replace(_CORE_STATE, HEARTBEAT_DEFAULT_INTERVAL=LONGEST_SILENCE, HEARTBEAT_PATIENCE=1)


def end_with(loop: Callable[[], None]) -> NoReturn:
    """Run Flower's loop, and end the process when the loop has ended.

    The loop returns or raises only after an error. Without this function, the HTTP server would keep the
    useless process alive.
    """
    try:
        loop()
    except (SystemExit, KeyboardInterrupt):  # Flower has ended its server
        raise
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(LOST)


def reply_to_unreceived_messages(loop: Any) -> None:
    """Let the loop reply with an error if the parts of a message do not arrive.

    Stock Flower drops the message without a reply, and the ServerApp waits for the reply in vain.

    Parameters
    ----------
    loop : module
        The module of the SuperNode's loop.
    """
    pull_objects, pull_message = loop.pull_objects, loop._pull_and_store_message
    app = importlib.import_module("flwr.app")
    unavailable = importlib.import_module(_CONSTANTS).ErrorCode.MESSAGE_UNAVAILABLE
    stopped = loop.RunNotRunningException
    failures: list[str] = []

    @wraps(pull_objects)
    def noted(*arguments: Any, **settings: Any) -> Any:
        try:
            return pull_objects(*arguments, **settings)
        except Exception as error:
            failures.append(str(error))
            raise

    @wraps(pull_message)
    def pull(*, receive: Callable[[], Any], **settings: Any) -> Any:
        messages: list[Any] = []

        def received() -> Any:
            answer = receive()
            messages.extend(answer[:1] if answer else ())
            return answer

        failures.clear()
        run_id = pull_message(receive=received, **settings)
        if run_id is not None or not (failures and messages):
            return run_id
        error = app.Error(unavailable, f"The message was not received: {failures[0]}")
        reply = app.Message(error, reply_to=messages[0])
        loop._insert_message(reply, settings["state"], settings["object_store"])
        run, message = messages[0].metadata.run_id, messages[0].metadata.message_id
        # If this fails, the SuperLink delivers the message again. (`stopped` is no subclass of Exception.)
        with contextlib.suppress(Exception, stopped):
            settings["confirm_message_received"](run, message)
        return run

    loop.pull_objects, loop._pull_and_store_message = noted, pull


def await_replies(loop: Any) -> None:
    """Let the loop wait for the reply to the message that it has received last.

    Stock Flower's loop receives a message, waits for any reply, and sends this reply. If a run ends while the
    loop is receiving a message of the run, the loop drops the message, but the ClientApp still replies to it.
    From then on, the loop finds an old reply after each message, and sends every reply a round late.

    Parameters
    ----------
    loop : module
        The module of the SuperNode's loop.
    """
    pull_message, push_messages = loop._pull_and_store_message, loop._push_messages
    awaited = ""

    @wraps(pull_message)
    def pull(*, receive: Callable[[], Any], **settings: Any) -> Any:
        def received() -> Any:
            nonlocal awaited
            answer = receive()
            awaited = answer[0].metadata.message_id if answer else ""
            return answer

        return pull_message(receive=received, **settings)

    @wraps(push_messages)
    def push(*, send: Callable[..., Any], **settings: Any) -> None:
        sent = set()

        def noted(message: Any, *arguments: Any) -> Any:
            sent.add(message.metadata.reply_to_message_id)
            return send(message, *arguments)

        while awaited not in sent:
            push_messages(send=noted, **settings)

    loop._pull_and_store_message, loop._push_messages = pull, push


def leave_out_the_database() -> None:
    """Replace Flower's module for databases by a stub, which saves 30 MB of memory.

    Only a SuperLink with --database needs the module. Call this before Flower is imported. With a version of
    Flower that was not tried, this function does nothing.
    """
    if refusal():
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
        The SuperNode's state, in which its threads leave messages and replies for each other.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._message = threading.Event()  # set when a message for a ClientApp has arrived
        self._reply = threading.Event()  # set when a reply, or a part of a reply, is ready to be sent
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
        """Replace `time.sleep` in the SuperNode's loop.

        If there is no reply yet, Flower's loop sleeps 0.5 s. This function returns earlier if a reply becomes
        ready.

        After a request that brought no message, Flower's loop sleeps 3 s. This function returns at once if
        the SuperLink held the request, and otherwise after a pause of `SHORTEST_IDLE` to `LONGEST_IDLE`
        seconds.

        Parameters
        ----------
        seconds : float
            The seconds that Flower would sleep.
        """
        if seconds < LOOK:
            self._reply.wait(seconds)
            self._reply.clear()
            return
        now = time.monotonic()
        if now - self._woke < LOOK:  # the SuperLink did not hold the request
            time.sleep(min(max(PAUSE_SHARE * (now - self._last_message), SHORTEST_IDLE), LONGEST_IDLE))
        self._woke = time.monotonic()

    def start_superexec(self, command: list[str]) -> SuperExecThread:
        """Start the thread that starts a ClientApp for each message as soon as the message arrives."""
        handlers = importlib.import_module(_HANDLERS)
        return SuperExecThread(command, self._state, handlers, self._message, LOOK)
