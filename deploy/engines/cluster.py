"""A real federation on this machine: one SuperLink, N SuperNodes, a process each, over TLS on loopback."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from client.local import client_name
from deploy.engines.engine import STOP_GRACE, EngineError, ProcessEngine, ProcessRun
from deploy.flower import commands, forking, launch
from deploy.flower.app_folder import app_folder
from deploy.flower.flwr_cli import flower_environment, remote, write_connection
from deploy.flower.fork_server import SOCKET
from deploy.flower.registration import registration_command
from deploy.flower.submission import run_command
from deploy.processes.groups import POLL_INTERVAL, Process, wait_until
from deploy.processes.marked import MarkedProcesses
from deploy.processes.ports import LOOPBACK, free_ports, is_free
from deploy.tls import certificates
from deploy.tls.reach import serves

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deploy.flower.config import ConfigValue

Programs = Literal["forked", "patched", "stock"]
CONNECTION = "cluster"  # the name of the SuperLink in Flower's config.toml
MARK = "COHORT_CLUSTER"  # the environment variable that marks the cluster's processes
EXECUTOR_POLL_INTERVAL = 0.25  # seconds
START_TIMEOUT = 120.0  # seconds until the SuperLink is up, and until all clients are online
STOP_TIMEOUT = 30.0  # seconds for `flwr stop`
PORT_ATTEMPTS = 3
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # ask a program to end


class LocalCluster(ProcessEngine):
    """A SuperLink and its clients, from `__enter__` to `__exit__`.

    The SuperLink serves the gRPC Fleet API over TLS and admits only clients whose key is registered.
    Client i runs with the node config `client-id="client-0i" partition-id=i num-partitions=N`; its id is also
    its name as a SuperNode and the name of its log.
    Nothing is written outside `folder`: `folder/logs` stays, `folder/state` (keys, database, Flower's
    home) is removed at the end. Every process is ended at the end; on Linux also when this process is killed
    with SIGKILL.

    Parameters
    ----------
    folder : Path
        The cluster's own; made if it is missing. Two clusters cannot share one.
    num_clients : int
        The number of SuperNodes.
    app : Path | None
        The Flower app that `submit` runs: the folder of its pyproject.toml. (default: this project's app)
    port : int | None
        The SuperLink's port for `flwr`. All other ports are picked. (default: picked)
    programs : Programs
        How Flower's programs run: "forked", patched and all forked from one process, which takes the least
        time and memory (the default); "patched", patched and each started on its own, as on separate
        machines; or "stock", unchanged with all their polling.

    Raises
    ------
    ValueError
        If the port is taken or there are no clients.
    EngineError
        On entering, if a process dies or does not come up in time.

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
                "or leave it out and a free one is picked"
            )
        self.client_names = [client_name(index, num_clients) for index in range(num_clients)]
        self.app = app or app_folder()
        self.port = port
        self.programs = programs
        self._state = self.folder / "state"
        self._pki = self._state / "pki"
        self._marked = MarkedProcesses(MARK, str(self.folder), self._state)
        self._fork_server_process: Process | None = None
        self._fork_server: forking.ForkServer | None = None
        self._superlink: Process | None = None
        self._fleet_port = 0
        self._clients: dict[int, Process] = {}
        self._dead: set[int] = set()

    def __enter__(self) -> LocalCluster:
        if self._state.exists():
            raise EngineError(f"{self._state}: belongs to another cluster; give each a folder of its own")
        return super().__enter__()

    @property
    def client_processes(self) -> list[Process]:
        """The SuperNodes."""
        return list(self._clients.values())

    @property
    def fork_server_process(self) -> Process | None:
        """The process that forks all others, if `programs` is "forked"."""
        return self._fork_server_process

    @property
    def started(self) -> str:
        """The message for the user when all clients are online."""
        online = f"all {self.num_clients} clients are online"
        if self.programs == "forked" and self._fork_server is None:
            return f"{online}; rounds will be slow: see {self.logs / 'fork-server.log'}"
        return online

    def submit(self, run_config: Mapping[str, ConfigValue], name: str) -> ProcessRun:
        """Run the app on the cluster's clients; several runs may be under way at the same time."""
        command = run_command(self.app, CONNECTION, run_config, self._state / f"run-{name}", self.folder)
        process = self._spawn(name, command)
        self._runs.append(process)
        return ProcessRun(name, process, self)

    def abort(self, run: ProcessRun) -> None:
        """Tell the SuperLink that a run is over whose ServerApp was killed, and wait until it has stopped it.

        By itself it notices after a minute. Until then a client that received only a part of a message from
        the ServerApp waits for the rest, and serves no other run.
        """
        if run.run_id is not None:
            process = self._spawn(f"stop-{run.name}", ["flwr", "stop", run.run_id, CONNECTION])
            self._runs.append(process)
            wait_until(lambda: process.returncode is not None, STOP_TIMEOUT)

    def check(self) -> list[str]:
        """Check the processes.

        Returns
        -------
        list[str]
            The clients that died since the last call. The cluster goes on without them.

        Raises
        ------
        EngineError
            If the SuperLink died: nothing goes on without it.
        """
        self._require_superlink()
        died = [i for i, p in self._clients.items() if i not in self._dead and p.returncode is not None]
        self._dead.update(died)
        return [self.client_names[i] for i in died]

    def kill_client(self, index: int) -> None:
        """Kill a client (SIGKILL): it vanishes like a device with an empty battery."""
        process = self._clients[index]
        if process.returncode is not None:
            return
        process.signal_group(signal.SIGKILL)
        # Its helpers end by themselves once their parent has ended and was reaped.
        wait_until(lambda: process.returncode is not None, STOP_GRACE)

    def close(self) -> None:
        """End all processes and remove what only they needed. A second call does nothing."""
        known = [*self._clients.values(), *self._runs, *filter(None, [self._superlink])]
        with _uninterrupted():
            # The fork server is the parent of the others: it must live to report their ends.
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
        """Start the parent of all Flower programs of this cluster; without it they start on their own."""
        folder = self._state / "fork-server"
        folder.mkdir()
        command = forking.fork_server_command(commands.LAUNCHER, folder, launch.ALL)
        process = self._fork_server_process = self._spawn("fork-server", command)
        listens = folder / SOCKET
        wait_until(lambda: listens.exists() or process.returncode is not None, START_TIMEOUT)
        with contextlib.suppress(OSError):
            self._fork_server = forking.ForkServer.connect(folder)

    def _start_superlink(self) -> None:
        authority = self._pki / "ca.crt"
        for _ in range(PORT_ATTEMPTS):
            control_port, self._fleet_port = free_ports(2)
            control_port = self.port or control_port
            command = commands.superlink(
                control=(LOOPBACK, control_port),
                fleet=(LOOPBACK, self._fleet_port),
                keys=self._pki,
                database=self._state / "superlink.db",
            )
            process = self._superlink = self._spawn("superlink", command)
            deadline = time.monotonic() + START_TIMEOUT
            while process.returncode is None and time.monotonic() < deadline:
                if all(serves(each, authority) for each in (control_port, self._fleet_port)):
                    self.port = control_port
                    connection = remote(f"{LOOPBACK}:{control_port}", authority)
                    write_connection(self._state / "flwr", CONNECTION, connection)
                    return
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
        # A home of its own, as on a device: two processes that unpack the app into the same home at the same
        # time see each other's half-written files.
        command = commands.supernode(*options, host=LOOPBACK, port=port)
        self._clients[index] = self._spawn(name, command, home=f"flwr-{name}")

    def _environment(self, home: str = "flwr") -> dict[str, str]:
        # Flower finds its other programs by the PATH, whether the virtual environment is active or not.
        programs = [Path(sys.executable).parent]
        environment = flower_environment(programs, self._state / home, self._state / "tmp")
        if self.programs != "stock":
            environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = str(EXECUTOR_POLL_INTERVAL)
        return environment | self._marked.mark

    def _spawn(self, log: str, command: Sequence[str], *, home: str = "flwr") -> Process:
        environment = self._environment(home)
        if self.programs == "patched" and command[0] in launch.LAUNCHED:
            command = commands.patched(command)
        output = self.logs / f"{log}.log"
        try:
            if self._fork_server is not None and command[0] in launch.ALL:
                environment[forking.VARIABLE] = str(self._state / "fork-server")
                with contextlib.suppress(forking.Gone):
                    return Process.forked(command, output, environment, self._fork_server)
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
    """Ignore signals during the clean-up: a second Ctrl-C would leave processes behind."""
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
    state = "did not come up" if process.returncode is None else f"ended with code {process.returncode}"
    return f"{who} {state}; the end of {process.log}:\n{process.tail()}"


def _is_online(process: Process) -> bool:
    # Printed once the SuperLink has activated the node. Asking the SuperLink (`flwr supernode list`)
    # takes a second of CPU time for the same answer.
    return "SuperNode ID:" in process.log.read_text(errors="replace")


def _lost_its_port(process: Process) -> bool:
    tail = process.tail().lower()
    return "address already in use" in tail or "is already in use" in tail
