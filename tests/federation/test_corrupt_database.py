"""A real server whose database is destroyed, and a device that is connected to it."""

import sqlite3
import sys
import time
from contextlib import closing

import pytest

from deploy.device.reconnect import LONGEST_RESTART
from deploy.flower.corrupt_database import EXIT_CODE
from deploy.hosting.server import Server
from deploy.tls import certificates

from ..support.devices import Running, public_key_of, server_up
from ..support.processes import wait_for

pytestmark = [
    pytest.mark.network,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="a watchdog for Linux"),
]


def damage(database):
    """Overwrite half of a database; return its size, bytes."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = database.stat().st_size
    with database.open("r+b") as file:
        file.seek(size // 4)
        file.write(b"\xa5" * (size // 2))
    return size


def test_a_server_with_a_corrupt_database_starts_and_its_devices_come_back(tmp_path):
    folder = tmp_path / "server"
    database = folder / "superlink.db"
    device = None
    try:
        with server_up(folder):
            server = Server.load(folder)
            server.invite("pi-1", tmp_path / "invitation", 7, "")
            joining = ("--state-dir", str(tmp_path / "pi-1"), "--invitation", str(tmp_path / "invitation"))
            device = Running(tmp_path / "pi-1.log", "client", "join", *joining)
            for name in ("pi-2", "pi-3"):
                key = certificates.write_client_key(tmp_path / "keys", name)
                server.register(name, public_key_of(key))
            server.revoke("pi-3")
            device.wait_for("online as pi-1")
            before = server.registry.clients()
            assert set(before) == {"pi-1", "pi-2"}

        size = damage(database)

        running = Running(tmp_path / "again.log", "server", "up", "--dir", str(folder))
        began = time.monotonic()
        try:
            running.wait_for("up at localhost:")
            assert f"{database} was corrupt and is now superlink.db.corrupt-" in running.said
            (aside,) = folder.glob("superlink.db.corrupt-????????-??????")
            assert aside.stat().st_size == size
            after = server.registry.clients()
            assert set(after) == {"pi-1", "pi-2"}
            assert not set(before.values()) & set(after.values())
            device.wait_for(f"online as pi-1 (node {after['pi-1']})", 2 * LONGEST_RESTART)
            print(f"online again after {time.monotonic() - began:.1f} s")
            assert server.states() == {"pi-1": "online", "pi-2": "registered"}
            assert running.said.count("started again") == 0
        finally:
            running.end()
    finally:
        if device is not None:
            device.end()


def test_a_running_server_notices_that_its_database_is_corrupt_and_replaces_it(tmp_path):
    folder, log = tmp_path / "server", tmp_path / "server.log"
    device = None
    try:
        with server_up(folder):
            server = Server.load(folder)
            server.invite("pi-1", tmp_path / "invitation", 7, "")
            joining = ("--state-dir", str(tmp_path / "pi-1"), "--invitation", str(tmp_path / "invitation"))
            device = Running(tmp_path / "pi-1.log", "client", "join", *joining)
            device.wait_for("online as pi-1")
            (before,) = server.registry.clients().values()
            damage(folder / "superlink.db")
            began = time.monotonic()
            wait_for(
                lambda: "was corrupt and is now superlink.db.corrupt-" in log.read_text(), 60, log.read_text
            )
            print(f"replaced after {time.monotonic() - began:.1f} s")
            assert f"superlink ended with code {EXIT_CODE}: started again" in log.read_text()
            wait_for(lambda: list(server.registry.clients().values()) != [before], 60, log.read_text)
            (after,) = server.registry.clients().values()
            device.wait_for(f"online as pi-1 (node {after})", 2 * LONGEST_RESTART)
            print(f"online again after {time.monotonic() - began:.1f} s")
            assert server.states() == {"pi-1": "online"}
            assert log.read_text().count("started again") == 1
            assert (
                "is corrupt (database disk image is malformed)" in (folder / "logs/superlink.log").read_text()
            )
    finally:
        if device is not None:
            device.end()
