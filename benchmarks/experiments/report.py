"""The definition of an experiment, and the table made from the results of its seeds.

One seed of an experiment yields a number for each cell (row, column) of the table, and curves. The table
shows a cell's mean ± standard deviation over the seeds, followed in brackets by a known result to compare it
with, if there is one. `running` runs the seeds and keeps their results. `figure` draws the curves.
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
    """One line of a figure, from one seed.

    Attributes
    ----------
    x, y : ndarray, shape (P,)
        The coordinates of the points. A curve has the same x in every seed. y may contain NaN.
    """

    x: Floats
    y: Floats

    def first(self, reached: npt.NDArray[np.bool_]) -> float:
        """Return the x of the first point where `reached` (P,) is true, or NaN if it is true nowhere."""
        return float(self.x[np.argmax(reached)]) if reached.any() else math.nan


class Outcome(NamedTuple):
    """The result of one seed of an experiment.

    Attributes
    ----------
    cells : Mapping[Cell, float]
        The numbers of the table. If a cell is NaN or missing, for example because an accuracy was never
        reached, the seed is left out of the cell's mean, and the table shows "(n of N)". Rows and columns are
        printed in the order in which they first appear.
    curves : Mapping[str, Mapping[str, Curve]]
        The curves of the figure: title of the panel -> label of the line -> curve.
    """

    cells: Mapping[Cell, float]
    curves: Mapping[str, Mapping[str, Curve]] = {}


@dataclass(frozen=True)
class Experiment:
    """An experiment of a paper, or about this project's own methods.

    Attributes
    ----------
    name : str
        Name on the command line.
    title : str
        What the experiment measures.
    source : str
        The section, figure or table of the paper that the experiment repeats, or "no paper" and where the
        experiment is described.
    run : Callable
        ``run(seed)``, or ``run(seed, path)`` if `data` is set, returns the `Outcome`, which depends on the
        seed and the data file alone, apart from measured times. If `run` has a parameter ``quick``,
        ``quick=True`` runs a small form of the experiment, which takes at most about a minute. `run` must be
        picklable.
    seeds : int
        Number of seeds, unless a command names another number. The seeds are 0, 1, 2 and so on. A table shows
        the number.
    known : Mapping[Cell, str]
        Results to compare ours with, printed in brackets after ours. They come from an independent
        implementation, unless `note` has a sentence that begins with "In brackets".
    claim : str
        The result that the paper claims.
    note : str
        How to read the table, and what differs from the paper.
    digits : int
        Number of decimal places in the table.
    x, y : str
        Labels of the figure's axes, with units.
    log_y : bool
        Whether the figure's y axis is logarithmic. The mean of a curve is then a geometric mean.
    data : str
        Name of the file that ``run`` needs, for example ``mnist.npz``, or "" if it needs none.
    gpu : bool
        Whether the experiment needs a GPU, since it would take days without one. Without a GPU it runs only
        if it is named, and its recorded results are not compared with the code.
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
    gpu: bool = False


class Report(NamedTuple):
    """The results of all seeds of an experiment.

    Attributes
    ----------
    experiment : Experiment
        The experiment.
    outcomes : Sequence[Outcome]
        The outcome of each seed.
    seconds : float
        CPU time of all seeds together.
    quick : bool
        Whether the small form ran. Its numbers cannot be compared with the paper's.
    """

    experiment: Experiment
    outcomes: Sequence[Outcome]
    seconds: float
    quick: bool = False


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def known_cells(rows: Mapping[str, str], columns: Sequence[str]) -> dict[Cell, str]:
    """Return `Experiment.known`, made from one line of text per row.

    Parameters
    ----------
    rows : Mapping[str, str]
        For each row of the table, its numbers separated by ";", from the first column on. An empty number
        stands for an unknown result. A line may end before the last column.
    columns : Sequence[str]
        The columns of the table, in their order.

    Raises
    ------
    ValueError
        If a row has more numbers than there are columns.
    """
    known: dict[Cell, str] = {}
    for row, line in rows.items():
        figures = line.split(";")
        for column, figure in zip(columns[: len(figures)], figures, strict=True):
            if figure.strip():
                known[row, column] = figure.strip()
    return known


def summarise(values: Sequence[float], digits: int) -> str:
    """Return "mean ± standard deviation" of the values (N,), one per seed; NaN stands for no value.

    If only n < N seeds have a value, "(n of N)" follows. If one seed has a value, there is no "±". If no seed
    has a value, the text is "never".
    """
    there = [value for value in values if not math.isnan(value)]
    if not there:
        return "never"
    text = f"{np.mean(there):.{digits}f}"
    if len(there) > 1:
        text += f" ± {np.std(there, ddof=1):.{digits}f}"
    return text if len(there) == len(values) else f"{text} ({len(there)} of {len(values)})"


def table(report: Report) -> str:
    """Return the report as Markdown: a heading, the paper's claim, a note and the table.

    A cell with a known result reads ``ours [known]``. Known results are left out of reports on the quick
    form, since they cannot be compared with its numbers.
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
        head.append(
            "Quick form, smaller than the experiment: it only checks that everything works; "
            "the numbers mean nothing."
        )
    of = "One seed" if seeds == 1 else f"Mean ± standard deviation over {seeds} seeds"
    if any(f" of {seeds})" in text for line in lines for text in line):
        of += f", or over the n seeds that have a value (n of {seeds})"
    named = "In brackets" in experiment.note  # the note says who measured the known results
    beside = "; in brackets: an independent implementation" if known and not named else ""
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
