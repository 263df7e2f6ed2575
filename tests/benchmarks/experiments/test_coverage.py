"""The table in docs/papers.md: it has every item of the papers, and its names are registered."""

import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.command import bench
from benchmarks.experiments import EXPERIMENTS
from benchmarks.experiments.coverage import ALL, PAPERS, Row, commands, page
from deploy import cli
from strategies.rounds.control_variates import KINDS
from strategies.selectors import available, selector_type

DOCUMENT = Path(__file__).parents[3] / "docs" / "papers.md"
ROWS = [row for paper in ALL for row in paper.rows]
NUMBERED = {
    "OSMD, first version": {"Algorithm": 6, "Figure": 11},
    "OSMD, later version": {"Algorithm": 7, "Figure": 8},
    "Power-of-Choice": {"Algorithm": 2, "Figure": 16, "Table": 2},
    "DELTA": {"Algorithm": 2, "Figure": 15, "Table": 9},
    "FLICS": {"Algorithm": 1, "Figure": 3, "Table": 2},
}
"""Name of a paper -> how many algorithms, figures and tables it has."""
OF = {"osmd": "OSMD, first version", "poc": "Power-of-Choice", "delta": "DELTA", "flics": "FLICS"}
"""The start of an experiment's name -> the paper whose numbers its source has."""
ROMAN = {"I": 1, "II": 2}


def numbers(text: str, kind: str) -> set[int]:
    """Return the numbers that a text names, as in "Figure 2(d)", "Tables 2, 3 and 4", "Figures 6 to 8"."""
    found = set()
    number = r"(?:\d+|I+\b)"
    for part in re.findall(rf"{kind}s? ({number}(?:\(\w\))?(?:(?:, | and | to ){number}(?:\(\w\))?)*)", text):
        for first, last in re.findall(rf"({number})(?:\(\w\))?(?: to ({number}))?", part):
            low, high = (ROMAN.get(each) or int(each) for each in (first, last or first))
            found |= set(range(low, high + 1))
    return found


def rows_of(name: str) -> tuple[Row, ...]:
    (rows,) = (paper.rows for paper in PAPERS if paper.name == name)
    return rows


def test_the_document_is_what_the_command_prints() -> None:
    result = CliRunner().invoke(bench, ["papers", "--coverage"])
    assert result.exit_code == 0, result.output
    assert DOCUMENT.read_text("utf-8") == result.stdout, (
        "docs/papers.md is old: cohort bench papers --coverage > docs/papers.md"
    )
    assert result.stdout == page(ALL)


def test_every_experiment_has_a_row() -> None:
    named = {name for row in ROWS for name in row.experiments}
    assert named == set(EXPERIMENTS), "add a row to benchmarks/experiments/coverage/"


def test_every_selector_has_a_row() -> None:
    named = {each.partition(":")[0] for row in ROWS for each in row.selectors}
    # Examples and other tests register selectors, too.
    ours = {name for name in available() if selector_type(name).__module__.startswith("strategies.")}
    assert named == ours, "add a row to benchmarks/experiments/coverage/"


def test_every_kind_of_variates_has_a_row() -> None:
    assert {f"variates={name}" for name in KINDS} <= {each for row in ROWS for each in row.settings}


def test_there_are_five_papers() -> None:
    assert [paper.name for paper in PAPERS] == list(NUMBERED)


@pytest.mark.parametrize("name", NUMBERED)
@pytest.mark.parametrize("kind", ["Algorithm", "Figure", "Table"])
def test_every_numbered_item_has_a_row(name: str, kind: str) -> None:
    found = {number for row in rows_of(name) for number in numbers(row.item, kind)}
    assert found == set(range(1, NUMBERED[name].get(kind, 0) + 1))


@pytest.mark.parametrize("kind", ["Figure", "Table"])
def test_a_row_names_the_experiments_whose_source_it_is(kind: str) -> None:
    checked = 0
    for experiment in EXPERIMENTS.values():
        paper = "OSMD, later version" if "later version" in experiment.source else None
        paper = paper or OF.get(experiment.name.partition("-")[0])
        for number in numbers(experiment.source, kind) if paper else ():
            rows = [row for row in rows_of(paper or "") if number in numbers(row.item, kind)]
            named = {each for row in rows for each in row.experiments}
            assert experiment.name in named, f"{paper}, {kind} {number}: {experiment.name}"
            checked += 1
    assert checked >= 10


def test_every_row_is_whole() -> None:
    for row in ROWS:
        assert bool(commands(row)) == (row.status not in ("missing", "nothing to run")), row
        assert row.why.endswith("."), row
        assert not any("|" in text for text in (row.item, row.what, row.why, *commands(row))), row


def test_no_row_is_there_twice() -> None:
    for paper in ALL:
        assert max(Counter((row.item, row.what) for row in paper.rows).values()) == 1


def test_settings_need_a_selector() -> None:
    with pytest.raises(ValueError, match=r"settings = \('proximal-mu=1',\): must be \(\) without selectors"):
        Row("Table 9", "a table", "built", "It is.", settings=("proximal-mu=1",))


def by_settings() -> dict[tuple[str, ...], list[str]]:
    """Return settings of a run -> all selectors that rows have with them: fewer commands to try."""
    found: dict[tuple[str, ...], list[str]] = {}
    for row in ROWS:
        selectors = found.setdefault(row.settings, []) if row.selectors else []
        selectors += [each for each in row.selectors if each not in selectors]
    return found


@pytest.mark.parametrize("settings", by_settings())
def test_selectors_and_settings_are_accepted(
    settings: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the point where a federation would start."""
    (tmp_path / "FILE").write_text('{"lipschitz": {"client-00": 3.5}}')
    monkeypatch.chdir(tmp_path)
    started: list[Any] = []
    monkeypatch.setattr(cli, "_compare", lambda engine, comparison, **options: started.append(comparison))
    row = Row("", "", "built", "", (), tuple(by_settings()[settings]), settings)
    (command,) = commands(row)
    result = CliRunner().invoke(cli.cli, [*shlex.split(command)[1:], "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.stderr
    (comparison,) = started
    assert len(comparison.trials) == len(row.selectors)
