"""The patch of `flower-superlink`: the SuperLink holds requests, and accesses its database less often."""

import gc
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial, wraps
from typing import Any, get_type_hints

from deploy.fleet import factories
from deploy.fleet.duties import joined_objects
from deploy.fleet.duties.duties import duties
from deploy.flower.corrupt_database import end_if_corrupt
from deploy.flower.patches.app_starts import fork_apps
from deploy.flower.patches.apps import upload_progress
from deploy.flower.patches.shared import LOOK, like, replace, skip_unseen_lines
from deploy.flower.patches.superexec import SuperExecThread

# Python's switch interval, s: a thread that waits for the interpreter wakes up this often. With Python's
# 0.005 s, 300 requests that arrived at once switched threads 57,000 times a second.
SWITCH = 0.05
# The thresholds of Python's garbage collector (`gc.set_threshold`). Python's defaults suit small programs;
# the held requests of 1,000 nodes have some 10^6 objects.
GARBAGE = (10_000, 50, 50)
LONGEST_SHUTDOWN = 3  # s in which requests under way may finish after the SuperLink is asked to end

_SUPERLINK = "flwr.superlink.cli.flower_superlink"
_SUPERLINK_API = "flwr.superlink.servicer.runtime.runtime_handlers"


def patch() -> None:
    """Apply all patches of the SuperLink except its guards."""
    fork_apps()
    skip_unseen_lines()
    sys.setswitchinterval(SWITCH)
    gc.set_threshold(*GARBAGE)
    end_if_corrupt()
    handlers = importlib.import_module(_SUPERLINK_API)
    state = factories.hand_over(duties)
    duties.held.hold_for_apps(handlers)
    joined_objects.answer_apps(handlers)
    upload_progress.answer_apps(handlers)
    answer_nodes(handlers)

    # When the SuperLink ends, Flower waits for all requests. A program that follows a run's log has a request
    # under way until the run ends.
    uvicorn = importlib.import_module(_SUPERLINK).uvicorn
    run = partial(uvicorn.run, timeout_graceful_shutdown=LONGEST_SHUTDOWN)

    def superexec(command: Sequence[str], **_: Any) -> SuperExecThread:
        interval = float(os.environ.get("FLWR_SUPEREXEC_TASK_POLL_INTERVAL") or LOOK)  # Flower's variable
        return SuperExecThread(command, state(), handlers, threading.Event(), interval)

    # The only program that the SuperLink starts is `flower-superexec`.
    replace(_SUPERLINK, uvicorn=like(uvicorn, run=run), subprocess=like(subprocess, Popen=superexec))


def answer_nodes(handlers: Any) -> None:
    """Let this module of handlers answer which nodes are online from the state's `nodes_for`."""
    get_nodes = handlers.get_nodes
    response = get_type_hints(get_nodes)["return"]

    @wraps(get_nodes)
    def nodes(asked: Any, state: Any, task: Any) -> Any:
        return response(nodes=state.nodes_for(task.run_id))

    handlers.get_nodes = nodes
