"""The command `cohort` of an installed wheel, without a clone: as `pipx install` leaves it."""

import json
import os
import subprocess

import pytest

from deploy.engines.local_cluster import MARK
from deploy.processes.groups import processes_with

from ..support.environments import environment_with

pytestmark = [pytest.mark.slow, pytest.mark.network]


@pytest.fixture(scope="module")
def cohort(app_wheel, tmp_path_factory):
    return environment_with(app_wheel, tmp_path_factory.mktemp("installed") / "venv").parent / "cohort"


@pytest.fixture
def empty(tmp_path):
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def run(cohort, command, folder):
    temporary = folder.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [cohort, *command.split()], cwd=folder, env=environment | {"TMPDIR": str(temporary)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(temporary.glob("cohort-app-*"))
    return done.stdout


@pytest.mark.parametrize("command", ["up", "simulate --engine batched"])
def test_a_federation_is_trained(cohort, command, empty):
    run(cohort, f"{command} --clients 3 --rounds 2 --per-round 2 --selector md --out run", empty)
    lines = [json.loads(line) for line in (empty / "run" / "md" / "history.jsonl").read_text().splitlines()]
    assert lines[-1]["type"] == "end"
    assert len([line for line in lines if line["type"] == "round"]) == 3  # round 0 is the initial model
    assert not processes_with(MARK, str(empty / "run"))


def test_an_experiment_runs(cohort, empty):
    assert "delta-toy" in run(cohort, "bench papers --quick delta-toy", empty)
    assert [path.name for path in empty.iterdir()] == ["runs"]
