"""A device on arm64 beside a native device, from its installation by docs/devices.md to its revocation.

The arm64 device runs under emulation, so it is several times slower than hardware.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from ..support.devices import COHORT, Running, cohort, run_cli, server_up
from ..support.processes import memory_alone, processes_of, running, wait_for
from ..support.userland import FOLDER, Userland, why_not

pytestmark = pytest.mark.arm64

PATIENCE = 600.0  # seconds for what takes one under emulation on an idle machine
ARM64, NATIVE = "pi-arm64", "pi-native"
PROGRAM = "/opt/cohort/.venv/bin/cohort"
# No deadline passes while an emulated program starts: a device that is late would be left out.
SETTINGS = (
    *("num-clients=2", "clients-per-round=2", "selector=uniform", "status-deadline=300"),
    *("join-deadline=600", "round-deadline=300", "shortest-deadline=60"),
)


@dataclass
class Federation:
    """A native server with a device on arm64 and a native device."""

    userland: Userland
    server: Path
    folder: Path
    devices: dict[str, Running] = field(default_factory=dict)

    def operator(self, *arguments):
        return cohort("server", *arguments, folder=self.server)

    def join(self, *arguments):
        """Start the arm64 device."""
        program = self.userland.command(PROGRAM)
        log = self.folder / f"{ARM64}.log"
        self.devices[ARM64] = Running(log, "client", "join", *arguments, program=program)

    def rounds(self):
        """Return the finished rounds of the last run."""
        *_, history = [None, *sorted(self.server.glob("runs/*/history.jsonl"))]
        text = history.read_text() if history else ""
        lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [line for line in lines if line["type"] == "round"][1:]

    def wait_for_rounds(self, count, *clients):
        """Wait for so many rounds that select these clients and no others, and all answer; return them."""
        before = len(self.rounds())

        def good():
            rounds = self.rounds()[before:]
            return [line for line in rounds if set(line["client_ids"]) == answered(line) == set(clients)]

        def state():
            return f"{self.rounds()[-3:]}\n{self.devices[ARM64].said}"

        wait_for(lambda: len(good()) >= count, PATIENCE, state)
        return good()[:count]

    @contextmanager
    def watched(self):
        """Measure the most memory of each device, MB."""
        peaks = dict.fromkeys(self.devices, 0.0)
        done = threading.Event()

        def watch():
            while not done.wait(0.1):
                for name, device in self.devices.items():
                    peaks[name] = max(peaks[name], memory_alone(processes_of(device.process.pid)))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            yield peaks
        finally:
            done.set()
            watcher.join()

    def pause(self, name):
        """Pause a device by a command on the device."""
        self._command(name, "pause")

    def resume(self, name):
        """Resume a device by a command on the device."""
        self._command(name, "resume")

    def _command(self, name, command):
        if name == ARM64:
            self.userland.shell(f".venv/bin/cohort client {command}")
        else:
            code, said = run_cli(command, "--state-dir", str(self.folder / NATIVE))
            assert code == 0, said


def answered(line):
    """Return the clients whose replies a round has used."""
    return {
        client for client, responded in zip(line["client_ids"], line["responded"], strict=True) if responded
    }


def other(name):
    return NATIVE if name == ARM64 else ARM64


def words(*settings):
    return [word for each in settings for word in ("--set", each)]


@pytest.fixture(scope="module")
def userland():
    if reason := why_not():
        pytest.skip(reason)
    userland = Userland(FOLDER)
    userland.install()
    assert userland.shell("uname -m").strip() == "aarch64"
    (userland.source / f"{ARM64}.invitation").unlink(missing_ok=True)
    shutil.rmtree(FOLDER / "var" / "lib" / "cohort-client", ignore_errors=True)
    return userland


@pytest.fixture(scope="module")
def federation(userland, tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    with ExitStack() as stack:
        server = stack.enter_context(server_up(folder / "server"))
        this = Federation(userland, server, folder)
        stack.callback(lambda: [device.end() for device in this.devices.values()])
        this.operator("invite", ARM64, "--out", str(userland.source / f"{ARM64}.invitation"))
        digits = load_digits()
        half = slice(len(digits.target) // 2)
        np.savez(userland.source / "samples.npz", inputs=digits.data[half] / 16, labels=digits.target[half])
        # With the default niceness, other programs of this machine would delay the devices.
        data = ("--data", "/opt/cohort/samples.npz")
        this.join("--invitation", f"/opt/cohort/{ARM64}.invitation", "--nice", "0", *data)
        this.operator("invite", NATIVE, "--out", str(folder / f"{NATIVE}.invitation"))
        this.devices[NATIVE] = Running(
            folder / f"{NATIVE}.log",
            *("client", "join", "--state-dir", str(folder / NATIVE), "--nice", "0"),
            *("--invitation", str(folder / f"{NATIVE}.invitation"), "--partition", "1/2"),
        )
        for name, device in this.devices.items():
            device.wait_for(f"online as {name}", timeout=PATIENCE)
        yield this


@pytest.fixture(scope="module")
def run(federation):
    """Train all the time."""

    def runs():
        return len(list(federation.server.glob("runs/*/history.jsonl")))

    finished = runs()
    command = [COHORT, "server", "run", *words(*SETTINGS, "num-rounds=1000000", "local-steps=1")]
    process = subprocess.Popen([*command, "--dir", str(federation.server)], stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: runs() > finished, PATIENCE, lambda: "no run")
        federation.wait_for_rounds(1, ARM64, NATIVE)
        yield
    finally:
        process.kill()
        process.wait()


def test_both_devices_train(federation, capsys):
    with federation.watched() as peaks:
        federation.operator("run", *words(*SETTINGS, "num-rounds=4"))
    rounds = federation.rounds()
    assert [answered(line) for line in rounds] == [{ARM64, NATIVE}] * 4
    losses = [line["test_loss"] for line in rounds]
    assert losses[-1] < losses[0]
    with capsys.disabled():
        for name in (ARM64, NATIVE):
            print(f"\n{name}: at most {peaks[name]:.0f} MB", end="")
    # Generous: the number for arm64 has the emulator in it.
    assert 50 < peaks[NATIVE] < 200, peaks
    assert 50 < peaks[ARM64] < 1000, peaks


@pytest.mark.slow
def test_both_devices_train_a_network_in_torch(federation, capsys):
    federation.userland.install_torch()

    def rounds_of(count, *settings):
        federation.operator("run", *words(*SETTINGS, "task=digits-mlp", f"num-rounds={count}", *settings))
        return federation.rounds()

    with federation.watched() as peaks:
        rounds = rounds_of(4)
    assert [answered(line) for line in rounds] == [{ARM64, NATIVE}] * 4
    losses = [line["test_loss"] for line in rounds]
    assert losses[-1] < losses[0]
    times = {}
    for name in (ARM64, NATIVE):
        federation.pause(other(name))
        alone = rounds_of(5, "num-clients=1", "clients-per-round=1")
        federation.resume(other(name))
        assert [answered(line) for line in alone] == [{name}] * 5
        times[name] = statistics.median(line["seconds"] for line in alone)
    with capsys.disabled():
        print(f"\nthe first round with torch takes {rounds[0]['seconds']:.1f} s", end="")
        for name in (ARM64, NATIVE):
            print(f"\n{name}: a round with this device alone takes {times[name]:.2f} s with torch", end="")
            print(f"; at most {peaks[name]:.0f} MB", end="")
    # Torch is imported for the first messages only.
    assert times[ARM64] < rounds[0]["seconds"]
    assert 150 < peaks[NATIVE] < 600, peaks
    assert 150 < peaks[ARM64] < 2000, peaks


@pytest.mark.usefixtures("run")
def test_a_paused_device_is_left_out_until_it_resumes(federation, capsys):
    times = {}
    for name in (NATIVE, ARM64):
        federation.pause(other(name))
        rounds = federation.wait_for_rounds(10, name)
        federation.resume(other(name))
        federation.wait_for_rounds(2, ARM64, NATIVE)
        times[name] = statistics.median(line["seconds"] for line in rounds)
    with capsys.disabled():
        for name in (ARM64, NATIVE):
            print(f"\n{name}: a round with this device alone takes {times[name]:.2f} s", end="")
    assert times[ARM64] < 60


@pytest.mark.usefixtures("run")
def test_a_device_comes_back_after_a_power_cut(federation):
    killed = processes_of(federation.devices[ARM64].process.pid)
    assert len(killed) > 1
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    federation.devices[ARM64].process.wait()
    federation.wait_for_rounds(2, NATIVE)
    federation.join()
    federation.devices[ARM64].wait_for(f"online as {ARM64} (node", timeout=PATIENCE, times=2)
    federation.wait_for_rounds(2, ARM64, NATIVE)


@pytest.mark.usefixtures("run")
def test_a_revoked_device_is_sent_away_and_the_run_goes_on(federation):
    device = federation.devices[ARM64]
    federation.operator("revoke", ARM64)
    device.wait_for("sent away by the server: its key was revoked", timeout=PATIENCE)
    device.wait_for("or the server has revoked it", timeout=PATIENCE)
    federation.wait_for_rounds(2, NATIVE)
    assert federation.operator("list").splitlines()[-1] == "1 registered, 1 online"
    pids = processes_of(device.process.pid)
    device.end()
    wait_for(lambda: not any(map(running, pids)), 60, lambda: f"{pids} still run")
