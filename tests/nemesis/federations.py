"""The federations that the nemesis attacks, started as users start them, with a bad network in between."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

from deploy.engines.local_cluster import LocalCluster
from deploy.engines.superlink import RunningSuperLink
from deploy.flower.app_folder import app_folder
from deploy.flower.submission import copy_app
from deploy.hosting.server import CONNECTION, Server
from deploy.processes.groups import wait_until
from deploy.runs.follow_and_resume import Watcher, train
from server.settings import CHECKPOINTS
from strategies.checkpoint import CheckpointFolder

from ..support.devices import Running, cohort, free_ports
from ..support.proxy import Proxy
from .client_app import born
from .faults import CLIENTAPP, SERVERAPP, SUPERNODE

HERE = Path(__file__).parent
END_GRACE = 10.0  # s that processes have to end when their parent has
LOCK_WAIT = 8.0  # s in which a lock of the database must be free


class Target:
    """A process, which is not mistaken for another one that gets its id later."""

    def __init__(self, pid, since=None):
        self.pid = pid
        self._born = born(pid) if since is None else since

    @property
    def exists(self):
        """Whether the process has not ended."""
        try:
            return born(self.pid) == self._born
        except (OSError, IndexError):
            return False

    def signal(self, number):
        """Send a signal; return whether the process was still there."""
        if not self.exists:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False


class Federation(ABC):
    """A federation of `num_clients`, from `__enter__` to `__exit__`, and its processes.

    Parameters
    ----------
    folder : Path
        For everything that it writes.
    num_clients : int
        Each has a proxy of its own between it and the SuperLink.
    """

    faults: frozenset[str]
    """"part fault" of `faults.FAULTS` that it can suffer."""
    fronts = 1
    """How many front ends the server has."""
    bound = 15.0
    """Seconds from the last healing of an episode until a round, on an idle machine."""

    def __init__(self, folder, num_clients):
        self.folder = folder
        self.num_clients = num_clients
        self.run = folder / "run"
        self.trainings = folder / "trainings"
        self.app = write_app(folder / "app")
        self.proxies = []
        self._held = contextlib.ExitStack()

    def __enter__(self):
        with contextlib.ExitStack() as held:
            held.callback(lambda: [proxy.close() for proxy in self.proxies])
            engine = self._start(held)
            self._held = held.pop_all()
        return engine

    def __exit__(self, *_):
        self._held.close()

    @abstractmethod
    def _start(self, held):
        """Start everything; what must be ended later is `held`."""

    @property
    @abstractmethod
    def database(self):
        """The SuperLink's."""

    def train(self, engine, trial, say):
        """Train, and follow the run to its end; resume it if its ServerApp dies."""
        train(engine, [trial], Watcher(say), at_once=False)

    def shorten(self, trial, rounds):
        """Let the run end after so many rounds: killed and resumed, it has few to go."""
        trial.run_config["num-rounds"] = rounds
        target = self.target(SERVERAPP)
        if target is not None:
            target.signal(signal.SIGKILL)

    def connections(self, fault):
        """Return the proxies of the connections that a fault of the network means."""
        return self.proxies if fault.client is None else [self.proxies[fault.client]]

    def lock(self):
        """Take the database's only write lock, as a backup or an operator's shell may; return what heals."""
        connection = sqlite3.connect(
            self.database, timeout=LOCK_WAIT, isolation_level=None, check_same_thread=False
        )
        connection.execute("BEGIN EXCLUSIVE")

        def heal():
            with contextlib.suppress(sqlite3.Error):
                connection.rollback()
            connection.close()

        return heal

    def target(self, part, client=None, front=None):
        """Return a process, None if it does not exist now."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            if part == SERVERAPP:
                return self._serverapp()
            if part == CLIENTAPP:
                return self._clientapp(client or 0)
            pid = self._pid(part, client, front)
            return None if pid is None else Target(pid)
        return None

    @abstractmethod
    def _pid(self, part, client, front):
        """Return the process id of another program: the SuperLink, a SuperNode, ..."""

    def _serverapp(self):
        folder = CheckpointFolder(self.run / CHECKPOINTS)
        return Target(int((folder.path / "lock").read_text())) if folder.is_claimed() else None

    def _clientapp(self, client):
        """Return the process in which a client trains now, as the client wrote it down."""
        log = self.trainings / f"client-{client:02d}.jsonl"
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            last = json.loads(file.read().splitlines()[-1])
        return Target(last["pid"], last["born"]) if last["event"] == "begin" else None


class ClusterFederation(Federation):
    """`cohort up`: its engine, and its loop around the run."""

    faults = frozenset(
        {
            *("superlink pause", "serverapp pause", "serverapp kill", "serverapp restart"),
            *("supernode pause", "supernode kill", "supernode restart", "clientapp pause", "clientapp kill"),
            *("database lock", "network partition"),
        }
    )

    def _start(self, held):
        self._cluster = held.enter_context(_ProxiedCluster(self))
        return self._cluster

    @property
    def database(self):
        return self.folder / "cluster" / "state" / "superlink.db"

    def _pid(self, part, client, front):
        if part == SUPERNODE:
            return self._cluster.client_processes[client or 0].pid
        return self._cluster.superlink_pid


class _ProxiedCluster(LocalCluster):
    """A cluster whose SuperNodes reach the SuperLink through proxies."""

    def __init__(self, federation):
        super().__init__(federation.folder / "cluster", federation.num_clients, app=federation.app)
        self._proxies = federation.proxies

    @property
    def superlink_pid(self):
        return self._superlink and self._superlink.pid

    def _start_client(self, index, port):
        direct = self._fleet_port
        while len(self._proxies) <= index:
            self._proxies.append(Proxy(direct))
        self._fleet_port = self._proxies[index].port
        try:
            super()._start_client(index, port)
        finally:
            self._fleet_port = direct


class ServerFederation(Federation):
    """`cohort server up`, and a device for each client."""

    faults = ClusterFederation.faults | {"superlink kill", "superlink restart"}

    def _start(self, held):
        folder = self.folder / "server"
        port, control = free_ports(2)
        up = Running(
            self.folder / "server.log",
            *("server", "up", "--host", "localhost", "--listen", "127.0.0.1", "--dir", str(folder)),
            *("--port", str(port), "--control-port", str(control)),
        )
        held.callback(end, up)
        up.wait_for("up at localhost:")
        for client in range(self.num_clients):
            self.proxies.append(Proxy(port))
            held.callback(end, self._join(client))
        for client in range(self.num_clients):
            log = self.folder / f"device-{client:02d}.log"
            assert wait_until(lambda log=log: "online as" in log.read_text(), 120), log.read_text()
        server = Server.load(folder)
        engine = RunningSuperLink(CONNECTION, self.app, folder, server.environment())
        return held.enter_context(engine)

    def _join(self, client):
        """Let a device join, by an invitation that leads to its proxy."""
        name = f"client-{client:02d}"
        invitation = self.folder / f"{name}.invitation"
        cohort("server", "invite", name, "--out", str(invitation), folder=self.folder / "server")
        content = json.loads(invitation.read_text())
        # bundle: the device runs any app, also the nemesis's own instead of the server's.
        through_proxy = {"server": f"localhost:{self.proxies[client].port}", "bundle": ""}
        invitation.write_text(json.dumps({**content, **through_proxy}))
        return Running(
            self.folder / f"device-{client:02d}.log",
            *("client", "join", "--invitation", str(invitation), "--partition"),
            *(f"{client}/{self.num_clients}", "--state-dir", str(self._device(client))),
        )

    @property
    def database(self):
        return self.folder / "server" / "superlink.db"

    def _device(self, client):
        return self.folder / f"device-{client:02d}"

    def _pid(self, part, client, front):
        return first_with_argument(
            str(self._device(client or 0) / "key") if part == SUPERNODE else str(self.database)
        )


ENGINES = {"cluster": ClusterFederation, "server": ServerFederation}


def write_app(folder):
    """Write a copy of this project's app whose ClientApp is the nemesis's."""
    copy_app(app_folder(), folder, folder)
    shutil.copyfile(HERE / "client_app.py", folder / "client" / "app.py")
    shutil.copyfile(HERE / "updates.py", folder / "client" / "updates.py")
    for left in ("tests", "benchmarks", "docs", "deploy"):
        shutil.rmtree(folder / left, ignore_errors=True)
    return folder


def processes_with_argument(argument):
    """Yield the processes that have this argument, the oldest first."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if argument.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append((born(int(entry.name)), int(entry.name)))
    yield from (pid for _, pid in sorted(found))


def first_with_argument(argument):
    """Return the oldest process that has this argument: the others are its children."""
    return next(processes_with_argument(argument), None)


def end(running):
    with contextlib.suppress(subprocess.TimeoutExpired):
        running.end()
