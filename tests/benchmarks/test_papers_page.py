"""docs/papers.md is written by hand: it has every item of the papers, and its names and commands exist."""

import re
import shlex
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from benchmarks.experiments import EXPERIMENTS
from deploy import cli
from strategies.rounds.control_variates import KINDS
from strategies.selectors import available, selector_type

TEXT = (Path(__file__).parents[2] / "docs" / "papers.md").read_text("utf-8")
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


class Row(NamedTuple):
    item: str
    what: str
    status: str
    why: str
    commands: list[str]

    @property
    def experiments(self):
        return {name for each in self.commands for name in experiments_of(each)}


def experiments_of(command):
    return command.removesuffix(" --data FOLDER").split()[3:] if "bench" in command else []


def cells(line):
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def rows(part):
    lines = [cells(line) for line in part.splitlines() if line.startswith("| ")][1:]
    return [Row(*line[:4], re.findall(r"`(cohort [^`]*)`", line[4])) for line in lines]


HEAD, *PARTS = TEXT.split("\n## ")
PAPERS = {part.partition("\n")[0]: rows(part) for part in PARTS}
ROWS = [row for each in PAPERS.values() for row in each]
RUNS = [shlex.split(each)[2:] for row in ROWS for each in row.commands if each.startswith("cohort up ")]


def values(command, option):
    assert set(command[::2]) <= {"--selector", "--set"}, command
    return tuple(value for name, value in zip(command[::2], command[1::2], strict=True) if name == option)


def numbers(text, kind):
    """Return the numbers that a text names, as in "Figure 2(d)", "Tables 2, 3 and 4", "Figures 6 to 8"."""
    found, roman = set(), {"I": 1, "II": 2}
    number = r"(?:\d+|I+\b)"
    for part in re.findall(rf"{kind}s? ({number}(?:\(\w\))?(?:(?:, | and | to ){number}(?:\(\w\))?)*)", text):
        for first, last in re.findall(rf"({number})(?:\(\w\))?(?: to ({number}))?", part):
            low, high = (roman.get(each) or int(each) for each in (first, last or first))
            found |= set(range(low, high + 1))
    return found


def test_all_names_are_there_and_exist():
    assert {name for row in ROWS for name in row.experiments} == set(EXPERIMENTS)
    named = {each.partition(":")[0] for run in RUNS for each in values(run, "--selector")}
    # Examples and other tests register selectors, too.
    assert named == {name for name in available() if selector_type(name).__module__.startswith("strategies.")}
    assert {f"variates={name}" for name in KINDS} <= {each for run in RUNS for each in values(run, "--set")}


def test_papers_and_their_numbered_items_are_there():
    assert list(PAPERS) == [*NUMBERED, "Not from the papers"]
    for name, kinds in NUMBERED.items():
        for kind in ("Algorithm", "Figure", "Table"):
            found = {number for row in PAPERS[name] for number in numbers(row.item, kind)}
            assert found == set(range(1, kinds.get(kind, 0) + 1)), (name, kind)


def test_a_row_names_the_experiments_whose_source_it_is():
    checked = Counter[str]()
    for each in EXPERIMENTS.values():
        paper = "OSMD, later version" if "later version" in each.text.source else None
        paper = paper or OF.get(each.name.partition("-")[0], "")
        for kind in ("Figure", "Table"):
            for number in numbers(each.text.source, kind) if paper else ():
                found = [row for row in PAPERS[paper] if number in numbers(row.item, kind)]
                assert each.name in {name for row in found for name in row.experiments}, (each.name, number)
                checked[kind] += 1
    assert min(checked.values()) >= 10


def test_every_row_is_whole_and_counted():
    meanings, counts = HEAD.split("\n\n|")[1:]
    statuses = [cells(line)[0] for line in meanings.splitlines()[2:]]
    for row in ROWS:
        assert bool(row.commands) == (row.status not in ("missing", "nothing to run")), row
        assert row.status in statuses, row
        assert row.why.endswith("."), row
        for command in row.commands:
            assert command.startswith(("cohort up ", "cohort bench papers ")), row
            assert len({EXPERIMENTS[name].data for name in experiments_of(command)}) <= 1, row
            needs_data = any(EXPERIMENTS[name].data for name in experiments_of(command))
            assert command.endswith(" --data FOLDER") == needs_data, row
    assert [cells(line)[0] for line in counts.splitlines()[2:]] == list(PAPERS)
    for line in counts.splitlines()[2:]:
        name, *told = cells(line)
        found = Counter(row.status for row in PAPERS[name])
        assert told == [str(found[status]) for status in statuses], line
        assert max(Counter((row.item, row.what) for row in PAPERS[name]).values()) == 1


@pytest.mark.parametrize("settings", sorted({values(run, "--set") for run in RUNS}))
def test_selectors_and_settings_are_accepted(settings, tmp_path, monkeypatch):
    """Up to the point where a federation would start."""
    (tmp_path / "FILE").write_text('{"lipschitz": {"client-00": 3.5}}')
    monkeypatch.chdir(tmp_path)
    started = []
    monkeypatch.setattr(cli, "_compare", lambda engine, comparison, **options: started.append(comparison))
    every = (each for run in RUNS if values(run, "--set") == settings for each in values(run, "--selector"))
    selectors = list(dict.fromkeys(every))
    options = [f"--selector={each}" for each in selectors] + [f"--set={each}" for each in settings]
    result = CliRunner().invoke(cli.cli, ["up", *options, "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.stderr
    (comparison,) = started
    assert len(comparison.trials) == len(selectors)
