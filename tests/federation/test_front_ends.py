"""Two front ends of one server, each with devices of its own: a run uses all of them and outlives one end."""

import json
import os
import shutil
import signal

import pytest

from deploy.hosting.programs import MARK
from deploy.processes.groups import processes_with, wait_until
from deploy.processes.ports import free_ports

from ..support.devices import Running, cohort
from ..support.processes import linux, wait_for

pytestmark = [pytest.mark.network, pytest.mark.slow, linux]

EACH = 2  # devices of each front end
# s that a round may take after a death: `LEASE` and `RETURN`, and what a busy machine adds
SOON = 60.0


class FrontEnd(Running):
    """A `cohort server up` with its own folder and devices: a new one, or the one of this folder again."""

    def __init__(self, folder, database=None):
        self.folder = folder
        options = ()
        if database is not None:
            port, control = map(str, free_ports(2))
            options = ("--host", "localhost", "--listen", "127.0.0.1", "--database", database)
            options += ("--port", port, "--control-port", control)
        log = folder.with_name(f"{folder.name}.log")
        log.unlink(missing_ok=True)
        super().__init__(log, "server", "up", "--dir", str(folder), *options)
        self.wait_for("up at localhost:")

    def kill(self):
        """Kill its processes as a power cut does: at once."""
        for pid in (self.process.pid, *processes_with(MARK, str(self.folder))):
            os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not processes_with(MARK, str(self.folder)), 20)


def copied_keys(source, folder):
    """Make the folder of a further front end, with the authority of the first."""
    folder.mkdir(mode=0o700)
    shutil.copytree(source / "pki", folder / "pki")
    return folder


@pytest.fixture
def started():
    found = []
    yield found
    for each in reversed(found):
        each.end()


def test_a_run_uses_the_devices_of_both_and_goes_on_when_one_is_killed_and_the_database_restarts(
    tmp_path, postgres, started
):
    database = postgres.database(empty=True)
    one = FrontEnd(tmp_path / "one", database)
    started.append(one)
    two = FrontEnd(copied_keys(one.folder, tmp_path / "two"), database)
    started.append(two)
    stranger = Running(
        *(tmp_path / "stranger.log", "server", "up", "--dir", str(tmp_path / "stranger")),
        *("--host", "localhost", "--database", database),
    )
    assert stranger.process.wait(60) == 2
    assert "belongs to a server with another authority" in stranger.said
    assert not (tmp_path / "stranger").exists()

    devices = {}
    for front in (one, two):
        for number in range(EACH):
            name = f"{front.folder.name}-{number}"
            invitation = tmp_path / f"{name}.invitation"
            cohort("server", "invite", name, "--out", str(invitation), folder=front.folder)
            part = ("--partition", f"{len(devices)}/{2 * EACH}")
            join = ("client", "join", "--state-dir", str(tmp_path / name), "--invitation", str(invitation))
            devices[name] = Running(tmp_path / f"{name}.log", *join, *part)
            started.append(devices[name])
    for name, device in devices.items():
        device.wait_for(f"online as {name}")
    listed = cohort("server", "list", folder=two.folder)
    assert listed.count("online, of another front end") == EACH
    assert f"{EACH} registered, {EACH} online" in listed

    settings = {
        "num-clients": 2 * EACH,
        "clients-per-round": 2 * EACH,
        "num-rounds": 10_000,
        "selector": "md",
        "round-deadline": 300,
        "partition": "balanced",
    }
    sets = (part for name, value in settings.items() for part in ("--set", f"{name}={value}"))
    run = Running(tmp_path / "run.log", "server", "run", "--dir", str(one.folder), *sets)
    started.append(run)

    def rounds():
        found = list(one.folder.glob("runs/*/history.jsonl"))
        lines = found[0].read_text().splitlines() if found else []
        return [line for line in map(json.loads, lines) if line["type"] == "round"]

    def wait_for_round(number, seconds):
        wait_for(lambda: len(rounds()) > number, seconds, lambda: f"{rounds()[-1:]}\n{run.said}")

    wait_for_round(3, 180)
    assert len(rounds()[3]["clients"]) == 2 * EACH

    two.kill()
    before = len(rounds())
    wait_for_round(before + 2, 2 * SOON)  # which do not wait until its devices count as offline
    wait_for(lambda: rounds()[-1]["num_available"] == EACH, SOON, lambda: rounds()[-1])
    postgres.stop()
    postgres.start()
    before = len(rounds())
    wait_for_round(before + 2, SOON)

    started.append(FrontEnd(two.folder))
    wait_for(lambda: rounds()[-1]["num_available"] == 2 * EACH, SOON, lambda: rounds()[-1])
    wait_for_round(len(rounds()) + 2, SOON)
    cohort("server", "stop", "last", folder=one.folder)
    done = rounds()[1:]
    assert [line["round"] for line in done] == list(range(1, len(done) + 1))
    assert not any(line["skipped"] for line in done)
    assert all(all(line["responded"]) for line in done[:3] + done[-2:])
