"""A disk that is full in the middle of a run: it is said aloud, and the run goes on."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord

from server.history import HistoryWriter, RunHistory
from strategies import RoundRecord, SelectionStrategy
from strategies.checkpoint import CheckpointFolder
from strategies.options import Checkpoints, Polling

from ..support.strangers import honest
from ..support.toy_grid import ToyGrid

ROUNDS = 10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounts a small file system")
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("cannot mount")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_run_outlives_a_full_disk(disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    others, path = disk / "of others", disk / "history.jsonl"

    def change(round: int) -> None:
        if round == 3:
            with others.open("wb", buffering=0) as file, suppress(OSError):
                while file.write(bytes(4096)) == 4096:
                    pass
        elif round == 6:
            others.unlink()

    with HistoryWriter(path) as history:
        history.begin({"selector": "full", "selector_settings": "", "num_rounds": ROUNDS})

        def on_round(record: RoundRecord) -> None:
            change(record.round)
            reason = {0: "x" * 300 * record.round}  # more than what is left of a page
            history.write_round(replace(record, failures=reason), strategy.roster.ids(), test_loss=1.0)

        strategy = SelectionStrategy(
            "full",
            clients_per_round=3,
            polling=Polling(ask_status=True, interval=0.01),
            checkpoints=Checkpoints(disk / "checkpoints"),
            on_round=on_round,
        )
        strategy.start(
            ToyGrid({n: honest(n) for n in (1, 2, 3)}),
            ArrayRecord({"w": Array(np.zeros(2, np.float32))}),
            num_rounds=ROUNDS,
            evaluate_fn=lambda round, arrays: MetricRecord({"loss": 1.0 / (1 + round)}),
        )
    said = " ".join(each.getMessage() for each in caplog.records)
    assert [n for n in range(1, ROUNDS + 1) if f"ROUND {n} IS NOT SAVED" in said] == [3, 4, 5]
    assert "THE HISTORY CANNOT BE WRITTEN" in said
    found = CheckpointFolder(disk / "checkpoints").newest()
    assert found is not None
    assert found.round == ROUNDS
    every = [*range(1, ROUNDS + 1)]
    assert [round for what, round, _ in found.results if what.startswith("train")] == every
    assert [round for what, round, _ in found.results if what.startswith("evaluate")] == [0, *every]
    history_read = RunHistory(path)
    history_read.read()
    assert [line["round"] for line in history_read.rounds] == every
