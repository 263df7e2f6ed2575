"""All algorithms, figures, tables and bounds of the papers, their commands and status, for docs/papers.md."""

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
"""The four papers. The OSMD paper is listed twice: in its first and in its later version."""

ALL = (*PAPERS, OTHERS)

__all__ = ["ALL", "OTHERS", "PAPERS", "Paper", "Row", "commands", "page"]
