"""Two front ends of one server on one PostgreSQL, with devices that know both, as a federation to attack.

Each device has an HTTP proxy of its own, and behind it a proxy for each front end: so it can be cut off from
one of them. Between each front end and PostgreSQL is a proxy, too.
"""

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.devices.postgres import Postgres
from deploy.hosting.server import Server
from deploy.processes.groups import wait_until

from ..support.devices import COHORT, Running
from ..support.front_ends import FrontEnd, folders_of_one_server, whole_app
from ..support.processes import processes_of, running
from ..support.proxy import HttpProxy, Proxy
from . import federations
from .faults import EXECUTOR, FAULTS, FOLLOWER, LINK, POSTGRES, SUPERLINK, SUPERNODE
from .federations import Federation, Target, first_with_argument, processes_with_argument

HOSTS = "one.test", "two.test"  # names that only the devices' proxies know
NAMES = {SUPERLINK: "flower-superlink", EXECUTOR: "flower-superexec"}
ONLINE = 240.0  # s that all devices may take to come online
LOOK = 0.2  # s
AGAIN = 1.0  # s until a front end or a command that has failed is started again
STOP_LIMIT = 90.0  # s in which a run can be stopped; if its follower is gone, another one takes half a minute
# A kill loses nothing that was acknowledged; a power cut of this machine may.
SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "200"}
TABLES = "message_ins, message_res, node, task, objects"  # those that `lock` takes


class FrontEndsFederation(Federation):
    """Two `cohort server up`, each of which an init system starts again, and a device for each client."""

    faults = frozenset(f"{part} {fault}" for part, fault in FAULTS)
    fronts = len(HOSTS)
    # A run whose machine has died is carried on by the other one after 15 to 25 s (docs/scale.md).
    bound = 45.0

    def __init__(self, folder, num_clients):
        super().__init__(folder, num_clients)
        self._runs = folder / "runs"
        self._runs.mkdir()
        self.trainings = self._runs / "trainings"
        self._environment = {"PYTHONPATH": str(whole_app(self.app))}
        self._folders = [folder / host.partition(".")[0] for host in HOSTS]
        self._machines = []
        self._paths = []  # of each client, the proxy before each front end
        self._off = set()  # the machines without power
        self._over = threading.Event()
        self._failing = threading.Lock()  # PostgreSQL
        self._shim = folder / "clock.so"  # missing if there is no C compiler
        self._command, self._commands = None, -1  # the present `cohort server run`, and how many were before

    def _start(self, held):
        self.postgres = held.enter_context(Postgres(SETTINGS, tcp=True))
        self.postgres.execute("CREATE DATABASE nemesis")
        if shutil.which("cc"):
            command = ["cc", "-shared", "-fPIC", "-o", self._shim, Path(__file__).with_name("clock.c")]
            subprocess.run(command, check=True)
        self._links = [Proxy(urlsplit(self.postgres.tcp_url("nemesis")).port) for _ in HOSTS]
        held.callback(lambda: [link.close() for link in self._links])
        folders_of_one_server(*self._folders, hosts=HOSTS[:1])
        for folder, host, link in zip(self._folders, HOSTS, self._links, strict=True):
            database = self.postgres.tcp_url("nemesis").replace(f":{link.target}/", f":{link.port}/")
            folder.with_name(f"{folder.name}.clock").write_bytes(bytes(8))
            self._machines.append(FrontEnd(folder, database, self._runs, host, self._on_machine(folder)))
        held.callback(self._end_machines)
        for machine, host in zip(self._machines, HOSTS, strict=True):
            machine.wait_for(f"up at {host}:")
        init = threading.Thread(target=self._keep_up, daemon=True)
        init.start()
        held.callback(init.join)
        held.callback(self._over.set)
        self._join_all(held)
        return self

    def _keep_up(self):
        """Start each front end again that has ended, unless its machine has no power."""
        while not self._over.wait(AGAIN):
            for number, machine in enumerate(self._machines):
                if number not in self._off and machine.process.poll() is not None:
                    environment = self._on_machine(machine.folder)
                    self._machines[number] = FrontEnd(machine.folder, environment=environment)

    def _on_machine(self, folder):
        """Return the environment of the programs of the machine with a folder: it has a clock of its own."""
        clock = {"LD_PRELOAD": str(self._shim), "CLOCK_FILE": str(folder.with_name(f"{folder.name}.clock"))}
        return {**self._environment, **(clock if self._shim.exists() else {})}

    def _set_clock(self, folder, ahead):
        """Let a machine's clock be `ahead` seconds ahead."""
        with folder.with_name(f"{folder.name}.clock").open("r+b") as file:
            file.write(struct.pack("q", int(ahead * 1e9)))

    def _end_machines(self):
        for machine in self._machines:
            with contextlib.suppress(subprocess.TimeoutExpired):
                machine.end()

    def _join_all(self, held):
        """Let all devices join, and wait until they are online."""
        devices = [self._join(client, held) for client in range(self.num_clients)]
        for device in devices:
            device.wait_for("online as ", ONLINE)

    def _join(self, client, held):
        """Let a device join, by an invitation of one of the front ends, through its proxies."""
        paths = {host: Proxy(machine.port) for host, machine in zip(HOSTS, self._machines, strict=True)}
        entry = HttpProxy(0, paths)
        self._paths.append(list(paths.values()))
        held.callback(lambda: [each.close() for each in (entry, *paths.values())])
        name = f"client-{client:02d}"
        invitation = self.folder / f"{name}.invitation"
        Server.load(self._folders[client % self.fronts]).invite(name, invitation, 7.0, "")
        device = Running(
            self.folder / f"device-{client:02d}.log",
            *("client", "join", "--invitation", str(invitation), "--partition"),
            *(f"{client}/{self.num_clients}", "--state-dir", str(self._device(client))),
            environment={**self._environment, "https_proxy": entry.url},
        )
        held.callback(federations.end, device)
        return device

    def _device(self, client):
        return self.folder / f"device-{client:02d}"

    @property
    def database(self):
        return self.postgres.url("nemesis")

    # --- the run -----------------------------------------------------------------------------------------

    def train(self, _, trial, say):
        """Submit or resume the run as an operator does; return when nobody follows it any more.

        The command may be killed. Then a front end carries the run on.
        """
        trial.history.read(skip_damaged=True)
        before, trial.history.end = trial.history.starts, None
        while trial.history.starts == before:  # such as without PostgreSQL
            if self._over.is_set():
                raise RuntimeError("the federation has ended")
            self._follow(trial, say)
            trial.history.read(skip_damaged=True)

    def _follow(self, trial, say):
        planned = trial.run_config["num-rounds"]
        if self.run.exists():
            what = ("--resume", self.run.resolve().name, "--set", f"num-rounds={planned}")
        else:
            settings = {name: value for name, value in trial.run_config.items() if name != "output-dir"}
            what = tuple(part for name, value in settings.items() for part in ("--set", f"{name}={value}"))
        self._commands += 1
        front = self._commands % self.fronts  # the other one, if this one does not answer now
        log = self.folder / "run.log"
        self._command = Running(
            log, "server", "run", "--dir", str(self._folders[front]), *what, environment=self._environment
        )
        while self._command.process.poll() is None or self._is_followed():
            if not self.run.exists():
                for history in self._runs.glob("*/history.jsonl"):
                    self.run.symlink_to(history.parent)
            if self._over.wait(LOOK):
                self._command.process.kill()
                return
        trial.last_words = log.read_text().strip().rpartition("\n")[2]
        say(f"nobody follows the run; `cohort server run` ended with {self._command.process.returncode}")
        time.sleep(AGAIN)

    def _is_followed(self):
        """Tell whether the run has a follower, or must get one: the database says so, or is away."""
        try:
            return bool(self.postgres.execute("SELECT 1 FROM cohort_follower", self.database))
        except Exception:
            return True

    def shorten(self, trial, rounds):
        """Stop the run: resumed, it has few rounds to go."""
        trial.run_config["num-rounds"] = rounds
        command = [COHORT, "server", "stop", "last", "--dir", str(self._folders[0])]
        environment = {**os.environ, **self._environment}
        until = time.monotonic() + STOP_LIMIT
        while True:
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            if not done.returncode:
                return
            # If its ServerApp has just been killed, the run is finished until its follower resumes it.
            if "already finished" not in done.stdout + done.stderr or time.monotonic() > until:
                raise RuntimeError(f"the run was not stopped: {done.stdout} {done.stderr}")
            time.sleep(AGAIN)

    # --- faults ------------------------------------------------------------------------------------------

    def connections(self, fault):
        """Return the proxies of the connections that a fault of the network means."""
        if fault.part == LINK:
            return [self._links[fault.front]]
        clients = range(self.num_clients)
        if fault.fault == "half":
            clients = clients[fault.front :: 2]
        elif fault.client is not None:
            clients = [fault.client]
        fronts = range(self.fronts) if fault.front is None else [fault.front]
        return [self._paths[client][front] for client in clients for front in fronts]

    def lock(self):
        """Lock the tables against all others, as an operator's shell may; return what heals."""
        import psycopg  # an extra

        connection = psycopg.connect(self.database)
        connection.execute(f"SET lock_timeout = {federations.LOCK_WAIT * 1000:.0f}")
        connection.execute(f"LOCK TABLE {TABLES} IN ACCESS EXCLUSIVE MODE")

        def heal():
            with contextlib.suppress(psycopg.Error):
                connection.rollback()
            connection.close()

        return heal

    def fail(self, fault):
        """Cut a machine's power, set its clock, or make PostgreSQL fail; return what heals, if it was hit."""
        if fault.part == POSTGRES:
            return self._fail_postgres(fault.fault)
        if fault.fault == "clock":
            folder = self._folders[fault.front]
            self._set_clock(folder, fault.jump)
            return (lambda: self._set_clock(folder, 0.0)) if self._shim.exists() else None
        if fault.front in self._off:
            return None
        self._off.add(fault.front)
        self._machines[fault.front].kill()
        return lambda: self._off.discard(fault.front)

    def _fail_postgres(self, fault):
        first = self.postgres.process
        with self._failing:
            if first.poll() is not None:
                return None
            if fault == "restart":
                first.send_signal(signal.SIGINT)
                if wait_until(lambda: first.poll() is not None, federations.LOCK_WAIT):
                    return self._start_postgres
            first.send_signal(signal.SIGSTOP)  # so that it starts no others
            found = [Target(pid) for pid in processes_of(first.pid)]
            for target in found:
                target.signal(signal.SIGSTOP if fault == "pause" else signal.SIGKILL)
            if fault == "pause":
                return lambda: [target.signal(signal.SIGCONT) for target in reversed(found)] and None
            first.wait()
            assert wait_until(lambda: not any(running(target.pid) for target in found), 20)
            return self._start_postgres

    def _start_postgres(self):
        with self._failing:
            self.postgres.start()

    def _pid(self, part, client, front):
        if part == SUPERNODE:
            return first_with_argument(str(self._device(client or 0) / "key"))
        if part == FOLLOWER:
            if self._command is not None and self._command.process.poll() is None:
                return self._command.process.pid
            return first_with_argument("deploy.hosting.following")
        mine = set(self._machines[front or 0].pids)
        return next((pid for pid in processes_with_argument(NAMES[part]) if pid in mine), None)


ENGINES = {**federations.ENGINES, "front-ends": FrontEndsFederation}
