"""The patch of `flwr-clientapp`: few requests, sent to the SuperNode over a channel, and no idle threads."""

from __future__ import annotations

import importlib
from concurrent.futures import Future
from typing import Any

from deploy.fleet import joined_objects
from deploy.flower.patches.shared import INFLATABLE, USED_BY_CHANNEL, replace, retry_soon, use_channel

_CLIENTAPP = "flwr.supernode.runtime.run_clientapp"
_EXIT = "flwr.supercore.exit.exit"
_TELEMETRY = "flwr.supercore.telemetry"
USED = (
    f"{_CLIENTAPP}:pull_and_inflate_object_from_tree",
    f"{_CLIENTAPP}:event",
    f"{_EXIT}:event",
    *(f"{_TELEMETRY}:{name}" for name in ("FLWR_TELEMETRY_ENABLED", "FLWR_TELEMETRY_LOGGING")),
    f"{INFLATABLE}:pull_objects",
    f"{INFLATABLE}:push_object_contents_from_iterable",
    *joined_objects.USED,
    *USED_BY_CHANNEL,
)


def patch() -> None:
    """Apply all patches of this program.

    It sends its requests over a channel (`deploy.flower.channel`), fetches or sends several parts of a
    message with one request, and soon requests missing parts again.
    """
    use_channel()
    patch_before_fork()


def patch_before_fork() -> None:
    """Apply those patches that are the same for all messages. An app server calls this before it forks."""
    inflatable = importlib.import_module(INFLATABLE)
    joined_objects.join_requests(inflatable, inflatable, at_once=1)
    retry_soon(_CLIENTAPP, "pull_and_inflate_object_from_tree")
    start_no_threads_for_telemetry()


def start_no_threads_for_telemetry() -> None:
    """Let this process start no threads for telemetry that is switched off.

    In stock Flower, two threads for each message compose reports that nobody receives.
    """
    telemetry = importlib.import_module(_TELEMETRY)
    if telemetry.FLWR_TELEMETRY_ENABLED == "1" or telemetry.FLWR_TELEMETRY_LOGGING == "1":
        return

    def event(*_: Any) -> Future[str]:
        done: Future[str] = Future()
        done.set_result("disabled")
        return done

    replace(_CLIENTAPP, event=event)
    replace(_EXIT, event=event)
