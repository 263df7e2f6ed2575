"""The patch of `flwr-clientapp`: few requests, sent to the SuperNode over a channel, and no idle threads."""

from __future__ import annotations

import importlib
from concurrent.futures import Future
from functools import partial
from math import inf
from typing import Any

from deploy.fleet.supernode import transfers
from deploy.flower.patches import app_channel
from deploy.flower.patches.shared import INFLATABLE, replace

_CLIENTAPP = "flwr.supernode.runtime.run_clientapp"
_EXIT = "flwr.supercore.exit.exit"
_TELEMETRY = "flwr.supercore.telemetry"


def patch() -> None:
    """Apply all patches of this program.

    It sends its requests over a channel (`app_channel`), and fetches or sends several parts of a message with
    one request.
    """
    app_channel.use_channel()
    patch_before_fork()


def patch_before_fork() -> None:
    """Apply those patches that are the same for all messages. An app server calls this before it forks."""
    # One request at a time, because a channel carries no more. While the SuperNode receives a message, its
    # ClientApp waits for the parts, however long this takes: if the SuperNode gives up, it deletes them.
    replace(
        INFLATABLE,
        pull_objects=partial(transfers.pull_all, at_once=1, patience=inf),
        push_object_contents_from_iterable=partial(transfers.push, at_once=1),
    )
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
