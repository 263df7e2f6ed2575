"""Devices of Flower 1.39, stock and this project's, and a server of before. `make test-devices-of-before`.

The Flower of before is that of the environment in which `make test-oldest-flower` tests the library. This
project of before is a commit of this clone's history.
"""

import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from deploy.processes.ports import free_ports
from deploy.tls import certificates

from ..support import wire_contract
from ..support.devices import COHORT, Running, cohort, public_key_of, server_up

pytestmark = pytest.mark.oldest

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / ".venv-oldest" / "bin"
COMMIT = "364da0721273c91ba85c672d419aa27ab3c4c55e"  # the last one that ran on Flower 1.39
PARTS = ("pyproject.toml", "strategies", "tasks", "client", "server", "simulation", "deploy", "benchmarks")


@pytest.fixture
def before(tmp_path):
    """The program `cohort` of before."""
    command = ["git", "archive", COMMIT, *PARTS]
    try:
        archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"commit {COMMIT} is not in the history of this clone: {error}")
    code, program = tmp_path / "before", tmp_path / "cohort"
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(code, filter="data")
    main = "from deploy.command import main; main()"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={code} exec {PROGRAMS}/python -P -c "{main}" "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a program, given its name and its arguments."""
    started = []

    def start(name, *command):
        program, *arguments = map(str, command)
        started.append(Running(tmp_path / f"{name}.log", *arguments, program=[program]))
        return started[-1]

    yield start
    for each in started:
        each.end()


def trained(server, *clients):
    """Train a round, and tell whether it used an update of each of these clients and of no other."""
    settings = {"num-clients": len(clients), "clients-per-round": len(clients), "num-rounds": 1}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    cohort("server", "run", *words, "--set", "selector=uniform", folder=server)
    newest = max(server.glob("runs/*/history.jsonl"), key=lambda path: path.stat().st_mtime)
    lines = [json.loads(line) for line in newest.read_text().splitlines()]
    (last,) = [line for line in lines if line["type"] == "round"][1:]
    return sorted(last["client_ids"]) == sorted(clients) and all(last["responded"])


def test_a_servers_folder_of_before_is_taken_over_and_its_devices_train_and_are_updated(
    before, start, tmp_path
):
    folder = tmp_path / "server"

    def join(name, partition):
        where = ("--state-dir", tmp_path / name, "--invitation", tmp_path / f"{name}.invitation")
        return start(name, before, "client", "join", *where, "--partition", partition)

    with server_up(folder, before):
        for name, options in (("pi-1", ()), ("pi-2", ("--any-app",))):
            file = str(tmp_path / f"{name}.invitation")
            cohort("server", "invite", name, "--out", file, *options, folder=folder, program=before)
        first = join("pi-1", "0/2")
        first.wait_for("online as pi-1")
    first.wait_for("connection lost")

    with server_up(folder):
        first.wait_for("online as pi-1 again")
        second = join("pi-2", "1/2")
        second.wait_for("online as pi-2")
        # Its invitation names the app of before.
        trust = ("client", "trust", cohort("server", "bundle", folder=folder).strip())
        subprocess.run([before, *trust, "--state-dir", tmp_path / "pi-1"], check=True, capture_output=True)
        assert trained(folder, "pi-1", "pi-2")

        # One device is updated: the same folder, and the program of now.
        first.end()
        updated = start("updated", COHORT, "client", "join", "--state-dir", tmp_path / "pi-1")
        updated.wait_for("online as pi-1")
        assert trained(folder, "pi-1", "pi-2")


def test_the_recorded_wire_is_that_of_flower_1_39():
    command = [str(PROGRAMS / "python"), "-m", "tests.support.wire_contract"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert printed == wire_contract.RECORDED.read_text()


def test_a_stock_supernode_of_before_trains(start, tmp_path):
    key = certificates.write_client_key(tmp_path, "key")
    with server_up(tmp_path / "server") as server:
        cohort("server", "register", "stock", public_key_of(key), folder=server)
        node = start(
            "stock",
            *("env", f"PATH={PROGRAMS}:/usr/bin:/bin", f"FLWR_HOME={tmp_path / 'flwr'}", "flower-supernode"),
            *("--superlink", f"localhost:{json.loads((server / 'server.json').read_text())['port']}"),
            *("--root-certificates", server / "pki" / "ca.crt", "--auth-supernode-private-key", key),
            *("--node-config", "partition-id=0 num-partitions=1", "--port", str(free_ports(1)[0])),
        )
        node.wait_for("SuperNode ID")
        assert trained(server, "stock")
