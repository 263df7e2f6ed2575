"""How a server finds the connections among its open files."""

import os
import socket
import sqlite3
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from deploy.flower.patches.connections import FIRST_REQUEST, PER_NODE, TOLD, Connections, connections_to


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


def test_closed_connections_write_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connections, now = Connections(), [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with ExitStack() as held, caplog.at_level("WARNING", "flwr"):
        server = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = server.getsockname()[1]
        for _ in range(3):
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
            with server.accept()[0]:
                connections.close_strangers(port)
                now[0] += FIRST_REQUEST + 1
                connections.close_strangers(port)
        now[0] += TOLD
        connections.close_strangers(port)
    assert [line.partition(" beyond")[0] for line in caplog.messages] == [
        "Closed 1 connections", "Closed 2 connections"
    ]  # fmt: skip


def test_a_node_has_a_bounded_number_of_connections() -> None:
    """One client with a registered key would else use up the descriptors of the server."""
    connections = Connections()
    with ExitStack() as held:
        server = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = server.getsockname()[1]
        clients = []
        for number in range(PER_NODE + 4):
            client = held.enter_context(socket.create_connection(("127.0.0.1", port)))
            held.enter_context(server.accept()[0])
            connections.close_strangers(port)  # which notes the age of the connection
            connections.admitted(f"ipv4:127.0.0.1:{client.getsockname()[1]}", 7 if number else 8)
            clients.append(client)
        connections.close_strangers(port)
        for number, client in enumerate(clients):
            client.settimeout(5 if 1 <= number <= 3 else 0)
            if 1 <= number <= 3:
                assert client.recv(1) == b""
            else:  # of another node, or among the newest
                with pytest.raises(BlockingIOError):
                    client.recv(1)
