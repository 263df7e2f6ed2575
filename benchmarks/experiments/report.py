"""The definition of an experiment, and the table made from its seeds.

For one seed an experiment gives named cells (row, column) and curves. Over the seeds a cell becomes mean ±
standard deviation, printed beside the figure of an independent implementation. `running` runs the seeds and
keeps their results; `figure` draws the curves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Floats

Cell = tuple[str, str]
"""(row, column) of an experiment's table."""


class Curve(NamedTuple):
    """One line of a figure, of one seed.

    Attributes
    ----------
    x, y : ndarray, shape (P,)
        The points; every seed of an experiment has the same x. y may hold NaN.
    """

    x: Floats
    y: Floats

    def first(self, reached: npt.NDArray[np.bool_]) -> float:
        """Return the first x where `reached` (P,) is true, NaN if there is none."""
        return float(self.x[np.argmax(reached)]) if reached.any() else math.nan


class Outcome(NamedTuple):
    """The result of one seed of an experiment.

    Attributes
    ----------
    cells : Mapping[Cell, float]
        The figures of the table. NaN, or no cell where another seed has one, means not reached: such seeds
        are counted and not averaged. Rows and columns are printed in the order of their first appearance.
    curves : Mapping[str, Mapping[str, Curve]]
        Panel -> line -> curve.
    """

    cells: Mapping[Cell, float]
    curves: Mapping[str, Mapping[str, Curve]] = {}


@dataclass(frozen=True)
class Experiment:
    """An experiment of a paper.

    Attributes
    ----------
    name : str
        Name on the command line.
    title, source : str
        What is measured, and the section, figure or table of the paper that it repeats.
    run : Callable
        ``run(seed)``, or ``run(seed, path)`` if `data` is set, returns one `Outcome`, a function of the seed
        alone. ``quick=True`` runs a small form that takes about a minute. Picklable.
    seeds : int
        Number of seeds that show the paper's point within minutes on one core.
    known : Mapping[Cell, str]
        Figures of an independent implementation, printed behind ours.
    claim : str
        The result that the paper claims.
    note : str
        How to read the table, and what differs from the paper.
    digits : int
        Decimal places.
    x, y : str
        The figure's axes, with units.
    log_y : bool
        Whether y is logarithmic; curves then get geometric means.
    data : str
        Name of the file that ``run`` needs, for example ``mnist.npz``; "" = none.
    """

    name: str
    title: str
    source: str
    run: Callable[..., Outcome]
    seeds: int = 5
    known: Mapping[Cell, str] = field(default_factory=dict)
    claim: str = ""
    note: str = ""
    digits: int = 3
    x: str = "round"
    y: str = ""
    log_y: bool = False
    data: str = ""


class Report(NamedTuple):
    """The results of all seeds of an experiment.

    Attributes
    ----------
    experiment : Experiment
        The experiment.
    outcomes : Sequence[Outcome]
        One per seed.
    seconds : float
        CPU time of all seeds together.
    quick : bool
        Whether this is the small form, whose figures do not compare with the paper's.
    """

    experiment: Experiment
    outcomes: Sequence[Outcome]
    seconds: float
    quick: bool = False


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def known_cells(rows: Mapping[str, str], columns: Sequence[str]) -> dict[Cell, str]:
    """Return `Experiment.known` from rows with the figures of the first columns, separated by ";".

    An empty figure is not known.
    """
    known: dict[Cell, str] = {}
    for row, line in rows.items():
        figures = line.split(";")
        for column, figure in zip(columns[: len(figures)], figures, strict=True):
            if figure.strip():
                known[row, column] = figure.strip()
    return known


def summarise(values: Sequence[float], digits: int) -> str:
    """Return "mean ± standard deviation", with "(n of N)" if only n of N seeds have a value."""
    there = [value for value in values if not math.isnan(value)]
    if not there:
        return "never"
    text = f"{np.mean(there):.{digits}f}"
    if len(there) > 1:
        text += f" ± {np.std(there, ddof=1):.{digits}f}"
    return text if len(there) == len(values) else f"{text} ({len(there)} of {len(values)})"


def table(report: Report) -> str:
    """Return the report as Markdown: a heading, the paper's claim, a note and the table.

    A cell with a known figure reads ``ours [known]``, except in the quick form, which is smaller.
    """
    experiment = report.experiment
    known = {} if report.quick else experiment.known
    # A seed may lack a cell that another seed has.
    cells = dict.fromkeys(cell for outcome in report.outcomes for cell in outcome.cells)
    rows, columns = _distinct(row for row, _ in cells), _distinct(column for _, column in cells)
    lines = [["", *columns]]
    for row in rows:
        line = [row]
        for cell in ((row, column) for column in columns):
            text = ""
            if cell in cells:
                values = [outcome.cells.get(cell, math.nan) for outcome in report.outcomes]
                text = summarise(values, experiment.digits)
            if cell in known:
                text += f" [{known[cell]}]"
            line.append(text)
        lines.append(line)
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns) + 1)]
    body = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    body.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    seeds = len(report.outcomes)
    head = [f"### {experiment.name}: {experiment.title}", "", f"Source: {experiment.source}."]
    if experiment.claim:
        head.append(f"The paper: {experiment.claim}")
    if experiment.note:
        head.append(experiment.note)
    if report.quick:
        head.append("Quick form, smaller than the experiment: it shows that all runs, not what comes out.")
    of = "One seed" if seeds == 1 else f"Mean ± standard deviation over {seeds} seeds"
    if any(f" of {seeds})" in text for line in lines for text in line):
        of += f", or over the n that got there (n of {seeds})"
    beside = "; in brackets: an independent implementation" if known else ""
    head.append(f"{of}{beside}. Took {report.seconds:.0f} s of one core.")
    return "\n".join([*head, "", *body, ""])


def as_json(report: Report) -> str:
    """Return every seed's cells as JSON: {experiment, quick, seeds: [{row: {column: value or null}}]}."""
    seeds = []
    for outcome in report.outcomes:
        rows: dict[str, dict[str, float | None]] = {}
        for (row, column), value in outcome.cells.items():
            rows.setdefault(row, {})[column] = None if math.isnan(value) else float(value)
        seeds.append(rows)
    content = {"experiment": report.experiment.name, "quick": report.quick, "seeds": seeds}
    return json.dumps(content, indent=1, ensure_ascii=False)
