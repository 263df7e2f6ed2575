"""Fixtures for the tests of patches."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.fleet import state
from deploy.fleet.storage import traffic
from deploy.fleet.supernode import connection, node
from deploy.flower.patches import retries, shared
from tests.support.fleet import App, SuperLink


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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a clock for the patches that only the test moves; it records their sleeps."""
    clock = SimpleNamespace(now=1000.0, slept=[])
    time = SimpleNamespace(monotonic=lambda: clock.now, sleep=lambda s: clock.slept.append(s))
    for module in (connection, node, retries, shared, state, traffic):
        monkeypatch.setattr(module, "time", time)
    return clock
