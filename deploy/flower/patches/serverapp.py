"""The patch of `flwr-serverapp`: a channel to the SuperLink, a signal that ends apps, fewer failed runs."""

from __future__ import annotations

import importlib
import os
import signal
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from deploy.fleet.supernode import transfers
from deploy.flower.commands import FRONT_END, STOP_RUN
from deploy.flower.patches import app_channel, retries
from deploy.flower.patches.apps import upload_progress
from deploy.flower.patches.shared import INFLATABLE, replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from deploy.flower.channel import Channel

_GRID = "flwr.superlink.grid.http_grid"
_RUNTIME = "flwr.superlink.runtime.run_serverapp"


def patch() -> None:
    """Apply all patches of this program except its guards.

    It sends its requests over a channel (`app_channel`), soon requests missing parts of a message
    again, but not for ever, goes on while the SuperLink's database is locked, and can ask how much of a reply
    has arrived. If its front end is gone and there may be others, it ends.
    """
    retries.retry_after_500(leave if FRONT_END in os.environ else None)
    channel = app_channel.use_channel()
    replace(_RUNTIME, run_=ended_by_signal(importlib.import_module(_RUNTIME).run_, channel))
    # One request at a time, because a channel carries no more.
    replace(_GRID, pull_objects=partial(transfers.pull_all, at_once=1))
    replace(INFLATABLE, push_object_contents_from_iterable=partial(transfers.push, at_once=1))
    upload_progress.ask()


def leave() -> None:
    """End this process as if it was killed: the history gets no last line, so that the run is resumed."""
    os.kill(os.getpid(), signal.SIGKILL)


def ended_by_signal(run: Callable[..., Any], channel: Channel | None) -> Callable[..., Any]:
    """Wrap `run`, the function that runs an app: the signal `STOP_RUN` then ends the app.

    The app ends at once, or after the answer for which it waits on the channel.

    The signal raises SystemExit in the app, so the app informs its trackers and writes the last line of its
    history. Then Flower's handler of SIGTERM ends the process.

    SIGTERM and SIGINT keep Flower's handlers, because these signals also come when the process's parent has
    died. The handlers send requests to the SuperLink. If the app waits for an answer on the channel, the
    handlers wait too, and Flower kills the process after 5 s. The history then has no last line, and the
    follower of the run resumes the run.
    """

    @wraps(run)
    def run_until_signal(*arguments: Any, **options: Any) -> Any:
        told = False

        def leave() -> None:
            raise SystemExit("somebody stopped the run")

        def stop(*_: object) -> None:
            nonlocal told
            if not told:
                told = True
                channel.when_free(leave) if channel else leave()

        signal.signal(STOP_RUN, stop)
        try:
            return run(*arguments, **options)
        finally:
            if told:
                signal.raise_signal(signal.SIGTERM)

    return run_until_signal
