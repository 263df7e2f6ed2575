"""The patch of `flower-superexec`, and a thread that replaces this program.

`flower-superexec` is an executor: it starts the process of an app (a ClientApp or a ServerApp) for each task.
The thread replaces it in a SuperNode, and in a SuperLink that starts its ServerApps itself.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import threading
import time
from functools import cache, partial
from itertools import pairwise
from logging import getLogger
from typing import TYPE_CHECKING, Any, get_type_hints

from deploy.flower.channel import serve
from deploy.flower.patches import app_starts, retries
from deploy.flower.patches.app_channel import SERVED
from deploy.flower.patches.app_starts import apps
from deploy.flower.patches.apps import app_servers
from deploy.flower.patches.shared import LOOK, remembered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deploy.flower.fork_client import ForkServer

# The programs that run tasks, and whether their output is shown. The type of a task is its program's name.
PROGRAMS = {
    "flwr-serverapp": False,  # it sends its output to the SuperLink
    "flwr-simulation": False,
    **dict.fromkeys(("flwr-agentapp", "flwr-clientapp", "flwr-connector", "flwr-model"), True),
}
INSECURE, INSTALL = "--insecure", "--allow-runtime-dependency-installation"  # options that apps get as well
CORE_HANDLERS = "flwr.supercore.servicer.runtime.runtime_handlers"
ATTEMPTS = 60  # the most attempts, one in each second, to report that an app has ended


def patch() -> None:
    """Let the executor fork apps, and go on while the SuperLink's database is locked."""
    retries.retry_after_500()
    app_starts.fork_apps()


class SuperExecThread(threading.Thread):
    """Starts the process of an app for each task, as the program `flower-superexec` does.

    The apps send their requests over a channel (see `app_channel`).

    `handlers`: a module of Flower whose functions answer the requests of apps. `due`: in a SuperNode, other
    threads set this event when there is a task. This thread then looks for tasks at once. In a SuperLink,
    nothing sets the event. `interval`: the thread looks for tasks at least once in this many seconds, even if
    `due` is not set.
    """

    def __init__(
        self,
        command: Sequence[str],
        state: Any,
        handlers: Any,
        due: threading.Event,
        interval: float,
    ) -> None:
        super().__init__(name="superexec", daemon=True)
        options = dict(pairwise(command))
        certificates = options.get("--root-certificates")
        self._options = [
            *("--runtime-api-address", options["--runtime-api-address"], "--parent-pid", str(os.getpid())),
            *(each for each in (INSECURE, INSTALL) if each in command),
            *(("--root-certificates", certificates) if certificates else ()),
        ]
        self._state, self._handlers, self._due, self._interval = state, handlers, due, interval
        self._app_servers = app_servers.AppServers()
        self.start()

    def terminate(self) -> None:
        """Do nothing: the thread ends when its process ends."""

    def wait(self, timeout: float) -> None:
        """Do nothing: nobody has to wait for the thread."""

    def run(self) -> None:
        from flwr.proto.runtime_pb2 import AcquireTaskRequest

        request = AcquireTaskRequest(supported_task_types=sorted(PROGRAMS))
        while True:
            self._due.wait(self._interval)
            self._due.clear()
            self._app_servers.end_idle()
            try:
                while (acquired := self._handlers.acquire_task(request, self._state)).token:
                    self._start_app(acquired.task.type, acquired.token)
            except Exception as error:  # another app may still start
                getLogger("flwr").exception("An app could not be started: %s", error)

    def _start_app(self, program: str, token: str) -> None:
        output = {} if PROGRAMS[program] else {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        find_task = partial(remembered(self._state.get_task_by_token, but=None), token)
        imported = False

        def fork(server: ForkServer, command: list[str], output: int | None, channel: int) -> bool:
            nonlocal imported
            run = self._state.get_run(find_task().run_id)
            bundle = self._state.get_fab(run.fab_hash)
            imported = self._app_servers.fork(server, run, bundle, command, output, channel)
            return imported

        forks = program == "flwr-clientapp" and app_servers.supported()
        ours, its = socket.socketpair()
        with its:
            command = [program, "--token", token, *self._options]
            apps.start(command, channel=its, fork=fork if forks else None, **output)
        answer = partial(self._answer, find_task, without_bundle=imported)

        def attend() -> None:
            serve(ours, answer)
            for _ in range(ATTEMPTS):
                try:
                    self._report_lost(token, program.removeprefix("flwr-"))
                    return
                except Exception as error:  # such as a locked database
                    getLogger("flwr").warning("An app that ended cannot be reported yet: %s", error)
                time.sleep(LOOK)

        threading.Thread(target=attend, name="channel", daemon=True).start()

    def _report_lost(self, token: str, app: str) -> None:
        """Report that the task of an app has failed, if the app has ended without finishing the task.

        Without this report, the failure would be noticed after two minutes without the app's heartbeats.
        (In a SuperLink these are `clock_jumps.MISSED_HEARTBEATS` times 30 s, in a SuperNode
        `supernode.LONGEST_SILENCE`.)
        """
        task = self._state.get_task_by_token(token)  # None if the app has finished the task
        # Only a running task is reported. If the task has not begun, the app may still be starting: an app
        # that was not forked has no channel (`_Apps.start`), so the channel's end says nothing about the app.
        # If the app has in fact ended, Flower starts it again when the task's token expires.
        if task is None or task.status.status != "running":
            return
        if self._state.finish_task(task.task_id, "failed", f"The process of the {app} ended unexpectedly"):
            self._state._on_task_tokens_expired([task])

    def _answer(
        self, find_task: Callable[[], Any], method: str, content: bytes, *, without_bundle: bool
    ) -> bytes | None:
        handler = self._handler(method)
        try:
            task = find_task()
            if task is not None:
                response = handler(_request_of(handler).FromString(content), self._state, task)
                if without_bundle and method == "PullTaskInput":
                    response.fab.content = b""  # the app server has unpacked the bundle already
                answer: bytes = response.SerializeToString()
                return answer
        except Exception as error:
            getLogger("flwr").debug("%s is to be sent over HTTP: %s", method, error)
        return None

    def _handler(self, method: str) -> Callable[..., Any]:
        name = SERVED[method]
        module = self._handlers if hasattr(self._handlers, name) else importlib.import_module(CORE_HANDLERS)
        found: Callable[..., Any] = getattr(module, name)
        return found


@cache
def _request_of(handler: Callable[..., Any]) -> Any:
    """Return the class of the requests that a handler answers."""
    return get_type_hints(handler)["request"]
