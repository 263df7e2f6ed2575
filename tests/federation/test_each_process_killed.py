"""A run of 40 devices on two front ends outlives the kill of any one process: its rounds are complete."""

import json
import sys

import pytest

from deploy.flower.key_registration import registration_command
from deploy.hosting.server import CONNECTION
from deploy.tls.certificates import LOOPBACK, write_client_key

from ..nemesis import federations
from ..nemesis.faults import Episode, Fault
from ..nemesis.front_ends import ENGINES, FrontEndsFederation
from ..nemesis.nemesis import Nemesis
from ..support.devices import Running
from ..support.processes import linux, wait_for
from ..support.proxy import Balancer

pytestmark = [pytest.mark.network, pytest.mark.slow, linux]

DEVICES, REAL = 40, 4  # the others are light devices, in two processes
LONG = 240.0  # s that a busy machine may take
SLOW = 2.0  # a machine that is slower than this, times alone, is busy with other things
KILLS = (
    Fault("superlink", "kill", None, 0, 0, front=0),
    Fault("superlink", "kill", None, 0, 0, front=1),
    Fault("executor", "kill", None, 0, 0, front=0),
    Fault("executor", "kill", None, 0, 0, front=1),
    Fault("postgres", "kill", None, 0, 3.0),
    Fault("serverapp", "kill", None, 0, 0),
    Fault("clientapp", "kill", 0, 0, 0),
    Fault("supernode", "kill", 1, 0, 0),
    Fault("follower", "kill", None, 0, 0),
)


class ManyDevices(FrontEndsFederation):
    """Four devices as users start them, and light ones, for which a balancer stands before the front ends."""

    def _join_all(self, held):
        for client in range(REAL):
            self._join(client, held)
        names = [f"client-{client:02d}" for client in range(REAL, self.num_clients)]
        keys = [write_client_key(self.folder / "keys", name) for name in names]
        self._register([key.with_name(f"{key.name}.pub") for key in keys])
        balancer = Balancer([machine.port for machine in self._machines])
        held.callback(balancer.close)
        for number in (0, 1):
            settings = {
                "addresses": [f"{LOOPBACK[1]}:{balancer.port}"],
                "authority": str(self._folders[0] / "pki" / "ca.crt"),
                "keys": [str(key) for key in keys[number::2]],
                # s that a training takes: the wait for a client, three times its time, outlasts a restart
                "delay": 6.0,
                "leaves": 0.0,
                "away": 1.0,
                "counts": str(self.folder / f"counts-{number}.json"),
                "trainings": str(self.trainings),
            }
            path = self.folder / f"load-{number}.json"
            path.write_text(json.dumps(settings))
            program = (sys.executable, "-m", "tests.nemesis.light_devices")
            load = Running(self.folder / f"load-{number}.log", str(path), program=program)
            held.callback(federations.end, load)

    def _register(self, keys):
        command = registration_command(CONNECTION, keys, self.folder / "registered")
        home = {"FLWR_HOME": str(self._folders[0] / "flwr"), **self._environment}
        done = Running(self.folder / "register.log", program=command, environment=home)
        wait_for(lambda: done.process.poll() is not None, LONG, lambda: done.said)
        assert done.process.returncode == 0, done.said


def test_each_process_is_killed_once_and_every_round_is_complete(tmp_path, monkeypatch):
    monkeypatch.setitem(ENGINES, "many devices", ManyDevices)
    nemesis = Nemesis(
        tmp_path / "all",
        seed=0,
        minutes=60,
        engine="many devices",
        bound=60.0,
        clients=DEVICES,
        per_round=DEVICES,
        deadline=300.0,
        say=print,
        plan=[Episode(number, 0.5, (kill,)) for number, kill in enumerate(KILLS)],
    )
    report = nemesis.run()
    assert report.violations == []
    assert [[fault["hit"] for fault in each["outcome"]] for each in report.episodes] == [[True]] * len(KILLS)
    lines = [json.loads(line) for line in (tmp_path / "all/run/history.jsonl").read_text().splitlines()]
    rounds = [line for line in lines if line["type"] == "round" and line["round"]]
    assert len(rounds) == report.verdict.rounds > len(KILLS)
    assert report.verdict.skipped == 0
    if max(each["slowness"] for each in report.episodes) < SLOW:  # else 15 s to return may be too short
        missing = [(line["round"], *each.values()) for line in rounds for each in line["failures"]]
        not_killed = [each for each in missing if each[1] not in ("client-00", "client-01")]
        assert not_killed == [], "only killed devices may miss a round"
        assert all(line["responded"] == [True] * DEVICES for line in rounds[-3:]), missing
