"""Flower's own simulation (Ray) behind the same face as the local cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.flower.app_folder import app_folder
from deploy.flower.submission import ConfigValue, RunHandle, flower_environment, run_command
from deploy.processes.groups import (
    Process,
    free_ports,
    processes_with,
    stop,
    wait_until,
    watchdog_command,
)
from deploy.tls import certificates

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

MARK = "COHORT_SIMULATION"  # the environment variable by which the simulation's processes are known
STOP_GRACE = 5.0  # seconds that a process has to end by itself


class RaySimulation:
    """`flwr run . local`: clients are tasks of Ray's worker processes, and nothing goes over a network.

    Nothing is written outside `folder` but what Ray keeps in the system's temporary folder, and every process
    is ended at the end, Ray's and the SuperLink that `flwr run` leaves behind included.

    Parameters
    ----------
    folder : Path
        As a cluster's: `folder/logs` stays, `folder/state` is removed at the end.
    num_clients : int
        How many virtual SuperNodes; client i has the node config `partition-id=i num-partitions=N`.
    app : Path | None
        The Flower app that `submit` runs. (default: this repository)

    Raises
    ------
    ModuleNotFoundError
        If Ray is missing.
    """

    def __init__(self, folder: Path, num_clients: int, *, app: Path | None = None) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ModuleNotFoundError(
                "engine = 'ray' needs ray: pip install 'cohort-app[simulation]'", name="ray"
            )
        self.folder = folder.resolve()
        self.logs = self.folder / "logs"
        self.num_clients = num_clients
        self.app = app or app_folder()
        self._state = self.folder / "state"
        self._processes: list[Process] = []
        self._ray = Path()
        self._watchdog: Process | None = None

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        certificates.private_folder(self._state)
        for each in ("tmp", "flwr"):
            (self._state / each).mkdir()
        (self._state / "flwr" / "config.toml").write_text(
            '[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = ":local:"\n'
            f"options.num-supernodes = {self.num_clients}\n"
            "options.backend.client-resources.num-cpus = 1\n"
        )
        # Ray's sockets have names of some 60 characters below its folder, and the system allows 107 in all.
        short = tempfile.gettempdir() if len(tempfile.gettempdir()) < 30 else "/tmp"
        self._ray = Path(tempfile.mkdtemp(prefix="ray-", dir=short))
        self._environment = {
            **flower_environment([Path(sys.executable).parent], self._state / "flwr", self._state / "tmp"),
            MARK: str(self.folder),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_ports(1)[0]),
            "RAY_TMPDIR": str(self._ray),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        if sys.platform == "linux":
            command = watchdog_command(MARK, str(self.folder), self._state)
            self._watchdog = Process(command, self.logs / "watchdog.log", self._environment)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            stop(self._processes, STOP_GRACE, self._marked)
            for pid in self._marked():
                with contextlib.suppress(ProcessLookupError):  # it is gone by now
                    os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not self._marked(), STOP_GRACE)
        finally:
            shutil.rmtree(self._state, ignore_errors=True)
            shutil.rmtree(self._ray, ignore_errors=True)
            if self._watchdog is not None:
                stop([self._watchdog], STOP_GRACE)

    @property
    def started(self) -> str:
        """What there is to say once it has begun."""
        return f"simulating {self.num_clients} clients with Ray, which starts anew for each selector"

    def submit(self, run_config: Mapping[str, ConfigValue], name: str) -> RunHandle:
        """Begin a run of the app."""
        command = run_command(self.app, "local", run_config, self._state / f"run-{name}", self.folder)
        process = Process(command, self.logs / f"{name}.log", self._environment)
        self._processes.append(process)
        return RunHandle(name, process, self)

    def abort(self, run: RunHandle) -> None:
        """Do nothing: Ray and the virtual clients end with the run's processes."""

    def check(self) -> list[str]:
        """Return nothing: here no client dies on its own."""
        return []

    def _marked(self) -> list[int]:
        watchdog = self._watchdog.pid if self._watchdog else None
        return [pid for pid in processes_with(MARK, str(self.folder)) if pid != watchdog]
