"""Flower's own simulation (Ray) runs the same app with the same result."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.processes import free_ports, processes_with

from .test_apps import ROOT, federation

pytestmark = pytest.mark.simulation

NUM_CLIENTS = 4
MARK = "COHORT_TEST_SIMULATION"


def test_flwr_run_local_is_the_same_run_as_in_process(tmp_path: Path) -> None:
    home = tmp_path / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "local"\n[superlink.local]\naddress = ":local:"\n'
        f"options.num-supernodes = {NUM_CLIENTS}\noptions.backend.client-resources.num-cpus = 1\n"
    )
    folder = tmp_path / "simulation"
    settings = {"selector": "adaptive-osmd", "selector-settings": "learning-rate-multiplier=100", "seed": 3}
    config = {
        **settings,
        "num-clients": NUM_CLIENTS,
        "num-rounds": 4,
        "clients-per-round": 2,
        "output-dir": str(folder),
    }
    environment = {
        **os.environ,
        MARK: str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_ports(1)[0]),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    overrides = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
    try:
        run = subprocess.run(
            ["flwr", "run", str(ROOT), "local", "--stream", "--run-config", overrides],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    finally:
        for pid in processes_with(MARK, str(tmp_path)):  # `flwr run` leaves a SuperLink behind
            os.kill(pid, signal.SIGKILL)
    assert (folder / "history.jsonl").exists(), run.stdout + run.stderr
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert lines[-1]["type"] == "end", run.stdout + run.stderr

    in_process = federation(
        tmp_path / "in-process", NUM_CLIENTS, num_rounds=4, clients_per_round=2, **settings
    )
    keys = ("clients", "counts", "probabilities", "weights", "update_norms", "test_loss", "failures")
    for ours, theirs in zip(lines, in_process, strict=True):
        if ours["type"] == "round":
            assert {key: ours.get(key) for key in keys} == {key: theirs.get(key) for key in keys}
