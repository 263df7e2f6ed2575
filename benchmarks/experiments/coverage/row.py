"""`Row`, an item of a paper with its commands and its status, and `Paper`, the items of a paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["built", "reached", "in part", "not reached", "missing", "nothing to run"]

MEANINGS: dict[Status, str] = {
    "built": "the code does this; where it leaves the paper, the docstring of the selector says so",
    "reached": "the experiment shows what the paper claims",
    "in part": "part of it is there, or part of the claim holds; the reason says which",
    "not reached": "the experiment runs, and does not show what the paper claims",
    "missing": "there is no code for it, or no experiment",
    "nothing to run": "an illustration, a list of symbols, or a rate up to unnamed constants",
}


@dataclass(frozen=True)
class Row:
    """An algorithm, figure, table or bound of a paper, what runs it, and whether the result is reached.

    Attributes
    ----------
    item : str
        The item's name in the paper, for example "Figure 2(d)" or "Eq. 22".
    what : str
        What the item is, in a few words.
    status : Status
        See `MEANINGS`. docs/results.md has the verdicts on single claims of an experiment, which the status
        sums up.
    why : str
        The reason for the status.
    experiments : tuple of str
        Names in the registry of experiments.
    selectors : tuple of str
        Selectors with their settings, as after ``--selector``.
    settings : tuple of str
        Settings of the run, as after ``--set``.

    Raises
    ------
    ValueError
        If the item has settings and no selector.
    """

    item: str
    what: str
    status: Status
    why: str
    experiments: tuple[str, ...] = ()
    selectors: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.settings and not self.selectors:
            raise ValueError(f"settings = {self.settings}: must be () without selectors ({self.item})")


@dataclass(frozen=True)
class Paper:
    """A paper with all its items, in the paper's order.

    Attributes
    ----------
    name : str
        Short name, a heading of the page.
    title : str
        Authors and title.
    rows : tuple of Row
        The items.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
