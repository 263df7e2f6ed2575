"""A ClientApp starts no thread for telemetry that is switched off."""

import threading
from types import SimpleNamespace

import pytest
from flwr.supercore import telemetry
from flwr.supercore.exit import exit as leaving
from flwr.supercore.telemetry import EventType
from flwr.supernode.runtime import run_clientapp

from deploy.flower.patches import clientapp


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    for name in ("create_event", "Thread"):
        monkeypatch.setattr(telemetry, name, getattr(telemetry, name))


@pytest.mark.parametrize(("enabled", "logging"), [("0", "0"), ("1", "0"), ("0", "1")])
def test_telemetry_starts_threads_only_if_it_is_switched_on(monkeypatch, enabled, logging):
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", enabled)
    monkeypatch.setenv("FLWR_TELEMETRY_LOGGING", logging)
    started = []

    def thread(**settings):
        return SimpleNamespace(start=lambda: started.append(settings))

    monkeypatch.setattr(telemetry, "Thread", thread)
    clientapp.start_no_threads_for_telemetry()
    before = threading.active_count()
    sent = [module.event(EventType.FLWR_CLIENTAPP_RUN_ENTER, None) for module in (run_clientapp, leaving)]
    on = "1" in (enabled, logging)
    assert len(started) == (2 if on else 0)
    assert [each.done() for each in sent] == [not on] * 2
    assert threading.active_count() == before
