"""The patch of `flwr-clientapp`: few requests, sent to the SuperNode over a channel, and no idle threads."""

import os
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from deploy.fleet.supernode import transfers
from deploy.flower.patches import app_channel
from deploy.flower.patches.shared import INFLATABLE, replace

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
    switches = {"FLWR_TELEMETRY_ENABLED": "1", "FLWR_TELEMETRY_LOGGING": "0"}  # by default
    if all(os.environ.get(name, usual) != "1" for name, usual in switches.items()):
        replace(_TELEMETRY, create_event=lambda *_: "disabled", Thread=_InThisThread)


class _InThisThread:
    """A thread that is none: `start` calls the function."""

    def __init__(self, target: Callable[[], None], **_: Any) -> None:
        self.start = target
