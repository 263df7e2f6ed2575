"""Keeps a SuperNode connected: heartbeats that the SuperLink holds, keepalive pings, short retry pauses."""

from __future__ import annotations

import importlib
import threading
import time
from functools import wraps
from logging import getLogger
from typing import TYPE_CHECKING, Any

from deploy.flower.commands import WRONG_CLOCK
from deploy.flower.patches.presence import HELD, HOLD, PATIENT, PING, with_options
from deploy.flower.patches.shared import FAILING, LOOK, like, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LONGEST_RECONNECT = 2  # s, the longest pause between two attempts to reach the SuperLink
OPTIONS = {
    **PATIENT,
    "grpc.keepalive_time_ms": int(PING * 1000),
    "grpc.initial_reconnect_backoff_ms": 500,
    "grpc.max_reconnect_backoff_ms": LONGEST_RECONNECT * 1000,  # gRPC's default is 2 min
    "grpc.min_reconnect_backoff_ms": 8000,  # gRPC uses this also as the time that an attempt may take
}
# Texts in the details of temporary errors: the SuperLink's database is locked, its disk is full, or too many
# requests are under way.
PASSING = ("OperationalError", "Concurrent RPC limit exceeded")
# The text that Flower sends in place of the details of any unexpected error in the SuperLink.
HIDDEN = "Internal server error."

_CONNECTION = "flwr.client.grpc_rere_client.connection"
_GRPC = "flwr.supercore.grpc"
_RETRY = "flwr.supercore.retry.grpc_retry"
_LOOP = "flwr.supernode.start_client_internal"
_HEARTBEAT = "flwr.supercore.heartbeat:HeartbeatSender"
USED = (
    f"{_CONNECTION}:FleetStub",
    f"{_CONNECTION}:HeartbeatSender",
    f"{_CONNECTION}:HEARTBEAT_CALL_TIMEOUT",
    f"{_GRPC}:grpc.secure_channel",
    f"{_RETRY}:MAX_RETRY_DELAY",
    f"{_LOOP}:make_simple_grpc_retry_invoker",
    f"{_HEARTBEAT}._run",
    f"{_HEARTBEAT}._heartbeat",
    f"{_HEARTBEAT}.stop",
)


def patch() -> None:
    """Let a SuperNode keep a heartbeat under way, send pings, and come back soon after a lost connection."""
    connection = importlib.import_module(_CONNECTION)
    grpc = importlib.import_module(_GRPC).grpc

    @wraps(grpc.secure_channel)
    def secure_channel(*arguments: Any, options: Sequence[tuple[str, Any]] = ()) -> Any:
        return grpc.secure_channel(*arguments, options=with_options(options, OPTIONS))

    replace(_GRPC, grpc=like(grpc, secure_channel=secure_channel))
    replace(_RETRY, MAX_RETRY_DELAY=LONGEST_RECONNECT)
    make_invoker = importlib.import_module(_LOOP).make_simple_grpc_retry_invoker

    @wraps(make_invoker)
    def patient_invoker() -> Any:
        return patient(make_invoker())

    replace(_LOOP, make_simple_grpc_retry_invoker=patient_invoker)
    make_stub = connection.FleetStub

    @wraps(make_stub)
    def stub(channel: Any) -> Any:
        made = make_stub(channel)
        made.SendNodeHeartbeat = _held_if_connected(made.SendNodeHeartbeat)
        return made

    replace(_CONNECTION, FleetStub=stub, HeartbeatSender=_heartbeats(connection.HeartbeatSender))


def _held_if_connected(send: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that sends a heartbeat, and lets the SuperLink hold it unless the last one failed.

    So the SuperLink answers the first heartbeat of a new connection at once. Otherwise the SuperNode would
        say for `HOLD` seconds that the connection is lost, while the SuperLink lists the node as online.
    """
    connected = True

    def heartbeat(request: Any, timeout: float) -> Any:
        nonlocal connected
        asked, connected = (HELD,) if connected else (), False
        answer = send(request, timeout=HOLD + timeout, metadata=asked)
        connected = True
        return answer

    return heartbeat


def patient(invoker: Any) -> Any:
    """Let a `RetryInvoker` repeat a request that failed with a temporary error, and return the invoker.

    Stock Flower ends the SuperNode after such an error, for example if the SuperLink's database is locked.
    If the error's details contain a text of `PASSING`, the request is repeated without limit; if they contain
    `HIDDEN`, for `FAILING` seconds.
    """
    gives_up, succeeds = invoker.should_giveup, invoker.on_success
    failing = threading.local()  # `failing.since`: when this thread's request began to fail

    def should_give_up(error: Any) -> bool:
        details = str(error.details() or "")
        if WRONG_CLOCK in details:
            getLogger("flwr").error("%s", details)
        if HIDDEN in details:
            failing.since = getattr(failing, "since", None) or time.monotonic()
            return bool(time.monotonic() - failing.since > FAILING)
        failing.since = None
        return not any(part in details for part in PASSING) and bool(gives_up(error))

    def succeeded(state: Any) -> None:
        failing.since = None
        succeeds(state)

    invoker.should_giveup, invoker.on_success = should_give_up, succeeded
    return invoker


def _heartbeats(sender: Any) -> Any:
    """Return a subclass of Flower's `HeartbeatSender` that always has a heartbeat under way.

    If the SuperLink answers two heartbeats in a row at once, the next one follows after a pause, as in stock
    Flower.
    """
    constants = importlib.import_module("flwr.common.constant")
    pause = constants.HEARTBEAT_BASE_MULTIPLIER * (
        constants.HEARTBEAT_DEFAULT_INTERVAL - constants.HEARTBEAT_CALL_TIMEOUT
    )

    class HeldHeartbeats(sender):  # type: ignore[misc]
        def stop(self) -> None:
            self._stop_event.set()  # Flower's `stop` would also wait until the held heartbeat is answered

        def _run(self) -> None:
            held = True
            while not self._stop_event.is_set():
                began = time.monotonic()
                try:
                    self._retry_invoker.invoke(self._heartbeat)
                except Exception as error:  # in stock Flower this would be the last heartbeat
                    if self._stop_event.wait(LOOK):
                        return
                    getLogger("flwr").warning("A heartbeat failed: %s", error)
                else:
                    before, held = held, time.monotonic() - began >= LOOK
                    if not (held or before):  # a stock SuperLink does not hold heartbeats
                        self._stop_event.wait(pause)

    return HeldHeartbeats
