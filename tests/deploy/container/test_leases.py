"""A lease decides which client a container is, and gives it the key of that client alone."""

import contextlib
import fcntl
import os
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.container.leases import CONNECTIONS, SOCKET, ask, ask_until_answered, close, take
from deploy.container.leases import prepare as prepare_leases

from ...support.processes import wait_for

ROOT = Path(__file__).parents[3]
NAMES = ["client-00", "client-01", "client-02"]


@pytest.fixture
def leases(tmp_path):
    """Return the folder of the leases on `NAMES`, with a key service, in a process as a container's."""
    folder, keys = tmp_path / "leases", tmp_path / "keys"
    folder.mkdir()
    keys.mkdir()
    prepare_leases(folder, NAMES)
    for name in NAMES:
        (keys / name).write_text(f"the key of {name}")
    code = "import sys; from pathlib import Path; from deploy.container.leases import serve; "
    code += f"serve(Path({str(folder)!r}), Path({str(keys)!r}), {NAMES!r})"
    service = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    wait_for((folder / SOCKET).exists, 240, lambda: "the key service")
    wait_for(lambda: stat.S_IMODE((folder / SOCKET).stat().st_mode) == 0o777, 240, lambda: "the key service")
    yield folder
    service.kill()
    service.wait()


def join(folder, holder):
    """Become a client, as a container does."""
    lease = take(folder, NAMES, holder)
    if lease is not None:
        assert ask(folder, lease.descriptor, holder) == f"the key of {lease.name}"
    return lease


def test_no_two_containers_are_the_same_client_and_a_restarted_one_keeps_its_name(leases):
    held = {holder: join(leases, holder) for holder in "abc"}
    assert [lease and lease.name for lease in held.values()] == NAMES
    assert join(leases, "d") is None

    for holder in "ab":
        lease = held[holder]
        assert lease is not None
        os.close(lease.descriptor)
    again = join(leases, "b")
    assert again is not None
    assert again.name == "client-01"
    instead = join(leases, "d")  # whose holder has ended
    assert instead is not None
    assert instead.name == "client-00"
    assert join(leases, "a") is None


def test_an_unused_name_is_preferred_to_that_of_a_container_that_may_come_back(leases):
    first = join(leases, "a")
    assert first is not None
    os.close(first.descriptor)
    second = join(leases, "b")
    assert second is not None
    assert second.name == "client-01"


def test_a_container_gets_the_key_of_its_own_lease_only(leases, tmp_path):
    victim = join(leases, "victim")
    assert victim is not None
    for attack in ("without the lock", "a lock that nobody has", "another file", "no file"):
        path = leases / victim.name if attack == "without the lock" else leases / "client-02"
        if attack == "another file":
            path = tmp_path / victim.name
            path.write_text("attacker")
        descriptor = os.open(path, os.O_RDONLY)
        if attack == "another file":
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if attack == "no file":
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(leases / SOCKET))
                connection.sendall(b"attacker")
                assert connection.recv(1000) == b""
        else:
            with pytest.raises(PermissionError, match="does not hand out a key for this lease"):
                ask(leases, descriptor, "attacker")
        os.close(descriptor)
    assert (leases / victim.name).read_text() == "victim"
    assert ask(leases, victim.descriptor, "victim") == f"the key of {victim.name}"  # it serves on


def test_a_container_that_keeps_the_service_busy_holds_up_no_other(leases):
    silent = []
    for _ in range(2 * CONNECTIONS):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(leases / SOCKET))
        silent.append(connection)
    assert join(leases, "honest") is not None
    assert silent[0].recv(1) == b""  # the oldest ones were closed
    for connection in silent:
        connection.close()


@pytest.mark.slow
def test_a_container_that_floods_the_service_with_connections_holds_up_no_other(leases):
    code = (
        "import socket\nheld = []\nwhile True:\n    each = socket.socket(socket.AF_UNIX)\n"
        "    each.setblocking(False)\n    try:\n"
        f"        each.connect({str(leases / SOCKET)!r})\n"
        "        print(len(held), flush=not held)\n    except OSError:\n        continue\n"
        "    held = [*held[-500:], each]\n"
    )
    attack = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert attack.stdout is not None
        attack.stdout.readline()
        threading.Thread(target=attack.stdout.read, daemon=True).start()
        lease = take(leases, NAMES, "honest")
        assert lease is not None
        for _ in range(5):
            assert ask_until_answered(leases, lease.descriptor, "honest") == f"the key of {lease.name}"
    finally:
        attack.kill()
        attack.wait()


def test_a_container_that_stops_while_it_takes_a_name_holds_up_no_other(leases, monkeypatch):
    monkeypatch.setattr("deploy.container.leases.WAIT", 0.1)
    with (leases / ".lock").open() as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        assert join(leases, "honest") is not None


def test_concurrent_containers_are_different_clients_and_the_name_of_a_killed_one_is_free(leases):
    code = (
        "import sys, time; from pathlib import Path; from deploy.container.leases import take; "
        f"lease = take(Path({str(leases)!r}), {NAMES!r}, sys.argv[1]); "
        "print(lease and lease.name, flush=True); time.sleep(60)"
    )

    def start(holder):
        process = subprocess.Popen(
            [sys.executable, "-c", code, holder], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    with ThreadPoolExecutor() as pool:
        started = list(pool.map(start, "abcd"))
    try:
        assert sorted(name for _, name in started) == ["None", *NAMES]
        process, name = next(each for each in started if each[1] != "None")
        process.kill()
        process.wait()
        lease = take(leases, NAMES, "e")
        assert lease is not None
        assert lease.name == name
    finally:
        for process, _ in started:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_a_socket_that_would_take_hours_to_close_is_closed_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        sent = socket.create_connection(server.getsockname())
        with server.accept()[0]:
            sent.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sent.send(bytes(1 << 16))
            sent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 30))
            sent.setblocking(True)
            began = time.monotonic()
            close(sent.detach())
            assert time.monotonic() - began < 10
