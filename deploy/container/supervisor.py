"""Keeps one of Flower's programs running in a container.

Flower's programs end when the server refuses them, for example before the clients' keys are registered. If
the container ended too, Docker would restart it, each time after a longer pause. The supervisor restarts only
the program, after a shorter pause.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from deploy.container import READY
from deploy.fleet.admission.refusal_log import printable
from deploy.processes.groups import processes_with
from deploy.processes.supervisor import Supervisor

MARK = "COHORT_CONTAINER"  # the environment variable that marks the program and its children
AT_ONCE = 1.0  # seconds before a program that was ready is started again
PAUSE = 5.0  # seconds before a program that never became ready is started again
PATIENCE = 100.0  # seconds of failed starts, after which LONG_PAUSE replaces PAUSE
LONG_PAUSE = 30.0  # seconds; replaces PAUSE once starts have failed for PATIENCE seconds
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


def say(text: str) -> None:
    """Print a message of this project, marked to distinguish it from the lines of Flower's programs."""
    print(f"cohort: {text}", flush=True)


def shown(line: bytes) -> bytes:
    r"""Return a program's line for printing: colours stay, other control characters are escaped.

    An app may print what a client has sent, and `docker compose logs` shows it in the operator's terminal.

    Examples
    --------
    >>> shown(b"\x1b[92mINFO\x1b[0m \x1b[2Jgone")
    b'\x1b[92mINFO\x1b[0m \\x1b[2Jgone'
    """
    parts = _COLOUR.split(line.decode(errors="backslashreplace"))
    return "".join(part if _COLOUR.fullmatch(part) else printable(part) for part in parts).encode()


class ContainerSupervisor(Supervisor):
    """Runs a program until the container is stopped (SIGTERM, SIGINT).

    `command`: returns the program's name and arguments. Called before each start. `ready_line`: the program
    is ready once it has printed a line that contains this text. `environment`: variables for the program, in
    addition to those of this process. `on_ready`: called in another thread when the program is ready, before
    the container counts as healthy. If this function raises an exception, the program is started again.
    `hidden`: returns True for the program's lines that are not to be printed. (default: all lines are
    printed)
    """

    grace = 4.0  # s from SIGTERM to SIGKILL; Docker kills the container after 10 s
    look = 0.25

    def __init__(
        self,
        command: Callable[[], Sequence[str]],
        *,
        ready_line: str,
        environment: Mapping[str, str] | None = None,
        on_ready: Callable[[], None] = lambda: None,
        hidden: Callable[[bytes], bool] = lambda line: False,
    ) -> None:
        super().__init__()
        self._command = command
        self._ready_line = ready_line.encode()
        self._more = environment or {}
        self._on_ready = on_ready
        self._hidden = hidden
        self._mark = f"{socket.gethostname()}-{os.getpid()}"
        self._waiting = True  # whether the ready line is still missing
        self._ready = threading.Event()
        self._was_ready = False
        self._failing_since: float | None = None

    def supervise(self) -> int:
        """Keep the program running until the container is stopped; return the exit code."""
        self.stop_at(signal.SIGTERM, signal.SIGINT)
        self.run()
        return 0

    def command(self) -> Sequence[str]:
        self._waiting, self._ready = True, threading.Event()
        return self._command()

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, **self._more, MARK: self._mark}

    def line(self, line: bytes) -> None:
        if not self._hidden(line):
            sys.stdout.buffer.write(shown(line) + b"\n")
            sys.stdout.buffer.flush()
        if self._waiting and self._ready_line in line:
            self._waiting = False
            # In another thread: this thread must go on reading the program's output, since a full pipe would
            # stop the program.
            threading.Thread(target=self._become_ready, args=(self._ready,), daemon=True).start()

    def _become_ready(self, ready: threading.Event) -> None:
        """Call `on_ready`, then mark the container as ready."""
        try:
            self._on_ready()
        except Exception as error:
            say(f"{type(error).__name__}: {error}")
            if ready is self._ready:
                self.restart()
            return
        ready.set()
        READY.touch()
        if ready is not self._ready:  # the program has ended meanwhile
            READY.unlink(missing_ok=True)

    def ask(self, program: subprocess.Popen[bytes]) -> None:
        # SIGTERM goes to the program alone. A ServerApp that received SIGTERM would end its run as failed,
        # and the run would not be resumed.
        program.terminate()

    def clean_up(self, program: subprocess.Popen[bytes]) -> None:
        """Kill the program and its children, including children in other process groups."""
        self._ready, was_ready = threading.Event(), self._ready
        READY.unlink(missing_ok=True)
        for pid in processes_with(MARK, self._mark):
            with contextlib.suppress(ProcessLookupError):  # the process has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        self._was_ready = was_ready.is_set()

    def ended(self, code: int | None) -> float:
        if self._failing_since is None or self._was_ready:
            self._failing_since = time.monotonic()
        pause = PAUSE if time.monotonic() - self._failing_since < PATIENCE else LONG_PAUSE
        pause = AT_ONCE if self._was_ready else pause
        what = "the program" if self._was_ready else "the program did not become ready and"
        say(f"{what} ended with code {code}; it is started again in {pause:g} s")
        return pause
