"""Groups in numbers, computed by hand; how the table shows them."""

import math
from io import StringIO

import pytest
from rich.console import Console

from deploy.runs.display import report
from deploy.runs.groups import SHOWN, group_summaries, worst_accuracy

from ...support.histories import SIZES, write_history


def with_groups(folder, groups):
    """Two rounds, each of which draws client 0 twice and client 3 once; the second is measured."""
    trial = write_history(folder, [2.0, 1.5, 1.0])
    trial.client_groups = groups
    trial.rounds[2]["group_metrics"] = {
        name: {"loss": 1.0 + place, "accuracy": 0.9 - 0.1 * place}
        for place, name in enumerate(sorted({each for each in groups if each is not None}))
    }
    return trial


def text_of(*trials):
    output = StringIO()
    Console(file=output, width=80).print(report(trials))
    return output.getvalue()


def test_groups_in_numbers(tmp_path):
    worst, best = group_summaries(with_groups(tmp_path / "a", ["north", "south", None, "south"]))
    assert (worst.name, best.name) == ("south", "north")
    assert (worst.clients, best.clients) == (2, 1)
    assert worst.draw_share == pytest.approx(1 / 3)
    assert best.draw_share == pytest.approx(2 / 3)
    assert worst.sample_share == pytest.approx((SIZES[1] + SIZES[3]) / sum(SIZES))
    assert (worst.loss, worst.accuracy) == (2.0, pytest.approx(0.8))


def test_one_group_is_no_comparison(tmp_path):
    trial = with_groups(tmp_path / "a", ["north"] * 4)
    assert group_summaries(trial) == []
    assert "Groups of clients" not in text_of(trial)


def test_a_trial_whose_server_knows_no_group_has_a_row_that_says_so(tmp_path):
    """As with flics-private. The trial was missing from the table, without a reason."""
    trial, private = (
        with_groups(tmp_path / "a", ["north", "south"] * 2),
        with_groups(tmp_path / "b", [None] * 4),
    )
    assert "not disclosed" in text_of(trial, private)
    assert "not disclosed" not in text_of(trial)
    assert "Groups of clients" not in text_of(private)


def test_groups_that_nobody_measured_have_shares_only(tmp_path):
    trial = with_groups(tmp_path / "a", ["north", "south", "south", "south"])
    del trial.rounds[2]["group_metrics"]
    assert all(math.isnan(each.accuracy) for each in group_summaries(trial))
    assert math.isnan(worst_accuracy(trial.rounds[2]))
    text = text_of(trial)
    assert "(worst)" not in text
    assert "67 %" in text


def test_the_table_names_the_worst_group_and_fits_80_columns(tmp_path):
    text = text_of(with_groups(tmp_path / "a", ["north", "[red]south[/red]", None, "north"]))
    assert "[red]south[/red]" in text
    assert "(worst)" in text
    assert max(map(len, text.splitlines())) <= 80


def test_many_groups_are_counted(tmp_path):
    trial = with_groups(tmp_path / "a", [])
    trial.client_groups = [f"group {number}" for number in range(SHOWN + 2)]
    trial.client_sizes = [1.0] * (SHOWN + 2)
    assert "2 more groups" in text_of(trial)
