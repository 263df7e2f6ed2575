"""Two front ends of one server: a run uses the devices of both, which go to the other when one is killed."""

import json
import os
import shutil
import signal

import pytest

from deploy.device.invitation import Invitation
from deploy.hosting.programs import MARK
from deploy.hosting.server import Server
from deploy.processes.groups import processes_with, wait_until
from deploy.processes.ports import free_ports

from ..support.devices import Running, cohort
from ..support.processes import linux, wait_for

pytestmark = [pytest.mark.network, pytest.mark.slow, linux]

EACH = 2  # devices of each front end
# s that a round may take after a death or a restart of the database, on a busy machine
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


class Run(Running):
    """A `cohort server run` at a front end, of so many devices, which all train in each round."""

    def __init__(self, folder, front, devices):
        self.folder = front.folder
        settings = {
            "num-clients": devices,
            "clients-per-round": devices,
            "num-rounds": 10_000,
            "selector": "md",
            "round-deadline": 300,
            "partition": "balanced",
        }
        sets = (part for name, value in settings.items() for part in ("--set", f"{name}={value}"))
        super().__init__(folder / "run.log", "server", "run", "--dir", str(front.folder), *sets)

    def rounds(self):
        found = list(self.folder.glob("runs/*/history.jsonl"))
        lines = found[0].read_text().splitlines() if found else []
        return [line for line in map(json.loads, lines) if line["type"] == "round"]

    def wait_for_round(self, number, seconds):
        wait_for(lambda: len(self.rounds()) > number, seconds, lambda: f"{self.rounds()[-1:]}\n{self.said}")


def copied_keys(source, folder):
    """Make the folder of a further front end, with the authority of the first."""
    folder.mkdir(mode=0o700)
    shutil.copytree(source / "pki", folder / "pki")
    return folder


def test_a_run_uses_the_devices_of_both_and_goes_on_when_the_database_restarts(tmp_path, postgres, started):
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
    assert [line.split()[:2] for line in listed.splitlines()[1:-1]] == [
        [name, "online"] for name in sorted(devices)
    ]
    assert f"{2 * EACH} registered, {2 * EACH} online" in listed

    run = Run(tmp_path, one, 2 * EACH)
    started.append(run)
    rounds, wait_for_round = run.rounds, run.wait_for_round
    wait_for_round(3, 180)
    assert len(rounds()[3]["clients"]) == 2 * EACH

    postgres.stop()
    postgres.start()
    wait_for_round(len(rounds()) + 2, SOON)
    cohort("server", "stop", "last", folder=one.folder)
    done = rounds()[1:]
    assert [line["round"] for line in done] == list(range(1, len(done) + 1))
    assert not any(line["skipped"] for line in done)
    assert all(all(line["responded"]) for line in done[:3] + done[-2:])


DEVICES = 3


def test_devices_know_all_front_ends_leave_a_dead_one_within_five_seconds_and_return(
    tmp_path, postgres, started
):
    database = postgres.database(empty=True)
    one = FrontEnd(tmp_path / "one", database)
    started.append(one)
    two = FrontEnd(copied_keys(one.folder, tmp_path / "two"), database)
    started.append(two)
    both = sorted([Server.load(one.folder).address, Server.load(two.folder).address])
    for number in range(DEVICES):
        invitation, folder = tmp_path / f"d{number}.invitation", tmp_path / f"d{number}"
        Server.load(one.folder).invite(folder.name, invitation, 1.0, "")
        assert sorted(Invitation.read(invitation).server.split(",")) == both
        join = ("client", "join", "--state-dir", str(folder), "--invitation", str(invitation))
        part = ("--partition", f"{number}/{DEVICES}")
        started.append(Running(tmp_path / f"d{number}.log", *join, *part))
    for device in started[2:]:
        device.wait_for("online as d")
    run = Run(tmp_path, one, DEVICES)
    started.append(run)
    run.wait_for_round(3, 60)

    def connected():
        """Return how many devices are connected to each front end, by the folder's name."""
        found = postgres.execute(
            "SELECT home, count(*) FROM cohort_connection JOIN cohort_front_end ON name = front_end "
            "GROUP BY home",
            database,
        )
        return {home.rpartition("/")[2]: count for home, count in found}

    wait_for(lambda: connected().get("two"), 60, connected)  # if all chose the other one, one is sent there
    two.kill()
    wait_for(lambda: connected().get("one") == DEVICES, 5, connected)
    run.wait_for_round(len(run.rounds()) + 1, SOON)
    started.append(FrontEnd(two.folder))
    wait_for(lambda: connected() == {"one": 2, "two": 1}, 60, connected)
    run.wait_for_round(len(run.rounds()) + 1, SOON)
    done = run.rounds()[1:]
    assert all(all(line["responded"]) and not line["skipped"] for line in done), done
