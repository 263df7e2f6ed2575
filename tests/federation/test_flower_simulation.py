"""Flower's own simulation (Ray) runs the same app with the same result."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from deploy.engines.flower_simulation import MARK
from deploy.processes.groups import processes_with
from deploy.processes.ports import free_ports
from deploy.runs.trials import groups_of

from ..server.test_apps import ROOT, federation
from ..support.named_strategies import (
    CLIENTS,
    LATER,
    SEED,
    SELECTORS,
    SETTINGS,
    check_history,
    check_private_groups,
    histories_below,
)

pytestmark = pytest.mark.simulation

NUM_CLIENTS = 4
KEYS = ("clients", "counts", "probabilities", "weights", "update_norms", "test_loss", "failures")


def rounds_of(lines):
    return [{key: line.get(key) for key in KEYS} for line in lines if line["type"] == "round"]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
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


def test_the_run_equals_the_in_process_one(simulated, tmp_path):
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


def test_no_process_or_file_of_it_is_left(simulated):
    assert not processes_with(MARK, str(simulated))
    assert {each.name for each in simulated.parent.iterdir()} == {"run"}
    assert not (simulated / "state").exists()


STOCK = "COHORT_STOCK_TEST"  # marks the processes that `flwr run` leaves behind
NAMED = ("pow-d", "flics-private")  # Adaptive-OSMD is simulated above, the others run over gRPC


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    """Train with Flower's own command, as docs/simulation.md has it; return the histories by selector."""
    folder = tmp_path_factory.mktemp("stock")
    ray = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # short, for Ray's sockets
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # as in an activated environment
        "TMPDIR": str(folder),
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_ports(1)[0]),
        "RAY_TMPDIR": str(ray),
        STOCK: str(folder),
    }
    command = ["flwr", "run", ".", "local", "--stream", "--federation-config", f"num-supernodes={CLIENTS}"]
    try:
        for name in NAMED:
            config = {**stock_settings(name), "output-dir": str(folder / name)}
            texts = [f"{key}={json.dumps(value)}" for key, value in config.items()]
            done = subprocess.run(
                [*command, "--run-config", " ".join(texts)],
                cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            assert (folder / name / "history.jsonl").exists(), done.stdout
        yield histories_below(folder)
    finally:
        for pid in processes_with(STOCK, str(folder)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(ray, ignore_errors=True)


def stock_settings(name):
    return {
        **SETTINGS,
        "selector": name,
        "selector-settings": SELECTORS[name].replace(",", " "),
        "num-clients": CLIENTS,
        "num-rounds": 2,
        "clients-per-round": LATER,
        "seed": SEED,
        "shortest-deadline": 120.0,  # a busy machine may take long
    }


@pytest.mark.parametrize("name", NAMED)
def test_flwr_run_trains_with_the_strategies_of_the_papers(stock, tmp_path, name):
    check_history(stock[name], 2, [] if name == "flics-private" else ["0", "1", "2"])
    if name != "flics-private":  # whose clients decide with secrets of their own
        in_process = federation(tmp_path, CLIENTS, **stock_settings(name))
        assert rounds_of(stock[name]) == rounds_of(in_process)
        return
    groups = {
        client: str(group) for client, group in groups_of({"task": "digits", **stock_settings(name)}).items()
    }
    check_private_groups(stock[name], stock["pow-d"], groups, {"0": 2.0, "1": 1.0, "2": 1.0})
