"""The frame of the experiments: seeds become a table and a figure."""

import json
import math
from contextlib import contextmanager

import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks.experiments import EXPERIMENTS, figure, report
from benchmarks.experiments.figure import draw
from benchmarks.experiments.report import Curve, Experiment, Outcome, Report, as_json, summarise, table


def outcome(seed):
    x = np.arange(3.0)
    reached = math.nan if seed == 2 else 10.0 + seed
    cells = {("md", "loss"): 1.0 + seed, ("md", "rounds"): reached, ("uniform", "loss"): 2.0}
    return Outcome(cells, {"a panel": {"md": Curve(x, np.exp(x + seed)), "uniform": Curve(x, x + 1)}})


TOY = Experiment("toy", outcome, digits=2, log_y=True)
REPORT = Report(TOY, [outcome(seed) for seed in range(3)], [0.5, 0.2, 0.3])


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
def test_seeds_are_summarised_as_mean_and_standard_deviation(values, text):
    assert summarise(values, 1) == text


def test_the_table_has_known_figures_in_brackets(monkeypatch):
    monkeypatch.setattr(report, "_known", lambda: {"toy": {("md", "loss"): "2.1"}})
    lines = table(REPORT).splitlines()
    assert lines[0].startswith("### toy")
    assert "Mean ± standard deviation over 3 seeds" in "".join(lines)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    assert rows == [
        ["", "loss", "rounds"],
        ["md", "2.00 ± 1.00 [2.1]", "10.50 ± 0.71 (2 of 3)"],
        ["uniform", "2.00 ± 0.00", ""],
    ]


def test_the_text_of_an_experiment_is_that_of_its_page():
    for each in EXPERIMENTS.values():
        assert each.text.title, each.name
        assert each.text.source, each.name
    text = table(Report(EXPERIMENTS["delta-toy"], [Outcome({("a", "b"): 1.0})], [1.0]))
    assert text.startswith(
        "### delta-toy: DELTA's toy: two of three clients\n\nSource: Wang, Guo, Lin, Tang 2023"
    )
    assert "The paper: each method prefers a pair of clients." in text
    assert (EXPERIMENTS["delta-toy"].text.page, TOY.text.title) == ("delta.md", "")


def test_a_cell_that_a_seed_lacks_is_counted():
    there = Outcome({("cut short", "rounds"): 40.0, ("md", "rounds"): 30.0})
    for outcomes in ([there, Outcome({("md", "rounds"): 50.0})], [Outcome({("md", "rounds"): 50.0}), there]):
        text = table(Report(TOY, outcomes, [1.0, 1.0]))
        assert "| cut short | 40.00 (1 of 2)" in text
        assert "over 2 seeds, or over the n seeds that have a value (n of 2)" in text


def test_a_curve_returns_the_first_x_of_a_condition():
    curve = Curve(np.array([5.0, 10.0, 15.0]), np.array([1.0, 3.0, 2.0]))
    assert [curve.first(curve.y >= level) for level in (1, 2)] == [5, 10]
    assert math.isnan(curve.first(curve.y > 3))


def test_json_has_the_cells_of_every_seed():
    read = as_json(REPORT)
    json.dumps(read, allow_nan=False)
    assert [seed["md"] for seed in read["seeds"]] == [
        {"loss": 1.0, "rounds": 10.0},
        {"loss": 2.0, "rounds": 11.0},
        {"loss": 3.0, "rounds": None},
    ]


def test_the_band_of_a_figure_is_the_spread_of_the_table(monkeypatch, tmp_path):
    drawn = Figure()

    @contextmanager
    def kept(path, width, height):
        yield drawn

    monkeypatch.setattr(figure, "figure_file", kept)
    draw(REPORT, tmp_path / "toy.png")
    assert "mean ± standard deviation of log y over 3 seeds" in drawn.get_suptitle()
    (band, _) = drawn.axes[0].collections
    # log y is x + 0, x + 1 and x + 2, whose standard deviation is 1.
    heights = np.log(np.asarray(band.get_paths()[0].vertices)[:, 1])
    assert (heights.min(), heights.max()) == pytest.approx((0, 4))
    draw(Report(TOY, [outcome(0)], [1.0]), tmp_path / "toy.png")
    assert "one seed" in drawn.get_suptitle()
