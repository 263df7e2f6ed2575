"""How other programs start a fork server (`deploy.flower.fork_server`) and let it fork processes."""

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.flower import fork_server as server
from deploy.flower.fork_server import SOCKET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

VARIABLE = "COHORT_FORK_SERVER"  # environment variable: the folder in which a program's fork server listens
_ABOUT_TO = 1.0  # seconds in which a live server reports the end of a process


class Gone(Exception):  # noqa: N818
    """The server is gone; the last requested process may or may not have been started."""


class ForkServer:
    """A connection to a fork server, which forks processes on request. Threads may share it.

    Parameters
    ----------
    connected : socket.socket
        Connected to the server.
    child : int | None
        The server's process id, if it is a child of this process and serves this process alone.
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
        """Connect to the server that listens in `folder`; OSError if there is none."""
        connected = socket.socket(socket.AF_UNIX)
        try:
            with contextlib.chdir(folder):  # a socket's path may have about 100 characters
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
    ) -> int:
        """Start a command and return its process id.

        Parameters
        ----------
        command : Sequence[str]
            One of the server's programs, and its arguments.
        environment : Mapping[str, str] | None
            Its whole environment. (default: this process's)
        output : tuple[int, int]
            The descriptors of its standard output and standard error. (default: this process's)
        own_session : bool
            Whether it leads a session and process group of its own. (default: it stays in the server's)
        channel : int | None
            The descriptor of a socket that it inherits; the environment variable `CHANNEL` has its number.

        Raises
        ------
        Gone
            If there is no server any more.
        """
        request: dict[str, Any] = {
            "command": list(command),
            "environment": dict(os.environ if environment is None else environment),
            "folder": str(Path.cwd()),
            "own_session": own_session,
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
                    self._codes.pop(answer["pid"], None)  # of an earlier process with this id
                    return answer["pid"]
                self._note(answer)

    def returncode(self, pid: int) -> int | None:
        """Return a process's exit code; None while it runs; -SIGKILL if the code is lost with the server."""
        with self._lock:
            code = self._reported_code(pid, 0.0)
            if code is None:
                try:
                    os.kill(pid, 0)
                except ProcessLookupError:
                    # The server has reaped it, and may be about to report its exit code.
                    code = self._reported_code(pid, _ABOUT_TO)
                    return -signal.SIGKILL if code is None else code
            return code

    def _reported_code(self, pid: int, seconds: float) -> int | None:
        """Return the exit code that the server has reported, or reports within some seconds."""
        with contextlib.suppress(BlockingIOError, Gone):
            while pid not in self._codes and (
                b"\n" in self._text or select.select([self._socket], [], [], seconds)[0]
            ):
                self._note(self._next_answer(socket.MSG_DONTWAIT))
        return self._codes.get(pid)

    def _note(self, answer: dict[str, int]) -> None:
        if "code" in answer:  # else it answers a request whose caller was interrupted
            self._codes[answer["pid"]] = answer["code"]

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
        """Close the connection. Started processes go on; a server without other connections ends."""
        self._socket.close()
        if self._child is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._child, 0)


def fork_server_command(module: str, where: Path | int, names: Iterable[str]) -> list[str]:
    """Return the command of a fork server, which runs until it is ended.

    Parameters
    ----------
    module : str
        The module whose function `commands` returns the functions that run the programs.
    where : Path | int
        The folder in which the server listens for connections; or the inherited descriptor of its only
        connection, with which it ends.
    names : Iterable[str]
        The programs that it serves.
    """
    # -P: like an installed command, the server does not import from its own folder.
    return [sys.executable, "-P", str(Path(server.__file__).resolve()), module, str(where), *names]


def start_fork_server(module: str, names: Iterable[str]) -> ForkServer:
    """Start a fork server in a new process, for this process alone; it ends with this process."""
    ours, its = socket.socketpair()
    with its:
        command = fork_server_command(module, its.fileno(), names)
        child = subprocess.Popen(command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
    return ForkServer(ours, child.pid)


def fork_server(commands: Mapping[str, Callable[[], Any]]) -> ForkServer:
    """Fork a server from this process, for this process alone; it ends with this process.

    The server shares the memory of all modules that this process has imported. In the children of the server
    this function does not return: they run their command and exit. Call it before there are other threads.
    """
    server.preload()
    gc.freeze()  # a collector that touched shared objects would copy their memory
    ours, its = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        # The terminal's Ctrl-C is for the process that forked this one; this one ends with it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        server.run(server.Server(commands, connection=its))
    its.close()
    return ForkServer(ours, child)
