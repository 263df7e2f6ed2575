"""The data files of results: what they hold, how they are read and written."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.experiments.figure import bands
from benchmarks.experiments.report import Experiment, Outcome, Report
from deploy.flower.app_folder import CODE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOLDER = CODE / "results"
BEFORE = "before results were recorded"
POINTS = 60  # a curve is thinned to at most this many points
DIGITS = 4  # significant digits of a curve's points

Value = float | str | None
"""A number as JSON: NaN is null, an infinity is "inf" or "-inf"."""


@dataclass(frozen=True)
class Recorded:
    """The results of an experiment, one value for each cell and seed.

    Attributes
    ----------
    name : str
        The experiment.
    measured : str
        The date, in the form 2026-11-24.
    command : str
        The command that repeats the experiment.
    commit : str
        The commit of the sources; "+changes" follows it if files of the experiment had changed since.
    sources : str
        Digest of the sources, see `benchmarks.experiments.sources`.
    data : str
        SHA-256 of the file of samples that the experiment reads, "" if it reads none.
    machine : Mapping[str, Any]
        See `machine.machine`.
    seeds : Sequence[int]
        The seeds, length N.
    seconds : Sequence[float]
        CPU seconds of each seed, length N.
    rows : Mapping[str, Mapping[str, Sequence[Value]]]
        The values of each cell, length N: row -> column -> values in the order of the seeds.
    curves : Mapping
        The figure: panel -> line -> "x", "mean" and "deviation" over the seeds, at most `POINTS` points of
        `DIGITS` digits. If the figure's y axis is logarithmic, mean and deviation are those of log y.
    renewed : Sequence[Mapping[str, Any]]
        For each time that the digest was renewed: the date, the commit, the digest before, and the seed that
        was rerun and had equal values.
    """

    name: str
    measured: str
    command: str
    commit: str
    sources: str
    data: str
    machine: Mapping[str, Any]
    seeds: Sequence[int]
    seconds: Sequence[float]
    rows: Mapping[str, Mapping[str, Sequence[Value]]]
    curves: Mapping[str, Mapping[str, Mapping[str, Sequence[Value]]]] = field(default_factory=dict)
    renewed: Sequence[Mapping[str, Any]] = ()

    def values(self, row: str, column: str) -> list[float]:
        """Return the values of a cell in the order of the seeds; NaN where a seed has none.

        Raises
        ------
        KeyError
            If there is no such cell.
        """
        try:
            return [_number(value) for value in self.rows[row][column]]
        except KeyError:
            raise KeyError(f"results/{self.name}.json has no cell {row!r}, {column!r}") from None

    def outcome(self, seed: int) -> dict[tuple[str, str], Value]:
        """Return the cells of one seed."""
        at = list(self.seeds).index(seed)
        return {(row, column): line[column][at] for row, line in self.rows.items() for column in line}

    def report(self, experiment: Experiment) -> Report:
        """Return the experiment's report with these values."""
        outcomes = [
            Outcome({cell: _number(value) for cell, value in self.outcome(seed).items()})
            for seed in self.seeds
        ]
        return Report(experiment, outcomes, sum(self.seconds))


@dataclass(frozen=True)
class Measured:
    """The output of a benchmark of time or memory, or of a simulation that is only rerun as a whole.

    Attributes
    ----------
    name, measured, command, commit, machine
        See `Recorded`. The command runs a benchmark and writes the data file.
    output : Sequence[Any]
        The JSON values that the benchmark printed.
    seconds : float
        CPU seconds of the benchmark.
    sources : str
        Digest of the sources if these decide the output (see `recording.REPEATABLE`), else "".
    renewed : Sequence[Mapping[str, Any]]
        See `Recorded`; the whole command was rerun.
    """

    name: str
    measured: str
    command: str
    commit: str
    machine: Mapping[str, Any]
    output: Sequence[Any]
    seconds: float = 0.0
    sources: str = ""
    renewed: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Kept:
    """A table that was measured before results were recorded. Its raw values are lost.

    Attributes
    ----------
    name, command
        See `Recorded`.
    measured : str
        `BEFORE`.
    since : str
        The date on which the text last changed: its figures are not newer.
    text : Sequence[str]
        Lines of Markdown.
    """

    name: str
    measured: str
    since: str
    command: str
    text: Sequence[str]


Result = Recorded | Measured | Kept


def recorded(report: Report, seeds: Sequence[int], seconds: Sequence[float], **facts: Any) -> Recorded:
    """Return the content of a report's data file; `facts` are the other attributes of `Recorded`."""
    cells = dict.fromkeys(cell for outcome in report.outcomes for cell in outcome.cells)
    rows: dict[str, dict[str, list[Value]]] = {}
    for row, column in cells:
        values = [outcome.cells.get((row, column), math.nan) for outcome in report.outcomes]
        rows.setdefault(row, {})[column] = [plain(value) for value in values]
    experiment = report.experiment
    return Recorded(
        name=experiment.name,
        seeds=list(seeds),
        seconds=[round(each, 1) for each in seconds],
        rows=rows,
        curves=_curves(report),
        **facts,
    )


def plain(value: float) -> Value:
    """Return a number as JSON."""
    value = float(value)
    return value if math.isfinite(value) else None if math.isnan(value) else str(value)


def read(folder: Path = FOLDER) -> dict[str, Result]:
    """Return the content of all data files by name.

    Raises
    ------
    ValueError
        If a file is damaged, or its name is not the name that its content states.
    """
    found: dict[str, Result] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            kind = Recorded if "rows" in content else Measured if "output" in content else Kept
            found[content["name"]] = kind(**content)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}: not a file of results: {error}") from error
        if content["name"] != file.stem:
            raise ValueError(f"{file}: holds the results of {content['name']!r}")
    return found


def write(result: Result, folder: Path = FOLDER) -> Path:
    """Write a data file, and return its path."""
    content = asdict(result)
    for optional in ("curves", "renewed"):
        if not content.get(optional, True):
            del content[optional]
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    # A list of numbers takes one line.
    numbers = re.compile(r"\[\s+((?:[^\s\[\]{}\"]+|\"-?inf\")(?:,\s+(?:[^\s\[\]{}\"]+|\"-?inf\"))*)\s+\]")
    text = numbers.sub(lambda found: "[" + re.sub(r"\s+", " ", found[1]) + "]", text)
    folder.mkdir(exist_ok=True)
    path = folder / f"{result.name}.json"
    path.write_text(text + "\n", encoding="utf-8")
    return path


def _number(value: Value) -> float:
    return math.nan if value is None else float(value)


def _curves(report: Report) -> dict[str, dict[str, dict[str, list[Value]]]]:
    """Return mean and standard deviation of each curve over the seeds, thinned."""
    found: dict[str, dict[str, dict[str, list[Value]]]] = {}
    for panel, lines in bands(report).items():
        for label, band in lines.items():
            some = np.unique(np.linspace(0, len(band.x) - 1, POINTS).round().astype(int))
            found.setdefault(panel, {})[label] = {
                key: [plain(float(f"{value:.{DIGITS}g}")) for value in values[some]]
                for key, values in band._asdict().items()
            }
    return found
