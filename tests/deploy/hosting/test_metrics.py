"""`cohort server up --metrics`, as an operator runs it."""

import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy.cli import cli
from deploy.hosting.programs import MARK
from deploy.hosting.server import Server
from deploy.processes.groups import processes_with
from deploy.processes.ports import free_ports

from ...support.devices import Running
from ...support.processes import wait_for

FIRST = ("--host", "localhost", "--listen", "127.0.0.1")


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.read().decode())
    except OSError:
        return ""


def test_a_taken_port_stops_the_start_and_is_not_saved(tmp_path):
    port, control = map(str, free_ports(2))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        up = ("server", "up", *FIRST, "--port", port, "--control-port", control, "--dir", str(tmp_path / "s"))
        result = CliRunner().invoke(cli, [*up, "--metrics", str(number)])
    assert result.exit_code == 2
    assert f"metrics = {number}: cannot listen there: " in result.output
    assert not (tmp_path / "s" / "server.json").exists()
    result = CliRunner().invoke(cli, [*up, "--metrics", "everywhere"])
    assert (result.exit_code, "must be PORT or HOST:PORT" in result.output) == (2, True)


def test_the_address_at_which_this_machine_reaches_the_fleet_api(tmp_path):
    def found(listen):
        return Server(tmp_path, ("h",), port=7, listen=listen).local_fleet

    assert [found(each) for each in ("0.0.0.0", "::", "10.0.0.1", "fd00::1")] == [
        "127.0.0.1:7",
        "[::1]:7",
        "10.0.0.1:7",
        "[fd00::1]:7",
    ]


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_metrics_survive_the_superlink_and_end_with_the_server(tmp_path):
    folder = tmp_path / "server"
    port, control, metrics = free_ports(3)
    up = ("server", "up", "--dir", str(folder))
    ports = ("--port", str(port), "--control-port", str(control))
    running = Running(tmp_path / "log", *up, *FIRST, *ports, "--metrics", str(metrics))
    try:
        running.wait_for(f"metrics                http://127.0.0.1:{metrics}/metrics")
        wait_for(lambda: get(metrics, "/readyz") == "ok\n", 60, lambda: get(metrics, "/readyz"))
        wait_for(lambda: 'cohort_nodes{state="online"} 0' in get(metrics, "/metrics"), 60, lambda: "no nodes")
        assert 'cohort_program_starts_total{program="superlink"} 1' in get(metrics, "/metrics")
        for pid in processes_with(MARK, str(folder)):
            if b"flower-superlink" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        again = 'cohort_program_starts_total{program="superlink"} 2'
        wait_for(lambda: again in get(metrics, "/metrics"), 30, lambda: get(metrics, "/metrics"))
        time.sleep(11)  # the SuperLink is asked every 10 s
        wait_for(lambda: get(metrics, "/readyz") == "ok\n", 60, lambda: get(metrics, "/readyz"))
        running.end()
        assert get(metrics, "/healthz") == ""
        running = Running(tmp_path / "again", *up, "--metrics", "off")
        running.wait_for("up at localhost:")
        assert "metrics  " not in running.said
        assert Server.load(folder).metrics == ""
    finally:
        running.end()
