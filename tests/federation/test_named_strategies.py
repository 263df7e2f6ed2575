"""The strategies of the papers, over gRPC, on data with groups: one `cohort up` trains with all of them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.engines import batched
from deploy.runs.trials import groups_of

from ..server.test_apps import ROOT
from ..support.histories import check_same_rounds
from ..support.named_strategies import (
    CLIENTS,
    LATER,
    SEED,
    SELECTORS,
    SETTINGS,
    argument,
    check_history,
    check_private_groups,
    histories_below,
    rounds_of,
)

pytestmark = [pytest.mark.network, pytest.mark.slow]

ROUNDS = 2
# One for each kind of question; Adaptive-OSMD, which asks none, is in test_federation.
NAMES = ("delta", "pow-d", "flics", "flics-private")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Return the histories by selector, and what `cohort up` prints."""
    folder = tmp_path_factory.mktemp("up") / "run"
    command = [Path(sys.executable).parent / "cohort", "up", "--out", folder]
    command += f"--clients {CLIENTS} --rounds {ROUNDS} --per-round {LATER} --seed {SEED}".split()
    for name in NAMES:
        command += ["--selector", argument(name)]
    for name, value in SETTINGS.items():
        command += ["--set", f"{name}={value}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return histories_below(folder), done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_run_over_grpc_is_that_of_the_batched_simulation(comparison, tmp_path, name):
    lines = comparison[0][name]
    check_history(lines, ROUNDS, [] if name == "flics-private" else ["0", "1", "2"])
    if name == "flics-private":
        return  # its clients decide with secrets of their own, and the batched simulation has no messages
    batched.run(
        {
            **SETTINGS,
            "selector": name,
            "selector-settings": SELECTORS[name].replace(",", " "),
            "num-clients": CLIENTS,
            "num-rounds": ROUNDS,
            "clients-per-round": LATER,
            "seed": SEED,
            "output-dir": str(tmp_path),
        }
    )
    simulated = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    check_same_rounds(rounds_of(simulated), rounds_of(lines))


def test_private_groups_stay_private_and_scale_the_updates(comparison):
    histories, printed = comparison
    roster = histories["flics-private"][2]
    assert roster["client_groups"] == [None] * CLIENTS
    assert re.search(r"flics-private[^%]* not disclosed", printed)
    settings = {"task": "digits", "num-clients": CLIENTS, "seed": SEED, "partition": SETTINGS["partition"]}
    groups = {client: str(group) for client, group in groups_of(settings).items()}
    check_private_groups(
        histories["flics-private"], histories["pow-d"], groups, {"0": 2.0, "1": 1.0, "2": 1.0}
    )
