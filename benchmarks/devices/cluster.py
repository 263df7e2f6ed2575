"""A SuperLink as this project starts it, with simulated devices instead of SuperNodes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from benchmarks.devices import load
from benchmarks.throughput.processes import status_of
from deploy.engines.engine import EngineError
from deploy.engines.local_cluster import CONNECTION, LocalCluster
from deploy.flower import commands
from deploy.flower.key_registration import registration_command
from deploy.processes.groups import Process, wait_until
from deploy.processes.ports import LOOPBACK

# All keys must be registered within START + ONLINE · (number of devices) seconds, and all devices must then
# come online within as many seconds again.
ONLINE = 0.25
START = 120.0


class Settings(NamedTuple):
    """The settings of a measurement, as `cohort bench devices` explains them."""

    nodes: int = 1000
    per_round: int = 50
    rounds: int = 20
    megabytes: float = 1.0
    layers: int = 4
    delay: float = 0.0
    leaves: float = 0.0
    away: float = 10.0
    processes: int = 1
    selector: str = "uniform"
    fronts: int = 1  # SuperLinks that share the database
    database: str = ""  # the address of an empty PostgreSQL database; "": a SQLite file


class DeviceCluster(LocalCluster):
    """SuperLinks and simulated devices, which run for as long as the `with` block.

    `online_s`: the seconds from the start of the load generators until all devices were online.
    `superlinks`: the process ids of the SuperLinks. `empty_kb`: the resident memory of each before its
    devices came online, kB. Raises EngineError if the devices' keys are not registered, or the devices do not
    come online.
    """

    online_s: float
    empty_kb: list[int]

    def __init__(self, folder: Path, app: Path, settings: Settings) -> None:
        super().__init__(folder, settings.nodes, app=app, programs="patched")
        self._settings = settings
        self.loads: list[Process] = []
        self.superlinks: list[int] = []
        self._addresses: list[str] = []  # of the Fleet APIs
        self._counts = [folder / f"counts-{number}.json" for number in range(settings.processes)]

    def __enter__(self) -> DeviceCluster:
        super().__enter__()
        return self

    @property
    def counts(self) -> dict[str, int]:
        """What happened to the devices and their messages, by name; see `load.Settings.counts`."""
        total: dict[str, int] = {}
        for file in self._counts:
            for name, count in json.loads(file.read_text()).items() if file.exists() else ():
                total[name] = total.get(name, 0) + count
        return total

    def check(self) -> list[str]:
        """Raise EngineError if the last SuperLink or a load generator has ended; else return []."""
        self._require_superlink()
        for process in self.loads:
            if process.returncode is not None:
                raise EngineError(f"a load generator ended:\n{process.tail()}")
        return []

    def _serve(
        self, log: str, database: Path | str, extra: Mapping[str, str] | None = None
    ) -> tuple[int, int]:
        """Start all front ends, and return the ports of the last one, to which the run is submitted."""
        fingerprint, ports = sha256((self._pki / "ca.crt").read_bytes()).hexdigest(), (0, 0)
        for number in range(self._settings.fronts):
            shared = commands.shared(f"front-{number}", fingerprint) if self._settings.database else extra
            ports = super()._serve(f"{log}-{number}", self._settings.database or database, shared)
            assert self._superlink is not None
            self.superlinks.append(self._superlink.pid)
            self._addresses.append(f"{LOOPBACK}:{ports[1]}")
        return ports

    def _register_clients(self) -> None:
        keys = [key.with_name(f"{key.name}.pub") for key in self._keys]
        process = self._spawn("register", registration_command(CONNECTION, keys, self._state / "registered"))
        self._runs.append(process)
        limit = START + ONLINE * self.num_clients
        if not wait_until(lambda: process.returncode is not None, limit) or process.returncode:
            raise EngineError(f"the devices' keys were not registered:\n{process.tail()}")

    def _start_clients(self) -> None:
        self.empty_kb = [status_of(pid, "VmRSS") for pid in self.superlinks]
        began, count = time.monotonic(), len(self._counts)
        for number, file in enumerate(self._counts):
            settings = load.Settings(
                addresses=self._addresses,
                authority=str(self._pki / "ca.crt"),
                keys=[str(key) for key in self._keys[number::count]],
                delay=self._settings.delay,
                leaves=self._settings.leaves / count,
                away=self._settings.away,
                counts=str(file),
            )
            path = file.with_name(f"load-{number}.json")
            path.write_text(json.dumps(asdict(settings)))
            command = [sys.executable, "-m", "benchmarks.devices.load", str(path)]
            environment = {**self._environment(), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            process = Process(command, self.logs / f"load-{number}.log", environment)
            self.loads.append(process)
            self._runs.append(process)

        def all_online() -> bool:
            self.check()
            return self.counts.get("online", 0) == self.num_clients

        if not wait_until(all_online, START + ONLINE * self.num_clients):
            raise EngineError(f"{self.counts.get('online', 0)} of {self.num_clients} devices came online")
        self.online_s = time.monotonic() - began
