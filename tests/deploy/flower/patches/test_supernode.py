"""How a SuperNode starts and ends, and how long it waits for a ClientApp."""

import importlib
import logging
import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate import NodeStateFactory

from deploy.fleet.supernode.connection import RunNotRunningError
from deploy.flower.patches import supernode
from deploy.processes.groups import LOST


def test_an_error_in_the_loop_ends_the_process(monkeypatch, capfd):
    def leave(code):
        raise SystemExit(code)

    monkeypatch.setattr(supernode.os, "_exit", leave)

    def stopped():
        raise RunNotRunningError

    for loop, said in ((stopped, "RunNotRunningError"), (lambda: None, "")):
        with pytest.raises(SystemExit) as ended:
            supernode.end_with(loop)
        assert ended.value.code == LOST
        assert said in capfd.readouterr().err
    with pytest.raises(SystemExit) as ended:
        supernode.end_with(lambda: sys.exit(305))
    assert ended.value.code == 305


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"trusted_entities": {"fpk_1": "ssh-ed25519"}}, "this project's SuperNode has no trusted_entities"),
        ({"isolation": "process"}, "has no isolation=process"),
        ({"an_option_of_a_newer_flower": True}, "has no an_option_of_a_newer_flower"),
        ({"insecure": True}, "a key needs TLS"),
        ({"server_address": "localhost"}, "--superlink localhost: must be HOST:PORT"),
    ],
)
def test_options_without_effect_are_refused_in_one_line(monkeypatch, caplog, option, reason):
    def leave(code):
        raise SystemExit(code)

    monkeypatch.setattr(supernode.os, "_exit", leave)
    options = {
        "trust": None,
        "state_factory": SimpleNamespace(),
        "server_address": "localhost:9092",
        "node_config": {},
        "root_certificates": b"",
        "insecure": False,
        "authentication_keys": ("private", "public"),
        "max_retries": None,
        "max_wait_time": None,
        "runtime_api_address": "127.0.0.1:9094",
        "runtime_certificates": None,
        "runtime_root_certificates_path": None,
        "runtime_dependency_install": False,
        "isolation": "subprocess",
        "trusted_entities": None,
        "health_server_address": None,
        "superexec_auth_secret": None,
    }
    with caplog.at_level(logging.ERROR, "flwr"), pytest.raises(SystemExit) as ended:
        supernode.start(**options | option)
    assert ended.value.code == 1
    (line,) = caplog.messages
    assert line.startswith("flower-supernode does not start: ")
    assert reason in line


def test_a_clientapp_on_a_slow_device_may_start_late(monkeypatch):
    core = importlib.import_module("flwr.supercore.corestate.in_memory_corestate")
    for name in ("HEARTBEAT_DEFAULT_INTERVAL", "HEARTBEAT_PATIENCE"):
        monkeypatch.setattr(core, name, getattr(core, name))  # restored at the end
    began = core.now()
    later = timedelta()
    monkeypatch.setattr(core, "now", lambda: began + later)
    supernode.wait_for_slow_apps()
    state = NodeStateFactory(objectstore_factory=ObjectStoreFactory()).state()
    task = state.create_task("flwr-clientapp", run_id=1)
    token = state.claim_task(task)
    later = timedelta(seconds=supernode.LONGEST_SILENCE - 1)
    assert state.activate_task(task)
    later *= 2
    assert state.get_task_by_token(token).status.status == "running"
    later += timedelta(seconds=2)
    assert state.get_task_by_token(token) is None
