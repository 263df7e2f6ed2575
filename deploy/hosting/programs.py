"""Runs the SuperLink and the executor of a server for devices, and starts them again when they end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from deploy.flower import commands
from deploy.flower.corrupt_database import move_aside_if_corrupt
from deploy.hosting.server import DATABASE, Server, ServerError
from deploy.processes.groups import tail, wait_until
from deploy.processes.marked import MarkedProcesses
from deploy.processes.ports import LOOPBACK
from deploy.processes.supervisor import Supervisor
from deploy.tls.probe import REFUSED, unreachable

START_TIMEOUT = 120.0  # s that the SuperLink may take to start
# Seconds before a program that has ended is started again: SOON if it ran for more than SETTLED s, else LATER
SOON, LATER, SETTLED = 0.2, 2.0, 10.0
LOG_BYTES = 10_000_000  # bytes of a log; a longer log is moved to LOG.1
WORK = "apps"  # the subfolder of the server's folder in which the programs and the ServerApps run
MARK = "COHORT_SERVER"  # the environment variable that marks the server's processes


class _Program(Supervisor):
    """Keeps one program running, in a thread. The program's output goes to a log of limited size."""

    grace = 8.0

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        say: Callable[[str], None],
        work: Path,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.log = folder / f"{name}.log"
        self.failures = 0
        self.starts = 0
        self._name, self._command, self._environment, self._say = name, command, environment, say
        self._before, self._work = before, work
        self._started = 0.0  # time.monotonic(), s
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)
        self._file = self.log.open("ab")

    def start(self) -> None:
        """Start the thread, which starts the program."""
        self._thread.start()

    def end(self) -> None:
        """Wait until the program has ended. Call `stop` first."""
        if self._thread.ident is not None:
            self._thread.join()
        self._file.close()

    def command(self) -> Sequence[str]:
        self._before()
        return self._command

    def environment(self) -> Mapping[str, str]:
        return self._environment

    def working_folder(self) -> Path:
        self._work.mkdir(exist_ok=True)
        return self._work

    def output(self) -> int:
        # A file and not a pipe, because ServerApps survive the program that started them, and still print to
        # its output.
        return self._file.fileno()

    def started(self, program: subprocess.Popen[bytes]) -> None:
        self._started = time.monotonic()
        self.starts += 1

    def check(self) -> bool:
        """Move the log to LOG.1 if it is longer than `LOG_BYTES`. Return True."""
        with contextlib.suppress(OSError):  # such as no space for the copy
            if self.log.stat().st_size > LOG_BYTES:
                shutil.copyfile(self.log, self.log.with_name(f"{self.log.name}.1"))
                os.truncate(self.log, 0)  # all writers append, so they go on at the beginning
        return True

    def clean_up(self, program: subprocess.Popen[bytes]) -> None:
        """Kill the program's process group if the server stops; otherwise its ServerApps go on."""
        if self.stopping:
            super().clean_up(program)

    def ended(self, code: int | None) -> float:
        self.failures += 1
        self._say(f"{self._name} ended with code {code}: started again (log: {self.log})")
        return SOON if time.monotonic() - self._started > SETTLED else LATER


class Programs:
    """Keeps the SuperLink and the executor of ServerApps running inside a `with` block.

    `say`: receives a message for the operator whenever a program has ended unexpectedly, or a corrupt
    database was moved aside. `say` is called in other threads.
    """

    def __init__(self, server: Server, say: Callable[[str], None]) -> None:
        keys = server.folder / "pki"
        secret = keys / "executor.secret"
        database = server.folder / DATABASE
        superlink = commands.superlink(
            control=(LOOPBACK, server.control_port),
            fleet=(server.listen, server.port),
            keys=keys,
            database=server.database or database,
            secret=secret,
        )
        superexec = commands.superexec(control=server.control, authority=server.authority, secret=secret)
        logs = server.folder / "logs"
        self._server = server
        # If this process is killed, the watchdog finds its programs by the mark, and ends them. Otherwise
        # these programs would occupy the server's ports.
        self._marked = MarkedProcesses(MARK, str(server.folder), server.folder / "tmp")
        environment = {**server.environment("programs"), **self._marked.mark}
        self._watchdog_log, self._environment = logs / "watchdog.log", environment
        guarded = {**environment, **commands.guarded(server.control_secret, server.folder)}
        if server.database and (fingerprint := server.fingerprint):
            shared = commands.shared(server.home, fingerprint, server.address)
            guarded |= shared
            environment |= shared  # for ServerApps, which know by it that there may be other front ends
        # Apps may write files such as models into their working directory, which is the executor's.
        work = server.folder / WORK
        self._superlink = _Program(
            *("superlink", commands.patched(superlink), logs, guarded, say, work),
            before=(lambda: None) if server.database else partial(move_aside_if_corrupt, database, say),
        )
        self._superexec = _Program("superexec", commands.patched(superexec), logs, environment, say, work)

    @property
    def starts(self) -> dict[str, int]:
        """How often each program was started, under the program's name."""
        return {"superlink": self._superlink.starts, "executor": self._superexec.starts}

    def __enter__(self) -> Programs:
        try:
            self._marked.watch(self._watchdog_log, self._environment)
            self._superlink.start()

            problem = ""

            def over() -> bool:  # the control API is the last part of the SuperLink to start
                nonlocal problem
                address = f"{LOOPBACK}:{self._server.control_port}"
                problem = unreachable(address, self._server.authority, 1.0) or ""
                return self._superlink.failures > 0 or not problem or problem.startswith(REFUSED)

            if not wait_until(over, START_TIMEOUT) or self._superlink.failures:
                log = self._superlink.log
                if (reason := tail(log, 1)).startswith(commands.NO_START):
                    raise ServerError(reason)
                raise ServerError(f"the SuperLink did not come up; the end of {log}:\n{tail(log)}")
            if problem:
                raise ServerError(f"the SuperLink cannot be used: {problem}")
            self._superexec.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        programs = (self._superlink, self._superexec)
        if self._server.database:
            # If they were asked to end, they would note in the histories that somebody stopped the runs.
            self._marked.end_named(commands.SERVER_APP, signal.SIGKILL, programs[0].grace)
        for program in programs:
            program.stop()
        for program in programs:
            program.end()
        # A ServerApp whose executor died earlier is not in the process group of the present executor.
        self._marked.kill(programs[0].grace)
        self._marked.end_watchdog(programs[0].grace)
