"""A real federation on this machine as an engine: processes of a SuperLink and of N SuperNodes.

The processes communicate over TLS on the loopback interface.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from client.local_data import client_name
from deploy.engines.engine import STOP_GRACE, EngineError, ProcessEngine, ProcessRun
from deploy.flower import commands, fork_client, launch
from deploy.flower.app_folder import app_folder
from deploy.flower.config import ConfigValue
from deploy.flower.flwr_cli import flower_environment, remote, write_connection
from deploy.flower.fork_server import SOCKET
from deploy.flower.key_registration import registration_command
from deploy.flower.submission import run_command
from deploy.processes.groups import POLL_INTERVAL, Process, wait_until
from deploy.processes.marked import MarkedProcesses
from deploy.processes.ports import LOOPBACK, free_ports, is_free
from deploy.tls import certificates
from deploy.tls.probe import serves

Programs = Literal["forked", "patched", "stock"]
CONNECTION = "cohort-cluster"  # the name of the SuperLink in Flower's config.toml
MARK = "COHORT_CLUSTER"  # the environment variable that marks the cluster's processes
EXECUTOR_POLL_INTERVAL = 0.25  # seconds between two requests for new tasks by Flower's executor
START_TIMEOUT = 120.0  # seconds for each step of the start, such as until all clients are online
STOP_TIMEOUT = 30.0  # seconds for `flwr stop`
PORT_ATTEMPTS = 3  # how often a program is started if other programs take its port each time
# Seconds before a dead client is started again. The pause doubles, up to LONGEST_RESTART, each time the
# client dies within SETTLED seconds of its start.
FIRST_RESTART, LONGEST_RESTART, SETTLED = 1.0, 30.0, 60.0
HUNG = 20.0  # seconds; if a client's process runs, but is offline for longer, the process is killed
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the signals that ask a program to end


class LocalCluster(ProcessEngine):
    """A SuperLink and its clients, which run for as long as the `with` block.

    The SuperLink serves the gRPC Fleet API over TLS ("stock": the HTTP one), and admits only clients whose
    keys are registered.
    For example, client 3 of 10 has the node config `client-id="client-03" partition-id=3 num-partitions=10`.
    The client's id is also the registered name of its SuperNode, and the name of its log.
    The cluster writes into `folder` only. At the end of the block, `folder/logs` is kept, `folder/state`
    (keys, database, Flower's homes) is removed, and all processes are ended. On Linux the processes are ended
    even if this process is killed with SIGKILL.

    `folder`: the cluster's folder, made if it is missing. Two clusters cannot share a folder. `num_clients`:
    the number of SuperNodes, at least 1. `app`: the folder of the Flower app that `submit` runs; it contains
    pyproject.toml. (default: this project's app) `port`: the port of the SuperLink's control API, which
    `flwr` uses. (default: a free port) `programs`: how Flower's programs run. "forked" (the default): with
    the patches, and all forked from one process. This takes the least time and memory. "patched": with the
    patches, but each program is started on its own, as on separate machines. "stock": without patches and
    guards. Then every user of this machine can submit a run to the SuperLink, and the run executes as the
    user who started the cluster.

    Examples
    --------
    >>> with LocalCluster(Path("runs/demo"), num_clients=4) as cluster:   # doctest: +SKIP
    ...     cluster.submit({"selector": "md", "num-clients": 4}, "md").wait(timeout=300)
    """

    def __init__(
        self,
        folder: Path,
        num_clients: int,
        *,
        app: Path | None = None,
        port: int | None = None,
        programs: Programs = "forked",
    ) -> None:
        super().__init__(folder, num_clients)
        if num_clients < 1:
            raise ValueError(f"num_clients = {num_clients}: must be at least 1")
        if port is not None and not is_free(port):
            raise ValueError(
                f"port = {port}: taken by another program; choose another with --port, "
                "or leave out --port to use a free port"
            )
        self.client_names = [client_name(index, num_clients) for index in range(num_clients)]
        self.app = app or app_folder()
        self.port = port
        self.programs = programs
        self._state = self.folder / "state"
        self._pki = self._state / "pki"
        self._marked = MarkedProcesses(MARK, str(self.folder), self._state)
        self._fork_server_process: Process | None = None
        self._fork_server: fork_client.ForkServer | None = None
        self._superlink: Process | None = None
        self._fleet_port = 0
        self._clients: dict[int, Process] = {}
        # The keys of the next three are clients' indexes. Times are of time.monotonic(), in seconds.
        self._restart_at: dict[int, float] = {}  # when each dead client is to be started again
        self._started_at: dict[int, float] = {}
        self._pauses: dict[int, float] = {}  # the pause before each client's last restart
        self._offline = _OfflineNodes(self.logs / "superlink.log")

    def __enter__(self) -> LocalCluster:
        if self._state.exists():
            raise EngineError(f"{self._state}: belongs to another cluster; give each a folder of its own")
        return super().__enter__()

    @property
    def client_processes(self) -> list[Process]:
        """The processes of the SuperNodes, in the order of the clients' first starts."""
        return list(self._clients.values())

    @property
    def fork_server_process(self) -> Process | None:
        """The process from which the other processes are forked; None unless `programs` is "forked"."""
        return self._fork_server_process

    @property
    def roots(self) -> list[int]:
        """The ids of the processes from which the SuperLink, the SuperNodes and the apps descend.

        If the programs are forked, the only such process is the fork server. `flwr` commands descend from it
        too.
        """
        if self._fork_server is not None and self._fork_server_process is not None:
            return [self._fork_server_process.pid]  # without a fork server, each program is a root itself
        return [process.pid for process in [*self._clients.values(), *filter(None, [self._superlink])]]

    @property
    def started(self) -> str:
        """The message for the user when the cluster has started."""
        online = f"all clients are online ({self.num_clients})"
        if self.programs == "forked" and self._fork_server is None:
            return f"{online}; rounds will be slow: see {self.logs / 'fork-server.log'}"
        return online

    def submit(self, run_config: Mapping[str, ConfigValue], name: str) -> ProcessRun:
        """Start a run of the app on the cluster's clients. Several runs may go on at the same time."""
        command = run_command(self.app, CONNECTION, run_config, self._state / f"run-{name}", self.folder)
        process = self._spawn(name, command)
        self._runs.append(process)
        return ProcessRun(name, process, self)

    def abort(self, run: ProcessRun) -> None:
        """Stop a run whose ServerApp was killed; wait at most `STOP_TIMEOUT` s until the run has stopped.

        Otherwise the SuperLink would take a minute or two to notice the ServerApp's death. Until then, a
        client that has received an incomplete message from the ServerApp would serve no other run.
        """
        if run.run_id is not None:
            process = self._spawn(f"stop-{run.name}", ["flwr", "stop", run.run_id, CONNECTION])
            self._runs.append(process)
            wait_until(lambda: process.returncode is not None, STOP_TIMEOUT)

    def check(self) -> list[str]:
        """Check the processes: start dead clients again after a pause, and kill hung clients.

        Returns the names of the clients that died since the last call.
        """
        self._require_superlink()
        now, died = time.monotonic(), []
        offline = self._offline.since()
        for index, process in list(self._clients.items()):
            if process.returncode is None:
                since = offline.get(_node_of(process) if offline else None, now)
                if now - max(since, self._started_at[index]) > HUNG:
                    process.signal_group(signal.SIGKILL)
            elif index not in self._restart_at:
                died.append(self.client_names[index])
                settled = now - self._started_at[index] > SETTLED
                pause = FIRST_RESTART if settled else 2 * self._pauses.get(index, FIRST_RESTART / 2)
                self._pauses[index] = min(pause, LONGEST_RESTART)
                self._restart_at[index] = now + self._pauses[index]
            elif now >= self._restart_at[index]:
                self._start_client(index, *free_ports(1))
        return died

    def close(self) -> None:
        """End all processes and remove `folder/state`. A second call does nothing."""
        known = [*self._clients.values(), *self._runs, *filter(None, [self._superlink])]
        with _uninterrupted():
            # ServerApps end first, while the SuperLink still answers them: they report to trackers and
            # histories that somebody stopped the run.
            self._marked.end_named(commands.SERVER_APP, commands.STOP_RUN, STOP_GRACE)
            # The fork server ends last: it is the parent of the other processes and reports their exit codes.
            self._marked.end(known, STOP_GRACE, last=filter(None, [self._fork_server_process]))

    def _start(self) -> None:
        certificates.private_folder(self._state)
        (self._state / "tmp").mkdir()
        self._marked.watch(self.logs / "watchdog.log", self._environment())
        certificates.write_certificates(self._pki)
        self._keys = [certificates.write_client_key(self._pki, name) for name in self.client_names]
        if self.programs == "forked":
            self._start_fork_server()
        self._start_superlink()
        self._register_clients()
        self._start_clients()

    def _start_fork_server(self) -> None:
        """Start the process from which Flower's programs are forked.

        If the fork server does not start, each program is started on its own.
        """
        folder = self._state / "fork-server"
        folder.mkdir()
        command = fork_client.fork_server_command(commands.LAUNCHER, folder, launch.ALL)
        process = self._fork_server_process = self._spawn("fork-server", command)
        listens = folder / SOCKET
        wait_until(lambda: listens.exists() or process.returncode is not None, START_TIMEOUT)
        with contextlib.suppress(OSError):
            self._fork_server = fork_client.ForkServer.connect(folder)

    def _start_superlink(self) -> None:
        authority, secret = self._pki / "ca.crt", self._pki / "control.secret"
        certificates.write_private(secret, secrets.token_hex(32).encode())
        self.port, self._fleet_port = self._serve("superlink", self._state / "superlink.db")
        write_connection(
            self._state / "flwr", CONNECTION, remote(f"{LOOPBACK}:{self.port}", authority), secret
        )

    def _serve(
        self, log: str, database: Path | str, extra: Mapping[str, str] | None = None
    ) -> tuple[int, int]:
        """Start a SuperLink, and return the ports of its control API and its Fleet API, which answer."""
        guarded = {} if self.programs == "stock" else commands.guarded(self._pki / "control.secret")
        for _ in range(PORT_ATTEMPTS):
            control_port, fleet_port = free_ports(2)
            control_port = self.port or control_port
            if self.programs == "stock":  # whose Fleet API is HTTP, on the port of the other APIs
                fleet_port = control_port
            command = commands.superlink(
                control=(LOOPBACK, control_port),
                fleet=(LOOPBACK, fleet_port),
                keys=self._pki,
                database=database,
            )
            # ServerApps inherit this Flower home, so it must not be the home of `flwr`, which holds the
            # secret of the control API.
            process = self._superlink = self._spawn(
                log, command, home=f"flwr-{log}", extra={**guarded, **(extra or {})}
            )
            deadline = time.monotonic() + START_TIMEOUT
            while process.returncode is None and time.monotonic() < deadline:
                if all(serves(each, self._pki / "ca.crt") for each in (control_port, fleet_port)):
                    return control_port, fleet_port
                time.sleep(POLL_INTERVAL)
            if not _lost_its_port(process):
                break
        raise EngineError(_obituary("the SuperLink", process))

    def _register_clients(self) -> None:
        keys = [key.with_name(f"{key.name}.pub") for key in self._keys]
        command = registration_command(CONNECTION, keys, self._state / "registered")
        process = self._spawn("register", command)
        self._runs.append(process)
        if not wait_until(lambda: process.returncode is not None, START_TIMEOUT) or process.returncode:
            raise EngineError(_obituary("the registration of the clients' keys", process))

    def _start_clients(self) -> None:
        for index, port in enumerate(free_ports(self.num_clients)):
            self._start_client(index, port)
        attempts = dict.fromkeys(self._clients, 1)

        def all_online() -> bool:
            self._require_superlink()
            for index, process in self._clients.items():
                if process.returncode is None:
                    continue
                if not _lost_its_port(process) or attempts[index] == PORT_ATTEMPTS:
                    raise EngineError(_obituary(self.client_names[index], process))
                attempts[index] += 1
                self._start_client(index, *free_ports(1))
            return all(map(_is_online, self._clients.values()))

        if not wait_until(all_online, START_TIMEOUT):
            late = [self.client_names[i] for i, process in self._clients.items() if not _is_online(process)]
            raise EngineError(f"{', '.join(late)}: not online after {START_TIMEOUT:g} s; logs: {self.logs}")

    def _start_client(self, index: int, port: int) -> None:
        name = self.client_names[index]
        options = commands.supernode_options(
            fleet=f"{LOOPBACK}:{self._fleet_port}",
            authority=self._pki / "ca.crt",
            key=self._keys[index],
            node_config=f'client-id="{name}" partition-id={index} num-partitions={self.num_clients}',
        )
        # Each client has a home of its own, as on a device: two processes that unpack the app into the same
        # home at the same time see each other's half-written files.
        command = commands.supernode(*options, host=LOOPBACK, port=port)
        self._started_at[index] = time.monotonic()
        self._restart_at.pop(index, None)
        self._clients[index] = self._spawn(name, command, home=f"flwr-{name}")

    def _environment(self, home: str = "flwr") -> dict[str, str]:
        environment = flower_environment(self._state / home, self._state / "tmp")
        if self.programs != "stock":
            environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = str(EXECUTOR_POLL_INTERVAL)
        return environment | self._marked.mark

    def _spawn(
        self, log: str, command: Sequence[str], *, home: str = "flwr", extra: Mapping[str, str] | None = None
    ) -> Process:
        environment = {**self._environment(home), **(extra or {})}
        output = self.logs / f"{log}.log"
        try:
            if self._fork_server is not None and command[0] in launch.ALL:
                environment[fork_client.VARIABLE] = str(self._state / "fork-server")
                with contextlib.suppress(fork_client.Gone):
                    return self._fork_server.start(command, output, environment)
            if self.programs != "stock" and command[0] in launch.LAUNCHED:
                command = commands.patched(command)
            return Process(command, output, environment)
        except FileNotFoundError as error:
            raise EngineError(str(error)) from error

    def _require_superlink(self) -> None:
        if self._superlink is None:
            raise EngineError("the cluster is not running; use it in a `with` statement")
        if self._superlink.returncode is not None:
            raise EngineError(_obituary("the SuperLink", self._superlink))


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore `SIGNALS` in the block: a second Ctrl-C during the clean-up would leave processes behind."""
    # Python lets only the main thread change signal handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _obituary(who: str, process: Process) -> str:
    """Return an error message with the end of the process's log."""
    state = "did not come up" if process.returncode is None else f"ended with code {process.returncode}"
    return f"{who} {state}; the end of {process.log}:\n{process.tail()}"


class _OfflineNodes:
    """Reads from the SuperLink's log which nodes are offline. The log need not exist yet."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = 0
        self._since: dict[int | None, float] = {}

    def since(self) -> dict[int | None, float]:
        """Return, for each offline node, when its departure was read in the log (time.monotonic(), s)."""
        with contextlib.suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                if found := re.search(rb"Node (\d+) is offline", line):
                    self._since[int(found[1])] = time.monotonic()
                elif found := re.search(rb"Activated node_id=(\d+)|Node (\d+) is back", line):
                    self._since.pop(int(found[1] or found[2]), None)
        return self._since


def _node_of(process: Process) -> int | None:
    """Return the node id that a SuperNode printed last; None before the node is online."""
    found = re.findall(r"SuperNode ID: (\d+)", process.log.read_text(errors="replace"))
    return int(found[-1]) if found else None


def _is_online(process: Process) -> bool:
    # A SuperNode prints its id once the SuperLink has activated the node. `flwr supernode list` would give
    # the same answer, but takes a second of CPU time.
    return "SuperNode ID:" in process.log.read_text(errors="replace")


def _lost_its_port(process: Process) -> bool:
    tail = process.tail().lower()
    return "address already in use" in tail or "is already in use" in tail
