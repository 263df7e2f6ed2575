"""`flower-superexec`, which starts a process for each task: its patch, and the thread that replaces it."""

from __future__ import annotations

import importlib
import socket
import subprocess
import threading
from functools import partial
from itertools import pairwise
from logging import getLogger
from typing import TYPE_CHECKING, Any, get_type_hints

from deploy.flower.channel import serve
from deploy.flower.patches.shared import (
    CORE_HANDLERS,
    EXECUTOR,
    PLUGIN,
    SERVED,
    USED_TO_RETRY,
    USED_TO_START_APPS,
    apps,
    fork_apps,
    like,
    remembered,
    replace,
    retry_after_500,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

USED = (*USED_TO_RETRY, *USED_TO_START_APPS)
USED_BY_THREAD = (
    f"{PLUGIN}:AutoExecPlugin.launch_task",
    f"{CORE_HANDLERS}:send_task_heartbeat",
    *USED_TO_START_APPS,
)


def patch() -> None:
    """Fork apps, and survive a SuperLink whose database is locked."""
    retry_after_500()
    fork_apps()


class SuperExecThread(threading.Thread):
    """Replaces the process `flower-superexec`: starts an app's process for each task.

    Its apps send their requests over a channel. Those that it does not serve or cannot answer, they send over
    HTTP as in stock Flower.

    Parameters
    ----------
    command : Sequence[str]
        The command line of the process that it replaces.
    state : flwr.supercore.corestate.CoreState
        The state of the SuperNode or SuperLink.
    handlers : module
        Its functions answer the requests of apps.
    due : threading.Event
        Set when there is a task. Tasks are looked for every `interval` seconds in any case.
    lost : Callable[[Any], None]
        Called with the task of an app that ended before it had finished the task.
    """

    def __init__(
        self,
        command: Sequence[str],
        state: Any,
        handlers: Any,
        due: threading.Event,
        interval: float,
        lost: Callable[[Any], None] = lambda task: None,
    ) -> None:
        super().__init__(name="superexec", daemon=True)
        options = dict(pairwise(command))
        self._plugin = importlib.import_module(PLUGIN).AutoExecPlugin(
            runtime_api_address=options["--runtime-api-address"],
            insecure="--insecure" in command,
            root_certificates_path=options.get("--root-certificates"),
            runtime_dependency_install="--allow-runtime-dependency-installation" in command,
            executor=importlib.import_module(EXECUTOR).SubprocessExecutor(),
        )
        self._state, self._handlers, self._due, self._interval = state, handlers, due, interval
        self._lost = lost
        replace(EXECUTOR, subprocess=like(subprocess, Popen=self._start_app))
        self.start()

    def terminate(self) -> None:
        """Do nothing: the thread ends with its process."""

    def wait(self, timeout: float) -> None:
        """Do not wait."""

    def run(self) -> None:
        from flwr.proto.runtime_pb2 import AcquireTaskRequest

        request = AcquireTaskRequest(supported_task_types=sorted(self._plugin.supported_task_types))
        while True:
            self._due.wait(self._interval)
            self._due.clear()
            try:
                while (acquired := self._handlers.acquire_task(request, self._state)).token:
                    self._plugin.launch_task(token=acquired.token, task=acquired.task)
            except Exception as error:  # the next task may succeed
                getLogger("flwr").exception("An app could not be started: %s", error)

    def _start_app(self, command: list[str], **settings: Any) -> None:
        ours, its = socket.socketpair()
        with its:
            apps.start(command, channel=its, **settings)
        token = command[command.index("--token") + 1]
        find_task = partial(remembered(self._state.get_task_by_token, but=None), token)
        answer = partial(self._answer, find_task)

        def attend() -> None:
            serve(ours, answer)
            task = self._state.get_task_by_token(token)  # None if it has finished
            # An app that has not begun has no channel (see `_Apps.start`), or Flower starts it again.
            if task is not None and task.status.status == "running":
                self._lost(task)

        threading.Thread(target=attend, name="channel", daemon=True).start()

    def _answer(self, find_task: Callable[[], Any], method: str, content: bytes) -> bytes | None:
        handler = self._handler(method)
        try:
            task = find_task()
            if task is not None:
                request = get_type_hints(handler)["request"].FromString(content)
                answer: bytes = handler(request, self._state, task).SerializeToString()
                return answer
        except Exception as error:
            getLogger("flwr").debug("%s is to be sent over HTTP: %s", method, error)
        return None

    def _handler(self, method: str) -> Callable[..., Any]:
        name = SERVED[method]
        module = self._handlers if hasattr(self._handlers, name) else importlib.import_module(CORE_HANDLERS)
        found: Callable[..., Any] = getattr(module, name)
        return found
