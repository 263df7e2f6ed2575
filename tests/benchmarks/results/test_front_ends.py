"""What more devices need is computed from the data files of front ends."""

from dataclasses import replace

import pytest

from benchmarks.results.files import Measured
from benchmarks.results.front_ends import needs, table

WAITING = Measured(
    name="waiting", measured="2026-01-02", command="", commit="", machine={},
    output=[
        {"front_ends": 2, "devices": 1000, "superlinks_cpu_ms": [1, 1], "postgres_cpu_ms": 1,
         "kb_per_device": 9},
        {"front_ends": 4, "devices": 1000, "superlinks_cpu_ms": [2, 3, 2, 3], "postgres_cpu_ms": 2,
         "kb_per_device": 100},
    ],
)  # fmt: skip


def cell(database, fronts, number, turn=0, **values):
    """Return a cell in which each part takes what lies on a line through the number of devices."""
    each = [0.1 + 0.01 * number / fronts] * fronts
    each[-1] += 0.002 * number
    return {
        "turn": turn, "database": database, "front_ends": fronts, "per_round": number,
        "round_s": 0.05 * number, "first_round_s": 9.0, "superlinks_cpu_s": each,
        "postgres_cpu_s": 0.0 if database == "SQLite" else 0.2, "apps_cpu_s": 0.003 * number,
        "load_cpu_s": 1.0, "statements": 5.0, "lock_share": 0.1, "loopback_mb": 7.0, "written_mb": 8.0,
        "superlinks_mb": [100] * fronts, "lost": 0, "refused": 0, **values,
    }  # fmt: skip


ROUNDS = replace(
    WAITING,
    name="front-ends",
    output=[
        cell(database, fronts, number, turn)
        for turn in range(2)
        for database, fronts in (("SQLite", 1), ("PostgreSQL", 1), ("PostgreSQL", 4))
        for number in (50, 10)
    ],
)


def rows(lines):
    """Return name -> the other cells."""
    return {
        name.strip(): [cell.strip() for cell in rest]
        for name, *rest in (line.split("|")[1:-1] for line in lines if line.startswith("|"))
    }


def test_needs_are_on_the_lines_through_the_measured_cells():
    lines = needs({"front-ends": ROUNDS, "waiting": WAITING})
    found = rows(lines)
    # 4 · 0.1 s, and 0.012 s of each of 100 or 1,000 devices; 10 ms a second of 1,000 devices that wait
    assert found["a round: SuperLinks, CPU s"] == ["1.6", "12.4"]
    assert found["waiting: SuperLinks, cores"] == ["0.1", "1"]
    # (0.1 + 1.6 / 60) / 0.5 and (1 + 12.4 / 60) / 0.5, rounded up
    assert found["SuperLinks, if a round begins every 60 s and each is 50% busy"] == ["1", "3"]
    assert found["waiting: all SuperLinks, GB"] == ["1", "10"]
    assert found["a round: the ServerApp, CPU s"] == ["0.3", "3"]
    assert found["a round: the lock of PostgreSQL, s held"] == [
        "0.5",
        "5",
    ]  # a tenth of 0.05 s for each device
    assert found["a round: the SuperLink of the ServerApp, CPU s for it"] == ["0.2", "2"]
    assert any("the lock of PostgreSQL is at its limit first: a round of 1,000 keeps it busy for 5 s" in line
               for line in lines)  # fmt: skip


@pytest.mark.parametrize("results", [{}, {"front-ends": ROUNDS}, {"waiting": WAITING}])
def test_without_data_the_page_names_the_commands(results):
    (line,) = needs(results)
    assert "--measure front-ends" in line


def test_the_table_has_medians_and_ratios_of_pairs():
    slow = cell("PostgreSQL", 1, 50, turn=2, round_s=10.0)
    lines = table([*ROUNDS.output, cell("SQLite", 1, 50, turn=2), slow])
    assert sum(line.startswith("|") for line in lines) == 2 + 6  # one row for all turns of a cell
    assert "PostgreSQL / SQLite, one SuperLink, 50 a round, in pairs" in lines[-3]
    # SuperLinks 0.7 s and ServerApp 0.15 s, and with PostgreSQL 0.2 s more
    assert "CPU of the server 1.24 (1.24 to 1.24), seconds of a round 1.00 (1.00 to 4.00)" in lines[-3]
