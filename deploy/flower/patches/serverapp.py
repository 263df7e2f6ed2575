"""The patch of `flwr-serverapp`: a channel to its SuperLink, an end by signals, and fewer failed runs."""

from __future__ import annotations

import importlib
import os
import signal
from functools import wraps
from typing import TYPE_CHECKING, Any

from deploy.flower.patches import joined_objects
from deploy.flower.patches.shared import (
    INFLATABLE,
    USED_BY_CHANNEL,
    USED_TO_GIVE_UP,
    USED_TO_RETRY,
    give_up_without_parts,
    replace,
    retry_after_500,
    retry_soon,
    use_channel,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from deploy.flower.channel import Channel

_GRID = "flwr.superlink.grid.http_grid"
_RUNTIME = "flwr.superlink.runtime.run_serverapp"
USED = (
    *(*USED_TO_RETRY, *USED_TO_GIVE_UP, f"{_GRID}:pull_objects", *joined_objects.USED, *USED_BY_CHANNEL),
    f"{_RUNTIME}:run_",
)


def patch() -> None:
    """Use the channel, retry missing parts of a message soon and not for ever, survive a locked database."""
    retry_after_500()
    channel = use_channel()
    replace(_RUNTIME, run_=ended_by_signals(importlib.import_module(_RUNTIME).run_, channel))
    give_up_without_parts(_GRID)
    retry_soon(_GRID, "pull_objects")
    joined_objects.join_requests(
        importlib.import_module(_GRID), importlib.import_module(INFLATABLE), at_once=1
    )


def ended_by_signals(run: Callable[..., Any], channel: Channel | None) -> Callable[..., Any]:
    """Wrap `run`, which runs an app, so that a stopped app ends at once, and the run of an orphan is resumed.

    SIGINT says that somebody stops the run. Flower's handler first sends the last lines of the log and the
    state of the run to the SuperLink. If the app waited for an answer on the channel, the handler would wait
    for the channel, and Flower would kill the process 5 s later. So here the app gets SystemExit first, tells
    its trackers and writes its history. Flower's handler follows.

    SIGTERM also comes when the parent of this process has died. Nobody has stopped the run then, so the
    process ends without a last line in the history, and the follower of the run resumes the run.
    """

    @wraps(run)
    def run_until_signal(*arguments: Any, **options: Any) -> Any:
        told: list[int] = []
        parent = os.getppid()

        def leave() -> None:
            raise SystemExit("stopped by SIGINT")

        def stop(number: int, _: object) -> None:
            if not told:
                told.append(number)
                channel.when_free(leave) if channel else leave()

        def end(number: int, frame: FrameType | None) -> None:
            if os.getppid() != parent:
                os._exit(128 + number)
            if callable(flowers[number]):
                flowers[number](number, frame)

        flowers: dict[int, Any] = {
            signal.SIGINT: signal.signal(signal.SIGINT, stop),
            signal.SIGTERM: signal.signal(signal.SIGTERM, end),
        }
        try:
            return run(*arguments, **options)
        finally:
            for number, handler in flowers.items():
                signal.signal(number, handler)
            if told:
                signal.raise_signal(told[0])

    return run_until_signal
