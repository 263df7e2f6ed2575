"""The frame of the experiments: seeds become a table and a figure."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.experiments.figure import draw
from benchmarks.experiments.report import (
    Curve,
    Experiment,
    Outcome,
    Report,
    as_json,
    summarise,
    table,
)


def outcome(seed: int) -> Outcome:
    x = np.arange(3.0)
    reached = math.nan if seed == 2 else 10.0 + seed
    cells = {("md", "loss"): 1.0 + seed, ("md", "rounds"): reached, ("uniform", "loss"): 2.0}
    return Outcome(cells, {"a panel": {"md": Curve(x, np.exp(x + seed)), "uniform": Curve(x, x + 1)}})


TOY = Experiment(
    "toy",
    "A toy",
    "nowhere",
    outcome,
    known={("md", "loss"): "2.1"},
    claim="it learns.",
    digits=2,
    log_y=True,
)
REPORT = Report(TOY, [outcome(seed) for seed in range(3)], 1.0)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.0, 2.0, 3.0], "2.0 ± 1.0"),
        ([1.0], "1.0"),
        ([math.nan, 1.0, 3.0], "2.0 ± 1.4 (2 of 3)"),
        ([math.nan, 4.0], "4.0 (1 of 2)"),
        ([math.nan], "never"),
    ],
)
def test_seeds_become_a_mean_and_a_spread(values: list[float], text: str) -> None:
    assert summarise(values, 1) == text


def test_the_table_puts_what_is_known_beside_ours() -> None:
    lines = table(REPORT).splitlines()
    assert lines[0] == "### toy: A toy"
    assert "The paper: it learns." in lines
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    assert rows == [
        ["", "loss", "rounds"],
        ["md", "2.00 ± 1.00 [2.1]", "10.50 ± 0.71 (2 of 3)"],
        ["uniform", "2.00 ± 0.00", ""],
    ]


def test_every_seed_can_be_had_as_json() -> None:
    read = json.loads(as_json(REPORT))
    assert [seed["md"] for seed in read["seeds"]] == [
        {"loss": 1.0, "rounds": 10.0},
        {"loss": 2.0, "rounds": 11.0},
        {"loss": 3.0, "rounds": None},
    ]


def test_curves_become_a_figure(tmp_path: Path) -> None:
    draw(REPORT, tmp_path / "toy.png")
    assert (tmp_path / "toy.png").read_bytes().startswith(b"\x89PNG")
    bare = Report(TOY, [Outcome(outcome(0).cells)], 1.0)
    with pytest.raises(ValueError, match="toy has no curves"):
        draw(bare, tmp_path / "none.png")
