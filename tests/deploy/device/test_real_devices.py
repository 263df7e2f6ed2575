"""Devices join a real server, train, and survive its death and that of their own processes."""

import json
import os
import shlex
import signal
import threading
import time
from pathlib import Path

import pytest

from ...support.devices import Running, cohort, run_cli, server_up
from ...support.processes import linux, memory_alone, processes_of, running, wait_for
from ...support.proxy import HttpProxy


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with server_up(tmp_path_factory.mktemp("federation") / "server") as folder:
        yield folder


@pytest.fixture
def join(tmp_path):
    started = []

    def start(name, *arguments):
        where = ("--state-dir", str(tmp_path / name))
        started.append(Running(tmp_path / f"{name}.log", "client", "join", *where, *arguments))
        return started[-1]

    yield start
    for each in started:
        each.end()


def command_line(process):
    try:
        return (process / "cmdline").read_text()
    except OSError:  # it has ended meanwhile
        return ""


def rounds(folder):
    (history,) = folder.glob("runs/*/history.jsonl")
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    return [line for line in lines if line["type"] == "round"][1:]


@linux
@pytest.mark.slow  # Flower notices dead nodes after a minute
@pytest.mark.network
def test_two_devices_join_train_within_200_mb_and_survive_the_server_until_one_is_revoked(
    server, join, tmp_path
):
    address = f"localhost:{json.loads((server / 'server.json').read_text())['port']}"
    # With a key of its own: the device waits until the operator runs the command that it prints.
    first = join("pi-1", "--server", address, "--ca", str(server / "pki" / "ca.crt"), "--name", "pi-1",
                 "--partition", "0/2")  # fmt: skip
    first.wait_for("not let in yet: the operator must register the key of pi-1")
    assert "PRIVATE" not in first.said
    assert "Traceback" not in first.said
    (command,) = [line for line in first.said.splitlines() if "cohort server register" in line]
    cohort(*shlex.split(command)[1:], folder=server)
    # By invitation.
    cohort("server", "invite", "pi-2", "--out", str(tmp_path / "pi-2.invitation"), folder=server)
    second = join("pi-2", "--invitation", str(tmp_path / "pi-2.invitation"), "--partition", "1/2")
    for device in (first, second):
        device.wait_for("online as pi-")
    assert not (tmp_path / "pi-2.invitation").exists()
    assert cohort("server", "list", folder=server).splitlines()[-1] == "2 registered, 2 online"

    # A paused device is polled but not selected.
    assert run_cli("pause", "--state-dir", str(tmp_path / "pi-2"))[0] == 0
    most, done = 0.0, threading.Event()

    def watch():
        nonlocal most
        while not done.wait(0.02):
            most = max(most, memory_alone(processes_of(first.process.pid)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        settings = ("num-clients=2", "clients-per-round=1", "num-rounds=3", "selector=uniform")
        cohort("server", "run", *(word for each in settings for word in ("--set", each)), folder=server)
    finally:
        done.set()
        watcher.join()
    assert [line["client_ids"] for line in rounds(server)] == [["pi-1"]] * 3
    assert [line["responded"] for line in rounds(server)] == [[True]] * 3
    assert 50 < most < 200, f"{most:.0f} MB"

    # The server dies and restarts: the devices reconnect.
    database = f"--database\0{server / 'superlink.db'}"
    superlink = min(  # not a process forked from it
        int(folder.name) for folder in Path("/proc").glob("[0-9]*") if database in command_line(folder)
    )
    os.kill(superlink, signal.SIGKILL)
    for device, name in ((first, "pi-1"), (second, "pi-2")):
        device.wait_for("connection lost")
        device.wait_for(f"online as {name} again")
    assert run_cli("resume", "--state-dir", str(tmp_path / "pi-2"))[0] == 0

    # A revoked key: the device is disconnected and refused.
    cohort("server", "revoke", "pi-2", folder=server)
    second.wait_for("sent away by the server: its key was revoked")
    second.wait_for("or the server has revoked it")
    assert cohort("server", "list", folder=server).splitlines()[-1] == "1 registered, 1 online"

    # A device that is stopped signs off, so that it can reconnect at once.
    first.end()
    assert not [pid for pid in processes_of(first.process.pid) if running(pid)]
    assert "1 registered, 0 online" in cohort("server", "list", folder=server)
    join("pi-1").wait_for("online as pi-1 (node", times=2)


@linux
@pytest.mark.network
@pytest.mark.slow
def test_a_killed_supernode_is_restarted_and_one_without_supervisor_ends(server, join, tmp_path):
    cohort("server", "invite", "pi-3", "--out", str(tmp_path / "pi-3.invitation"), folder=server)
    device = join("pi-3", "--invitation", str(tmp_path / "pi-3.invitation"))
    device.wait_for("online as pi-3")
    _, node, *_ = processes_of(device.process.pid)
    os.kill(node, signal.SIGKILL)
    killed = time.monotonic()
    device.wait_for("its SuperNode ended with code -9")
    device.wait_for("online as pi-3 (node", timeout=240, times=2)
    assert time.monotonic() - killed < 20  # 4 s on an idle machine; Flower refuses its key for 60 s

    _, *left = processes_of(device.process.pid)
    assert left
    device.process.kill()
    wait_for(lambda: not any(map(running, left)), 60, lambda: f"{left} still run")


@pytest.mark.network
def test_a_device_behind_an_http_proxy_joins_and_trains(join, tmp_path, monkeypatch):
    (tmp_path / "federation").mkdir()
    with server_up(tmp_path / "federation" / "server", host="fl.example.org") as server:
        proxy = HttpProxy(json.loads((server / "server.json").read_text())["port"])
        cohort("server", "invite", "ward-1", "--out", str(tmp_path / "ward-1.invitation"), folder=server)
        with monkeypatch.context() as environment:
            environment.setenv("https_proxy", proxy.url)
            device = join("ward-1", "--invitation", str(tmp_path / "ward-1.invitation"), "--partition", "0/1")
            device.wait_for("online as ward-1")
        settings = ("num-clients=1", "clients-per-round=1", "num-rounds=1", "selector=uniform")
        cohort("server", "run", *(word for each in settings for word in ("--set", each)), folder=server)
        assert [line["client_ids"] for line in rounds(server)] == [["ward-1"]]
        assert proxy.asked
        proxy.close()
