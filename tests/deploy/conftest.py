"""Fixtures of several folders."""

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.fleet import state, use
from deploy.fleet.supernode import connection, node
from deploy.flower.patches import retries, shared
from tests.support.fleet import App, Node, SuperLink


@pytest.fixture(scope="session", name="superlink")
def running_superlink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuperLink]:
    """Return a SuperLink that all attacks share."""
    running = SuperLink(tmp_path_factory.mktemp("superlink"))
    yield running
    running.end()


@pytest.fixture
def app(superlink: SuperLink) -> Iterator[App]:
    """Return what a ServerApp sees of a new run on the SuperLink."""
    app = App(superlink)
    yield app
    app.close()


@pytest.fixture(name="node")
def online_node(superlink: SuperLink) -> Node:
    found = superlink.node("node")
    found.activate()
    return found


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a clock for the patches that only the test moves; it records their sleeps."""
    clock = SimpleNamespace(now=1000.0, slept=[])
    time = SimpleNamespace(monotonic=lambda: clock.now, sleep=lambda s: clock.slept.append(s))
    for module in (connection, node, retries, shared, state, use):
        monkeypatch.setattr(module, "time", time)
    return clock
