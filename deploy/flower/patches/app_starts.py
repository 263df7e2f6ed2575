"""Starts the processes of apps: guarded, forked if possible, without their tokens in the command line."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import getLogger
from pathlib import Path
from typing import Any

from deploy.flower import fork_client
from deploy.flower.commands import patched
from deploy.flower.patches.shared import like, replace

EXECUTOR = "flwr.supercore.superexec.executor.subprocess_executor"
# Programs that a SuperLink or its executor starts. They must not run without their guards.
GUARDED = ("flower-superexec", "flwr-serverapp")


def start_program(command: list[str], **settings: Any) -> subprocess.Popen[bytes]:
    """Start one of Flower's programs as `subprocess.Popen` does, with two differences.

    A program of `GUARDED` is started with its guards. The token of a task is passed in a file instead of the
    command line, which every user of the machine can read.
    """
    if command[0] in GUARDED:
        # With the option -P if this process has it.
        command = patched(command, installed=bool(sys.flags.safe_path))
    if "--token" not in command:
        return subprocess.Popen(command, **settings)
    place = command.index("--token")
    with tempfile.TemporaryFile() as file:  # without a name: other users cannot open it
        file.write(command[place + 1].encode())
        file.seek(0)
        command = [*command[:place], "--token-file", f"/dev/fd/{file.fileno()}", *command[place + 2 :]]
        return subprocess.Popen(command, pass_fds=[file.fileno()], **settings)


def guard_apps() -> None:
    """Let Flower's executor start ServerApps with their guards."""
    replace(EXECUTOR, subprocess=like(subprocess, Popen=start_program))


class _Apps:
    """Starts the processes of apps: by a fork server if there is one, else by `start_program`."""

    def __init__(self) -> None:
        self._fork_server: fork_client.ForkServer | None = None
        self._names: Sequence[str] = ()
        self._module = ""

    def connect(
        self,
        names: Sequence[str],
        commands: Callable[[Iterable[str]], Mapping[str, Callable[[], Any]]],
        module: str,
    ) -> None:
        """Connect to the fork server that the environment names (`fork_client.VARIABLE`), or fork one.

        Call this before the process starts threads.
        """
        self._names, self._module = names, module
        if folder := os.environ.get(fork_client.VARIABLE):
            try:
                self._fork_server = fork_client.ForkServer.connect(Path(folder))
                return
            except OSError as error:
                getLogger("flwr").warning(
                    "%s=%s: %s; starting a fork server of our own", fork_client.VARIABLE, folder, error
                )
        self._fork_server = fork_client.fork_server(commands(names))

    def start(
        self,
        command: list[str],
        *,
        channel: socket.socket | None = None,
        fork: Callable[[fork_client.ForkServer, list[str], int | None, int], bool] | None = None,
        **settings: Any,
    ) -> None:
        """Start a process: by the fork server if it has the program, else as `subprocess.Popen` does.

        Only a forked process inherits `channel`, its end of a socket pair. `fork` may start the process in
        another way. It gets the fork server, the command, and two file descriptors: of the output (None: this
        process's output) and of `channel`. It returns whether it has started the process.
        """
        if self._fork_server is None or command[0] not in self._names:
            start_program(command, **settings)
            return
        silent = settings.get("stdout") == subprocess.DEVNULL
        output = os.open(os.devnull, os.O_WRONLY) if silent else None
        try:
            if fork and channel and fork(self._fork_server, command, output, channel.fileno()):
                return
            self._fork_server.run(
                command,
                output=(1, 2) if output is None else (output, output),
                channel=None if channel is None else channel.fileno(),
            )
        except fork_client.Gone:
            getLogger("flwr").warning("The fork server for %s is gone; starting a new one", command[0])
            self._fork_server.close()
            self._fork_server = fork_client.start_fork_server(self._module, self._names)
            start_program(command, **settings)
        finally:
            if output is not None:
                os.close(output)


apps = _Apps()


def fork_apps() -> None:
    """Let Flower's executor start apps through the fork server, and let ServerApps outlive it.

    In stock Flower, an app that loses its parent ends as if somebody had stopped the run.
    """

    def start(command: list[str], **settings: Any) -> None:
        if command[0] == "flwr-serverapp" and "--parent-pid" in command:
            place = command.index("--parent-pid")
            command = command[:place] + command[place + 2 :]
        apps.start(command, **settings)

    replace(EXECUTOR, subprocess=like(subprocess, Popen=start))
