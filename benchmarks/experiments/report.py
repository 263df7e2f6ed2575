"""The definition of an experiment, and the table made from the results of its seeds.

One seed of an experiment yields a number for each cell (row, column) of the table, and curves. What an
experiment is about stands on its page in docs/results/.
"""

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Floats

PAGES = Path(__file__).parents[2] / "docs" / "results"
_SECTION = re.compile(
    r"^### (\S+): (.+)\n\nSource: ((?:.|\n)+?)\.\n\n((?:.|\n)*?)<!--table \1-->", re.MULTILINE
)

Cell = tuple[str, str]
"""(row, column) of an experiment's table."""
Value = float | str | None
"""A number as JSON: NaN is null, an infinity is "inf" or "-inf"."""


def plain(value: float) -> Value:
    """Return a number as JSON."""
    value = float(value)
    return value if math.isfinite(value) else None if math.isnan(value) else str(value)


def number(value: Value) -> float:
    """Return the number that `plain` turned into this value."""
    return math.nan if value is None else float(value)


class Curve(NamedTuple):
    """One line of a figure, from one seed."""

    x: Floats  # (P,) the same in every seed
    y: Floats  # (P,) may contain NaN

    def first(self, reached: npt.NDArray[np.bool_]) -> float:
        """Return the x of the first point where `reached` (P,) is true, or NaN if it is true nowhere."""
        return float(self.x[np.argmax(reached)]) if reached.any() else math.nan


class Outcome(NamedTuple):
    """The result of one seed: the cells of the table, in the order of its rows and columns, and the curves.

    A seed whose cell is NaN or missing, as if an accuracy was never reached, does not count in the cell's
    mean.
    """

    cells: Mapping[Cell, float]
    curves: Mapping[str, Mapping[str, Curve]] = {}  # title of the panel -> label of the line -> curve


class Text(NamedTuple):
    """What the page of an experiment says above the table."""

    title: str = ""
    source: str = ""
    about: str = ""  # the paper's claim, how to read the table, and what differs from the paper
    page: str = ""  # file below docs/results/


@dataclass(frozen=True)
class Experiment:
    """An experiment of a paper, or about this project's own methods."""

    name: str  # name on the command line. Its section on a page of docs/results/ says what it is about.
    # ``run(seed)``, or ``run(seed, path)`` if `data` is set, returns the `Outcome`, which depends on the seed
    # and the data file alone, apart from measured times. `run` must be picklable. For the quick form, which
    # takes at most about a minute, see `running.quick_form`.
    run: Callable[..., Outcome]
    seeds: int = 5  # number of seeds, unless a command names another number. The seeds are 0, 1, 2 and so on.
    digits: int = 3  # number of decimal places in the table
    # Labels of the figure's axes, with units, and whether the y axis is logarithmic. The mean of a curve is
    # then a geometric mean.
    x: str = "round"
    y: str = ""
    log_y: bool = False
    data: str = ""  # name of the file that ``run`` needs, for example ``mnist.npz``, or "" if it needs none
    # Whether it would take days without a GPU. Without one it runs only if it is named, and its recorded
    # results are not compared with the code.
    gpu: bool = False
    quick: Mapping[str, Any] = field(default_factory=dict)  # arguments of `run` for the quick form

    @property
    def known(self) -> Mapping[Cell, str]:
        """Results to compare ours with, from known.csv, printed in brackets after ours.

        They come from an independent implementation, unless the page has a sentence that begins with "In
        brackets".
        """
        return _known().get(self.name, {})

    @property
    def text(self) -> Text:
        """What the experiment's page says; empty without a page, as in an installation without docs/."""
        return _texts().get(self.name, Text())


@cache
def _known() -> dict[str, dict[Cell, str]]:
    found: dict[str, dict[Cell, str]] = {}
    with Path(__file__).with_name("known.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            found.setdefault(line["experiment"], {})[line["row"], line["column"]] = line["known"]
    return found


@cache
def _texts() -> dict[str, Text]:
    return {
        name: Text(title, " ".join(source.split()), about.strip(), page.name)
        for page in PAGES.glob("*.md")
        for name, title, source, about in _SECTION.findall(page.read_text("utf-8"))
    }


class Report(NamedTuple):
    """The results of all seeds of an experiment."""

    experiment: Experiment
    outcomes: Sequence[Outcome]
    seconds: Sequence[float]  # CPU time of each seed
    quick: bool = False  # the small form ran, whose numbers cannot be compared with the paper's


def summarise(values: Sequence[float], digits: int) -> str:
    """Return "mean ± standard deviation" of the values (N,), one per seed; NaN stands for no value.

    If only n < N seeds have one, "(n of N)" follows; if none has, the text is "never". One value has no "±".
    """
    there = [value for value in values if not math.isnan(value)]
    if not there:
        return "never"
    text = f"{np.mean(there):.{digits}f}"
    if len(there) > 1:
        text += f" ± {np.std(there, ddof=1):.{digits}f}"
    return text if len(there) == len(values) else f"{text} ({len(there)} of {len(values)})"


def table(report: Report) -> str:
    """Return the report as Markdown: the heading and the text of the experiment's page, and the table."""
    text = report.experiment.text
    head = [f"### {report.experiment.name}: {text.title}", "", f"Source: {text.source}.", "", text.about, ""]
    if report.quick:
        head.append("Quick form: it only checks that everything works; the numbers mean nothing.")
    return "\n".join([*head, *rows(report), ""])


def rows(report: Report) -> list[str]:
    """Return the lines of the table, after a line that says how to read it.

    A cell with a known result reads ``ours [known]``, except in the quick form.
    """
    experiment, seeds = report.experiment, len(report.outcomes)
    known = {} if report.quick else experiment.known
    # A seed may lack a cell that another seed has.
    cells = dict.fromkeys(cell for outcome in report.outcomes for cell in outcome.cells)
    columns = list(dict.fromkeys(column for _, column in cells))
    lines = [["", *columns]]
    for row in dict.fromkeys(row for row, _ in cells):
        line = [row]
        for cell in ((row, column) for column in columns):
            values = [outcome.cells.get(cell, math.nan) for outcome in report.outcomes]
            text = summarise(values, experiment.digits) if cell in cells else ""
            line.append(f"{text} [{known[cell]}]" if cell in known else text)
        lines.append(line)
    of = "One seed" if seeds == 1 else f"Mean ± standard deviation over {seeds} seeds"
    if any(f" of {seeds})" in text for line in lines for text in line):
        of += f", or over the n seeds that have a value (n of {seeds})"
    named = "In brackets" in experiment.text.about  # the page says who measured the known results
    beside = "; in brackets: an independent implementation" if known and not named else ""
    return [f"{of}{beside}. Took {sum(report.seconds):.0f} s of one core.", "", *markdown(lines)]


def markdown(lines: Sequence[Sequence[str]], sides: str = "") -> list[str]:
    """Return the lines of a Markdown table, from its cells with the heads first.

    `sides` has a letter for each column: "l" (default) or "r". Columns are padded, unless a line would have
    more than 250 characters.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if sum(widths) > 250:
        widths = [2] * len(widths)
    found = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    ends = [":" if side == "r" else "-" for side in sides.ljust(len(widths), "l")]
    rule = "|".join("-" * (width + 1) + end for width, end in zip(widths, ends, strict=True))
    return [found[0], f"|{rule}|", *found[1:]]


def as_json(report: Report) -> dict[str, Any]:
    """Return every seed's cells: {experiment, quick, seeds: [{row: {column: value or null}}]}."""
    seeds = []
    for outcome in report.outcomes:
        found: dict[str, dict[str, float | None]] = {}
        for (row, column), value in outcome.cells.items():
            found.setdefault(row, {})[column] = None if math.isnan(value) else float(value)
        seeds.append(found)
    return {"experiment": report.experiment.name, "quick": report.quick, "seeds": seeds}
