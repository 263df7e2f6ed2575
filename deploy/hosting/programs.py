"""The server's programs, kept running."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from typing import TYPE_CHECKING

from deploy.flower import commands
from deploy.hosting.server import Server, ServerError
from deploy.processes.groups import tail, wait_until
from deploy.processes.marked import MarkedProcesses
from deploy.processes.ports import LOOPBACK
from deploy.processes.supervisor import Supervisor
from deploy.tls.reach import serves

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

START_TIMEOUT = 120.0  # s
PAUSE = 2.0  # s before a program that ended is started again
LOG_BYTES = 10_000_000  # then a log becomes LOG.1
MARK = "COHORT_SERVER"  # the environment variable that marks the server's processes


class _Program(Supervisor):
    """Keeps one program running, in a thread; its output goes to a log of limited size.

    Parameters
    ----------
    name : str
        The program's name in messages, and of its log.
    command : Sequence[str]
        The command to run.
    folder : Path
        Of the logs.
    environment : Mapping[str, str]
        The program's whole environment.
    say : Callable[[str], None]
        Receives a message for the operator.
    """

    grace = 8.0

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        super().__init__()
        self.log = folder / f"{name}.log"
        self.failures = 0
        self._name, self._command, self._environment, self._say = name, command, environment, say
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)
        self._file = self.log.open("ab")

    def start(self) -> None:
        """Start the program."""
        self._thread.start()

    def end(self) -> None:
        """Wait until the program has ended, after `stop`."""
        if self._thread.ident is not None:
            self._thread.join()
        self._file.close()

    def command(self) -> Sequence[str]:
        return self._command

    def environment(self) -> Mapping[str, str]:
        return self._environment

    def output(self) -> int:
        # Not a pipe: ServerApps survive the end of the program that started them, and print to it.
        return self._file.fileno()

    def check(self) -> bool:
        """Keep the log small."""
        with contextlib.suppress(OSError):  # no space is left for the copy
            if self.log.stat().st_size > LOG_BYTES:
                shutil.copyfile(self.log, self.log.with_name(f"{self.log.name}.1"))
                os.truncate(self.log, 0)  # all writers append to it
        return True

    def clean_up(self, program: subprocess.Popen[bytes]) -> None:
        """Kill the whole process group at the end, but let ServerApps survive a restart of the program."""
        if self.stopping:
            super().clean_up(program)

    def ended(self, code: int | None) -> float:
        self.failures += 1
        self._say(f"{self._name} ended with code {code}: started again (log: {self.log})")
        return PAUSE


class Programs:
    """The SuperLink and the executor of ServerApps, kept running inside a `with` block.

    Parameters
    ----------
    server : Server
        Its folder and addresses.
    say : Callable[[str], None]
        Receives a message for the operator whenever a program ends unexpectedly; from other threads.

    Raises
    ------
    ServerError
        On entering, if the SuperLink does not come up.
    """

    def __init__(self, server: Server, say: Callable[[str], None]) -> None:
        keys = server.folder / "pki"
        secret = keys / "executor.secret"
        superlink = commands.superlink(
            control=(LOOPBACK, server.control_port),
            fleet=(server.listen, server.port),
            keys=keys,
            database=server.folder / "superlink.db",
            secret=secret,
        )
        superexec = commands.superexec(control=server.control, authority=server.authority, secret=secret)
        logs = server.folder / "logs"
        self._server = server
        # A server that was killed would leave programs behind that hold its ports.
        self._marked = MarkedProcesses(MARK, str(server.folder), server.folder / "tmp")
        environment = {**server.environment(), **self._marked.mark}
        self._watchdog_log, self._environment = logs / "watchdog.log", environment
        self._superlink = _Program("superlink", commands.patched(superlink), logs, environment, say)
        self._superexec = _Program("superexec", commands.patched(superexec), logs, environment, say)

    def __enter__(self) -> Programs:
        try:
            self._marked.watch(self._watchdog_log, self._environment)
            self._superlink.start()

            def over() -> bool:  # the control port answers last
                return self._superlink.failures > 0 or serves(
                    self._server.control_port, self._server.authority
                )

            if not wait_until(over, START_TIMEOUT) or self._superlink.failures:
                log = self._superlink.log
                raise ServerError(f"the SuperLink did not come up; the end of {log}:\n{tail(log)}")
            self._superexec.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        programs = (self._superlink, self._superexec)
        for program in programs:
            program.stop()
        for program in programs:
            program.end()
        self._marked.end_watchdog(programs[0].grace)
