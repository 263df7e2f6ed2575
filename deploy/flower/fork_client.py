"""Starts fork servers (`deploy.flower.fork_server`) and asks them to fork processes."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.flower import fork_server as server
from deploy.flower.fork_server import SOCKET
from deploy.processes.groups import Process

VARIABLE = "COHORT_FORK_SERVER"  # the environment variable that names the folder of a program's fork server
_MOST_CODES = 1000  # the most exit codes that are kept
_REPORT_TIME = 1.0  # seconds that a live server may take to report the end of a process


class Gone(Exception):  # noqa: N818
    """The fork server has ended. The last requested process may or may not have started."""


class ForkServer:
    """A connection to a fork server, which forks processes on request. Several threads may share it.

    `connected`: a socket that is connected to the server. `child`: the server's process id, if the server is
    a child of this process and serves no other process. `close` then waits for the server's end. (default:
    the server is not a child)
    """

    def __init__(self, connected: socket.socket, child: int | None = None) -> None:
        self._socket = connected
        self._child = child
        self._text = b""
        self._codes: dict[int, int] = {}
        self._requests = 0
        self._lock = threading.Lock()

    @classmethod
    def connect(cls, folder: Path) -> ForkServer:
        """Connect to the server that listens in `folder`. Raise OSError if no server listens there."""
        connected = socket.socket(socket.AF_UNIX)
        try:
            with contextlib.chdir(folder):  # the path of a socket may have only about 100 characters
                connected.connect(SOCKET)
        except OSError:
            connected.close()
            raise
        return cls(connected)

    def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        output: tuple[int, int] = (1, 2),
        own_session: bool = False,
        channel: int | None = None,
        shared: str | None = None,
    ) -> int:
        """Start a command and return its process id.

        `command`: the name of one of the server's programs, and the program's arguments. `environment`: the
        whole environment of the new process. (default: the environment of this process) `output`: the file
        descriptors for the new process's standard output and standard error. (default: the standard output
        and standard error of this process) `own_session`: whether the new process leads a new session and
        process group. (default: it stays in the session and group of the server) `channel`: the file
        descriptor of a socket that the new process inherits. In the new process, the environment variable
        with the name `fork_server.CHANNEL` holds the number of the inherited descriptor. `shared`: a name for
        the process; it requires a `channel`. If a process with this name runs already, the server starts
        none, and sends `channel` to that process (see `fork_server.CHANNELS`).

        Raises Gone if the server has ended.
        """
        request: dict[str, Any] = {
            "command": list(command),
            "environment": dict(os.environ if environment is None else environment),
            "folder": str(Path.cwd()),
            "own_session": own_session,
            "shared": shared,
        }
        with self._lock:
            self._requests += 1
            number = request["number"] = self._requests
            text = json.dumps(request).encode() + b"\n"
            try:
                handed = [*output] if channel is None else [*output, channel]
                sent = socket.send_fds(self._socket, [text], handed)
                self._socket.sendall(text[sent:])
            except OSError as error:
                raise Gone from error
            while True:
                answer = self._next_answer()
                if answer.get("number") == number:
                    self._codes.pop(answer["pid"], None)  # an earlier process had this id
                    return answer["pid"]
                self._note(answer)

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Process:
        """Start a command in a session of its own, with its output in a log. Raises Gone as `run` does."""
        with log.open("ab") as output:
            both = output.fileno(), output.fileno()
            pid = self.run(command, environment=environment, output=both, own_session=True)
        return Process.forked(pid, lambda: self.returncode(pid), log)

    def returncode(self, pid: int) -> int | None:
        """Return the exit code of a process that `run` started, or None while the process runs.

        The result is -SIGKILL if the process has ended, but the server ended before it reported the exit
        code.
        """
        with self._lock:
            code = self._reported_code(pid, 0.0)
            if code is None:
                try:
                    os.kill(pid, 0)
                except ProcessLookupError:
                    # The process has ended. If the server lives, it reports the exit code soon.
                    code = self._reported_code(pid, _REPORT_TIME)
                    return -signal.SIGKILL if code is None else code
            return code

    def _reported_code(self, pid: int, seconds: float) -> int | None:
        """Return the exit code that the server has reported or reports within some seconds, else None."""
        with contextlib.suppress(BlockingIOError, Gone):
            while pid not in self._codes and (
                b"\n" in self._text or select.select([self._socket], [], [], seconds)[0]
            ):
                self._note(self._next_answer(socket.MSG_DONTWAIT))
        return self._codes.get(pid)

    def _note(self, answer: dict[str, int]) -> None:
        if "code" in answer:  # an answer without a code answers a `run` that was interrupted
            self._codes[answer["pid"]] = answer["code"]
            while len(self._codes) > _MOST_CODES:  # nobody asks for the codes of most processes
                del self._codes[next(iter(self._codes))]

    def _next_answer(self, flags: int = 0) -> dict[str, int]:
        while b"\n" not in self._text:
            try:
                part = self._socket.recv(65536, flags)
            except BlockingIOError:
                raise
            except OSError as error:
                raise Gone from error
            if not part:
                raise Gone
            self._text += part
        line, _, self._text = self._text.partition(b"\n")
        answer: dict[str, int] = json.loads(line)
        return answer

    def close(self) -> None:
        """Close the connection. A server that serves this connection alone ends; started processes go on."""
        self._socket.close()
        if self._child is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._child, 0)


def fork_server_command(module: str, where: Path | int, names: Iterable[str]) -> list[str]:
    """Return the command of a fork server.

    `module`: the module whose function `commands` returns the functions that run the programs. `where`:
    either a folder, in which the server listens for connections until its process is ended, or the inherited
    file descriptor of its only connection. The server then ends when this connection is closed. `names`: the
    programs that the server runs.
    """
    # Without -P, Python would import modules from the folder of the server's file.
    return [sys.executable, "-P", str(Path(server.__file__).resolve()), module, str(where), *names]


def start_fork_server(
    module: str, names: Iterable[str], environment: Mapping[str, str] | None = None
) -> ForkServer:
    """Start a fork server in a new process. It serves this process alone, and ends with this process.

    `module` and `names` are parameters of `fork_server_command`. `environment` is the server's environment.
    (default: the environment of this process)
    """
    ours, its = socket.socketpair()
    with its:
        command = fork_server_command(module, its.fileno(), names)
        child = subprocess.Popen(command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, env=environment)
    return ForkServer(ours, child.pid)


def fork_server(commands: Mapping[str, Callable[[], Any]]) -> ForkServer:
    """Fork a fork server from this process. It serves this process alone, and ends with this process.

    The server shares the memory of all modules that this process has imported. This function returns only in
    this process. Call it before this process starts other threads.
    """
    server.preload()
    gc.freeze()  # garbage collection in the server would write to shared objects, and so copy their memory
    ours, its = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        # Ctrl-C in a terminal reaches the server too. The server ends with the process that forked it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        server.run(server.Server(commands, connection=its))
    its.close()
    return ForkServer(ours, child)
