"""Federations of patched, forked and stock programs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import noop
from benchmarks.apps import write_app
from benchmarks.rounds import measure as rounds
from benchmarks.throughput.processes import tree
from deploy.engines.local_cluster import MARK, LocalCluster
from deploy.processes.groups import processes_with, wait_until

from ..support.processes import kill_for_good

ROOT = Path(__file__).parents[2]


@pytest.fixture
def federation(tmp_path):
    clusters = []

    def start(programs):
        """Run the app that does nothing; once `crash` exists, its ClientApps kill themselves when polled."""
        app = write_app(tmp_path / "app", rounds.CONFIG, Path(noop.__file__))
        source = Path(noop.__file__).read_text()
        crash = f"import os; os.path.exists({str(tmp_path / 'crash')!r}) and os.kill(os.getpid(), 9)"
        assert '"""Report a made-up loss."""' in source
        (app / "noop.py").write_text(source.replace('"""Report a made-up loss."""', crash))
        cluster = LocalCluster(tmp_path / "run", 2, app=app, programs=programs)
        clusters.append(cluster.__enter__())
        return rounds.Federation(cluster, per_round=2)

    yield start
    for cluster in clusters:
        cluster.close()


def check_a_round_does_not_wait_for_killed_client_apps(running, tmp_path):
    (tmp_path / "crash").touch()
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"2 replies wanted(.|\n)*ClientApp stopped responding"):
        running.turn(1, poll=True)
    assert time.monotonic() - began < 40  # Flower misses its heartbeats after 58 s


@pytest.mark.network
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.slow
def test_rounds_survive_killed_fork_servers_and_do_not_wait_for_killed_client_apps(federation, tmp_path):
    running = federation("patched")
    running.turn(1, poll=False)
    supernodes = [process.pid for process in running.cluster.client_processes]
    servers = [pid for root in supernodes for pid in tree(root) if pid != root]
    assert len(servers) == 4  # a fork server and an app server of each
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    for _ in range(2):  # the stock program first, then a new fork server
        running.turn(1, poll=True)
    log = (running.cluster.logs / "client-00.log").read_text()
    assert log.count("The fork server for flwr-clientapp is gone") == 1
    assert [process.returncode for process in running.cluster.client_processes] == [None, None]
    check_a_round_does_not_wait_for_killed_client_apps(running, tmp_path)
    kill_for_good(running.cluster, 0)
    gone = {supernodes[0], *servers}
    assert wait_until(lambda: not gone & set(processes_with(MARK, str(tmp_path / "run"))), 5)
    assert len(tree(supernodes[1])) == 3  # the SuperNode, its new fork server and its new app server


@pytest.mark.network
def test_a_round_does_not_wait_for_killed_client_apps_of_a_shared_fork_server(federation, tmp_path):
    running = federation("forked")
    running.turn(1, poll=False)
    check_a_round_does_not_wait_for_killed_client_apps(running, tmp_path)


@pytest.mark.network
@pytest.mark.slow
def test_the_benchmark_prints_medians_of_both_engines_and_leaves_nothing():
    before = set(Path("/tmp").glob("cohort-rounds-*"))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "rounds", "--json", "--nodes", "2", "--rounds", "1"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": "/tmp"},
        capture_output=True,
        text=True,
        check=True,
    )
    stock, cohort, devices = map(json.loads, done.stdout.splitlines())
    assert [each["programs"] for each in (stock, cohort, devices)] == list(rounds.PROGRAMS)
    assert cohort["train_s"] < stock["train_s"]
    assert cohort["poll_s"] < stock["poll_s"]
    assert set(Path("/tmp").glob("cohort-rounds-*")) == before
