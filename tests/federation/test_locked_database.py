"""A real federation whose SuperLink's database is locked by another program, as by a backup."""

import contextlib
import json
import sqlite3
import threading
import time

import pytest

from deploy.runs.follow_and_resume import Watcher, train
from deploy.runs.trials import Trial
from server.history import FILE_NAME, RunHistory

from ..nemesis.checker import check
from ..nemesis.federations import ENGINES
from ..nemesis.watch import Watch
from ..support.processes import linux, wait_for

pytestmark = [pytest.mark.network, pytest.mark.slow, linux]

LOCKED = 40.0  # s
SOON = 15.0  # s from the release to a round in which all clients train
CLIENTS = 3


def test_all_clients_answer_again_soon_after_a_lock_of_40_s(tmp_path):
    """On `cohort up`'s cluster; the nemesis locks the database of `cohort server`."""
    federation = ENGINES["cluster"](tmp_path / "all", CLIENTS)
    config = {
        "selector": "md",
        "num-clients": CLIENTS,
        "clients-per-round": CLIENTS,
        "num-rounds": 10_000,
        "partition": "balanced",
        "learning-rate": 1.0,
        "round-deadline": 120.0,
        "output-dir": str(federation.run),
    }
    trial = Trial("run", config, RunHistory(federation.run / FILE_NAME))
    watch = Watch(federation.run)
    said = []

    def complete(since):
        return [line for line in watch.rounds_since(since) if line["num_available"] == CLIENTS]

    def follow(running):
        with contextlib.suppress(Exception):  # the federation ends before the run does
            train(running, [trial], Watcher(said.append), at_once=False)

    with federation as running:
        threading.Thread(target=follow, args=(running,), daemon=True).start()
        wait_for(lambda: len(watch.rounds) > 3, 120, lambda: f"no rounds: {said}")
        with contextlib.closing(
            sqlite3.connect(federation.database, timeout=10, isolation_level=None)
        ) as other:
            other.execute("BEGIN EXCLUSIVE")
            locked = time.time()
            time.sleep(LOCKED)
            assert not watch.rounds_since(locked + 10), "the lock stopped nothing"
            other.execute("ROLLBACK")
            released = time.time()
        wait_for(lambda: complete(released), SOON, lambda: f"{said}\n{watch.rounds_since(locked)}")
        took = complete(released)[0]["at"] - released
        print(f"all clients answered {took:.1f} s after the release; said: {said}")
        for _ in range(3):  # and it goes on
            now = time.time()
            wait_for(lambda now=now: complete(now), SOON, lambda: f"{said}\n{watch.rounds_since(locked)}")
        assert said == []  # no process had to be started again
        devices = [log.read_text() for log in federation.folder.glob("device-*.log")]
        assert not [log for log in devices if "SuperNode ended" in log], devices
    watch.close()
    assert watch.violations == []
    verdict = check(federation.run / FILE_NAME, federation.trainings, watch.models, clients_per_round=CLIENTS)
    (end,) = verdict.violations  # the run was stopped, so its history has no end
    assert end.startswith("the last line is not the run's end"), json.dumps(verdict.violations)
