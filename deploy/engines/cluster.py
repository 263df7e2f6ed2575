"""A real federation on this machine: one SuperLink, N SuperNodes, a process each, over TLS on loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from client.local import client_name
from deploy.flower import fork_server, launch
from deploy.flower.app_folder import app_folder
from deploy.flower.submission import (
    ConfigValue,
    EngineError,
    RunHandle,
    flower_environment,
    run_command,
    toml,
)
from deploy.processes.groups import (
    LOOPBACK,
    POLL_INTERVAL,
    Process,
    free_ports,
    is_free,
    processes_with,
    stop,
    wait_until,
    watchdog_command,
)
from deploy.tls import certificates
from deploy.tls.reach import serves

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Self

Programs = Literal["forked", "fast", "stock"]
CONNECTION = "cluster"  # the name of the SuperLink in Flower's config.toml
MARK = "COHORT_CLUSTER"  # the environment variable by which the cluster's processes are known
EXECUTOR_POLL_INTERVAL = 0.25  # seconds
START_TIMEOUT = 120.0  # seconds for the SuperLink, and for all clients, to come up
STOP_TIMEOUT = 30.0  # seconds for `flwr stop`
STOP_GRACE = 5.0  # seconds that a process has to end by itself
PORT_ATTEMPTS = 3
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # what asks a program to end
# `flwr supernode register KEY.pub CONNECTION --name KEY` for each key, in one process: importing Flower
# is most of what such a command does.
REGISTER = """
import sys
from pathlib import Path
from flwr.cli.app import app
connection, *keys = sys.argv[1:]
for key in keys:
    command = ["supernode", "register", key + ".pub", connection, "--name", Path(key).name]
    app(command, standalone_mode=False)
"""


class LocalCluster:
    """A SuperLink and its clients, from `__enter__` to `__exit__`.

    The SuperLink serves the gRPC Fleet API over TLS and admits only clients whose key is registered.
    Client i runs with the node config `client-id="client-0i" partition-id=i num-partitions=N`; its id is also
    the name under which it is registered and that of its log.
    Nothing is written outside `folder`: `folder/logs` stays, `folder/state` (keys, database, Flower's
    home) is removed at the end. Every process is ended at the end, however that comes about; on Linux also
    when this process is killed with SIGKILL.

    Parameters
    ----------
    folder : Path
        The cluster's own; made if it is missing. Two clusters cannot share one.
    num_clients : int
        How many SuperNodes.
    app : Path | None
        The Flower app that `submit` runs: the folder of its pyproject.toml. (default: this repository)
    port : int | None
        Where the SuperLink answers `flwr`. All other ports are picked. (default: picked)
    programs : Programs
        How Flower's programs are run: by `deploy.flower.launch`, all forked from one process, which takes the least
        time and memory (the default); by `deploy.flower.launch`, each for itself, as on machines of their own; or as
        Flower has them, with all their waiting.

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
        if num_clients < 1:
            raise ValueError(f"num_clients = {num_clients}: must be at least 1")
        if port is not None and not is_free(port):
            raise ValueError(
                f"port = {port}: taken by another program; choose another with --port, "
                "or leave it out and a free one is picked"
            )
        self.folder = folder.resolve()
        self.logs = self.folder / "logs"
        self.num_clients = num_clients
        self.client_names = [client_name(index, num_clients) for index in range(num_clients)]
        self.app = app or app_folder()
        self.port = port
        self._state = self.folder / "state"
        self.programs = programs
        self._server: Process | None = None  # of `deploy.flower.fork_server`
        self._connection: fork_server.Connection | None = None
        self._superlink: Process | None = None
        self._fleet_port = 0
        self._clients: dict[int, Process] = {}
        self._others: list[Process] = []  # `flwr` commands
        self._watchdog: Process | None = None
        self._dead: set[int] = set()

    def __enter__(self) -> Self:
        if self._state.exists():
            raise EngineError(f"{self._state}: belongs to another cluster; give each a folder of its own")
        try:
            self._start()
        except BaseException:  # Ctrl-C too: what was started must not stay
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def client_processes(self) -> list[Process]:
        """The SuperNodes."""
        return list(self._clients.values())

    @property
    def server_process(self) -> Process | None:
        """What all others are forked from, if they are."""
        return self._server

    @property
    def started(self) -> str:
        """What there is to say once it is up."""
        online = f"all {self.num_clients} clients are online"
        if self.programs == "forked" and self._connection is None:
            return f"{online}; rounds will be slow: see {self.logs / 'warm.log'}"
        return online

    def submit(self, run_config: Mapping[str, ConfigValue], name: str) -> RunHandle:
        """Run the app on the cluster's clients; several runs may be under way at a time.

        Parameters
        ----------
        run_config : Mapping[str, ConfigValue]
            What differs from the defaults in the app's pyproject.toml.
        name : str
            The run's log is `logs/<name>.log`.
        """
        command = run_command(self.app, CONNECTION, run_config, self._state / f"run-{name}", self.folder)
        process = self._spawn(name, *command)
        self._others.append(process)
        return RunHandle(name, process, self)

    def abort(self, run: RunHandle) -> None:
        """Tell the SuperLink that a run is over whose ServerApp was killed, and wait until it knows.

        By itself it takes note after a minute. Until then a client that is to get a message of which the
        ServerApp had sent only a part waits for the rest, and answers nobody else.
        """
        if run.run_id is not None:
            process = self._spawn(f"stop-{run.name}", "flwr", "stop", run.run_id, CONNECTION)
            self._others.append(process)
            wait_until(lambda: process.returncode is not None, STOP_TIMEOUT)

    def check(self) -> list[str]:
        """Look after the processes.

        Returns
        -------
        list[str]
            The clients that died since the last look. The cluster goes on without them.

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
        """Let a client vanish without a word (SIGKILL), as a device does whose battery is empty."""
        process = self._clients[index]
        if process.returncode is not None:
            return
        process.signal_group(signal.SIGKILL)
        # Its helpers end by themselves once it is gone, which it is when its exit has been taken note of.
        wait_until(lambda: process.returncode is not None, STOP_GRACE)

    def close(self) -> None:
        """End all processes and remove what only they needed. A second call does nothing."""
        with _uninterrupted():
            try:
                known = [*self._clients.values(), *self._others, *filter(None, [self._superlink])]
                stop(known, STOP_GRACE, self._marked)
                # It is their parent: only with it is it known that they have ended.
                stop(filter(None, [self._server]), STOP_GRACE)
                # What Flower put into groups of its own ends by itself when it misses its parent.
                wait_until(lambda: not self._marked(), STOP_GRACE)
            finally:
                for pid in self._marked():
                    with contextlib.suppress(ProcessLookupError):  # it is gone by now
                        os.kill(pid, signal.SIGKILL)
                wait_until(lambda: not self._marked(), STOP_GRACE)
                shutil.rmtree(self._state, ignore_errors=True)
                if self._watchdog is not None:  # the last to go
                    stop([self._watchdog], STOP_GRACE)

    def _start(self) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        certificates.private_folder(self._state)
        (self._state / "tmp").mkdir()
        if sys.platform == "linux":
            command = watchdog_command(MARK, str(self.folder), self._state)
            self._watchdog = self._spawn("watchdog", *command)
        self._certificates = certificates.write_certificates(self._state / "pki")
        self._keys = [certificates.write_client_key(self._state / "pki", name) for name in self.client_names]
        if self.programs == "forked":
            self._start_server()
        self._start_superlink()
        self._register_clients()
        self._start_clients()

    def _start_server(self) -> None:
        """Start what all Flower programs of this cluster are forked from; without it they run as they are."""
        folder = self._state / "warm"
        folder.mkdir()
        server = self._server = self._spawn("warm", *fork_server.serve_command(folder, launch.ALL))
        listens = folder / fork_server.SOCKET
        wait_until(lambda: listens.exists() or server.returncode is not None, START_TIMEOUT)
        with contextlib.suppress(OSError):
            self._connection = fork_server.Connection.open(folder)

    def _start_superlink(self) -> None:
        for _ in range(PORT_ATTEMPTS):
            control_port, self._fleet_port = free_ports(2)
            control_port = self.port or control_port
            files = self._certificates
            process = self._superlink = self._spawn(
                "superlink",
                "flower-superlink",
                *("--host", LOOPBACK, "--port", str(control_port)),
                *("--fleet-api-address", f"{LOOPBACK}:{self._fleet_port}"),
                *("--ssl-ca-certfile", str(files.ca), "--ssl-certfile", str(files.certificate)),
                *("--ssl-keyfile", str(files.key), "--enable-supernode-auth"),
                *("--database", str(self._state / "superlink.db")),
                "--disable-runtime-dependency-installation",
            )
            deadline = time.monotonic() + START_TIMEOUT
            while process.returncode is None and time.monotonic() < deadline:
                if all(serves(each, files.ca) for each in (control_port, self._fleet_port)):
                    self.port = control_port
                    self._write_connection()
                    return
                time.sleep(POLL_INTERVAL)
            if not _lost_its_port(process):
                break
        raise EngineError(_obituary("the SuperLink", process))

    def _write_connection(self) -> None:
        home = self._state / "flwr"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{LOOPBACK}:{self.port}"\n'
            f"root-certificates = {toml(str(self._certificates.ca))}\n",
            encoding="utf-8",
        )

    def _register_clients(self) -> None:
        process = self._spawn("register", sys.executable, "-c", REGISTER, CONNECTION, *map(str, self._keys))
        self._others.append(process)
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
        self._clients[index] = self._spawn(
            name,
            "flower-supernode",
            *("--superlink", f"{LOOPBACK}:{self._fleet_port}"),
            *("--root-certificates", str(self._certificates.ca)),
            *("--auth-supernode-private-key", str(self._keys[index])),
            *("--host", LOOPBACK, "--port", str(port)),
            *("--node-config", f'client-id="{name}" partition-id={index} num-partitions={self.num_clients}'),
            # A home of its own, as on a device of its own: two processes that unpack the app into the
            # same home at the same time see each other's half-written files.
            home=f"flwr-{name}",
        )

    def _spawn(self, log: str, *command: str, home: str = "flwr") -> Process:
        environment = {
            # Flower finds its other programs by the PATH, whether the virtual environment is active or not.
            **flower_environment([Path(sys.executable).parent], self._state / home, self._state / "tmp"),
            MARK: str(self.folder),
        }
        if self.programs != "stock":
            environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = str(EXECUTOR_POLL_INTERVAL)
        if self.programs == "fast" and command[0] in launch.LAUNCHED:
            command = (sys.executable, "-P", "-m", "deploy.flower.launch", *command)
        output = self.logs / f"{log}.log"
        try:
            if self._connection is not None and command[0] in launch.ALL:
                environment[launch.SERVER] = str(self._state / "warm")
                with contextlib.suppress(fork_server.Gone):
                    return Process.forked(command, output, environment, self._connection)
            return Process(command, output, environment)
        except FileNotFoundError as error:
            raise EngineError(str(error)) from error

    def _marked(self) -> list[int]:
        watchdog = self._watchdog.pid if self._watchdog else None
        return [pid for pid in processes_with(MARK, str(self.folder)) if pid != watchdog]

    def _require_superlink(self) -> None:
        if self._superlink is None:
            raise EngineError("the cluster is not running; use it in a `with` statement")
        if self._superlink.returncode is not None:
            raise EngineError(_obituary("the SuperLink", self._superlink))


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let nothing cut the end short: a second Ctrl-C would leave behind what the first was to end."""
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
    # says the same, for a second of CPU time a look.
    return "SuperNode ID:" in process.log.read_text(errors="replace")


def _lost_its_port(process: Process) -> bool:
    tail = process.tail().lower()
    return "address already in use" in tail or "is already in use" in tail
