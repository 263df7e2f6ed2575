"""The patch of `flower-superlink`: the SuperLink holds requests, and accesses its database less often."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import threading
import time
from functools import partial, wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from deploy.fleet import deliveries, held_requests, joined_objects, presence, server
from deploy.fleet.held_requests import HeldRequests
from deploy.fleet.storage import (
    clock_jumps,
    messages,
    nodes,
    objects,
    past_rounds,
    pushes,
    sqlite_settings,
    transactions,
)
from deploy.flower.corrupt_database import end_if_corrupt
from deploy.flower.patches.app_starts import fork_apps
from deploy.flower.patches.shared import LOOK, like, remembered, replace, skip_unseen_lines
from deploy.flower.patches.superexec import USED_BY_THREAD, SuperExecThread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Python's switch interval, s: a thread that waits for the interpreter wakes up this often. With Python's
# 0.005 s, 300 requests that arrived at once switched threads 57,000 times a second.
SWITCH = 0.05
# The thresholds of Python's garbage collector (`gc.set_threshold`). Python's defaults suit small programs;
# the held requests of 1,000 nodes have some 10^6 objects.
GARBAGE = (10_000, 50, 50)
LONGEST_SHUTDOWN = 3  # s in which requests under way may finish after the SuperLink is asked to end
MISSED_HEARTBEATS = 4
"""A ServerApp counts as dead after this many times 30 s without a heartbeat. Stock Flower has 2 times 30 s.

A ServerApp sends a heartbeat every 17 to 23 s. While the database is locked, it repeats the heartbeat for up
to `shared.FAILING` s."""

LONGEST_PART = 600
"""A reply is given up if no further part has arrived completely for this many seconds.

Stock Flower has 180 s. A part has up to 5 MB, and a SuperNode sends four parts at a time."""

_SUPERLINK = "flwr.superlink.cli.flower_superlink"
_SUPERLINK_APP = "flwr.superlink.main"  # imported by Flower inside a function, after the program's start
_SUPERLINK_API = "flwr.superlink.servicer.runtime.runtime_handlers"
_FLEET = "deploy.fleet.servicer"
_FLEET_HANDLERS = "flwr.superlink.servicer.fleet.fleet_handlers"
_LINK_STATE = "flwr.server.superlink.linkstate"
_CORE_STATE = "flwr.supercore.corestate.sql_corestate"
_RUN_SUPEREXEC = "flwr.supercore.superexec.run_superexec"
USED = (
    f"{_SUPERLINK}:subprocess.Popen",
    f"{_SUPERLINK}:uvicorn.run",
    f"{_SUPERLINK_APP}:create_app",
    f"{_SUPERLINK}:SuperLinkLifespan._start_superexec_if_needed",
    f"{_RUN_SUPEREXEC}:_get_task_poll_interval",
    f"{_FLEET}:FleetServicer.PullMessages",
    f"{_FLEET_HANDLERS}:MessageToDict",
    f"{_LINK_STATE}:SqlLinkState.store_message_and_object_tree",
    f"{_LINK_STATE}:InMemoryLinkState.store_message_and_object_tree",
    f"{_LINK_STATE}:SqlLinkState.store_object",
    f"{_LINK_STATE}:InMemoryLinkState.store_object",
    f"{_LINK_STATE}:SqlLinkState.get_task_by_token",
    f"{_CORE_STATE}:HEARTBEAT_PATIENCE",
    f"{_CORE_STATE}:OBJECT_PUSH_SESSION_TTL_SECONDS",
    f"{_SUPERLINK_API}:acquire_task",
    f"{_SUPERLINK_API}:pull_messages",
    f"{_LINK_STATE}:SqlLinkState._cleanup_expired_task_tokens",
    f"{_LINK_STATE}:SqlLinkState.get_node_id_by_public_key",
    f"{_LINK_STATE}:SqlLinkState.store_traffic",
    f"{_LINK_STATE}:SqlLinkState.add_clientapp_runtime",
    f"{_LINK_STATE}:SqlLinkState.finish_task",
    f"{_LINK_STATE}:SqlLinkState._on_task_tokens_expired",
    f"{_LINK_STATE}:InMemoryLinkState.finish_task",
    f"{_LINK_STATE}:InMemoryLinkState._on_task_tokens_expired",
    f"{_FLEET_HANDLERS}:check_abort",
    *clock_jumps.USED,
    *deliveries.USED,
    *sqlite_settings.USED,
    *held_requests.USED,
    *joined_objects.USED,
    *messages.USED,
    *nodes.USED,
    *objects.USED,
    *past_rounds.USED,
    *presence.USED,
    *pushes.USED,
    *transactions.USED,
    *USED_BY_THREAD,
)


def patch() -> None:
    """Apply all patches of the SuperLink except its guards."""
    fork_apps()
    skip_unseen_lines()
    sys.setswitchinterval(SWITCH)
    gc.set_threshold(*GARBAGE)
    end_if_corrupt()
    sqlite_settings.patch()
    transactions.patch()
    replace(_CORE_STATE, OBJECT_PUSH_SESSION_TTL_SECONDS=LONGEST_PART)
    objects.patch()
    messages.patch()
    nodes.patch()
    pushes.patch()
    replace(_CORE_STATE, HEARTBEAT_PATIENCE=MISSED_HEARTBEATS)
    handlers = importlib.import_module(_SUPERLINK_API)
    held = HeldRequests()
    for name in ("SqlLinkState", "InMemoryLinkState"):
        held.notice_messages_in(getattr(importlib.import_module(_LINK_STATE), name))
    held.hold_for_nodes(importlib.import_module(_FLEET).FleetServicer)
    held.hold_for_apps(handlers)
    past = past_rounds.PastRounds()
    past.delete_in(importlib.import_module(_LINK_STATE).SqlLinkState)
    deliveries.patch(past)
    nodes_present = presence.patch(held.look_again)
    server.starting.append(nodes_present.begin)
    server.stopping.append(nodes_present.end)
    joined_objects.answer_nodes(importlib.import_module(_FLEET).FleetServicer)
    joined_objects.answer_apps(handlers)

    # Flower converts every request to a dict for a line of the log that is not written (level DEBUG).
    replace(_FLEET_HANDLERS, MessageToDict=lambda request: request)

    # In nearly every request, Flower deletes expired tokens, looks up the node, checks the run and stores the
    # traffic. Deleting and storing take the database's only write lock. Here these accesses happen at most
    # once in `LOOK` seconds, so a revoked key stays valid for up to `LOOK` seconds.
    state = importlib.import_module(_LINK_STATE).SqlLinkState
    clock_jumps.ClockJumps(state)
    state._cleanup_expired_task_tokens = _rarely(state._cleanup_expired_task_tokens)
    state.get_node_id_by_public_key = remembered(state.get_node_id_by_public_key, by=1, but=None)
    check_abort: Any = vars(importlib.import_module(_FLEET_HANDLERS))["check_abort"]
    replace(_FLEET_HANDLERS, check_abort=remembered(check_abort))
    _Traffic(state)

    # When the SuperLink ends, Flower waits for all requests. A program that follows a run's log has a request
    # under way until the run ends.
    uvicorn = importlib.import_module(_SUPERLINK).uvicorn
    run = partial(uvicorn.run, timeout_graceful_shutdown=LONGEST_SHUTDOWN)
    replace(_SUPERLINK, uvicorn=like(uvicorn, run=run))

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


def _rarely(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a method that calls the original at most once in `LOOK` s for each instance of its class."""
    last: WeakKeyDictionary[Any, float] = WeakKeyDictionary()

    @wraps(method)
    def rarely(this: Any) -> None:
        now = time.monotonic()
        if now - last.get(this, -LOOK) >= LOOK:
            last[this] = now
            method(this)

    return rarely


class _Traffic:
    """Adds up what each run has sent, received and computed, and stores the sums less often than Flower.

    The sums are stored in the first request after `LOOK` seconds, and when a task ends.

    Parameters
    ----------
    state : type
        SqlLinkState. Its methods `store_traffic`, `add_clientapp_runtime` and `finish_task` are replaced.
    """

    def __init__(self, state: Any) -> None:
        self._store, self._add_runtime = state.store_traffic, state.add_clientapp_runtime
        # By run: the bytes sent and received, and the seconds for which its ClientApps have run.
        self._sums: dict[int, tuple[int, int, float]] = {}
        self._stored = time.monotonic()
        self._lock = threading.Lock()
        finish_task = state.finish_task

        @wraps(self._store)
        def store_traffic(this: Any, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
            self._add(this, run_id, bytes_sent, bytes_recv, 0.0)

        @wraps(self._add_runtime)
        def add_clientapp_runtime(this: Any, run_id: int, runtime: float) -> None:
            self._add(this, run_id, 0, 0, runtime)

        @wraps(finish_task)
        def finish(this: Any, *arguments: Any, **settings: Any) -> Any:
            self._store_sums(this)
            return finish_task(this, *arguments, **settings)

        state.store_traffic, state.add_clientapp_runtime = store_traffic, add_clientapp_runtime
        state.finish_task = finish

    def _add(self, state: Any, run_id: int, sent: int, received: int, seconds: float) -> None:
        with self._lock:
            before = self._sums.get(run_id, (0, 0, 0.0))
            self._sums[run_id] = before[0] + sent, before[1] + received, before[2] + seconds
        if time.monotonic() - self._stored >= LOOK:
            self._store_sums(state)

    def _store_sums(self, state: Any) -> None:
        with self._lock:
            sums, self._sums, self._stored = self._sums, {}, time.monotonic()
        for run_id, (sent, received, seconds) in sums.items():
            if sent or received:
                self._store(state, run_id, bytes_sent=sent, bytes_recv=received)
            if seconds:
                self._add_runtime(state, run_id, seconds)
