"""A run on two front ends outlives each of its processes: every round is complete and counts once."""

import json
import os
import signal
from types import SimpleNamespace

import pytest
from safetensors.numpy import load_file

from deploy.hosting.server import Server
from deploy.processes.groups import wait_until

from ..nemesis.checker import check
from ..nemesis.federations import Target, processes_with_argument, write_app
from ..nemesis.watch import Watch
from ..support.devices import Running
from ..support.front_ends import FrontEnd, folders_of_one_server, whole_app
from ..support.processes import linux, wait_for
from ..support.proxy import Proxy

pytestmark = [pytest.mark.network, pytest.mark.slow, linux]

CLIENTS, ROUNDS = 3, 18
SOON, LATE = 60.0, 120.0  # s that a busy machine may take


def kill(front, program):
    """Kill a program of a front end, by the name that is among its arguments."""
    mine = set(front.pids)
    Target(next(pid for pid in processes_with_argument(program) if pid in mine)).signal(9)


class Run:
    """What a run and its clients have written so far."""

    def __init__(self, runs):
        (self.folder,) = (each.parent for each in runs.glob("*/history.jsonl"))
        self.trainings = runs / "trainings"

    def lines(self, kind="round"):
        text = (self.folder / "history.jsonl").read_text()
        return [line for line in map(json.loads, text.splitlines()) if line["type"] == kind]

    @property
    def reached(self):
        """The last round that has ended."""
        return max((line["round"] for line in self.lines()), default=0)

    @property
    def serverapp(self):
        """The process id of its ServerApp."""
        return int((self.folder / "checkpoints" / "lock").read_text())

    def trained(self):
        """Return the trainings that have begun and those that have ended, as (client, round)."""
        lines = [
            json.loads(line)
            for path in self.trainings.glob("*.jsonl")
            for line in path.read_text().splitlines()
        ]
        return [
            [(line["client"], line["round"]) for line in lines if line["event"] == event]
            for event in ("begin", "end")
        ]

    def wait_for_training(self, after):
        """Wait until clients train in a round after this one, and return the round before theirs."""

        def trains():
            begun, ended = self.trained()
            return any(number > after for _, number in set(begun) - set(ended))

        wait_for(trains, SOON, lambda: self.reached)
        return self.reached

    def wait_for_round(self, number):
        wait_for(lambda: self.reached >= number, LATE, lambda: self.reached)


@pytest.fixture
def held():
    found = []
    yield found
    for each in reversed(found):
        each.close() if isinstance(each, Proxy | Watch) else each.end()


@pytest.fixture
def federation(tmp_path, postgres, held, monkeypatch):
    """Two front ends, a run that was submitted at the first, and its clients."""
    app = whole_app(write_app(tmp_path / "app"))
    monkeypatch.setenv("PYTHONPATH", str(app))  # all programs are this copy's, and its bundle is submitted
    database, runs = postgres.database(empty=True), tmp_path / "runs"
    runs.mkdir()

    folders = folders_of_one_server(tmp_path / "one", tmp_path / "two")
    one, two = (FrontEnd(folder, database, runs) for folder in folders)
    held += [one, two]
    for each in (one, two):
        each.wait_for("up at localhost:")

    proxies, devices = [], []
    for client in range(CLIENTS):
        front, name = (one, two)[client % 2], f"client-{client:02d}"
        proxies.append(Proxy(front.port))  # a balancer, which knows both front ends
        held.append(proxies[-1])
        invitation = tmp_path / f"{name}.invitation"
        Server.load(front.folder).invite(name, invitation, 7, "")
        address = {"server": f"localhost:{proxies[-1].port}"}
        invitation.write_text(json.dumps({**json.loads(invitation.read_text()), **address}))
        join = ("client", "join", "--state-dir", str(tmp_path / name), "--invitation", str(invitation))
        log = tmp_path / f"{name}.log"
        devices.append(Running(log, *join, "--partition", f"{client}/{CLIENTS}"))
        held.append(devices[-1])
    for device in devices:
        device.wait_for("online as ")

    settings = {
        "num-clients": CLIENTS,
        "clients-per-round": CLIENTS,
        "quorum": CLIENTS,
        "num-rounds": ROUNDS,
        "selector": "md",
        "partition": "balanced",
        "learning-rate": 1.0,  # the recorded norms are divided by it
        "local-steps": 20,  # a second
        "round-deadline": 300,
    }
    sets = (part for name, value in settings.items() for part in ("--set", f"{name}={value}"))
    follower = Running(tmp_path / "run.log", "server", "run", "--dir", str(one.folder), *sets)
    held.append(follower)
    wait_for(lambda: list(runs.glob("*/history.jsonl")), SOON, lambda: follower.said)
    run = Run(runs)
    watch = Watch(run.folder)
    held.append(watch)
    run.wait_for_round(1)
    return SimpleNamespace(**locals())


def judge(run, watch):
    """Check the run: every round has the replies of all clients, each once, and the model is the replay's."""
    watch.close()
    verdict = check(
        run.folder / "history.jsonl",
        run.trainings,
        watch.models,
        clients_per_round=CLIENTS,
        last=load_file(run.folder / "model.safetensors"),
    )
    assert [*verdict.violations, *watch.violations] == []
    assert (verdict.rounds, verdict.skipped, verdict.failures) == (ROUNDS, 0, 0)
    assert verdict.replies == CLIENTS * ROUNDS
    assert verdict.models > ROUNDS


def test_a_run_goes_on_when_its_superlink_its_serverapp_and_its_machine_are_killed_in_turn(
    federation, postgres
):
    one, two, run = federation.one, federation.two, federation.run

    # The executor and the SuperLink of the run's front end: they are started again, the ServerApp goes on.
    before = run.wait_for_training(1)
    kill(one, "flower-superexec")
    run.wait_for_round(before + 2)
    assert "superexec ended with code -9" in one.said
    before = run.wait_for_training(before + 2)
    kill(one, "flower-superlink")
    run.wait_for_round(before + 3)
    assert "superlink ended with code -9" in one.said
    assert run.lines("resume") == []
    begun, ended = run.trained()
    assert len(begun) == len(set(begun)), "a client was asked twice"
    assert set(ended) >= {(client, number) for client in range(CLIENTS) for number in range(1, before + 3)}

    # Its ServerApp: the run's follower resumes it. On a slow machine, that is one of the other front end now.
    before = run.wait_for_training(before + 3)
    os.kill(run.serverapp, signal.SIGKILL)
    run.wait_for_round(before + 2)
    assert len(run.lines("resume")) == 1

    # Its machine, with its follower: the other front end carries it on.
    before = run.wait_for_training(before + 2)
    here, there = (one, two) if run.serverapp in one.pids else (two, one)
    federation.follower.process.kill()
    here.kill()
    for proxy in federation.proxies:
        proxy.target = there.port
    run.wait_for_round(before + 2)
    assert "it is carried on here" in there.said
    assert len(run.lines("resume")) == 2

    wait_for(lambda: run.lines("end"), LATE, lambda: run.reached)
    gone = "SELECT * FROM cohort_follower"
    assert wait_until(lambda: not postgres.execute(gone, federation.database), SOON)
    judge(run, federation.watch)


def test_every_round_is_complete_when_the_front_ends_are_restarted_one_after_the_other(federation):
    """As in an upgrade; what is started again has the same version, since there is no other one to try."""
    run, fronts = federation.run, [federation.two, federation.one]  # the run's front end is the second
    for front in fronts:
        front.end()
        again = FrontEnd(front.folder, federation.database, federation.runs)
        federation.held.append(again)
        for proxy in federation.proxies:
            if proxy.target == front.port:
                proxy.target = again.port
        again.wait_for("up at localhost:", times=2)
        run.wait_for_round(run.reached + 3)
    assert len(run.lines("resume")) <= 1  # the ServerApp of the second one
    wait_for(lambda: run.lines("end"), LATE, lambda: run.reached)
    judge(run, federation.watch)
