"""The data files of results: what they hold, how they are read and written."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiments.figure import bands
from benchmarks.experiments.report import Experiment, Outcome, Report, Value, number, plain
from deploy.flower.app_folder import CODE

FOLDER = CODE / "results"
POINTS = 60  # a curve is thinned to at most this many points
DIGITS = 4  # significant digits of a curve's points


@dataclass(frozen=True)
class Origin:
    """Where a result comes from."""

    name: str  # of the experiment or benchmark
    measured: str  # the date, in the form 2026-11-24
    command: str  # repeats the experiment or benchmark
    commit: str  # of the sources; "+changes" follows it if files of the experiment had changed since


@dataclass(frozen=True)
class Recorded(Origin):
    """The results of an experiment with N seeds, one value for each cell and seed."""

    sources: str  # digest of the sources, see `benchmarks.experiments.running.digest_of`
    data: str  # SHA-256 of the file of samples that the experiment reads, "" if it reads none
    machine: Mapping[str, Any]  # see `machine.machine`
    seeds: Sequence[int]  # N
    seconds: Sequence[float]  # N, CPU seconds of each seed
    rows: Mapping[str, Mapping[str, Sequence[Value]]]  # row -> column -> N values
    # The figure: panel -> line -> "x", "mean" and "deviation" over the seeds, at most `POINTS` points of
    # `DIGITS` digits. If the figure's y axis is logarithmic, mean and deviation are those of log y.
    curves: Mapping[str, Mapping[str, Mapping[str, Sequence[Value]]]] = field(default_factory=dict)
    # For each renewal of the digest: the date, the commit, the digest before, and the seed that was equal.
    # With "rows", only the other rows were measured again; these are those of "rows_commit".
    renewed: Sequence[Mapping[str, Any]] = ()

    def values(self, row: str, column: str) -> list[float]:
        """Return the values of a cell in the order of the seeds, NaN for none; KeyError without the cell."""
        try:
            return [number(value) for value in self.rows[row][column]]
        except KeyError:
            raise KeyError(f"results/{self.name}.json has no cell {row!r}, {column!r}") from None

    def outcome(self, seed: int) -> dict[tuple[str, str], Value]:
        """Return the cells of one seed."""
        at = list(self.seeds).index(seed)
        return {(row, column): line[column][at] for row, line in self.rows.items() for column in line}

    def report(self, experiment: Experiment) -> Report:
        """Return the experiment's report with these values."""
        outcomes = [
            Outcome({cell: number(value) for cell, value in self.outcome(seed).items()})
            for seed in self.seeds
        ]
        return Report(experiment, outcomes, self.seconds)


@dataclass(frozen=True)
class Measured(Origin):
    """The output of a benchmark, which is only rerun as a whole."""

    machine: Mapping[str, Any]
    output: Sequence[Any]  # the JSON values that the benchmark printed
    seconds: float = 0.0  # CPU seconds of the benchmark
    sources: str = ""  # digest of the sources if they decide the output, see `recording.REPEATABLE`
    renewed: Sequence[Mapping[str, Any]] = ()


Result = Recorded | Measured


def recorded(report: Report, **facts: Any) -> Recorded:
    """Return the content of a report's data file; `facts` are the other attributes of `Recorded`."""
    cells = dict.fromkeys(cell for outcome in report.outcomes for cell in outcome.cells)
    rows: dict[str, dict[str, list[Value]]] = {}
    for row, column in cells:
        values = [outcome.cells.get((row, column), math.nan) for outcome in report.outcomes]
        rows.setdefault(row, {})[column] = [plain(value) for value in values]
    return Recorded(
        name=report.experiment.name,
        seeds=list(range(len(report.outcomes))),
        seconds=[round(each, 1) for each in report.seconds],
        rows=rows,
        curves=_curves(report),
        **facts,
    )


def read(folder: Path = FOLDER) -> dict[str, Result]:
    """Return the content of all data files by name; ValueError if one is damaged or wrongly named."""
    found: dict[str, Result] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            found[content["name"]] = (Recorded if "rows" in content else Measured)(**content)
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
