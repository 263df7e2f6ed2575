"""The launcher patches a Flower that was tried; with any other, a program with guards does not start."""

import importlib
import os
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from logging import getLogger
from pathlib import Path

import pytest

from deploy.flower import commands, launch, versions
from deploy.flower.patches import app_starts
from deploy.flower.patches.shared import replace
from deploy.processes.groups import Process, wait_until
from deploy.processes.ports import free_ports
from deploy.tls import certificates

ROOT = Path(launch.__file__).parents[2]


# --- where Flower is another one ------------------------------------------------------------------------


def test_programs_of_another_flower_stay_unpatched_and_a_warning_gives_the_reason(monkeypatch, caplog):
    assert launch.unsupported() is None
    monkeypatch.setattr(launch, "refusal", lambda: "Flower is 1.38.0")
    monkeypatch.setattr(getLogger("flwr"), "propagate", True)
    programs = launch.commands(["flwr"])
    assert programs["flwr"] is importlib.import_module("flwr.cli.app").app
    (warning,) = caplog.messages
    assert warning == "Flower runs without the patches for speed and repair: Flower is 1.38.0"


def test_a_guard_that_flower_lacks_a_name_for_keeps_the_program_from_starting(monkeypatch):
    def guard():
        replace("flwr.superlink.main", no_such_name=1)

    program = launch.PROGRAMS["flower-superlink"]._replace(guards=(guard,))
    monkeypatch.setitem(launch.PROGRAMS, "flower-superlink", program)
    monkeypatch.setattr(launch.sys, "argv", ["flower-superlink"])
    with pytest.raises(SystemExit, match=r"does not start, because it would be unprotected: .*no_such_name"):
        launch.main(["flower-superlink"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("f.version = None", "Fleet API (gRPC) on"),
        (  # Flower's app gets its state from another function
            "from types import FunctionType; m = importlib.import_module('flwr.superlink.main'); "
            "c = m.create_app; "
            "m.create_app = FunctionType(c.__code__, dict(vars(m)), c.__name__, c.__defaults__)",
            "its state is not this project's",
        ),
        (  # Flower makes the app of its APIs by another function
            "m = importlib.import_module('flwr.superlink.main'); m.make_app = m.create_app; del m.create_app",
            "would be unprotected: module 'flwr.superlink.main' has no attribute 'create_app'",
        ),
        ("sys.argv.remove('--enable-supernode-auth')", "needs --enable-supernode-auth and TLS certificates"),
    ],
    ids=["unchanged", "another state", "another app", "no authentication"],
)
def test_a_superlink_serves_behind_its_front_door_only(tmp_path, change, reason):
    keys = certificates.write_certificates(tmp_path).ca.parent
    control, fleet = free_ports(2)
    command = commands.superlink(
        control=("127.0.0.1", control),
        fleet=("127.0.0.1", fleet),
        keys=keys,
        database=tmp_path / "superlink.db",
    )
    script = (
        "import importlib, sys; from deploy.flower import launch; "
        "f = importlib.import_module('flwr.superlink.cli.flower_superlink'); "
        f"{change}; launch.main(sys.argv[1:])"
    )
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "FLWR_HOME": str(tmp_path),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    (tmp_path / "secret").write_text("00")
    environment |= commands.guarded(tmp_path / "secret")
    process = Process([sys.executable, "-c", script, *command], tmp_path / "log", environment)
    log = tmp_path / "log"
    assert wait_until(lambda: reason in log.read_text() or process.returncode is not None, 60)
    assert reason in log.read_text()
    if change == "f.version = None":
        assert process.returncode is None
    else:
        assert wait_until(lambda: process.returncode not in (None, 0), 60)
    with suppress(ProcessLookupError):
        process.signal_group(signal.SIGKILL)


@pytest.mark.parametrize(
    "name", ["flower-superlink", "flower-superexec", "flwr-serverapp", "flower-supernode"]
)
def test_no_program_with_guards_runs_with_another_flower(monkeypatch, name):
    monkeypatch.setattr(versions, "version", lambda _: "1.43.0")
    monkeypatch.setattr(launch.sys, "argv", [name])
    with pytest.raises(SystemExit, match=rf"{name} does not start, .*: Flower is 1\.43\.0"):
        launch.main([name])


def test_programs_of_a_server_are_started_by_the_launcher_without_a_fork_server_too(monkeypatch):
    started = []
    monkeypatch.setattr(app_starts.subprocess, "Popen", lambda command, **_: started.append(command))
    for command in (["flwr-serverapp", "--insecure"], ["flower-superexec"], ["flwr-clientapp"]):
        app_starts.start_program(command)
    launcher = [sys.executable, "-m", commands.LAUNCHER]
    assert started == [
        [*launcher, "flwr-serverapp", "--insecure"],
        [*launcher, "flower-superexec"],
        ["flwr-clientapp"],
    ]


def test_a_serverapp_of_an_executor_does_not_end_with_it(monkeypatch):
    executor = importlib.import_module(app_starts.EXECUTOR)
    monkeypatch.setattr(executor, "subprocess", executor.subprocess)
    started = []
    monkeypatch.setattr(app_starts.apps, "start", lambda command, **_: started.append(command))
    app_starts.fork_apps()
    for name in ("flwr-serverapp", "flwr-clientapp"):
        executor.subprocess.Popen([name, "--token", "t", "--parent-pid", "7", "--insecure"])
    assert started == [
        ["flwr-serverapp", "--token", "t", "--insecure"],
        ["flwr-clientapp", "--token", "t", "--parent-pid", "7", "--insecure"],
    ]


def test_the_token_of_a_task_is_not_among_the_arguments_that_everybody_can_read():
    code = (
        "import argparse, sys; from flwr.common import args; parser = argparse.ArgumentParser(); "
        "args.add_args_flwr_app_common(parser); "
        "print(sys.argv[1:], args.try_obtain_flwr_app_token(parser.parse_args()))"
    )
    command = [sys.executable, "-c", code, "--token", "secret", "--insecure"]
    process = app_starts.start_program(command, stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(timeout=60)
    assert "secret" not in " ".join(map(str, process.args))
    arguments, token = output.rsplit(maxsplit=1)
    assert "secret" not in arguments
    assert "--insecure" in arguments
    assert token == "secret"


def test_flower_is_pinned_to_the_newest_version_that_was_tried():
    newest = versions.TRIED[-1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["simulation"]]
    pins = [each for each in wanted if each.partition("=")[0] in ("flwr", "flwr[simulation]")]
    assert pins == [f"flwr=={newest}", f"flwr[simulation]=={newest}"]
    for lock in (ROOT / "requirements.lock", *(ROOT / "deploy" / "locks").glob("[cs]*.txt")):
        assert f"flwr=={newest}" in lock.read_text().split(), lock


def test_the_launcher_names_the_programs_that_it_launches():
    with pytest.raises(SystemExit, match=r"usage: python -m deploy.flower.launch .*flower-supernode"):
        launch.main(["flwr", "run"])
