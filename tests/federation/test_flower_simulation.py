"""Flower's own simulation (Ray) runs the same app with the same result."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.engines.flower_simulation import MARK
from deploy.processes.groups import processes_with

from ..server.test_apps import ROOT, federation

pytestmark = pytest.mark.simulation

NUM_CLIENTS = 4
KEYS = ("clients", "counts", "probabilities", "weights", "update_norms", "test_loss", "failures")


def rounds_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: line.get(key) for key in KEYS} for line in lines if line["type"] == "round"]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a `cohort simulate` with two selectors, run as a user would."""
    folder = tmp_path_factory.mktemp("simulation") / "run"
    before = set(Path("/tmp").glob("ray*"))
    command = (
        f"simulate --engine ray --clients {NUM_CLIENTS} --rounds 4 --per-round 2 --seed 3 --out {folder} "
        "--selector adaptive-osmd:learning-rate-multiplier=100 --selector md"
    )
    run = subprocess.run(
        [Path(sys.executable).parent / "cohort", *command.split()],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(folder.parent)},  # too long for Ray's sockets
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "simulating 4 clients with Ray" in run.stdout
    assert (folder / "cohort.png").exists()
    assert set(Path("/tmp").glob("ray*")) == before
    return folder


def test_the_run_equals_the_in_process_one(simulated: Path, tmp_path: Path) -> None:
    """It so equals the one over gRPC too, which test_federation compares with the in-process run."""
    trials = {
        "adaptive-osmd-learning-rate-multiplier-100": {
            "selector": "adaptive-osmd",
            "selector-settings": "learning-rate-multiplier=100",
        },
        "md": {"selector": "md"},
    }
    for name, settings in trials.items():
        lines = [json.loads(line) for line in (simulated / name / "history.jsonl").read_text().splitlines()]
        assert lines[-1]["type"] == "end"
        in_process = federation(
            tmp_path / name, NUM_CLIENTS, num_rounds=4, clients_per_round=2, seed=3, **settings
        )
        assert rounds_of(lines) == rounds_of(in_process)
        assert len(rounds_of(lines)) == 5


def test_no_process_or_file_of_it_is_left(simulated: Path) -> None:
    assert not processes_with(MARK, str(simulated))
    assert {each.name for each in simulated.parent.iterdir()} == {"run"}
    assert not (simulated / "state").exists()
