"""The table of goals is made from the data files."""

from dataclasses import replace

import pytest

from benchmarks.results.files import Measured
from benchmarks.results.goals import GOALS, goals_table

DEVICES = Measured(
    name="devices", measured="2026-01-02", command="", commit="", machine={},
    output=[{"round_s": 2.5, "superlink_mb": 1500, "lost": 0}],
)  # fmt: skip


def rows(results):
    """Return what -> goal, measured, reached, data file."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in goals_table(results)[2:]]
    return {what: rest for what, *rest in cells}


def test_a_goal_is_reached_up_to_its_limit():
    found = rows({"devices": DEVICES})
    start = "1,000 devices online, 50 a round, 1 MB: "
    assert found[f"{start}a round, s"] == ["2", "2.5", "no", "`devices`"]
    assert found[f"{start}memory of the SuperLink, MB"] == ["1500", "1500", "yes", "`devices`"]
    assert found[f"{start}lost messages"] == ["0", "0", "yes", "`devices`"]


@pytest.mark.parametrize("results", [{}, {"devices": replace(DEVICES, output=[{}])}])
def test_what_no_data_file_has_is_not_recorded(results):
    assert len(rows(results)) == len(GOALS)
    assert {tuple(row[1:3]) for row in rows(results).values()} == {("not recorded", "")}


def test_shares_that_this_project_does_not_need_are_left_out_of_a_round():
    output = [
        {
            "path": "grid",
            "clients": m,
            "milliseconds": {"round": total, "availability": own, "choose: selection": own},
        }
        for m, total, own in ((10**5, 10, 4), (10**6, 52, 23))
    ]
    table = rows({"population": replace(DEVICES, name="population", output=output)})
    (found,) = (row for what, row in table.items() if ", grid," in what)
    assert found[1:3] == ["3", "no"]  # (52 - 46) / (10 - 8)
