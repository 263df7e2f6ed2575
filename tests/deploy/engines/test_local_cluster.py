"""Real processes: a cluster comes up, and whatever happens to it, no process or file of it is left."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import deploy.engines.local_cluster
import deploy.processes.marked
from deploy.engines.engine import EngineError
from deploy.engines.local_cluster import MARK, LocalCluster
from deploy.processes.groups import processes_with
from deploy.processes.ports import free_ports, is_free
from server.history import RunHistory

from ...strategies.reporters.test_trackers import shown
from ...support.processes import wait_for

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(sys.platform != "linux", reason="looks in /proc for processes that are left"),
]


def files_below(*folders):
    return {path for folder in folders if folder.exists() for path in folder.rglob("*")}


def listening_ports(pids):
    """Return the TCP ports on which these processes listen (Linux)."""
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()
    ]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes}


def is_superlink(pid):
    return "flower-superlink".startswith(Path(f"/proc/{pid}/comm").read_text().strip())


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return a home folder of the test's own; no file may appear there or among the temporary files."""
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.delenv("FLWR_HOME", raising=False)
    return tmp_path / "home"


def test_a_cluster_survives_a_killed_client_and_leaves_only_its_logs(tmp_path, home):
    folder = tmp_path / "run"
    with LocalCluster(folder, num_clients=2) as cluster:
        pids = processes_with(MARK, str(folder))
        ports = listening_ports(pids)
        assert len(ports) == 4  # SuperLink: control and fleet; a runtime port each for two SuperNodes
        assert cluster.port in ports
        listed = subprocess.run(
            [Path(sys.executable).parent / "flwr", "supernode", "list", "cohort-cluster", "--format", "json"],
            env={**os.environ, "FLWR_HOME": str(folder / "state" / "flwr")},
            capture_output=True,
            text=True,
            check=True,
        )
        assert listed.stdout.count('"status": "online"') == 2

        assert cluster.check() == []
        client = cluster.client_processes[1]
        client.signal_group(signal.SIGKILL)
        wait_for(lambda: client.returncode is not None, 10, lambda: "it lives")
        assert cluster.check() == ["client-01"]
        assert cluster.check() == []  # reported once
    assert processes_with(MARK, str(folder)) == []
    assert all(is_free(port) for port in ports)
    assert [path.name for path in folder.iterdir()] == ["logs"]
    assert files_below(home, tmp_path / "tmp") == set()


def test_a_taken_port_is_replaced_and_a_refused_run_and_the_superlinks_death_are_reported_with_their_logs(
    tmp_path, taken_port, monkeypatch
):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "pyproject.toml").write_text("[project]\nname = 'broken'\n")
    picked = [[taken_port, *free_ports(1)]]  # free when it was picked, taken before the SuperLink starts
    monkeypatch.setattr(
        deploy.engines.local_cluster,
        "free_ports",
        lambda count: picked.pop() if picked else free_ports(count),
    )
    with LocalCluster(tmp_path / "run", num_clients=1) as cluster:
        assert not picked
        assert cluster.port != taken_port
        run = cluster.submit({"num-clients": 1, "clients-per-round": 1}, "doomed")
        cluster.app = tmp_path / "app"
        with pytest.raises(EngineError, match=r"ended with code \d+:\n(.|\n)*tool.flwr"):
            cluster.submit({}, "broken").wait(timeout=30)
        (superlink,) = [pid for pid in processes_with(MARK, str(cluster.folder)) if is_superlink(pid)]
        os.kill(superlink, signal.SIGKILL)
        with pytest.raises(EngineError, match=r"SuperLink ended with code -9; the end of"):
            run.wait(timeout=30)


def test_a_client_that_cannot_start_ends_the_start_with_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(LocalCluster, "_register_clients", lambda self: None)  # unknown keys are refused
    cluster = LocalCluster(tmp_path / "run", num_clients=1)
    with (
        pytest.raises(EngineError, match=r"client-00 ended with code \d+; the end of .*client-00\.log:\n.+"),
        cluster,
    ):
        pytest.fail("it must not come up")
    assert processes_with(MARK, str(tmp_path / "run")) == []
    assert not (tmp_path / "run" / "state").exists()


def test_closing_removes_the_keys_even_if_a_process_has_ended_or_an_error_occurs(tmp_path, monkeypatch):
    cluster = LocalCluster(tmp_path / "run", num_clients=1)
    gone = subprocess.Popen(["true"])
    gone.wait()
    monkeypatch.setattr(deploy.engines.local_cluster, "STOP_GRACE", 0.1)
    monkeypatch.setattr(deploy.processes.marked, "processes_with", lambda variable, value: [gone.pid])
    for attempt in range(2):
        (tmp_path / "run" / "state" / "pki").mkdir(parents=True)
        if attempt:  # any other error
            monkeypatch.setattr(deploy.processes.marked, "stop", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError) if attempt else contextlib.nullcontext():
            cluster.close()
        assert not (tmp_path / "run" / "state").exists()


def test_a_setting_reaches_flower_unchanged(tmp_path, monkeypatch):
    (tmp_path / "app").mkdir()
    cluster = LocalCluster(tmp_path / "run", num_clients=1, app=tmp_path / "app")
    monkeypatch.setattr(LocalCluster, "_spawn", lambda *_: None)
    settings = {"output-dir": 'C:\\a "b"\n🙂é\x7f', "seed": 3, "learning-rate": 1e-7, "yes": True}
    cluster.submit(settings, "one")
    (config,) = (tmp_path / "run" / "state").rglob("config.toml")
    assert tomllib.loads(config.read_text(encoding="utf-8")) == settings


def test_without_a_fork_server_the_programs_start_on_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(deploy.engines.local_cluster.fork_client, "fork_server_command", lambda *_: ["false"])
    with LocalCluster(tmp_path / "run", num_clients=1) as cluster:
        assert "rounds will be slow: see " in cluster.started
        commands = [Path(f"/proc/{process.pid}/cmdline").read_text() for process in cluster.client_processes]
    assert all("flower-supernode" in command for command in commands)


@pytest.mark.parametrize(
    ("number", "code", "when"),
    [
        pytest.param(signal.SIGINT, 130, "during the start", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, "in a round", marks=pytest.mark.slow),
        (signal.SIGKILL, -9, "in a round"),
    ],
)
def test_cohort_up_ends_cleanly_on_a_signal_and_even_when_killed(tmp_path, home, number, code, when):
    folder = tmp_path / "run 🙂"
    command = "up --clients 2 --per-round 1 --rounds 50 --selector md --selector uniform --out"
    process = subprocess.Popen(
        [Path(sys.executable).parent / "cohort", *command.split(), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        history = folder / "md" / "history.jsonl"
        if when == "in a round":
            wait_for(lambda: history.exists() and '"round": 1' in history.read_text(), 90, lambda: "no round")
        else:
            wait_for(lambda: (folder / "logs" / "client-00.log").exists(), 30, lambda: "no client")
        process.send_signal(number)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == code, output
    assert "Traceback" not in output
    if number == signal.SIGKILL:
        wait_for(lambda: not processes_with(MARK, str(folder)), 20, lambda: "the watchdog slept")
    assert processes_with(MARK, str(folder)) == []
    assert not (folder / "state").exists()
    assert files_below(home, tmp_path / "tmp") == set()


@pytest.mark.slow
def test_ctrl_c_stops_the_runs_for_their_trackers(tmp_path, home):
    """The ServerApps were killed, so MLflow showed their runs as running."""
    pytest.importorskip("tensorboardX", reason="needs the extra tensorboard")
    folder = tmp_path / "run"
    command = (
        "up --clients 2 --per-round 1 --rounds 5000 --selector md --selector uniform --track tensorboard"
    )
    process = subprocess.Popen(
        [Path(sys.executable).parent / "cohort", *command.split(), "--out", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    histories = [folder / name / "history.jsonl" for name in ("md", "uniform")]

    def has_begun(history):
        return history.exists() and '"round": 2,' in history.read_text()

    try:
        wait_for(lambda: all(map(has_begun, histories)), 120, lambda: "no rounds")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130, output
    assert processes_with(MARK, str(folder)) == []
    for history in histories:
        run = RunHistory(history)
        run.read()
        assert run.stopped
        notes = shown(history.parent / "tensorboard", "run/text_summary")
        last = notes[-1][1].tensor.string_val[0]
        assert re.fullmatch(rb"stopped after round \d+: SystemExit: somebody stopped the run", last)
