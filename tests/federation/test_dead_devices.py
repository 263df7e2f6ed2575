"""How soon a federation of real processes knows that a device is gone, and has it back."""

import re
import signal
import sqlite3
import sys
import time
from pathlib import Path

import pytest

from deploy.engines.local_cluster import LocalCluster
from deploy.processes.groups import wait_until
from deploy.processes.ports import free_ports

from ..support.processes import kill_for_good
from ..support.proxy import Proxy, Trouble

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel's view of connections"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with LocalCluster(tmp_path_factory.mktemp("dead") / "run", 2) as running:
        yield running


def nodes(cluster, index):
    """Return the node id of each start of a client."""
    log = (cluster.logs / f"{cluster.client_names[index]}.log").read_text()
    return list(map(int, re.findall(r"SuperNode ID: (\d+)", log)))


def is_online(cluster, index):
    node = nodes(cluster, index)[-1]
    database = cluster.folder / "state" / "superlink.db"
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        signed = node - (1 << 64) if node >> 63 else node
        (status,) = connection.execute("select status from node where node_id = ?", (signed,)).fetchone()
    return status == "online"


def start(cluster, index):
    starts = len(nodes(cluster, index))
    cluster._start_client(index, *free_ports(1))
    superlink, client = cluster._superlink, cluster.client_processes[index]
    assert superlink is not None
    seconds = seconds_until(lambda: len(nodes(cluster, index)) > starts)
    assert seconds < 5, f"SuperLink: {superlink.returncode}\n{superlink.tail()}\nclient:\n{client.tail()}"


def seconds_until(condition):
    """Return how long the condition took to hold, at most 90 s."""
    began = time.monotonic()
    wait_until(condition, 90)
    return time.monotonic() - began


def test_a_killed_device_is_known_within_5_s_and_back_5_s_after_its_start(cluster):
    assert wait_until(lambda: is_online(cluster, 0), 10)
    time.sleep(1)  # its first heartbeat has arrived
    kill_for_good(cluster, 0)
    start(cluster, 0)  # although the server does not know yet that it was gone
    time.sleep(1)
    kill_for_good(cluster, 0)
    assert seconds_until(lambda: not is_online(cluster, 0)) < 5


def test_a_device_without_its_cable_is_known_within_15_s_and_back_5_s_after_it_is_plugged_in(cluster):
    fleet = cluster._fleet_port
    proxy = Proxy(fleet)
    process = cluster.client_processes[1]
    process.signal_group(signal.SIGTERM)
    assert wait_until(lambda: process.returncode is not None, 30)
    cluster._fleet_port = proxy.port
    try:
        start(cluster, 1)
    finally:
        cluster._fleet_port = fleet
    time.sleep(1)
    proxy.suffer(Trouble.SILENCE)
    assert seconds_until(lambda: not is_online(cluster, 1)) < 15
    proxy.heal()
    assert seconds_until(lambda: is_online(cluster, 1)) < 5
    proxy.close()


def test_a_dead_and_a_hung_client_of_cohort_up_are_started_again(cluster, monkeypatch):
    monkeypatch.setattr("deploy.engines.local_cluster.HUNG", 1.0)
    kill_for_good(cluster, 0)
    start(cluster, 0)
    for number in (signal.SIGKILL, signal.SIGSTOP):
        starts, died = len(nodes(cluster, 0)), []

        def back(starts=starts, died=died):
            died += cluster.check()
            return len(nodes(cluster, 0)) > starts

        cluster.client_processes[0].signal_group(number)
        # The server notices that a client hangs when its pings are missing (`deploy.fleet.sockets.SILENCE`).
        assert seconds_until(back) < (10 if number == signal.SIGKILL else 85)
        assert died.count("client-00") == 1  # client 1 has lost its proxy, and may be taken for hung
        assert seconds_until(lambda: is_online(cluster, 0)) < 5


def test_the_log_says_which_node_is_gone(cluster):
    node = nodes(cluster, 0)[-1]
    log = Path(cluster.logs / "superlink.log").read_text()
    assert f"Node {node} is offline: its connection has ended" in log
