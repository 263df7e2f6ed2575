"""Every item of the papers with the names that run it and its status, from which docs/papers.md is made."""

from benchmarks.experiments.coverage import delta, flics, osmd, power_of_choice
from benchmarks.experiments.coverage.others import OTHERS
from benchmarks.experiments.coverage.page import commands, page
from benchmarks.experiments.coverage.row import Paper, Row

PAPERS: tuple[Paper, ...] = (
    osmd.FIRST,
    osmd.LATER,
    power_of_choice.PAPER,
    delta.PAPER,
    flics.PAPER,
)
"""The five papers."""

ALL = (*PAPERS, OTHERS)

__all__ = ["ALL", "OTHERS", "PAPERS", "Paper", "Row", "commands", "page"]
