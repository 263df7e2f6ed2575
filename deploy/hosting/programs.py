"""The server's programs, kept running."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

from deploy.hosting.server import Server, ServerError
from deploy.processes.groups import LOOPBACK, Process, stop, wait_until, watchdog_command
from deploy.tls.reach import serves

if TYPE_CHECKING:
    from collections.abc import Callable

START_TIMEOUT = 120.0  # s
STOP_GRACE = 8.0  # s
PAUSE = 2.0  # s before a program that ended is started again
LOG_BYTES = 10_000_000  # then a log becomes LOG.1
MARK = "COHORT_SERVER"  # the environment variable by which the server's processes are known


class Programs:
    """The SuperLink and the program that runs ServerApps, kept running."""

    def __init__(self, server: Server) -> None:
        keys = server.folder / "pki"
        secret = ("--superexec-auth-secret-file", str(keys / "executor.secret"))
        control = ("--host", LOOPBACK, "--port", str(server.control_port))
        fast = (sys.executable, "-P", "-m", "deploy.flower.launch")
        self._server = server
        self._commands = {
            "superlink": [
                *(
                    *fast,
                    "flower-superlink",
                    *control,
                    "--fleet-api-address",
                    f"{server.listen}:{server.port}",
                ),
                *("--ssl-ca-certfile", str(server.authority), "--ssl-certfile", str(keys / "server.pem")),
                *("--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"),
                *("--database", str(server.folder / "superlink.db")),
                "--disable-runtime-dependency-installation",
                # ServerApps are not the SuperLink's children: what ends it does not end them.
                *("--isolation", "process", *secret),
            ],
            "superexec": [
                *(*fast, "flower-superexec", "--runtime-api-address", f"{LOOPBACK}:{server.control_port}"),
                *("--root-certificates", str(server.authority), *secret),
            ],
        }
        self._running: dict[str, Process] = {}
        self._watchdog: Process | None = None

    def __enter__(self) -> Programs:
        try:
            if sys.platform == "linux":  # else they would hold the ports when this process is killed
                folder = self._server.folder
                command = watchdog_command(MARK, str(folder), folder / "tmp")
                self._watchdog = self._process("watchdog", command)
            self._start("superlink")
            superlink = self._running["superlink"]

            def over() -> bool:  # the control port answers last
                return superlink.returncode is not None or serves(
                    self._server.control_port, self._server.authority
                )

            if not wait_until(over, START_TIMEOUT) or superlink.returncode is not None:
                raise ServerError(
                    f"the SuperLink did not come up; the end of {superlink.log}:\n{superlink.tail()}"
                )
            self._start("superexec")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        stop(self._running.values(), STOP_GRACE)
        if self._watchdog is not None:  # the last to go
            stop([self._watchdog], STOP_GRACE)

    def look_after(self, say: Callable[[str], None]) -> None:
        """Start again what has ended, and keep the logs small."""
        for name, process in list(self._running.items()):
            if process.returncode is not None:
                say(f"{name} ended with code {process.returncode}: started again (log: {process.log})")
                time.sleep(PAUSE)
                self._start(name)
            with contextlib.suppress(OSError):
                if process.log.stat().st_size > LOG_BYTES:
                    shutil.copyfile(process.log, process.log.with_name(f"{process.log.name}.1"))
                    os.truncate(process.log, 0)  # it is appended to

    def _start(self, name: str) -> None:
        self._running[name] = self._process(name, self._commands[name])

    def _process(self, name: str, command: list[str]) -> Process:
        log = self._server.folder / "logs" / f"{name}.log"
        return Process(command, log, {**self._server.environment(), MARK: str(self._server.folder)})
