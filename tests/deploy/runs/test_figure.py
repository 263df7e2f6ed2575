"""The figure is a PNG file of a sensible size, with a panel for each trial."""

import struct
import warnings

import pytest

from deploy.runs.figure import MOST_ROWS, Row, draw, rows_of
from strategies.clients.printable import LONGEST_NAME

from ...support.histories import write_history


@pytest.mark.parametrize("count", [1, 4])
def test_it_draws_any_number_of_trials(tmp_path, count):
    trials = [write_history(tmp_path / f"{i}", [2.0, 1.5 - 0.1 * i, 1.0], "md") for i in range(count)]
    draw(trials, tmp_path / "figure.png")
    data = (tmp_path / "figure.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert 1000 <= width <= 2500
    assert 700 <= height <= 2500
    assert len(data) > 20_000  # not a blank page


def test_measured_groups_get_a_panel(tmp_path):
    trial = write_history(tmp_path / "a", [2.0, 1.5, 1.0])
    draw([trial], tmp_path / "without.png")
    for line in trial.trained:
        line["group_metrics"] = {
            "north": {"loss": 1.0, "accuracy": 0.5},
            "south": {"loss": None, "accuracy": None},
        }
    draw([trial], tmp_path / "with.png")
    assert (tmp_path / "with.png").read_bytes() != (tmp_path / "without.png").read_bytes()


def test_the_name_of_a_client_is_no_formula(tmp_path):
    trial = write_history(tmp_path / "a", [2.0, 1.5, 1.0])
    trial.client_ids[0] = "$\\frac{$"  # which matplotlib cannot typeset
    draw([trial], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").exists()


def test_a_long_name_of_a_client_leaves_room_for_the_panels(tmp_path):
    trial = write_history(tmp_path / "a", [2.0, 1.5, 1.0])
    trial.client_ids[0] = "W" * LONGEST_NAME
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns that the panels have no room
        draw([trial], tmp_path / "figure.png")


def test_a_loss_that_is_not_finite_leaves_a_gap(tmp_path):
    trial = write_history(tmp_path / "a", [2.0, 1.5, 1.0])
    trial.rounds[1]["test_loss"] = None
    draw([trial], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 20_000


def test_without_a_round_there_is_nothing_to_draw(tmp_path):
    with pytest.raises(ValueError, match="nothing to draw"):
        draw([write_history(tmp_path / "a", [2.0], end=False)], tmp_path / "figure.png")
    assert not (tmp_path / "figure.png").exists()


def height_of(path):
    return int(struct.unpack(">II", path.read_bytes()[16:24])[1])


def test_many_clients_share_rows(tmp_path):
    """A thousand clients had a figure of 26,676 pixels."""
    trial = write_history(tmp_path / "a", [2.0, 1.5, 1.0])
    for line, clients in zip(trial.trained, ([0, 999], [3, 500]), strict=True):
        line["clients"] = clients
    trial.client_ids = [f"client-{i:03d}" for i in range(1000)]
    trial.client_sizes = [float(1000 - i) for i in range(1000)]
    trial.client_groups = [None] * 1000
    rows = rows_of(trial)
    assert len(rows) == MOST_ROWS
    assert rows[0] == Row("25 clients (976 to 1000)", list(range(25)))
    assert sorted(client for row in rows for client in row.clients) == list(range(1000))
    draw([trial], tmp_path / "figure.png")
    assert height_of(tmp_path / "figure.png") < 2500

    trial.client_groups = ["north" if i % 4 else "south\x1b" for i in range(1000)]
    assert [(row.label, len(row.clients)) for row in rows_of(trial)] == [
        (r"south\x1b: 250 clients (4 to 1000)", 250),
        ("north: 750 clients (1 to 999)", 750),
    ]
    draw([trial], tmp_path / "figure.png")
    trial.client_groups[7] = None  # the groups do not say which row a client belongs to
    assert rows_of(trial) == rows
    trial.client_groups = [f"group {i % 41}" for i in range(1000)]
    assert rows_of(trial) == rows
    trial.client_sizes = [3.0] * 1000
    assert rows_of(trial)[0].label == "25 clients (3)"


def test_few_clients_have_a_row_each(tmp_path):
    trial = write_history(tmp_path / "a", [2.0, 1.5])
    assert rows_of(trial) == [
        Row("03 (60)", [3]),
        Row("02 (30)", [2]),
        Row("01 (20)", [1]),
        Row("00 (10)", [0]),
    ]
