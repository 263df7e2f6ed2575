"""Flower's own simulation (Ray) as an engine."""

import importlib.util
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from deploy.engines.engine import STOP_GRACE, ProcessEngine, ProcessRun
from deploy.flower.app_folder import app_folder
from deploy.flower.config import ConfigValue
from deploy.flower.flwr_cli import flower_environment, write_connection
from deploy.flower.submission import run_command
from deploy.processes.groups import Process
from deploy.processes.marked import MarkedProcesses
from deploy.processes.ports import free_ports
from deploy.processes.ray_token import ray_token
from deploy.tls import certificates
from strategies.clients.printable import counted

CONNECTION = "local"  # the name of the simulation in Flower's config.toml
MARK = "COHORT_SIMULATION"  # the environment variable that marks the simulation's processes


class RaySimulation(ProcessEngine):
    """Executes each run with `flwr run . local`. Ray's worker processes run the clients, without a network.

    Ray also writes into the system's temporary folder; everything else is written into `folder`. At the end
    of the `with` block all processes are ended, including Ray's processes and the SuperLink that `flwr run`
    leaves behind.

    `folder`: the engine's folder. At the end of the block, `folder/logs` is kept and `folder/state` is
    removed. `num_clients`: the number N of virtual SuperNodes, at least 1. Client i has the node config
    `partition-id=i num-partitions=N`. `app`: the folder of the Flower app that `submit` runs. (default: this
    project's app)
    """

    def __init__(self, folder: Path, num_clients: int, *, app: Path | None = None) -> None:
        if importlib.util.find_spec("ray") is None:
            raise ModuleNotFoundError(
                "engine = 'ray' needs ray: pip install 'cohort-app[simulation]'", name="ray"
            )
        super().__init__(folder, num_clients)
        self.app = app or app_folder()
        self._state = self.folder / "state"
        self._marked = MarkedProcesses(MARK, str(self.folder), self._state)
        self._ray: Path | None = None

    def _start(self) -> None:
        certificates.private_folder(self._state)
        (self._state / "tmp").mkdir()
        write_connection(
            self._state / "flwr",
            CONNECTION,
            {
                "address": ":local:",
                "options.num-supernodes": self.num_clients,
                "options.backend.client-resources.num-cpus": 1,
            },
        )
        # Ray's sockets are below its folder. Their paths are about 60 characters longer than the path of the
        # folder, and the system allows at most 107 characters.
        short = tempfile.gettempdir() if len(tempfile.gettempdir()) < 30 else "/tmp"
        self._ray = Path(tempfile.mkdtemp(prefix="ray-", dir=short))
        self._environment = {
            **flower_environment(self._state / "flwr", self._state / "tmp"),
            **self._marked.mark,
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_ports(1)[0]),
            "RAY_TMPDIR": str(self._ray),
            **ray_token(),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self._marked.watch(self.logs / "watchdog.log", self._environment)

    def close(self) -> None:
        """End all processes; remove `folder/state` and Ray's folder. A second call does nothing."""
        try:
            self._marked.end(self._runs, STOP_GRACE)
        finally:
            if self._ray is not None:
                shutil.rmtree(self._ray, ignore_errors=True)

    @property
    def started(self) -> str:
        """The message for the user when the engine has started."""
        return (
            f"simulating {counted(self.num_clients, 'client')} with Ray, which starts anew for each selector"
        )

    def submit(self, run_config: Mapping[str, ConfigValue], name: str) -> ProcessRun:
        """Start a run of the app. Its virtual clients end when the run ends."""
        command = run_command(self.app, CONNECTION, run_config, self._state / f"run-{name}", self.folder)
        process = Process(command, self.logs / f"{name}.log", self._environment)
        self._runs.append(process)
        return ProcessRun(name, process, self)
