"""How a server finds the connections among its open files."""

import os
import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from deploy.flower.patches.sockets import connections_to


def test_connections_to_a_port_are_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0]:
            ((peer, found),) = connections_to(port)
            with found:
                assert peer == client.getsockname()
                assert found.getpeername() == client.getsockname()
            every = dict(connections_to())
            for each in every.values():
                each.close()
            assert every.keys() >= {client.getsockname(), client.getpeername()}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/locks")
def test_a_look_at_the_connections_leaves_the_locks_on_the_database(tmp_path: Path) -> None:
    """Else another process that opens the database takes it for closed, and shrinks memory that is in use."""

    def locks() -> list[str]:
        lines = Path("/proc/locks").read_text().splitlines()
        return [line.partition(": ")[2] for line in lines if f" {os.getpid()} " in line]

    with closing(sqlite3.connect(tmp_path / "superlink.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE node (node_id INTEGER)")
        before = locks()
        assert before
        connections_to()
        assert locks() == before
