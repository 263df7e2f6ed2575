"""Buffered rounds over gRPC, with real client processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.network
def test_an_app_runs_buffered_rounds(tmp_path):
    settings = (
        "mode=buffered",
        "concurrency=3",
        "buffer-size=2",
        "max-staleness=9",
        "server-strategy=FedAdam",
    )
    process = subprocess.run(
        [
            Path(sys.executable).parent / "cohort",
            "up",
            *("--clients", "6", "--per-round", "2", "--rounds", "8", "--selector", "forecast"),
            *("--out", tmp_path / "run"),
            *(part for each in settings for part in ("--set", each)),
        ],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    lines = [json.loads(line) for line in (tmp_path / "run/forecast/history.jsonl").read_text().splitlines()]
    assert lines[0]["mode"] == "buffered"
    assert lines[0]["concurrency"] == 3
    rounds = [line for line in lines if line["type"] == "round" and line["round"]]
    assert [line["round"] for line in rounds] == list(range(1, 9))
    assert all(sum(line["responded"]) >= 2 for line in rounds)
    assert all(len(line["staleness"]) == len(line["clients"]) for line in rounds)
    assert all(len(line["in_flight"]) == 3 - 1 for line in rounds)
    assert max(tau for line in rounds for tau in line["staleness"]) >= 1
    assert lines[-1]["type"] == "end"
    assert rounds[-1]["test_loss"] < 2.3
