"""The role `metrics` offers the numbers of the cluster's runs, without the network of the clients."""

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml

from deploy.container import metrics, page, superlink
from deploy.processes.ports import free_ports
from tests.deploy.metrics.samples import append, round_line, run_line

from ...support.processes import wait_for

ROOT = Path(__file__).parents[3]
ROLE = "import sys; from deploy.container import metrics as c; c.PORT = {port}; sys.exit(c.main())"


def test_it_serves_the_runs_on_the_volume_until_it_is_stopped(tmp_path, monkeypatch):
    (port,) = free_ports(1)
    monkeypatch.setattr(metrics, "PORT", port)
    monkeypatch.setattr(sys, "argv", ["deploy.container", "metrics", "healthy"])
    assert metrics.main() == 1
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices" / "superlink.starts").write_text("3")
    append(tmp_path / "results" / "2026" / "md", run_line(), round_line(1))
    role = subprocess.Popen(
        [sys.executable, "-c", ROLE.format(port=port)],
        cwd=ROOT,
        env={**os.environ, "COHORT_VOLUMES": str(tmp_path)},
    )
    try:
        wait_for(lambda: metrics.main() == 0, 60, lambda: "it is not healthy")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        assert 'cohort_round{run="2026/md"} 1' in text
        assert 'cohort_program_starts_total{program="superlink"} 3' in text
        assert "cohort_superlink_up 0" in text
        role.terminate()
        assert role.wait(20) == 0
    finally:
        role.kill()
        role.wait()


def test_the_starts_of_the_superlink_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(superlink, "STARTS", tmp_path / "superlink.starts")
    monkeypatch.setattr(superlink, "DATABASE", tmp_path / "superlink.db")
    monkeypatch.setattr(superlink, "CONTROL_HOST", "localhost")
    assert superlink.starts() == 0
    superlink._command()
    superlink._command()
    assert superlink.starts() == 2
    monkeypatch.setattr(superlink, "STARTS", tmp_path / "no folder" / "starts")
    superlink._command()  # a full disk does not stop the SuperLink


@pytest.mark.parametrize(("name", "role"), [("metrics", metrics), ("page", page)])
def test_clients_cannot_reach_the_service(name, role):
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    service = services[name]
    assert not set(service["networks"]) & set(services["client"]["networks"])
    assert service["ports"] == [f"${{COHORT_{name.upper()}:-127.0.0.1:}}:{role.PORT}"]
    own = ["page:/volumes/page"] if name == "page" else []
    assert [volume for volume in service["volumes"] if not volume.endswith(":ro")] == own
    assert ("page" in service.get("profiles", [])) == (name == "page")
