"""Claims about selectors, and what the recorded values say about them.

claims.csv has a claim in each line. It compares two cells of an experiment, or a cell with a number (in the
column "other row"), seed by seed. The p value is corrected by Holm's method in each group.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.experiments.report import Cell
from benchmarks.results.files import Recorded, Result
from deploy.runs.seed_statistics import Interval, interval
from deploy.sweeps.statistics import LEVEL, holm, paired_p

FILE = Path(__file__).with_name("claims.csv")


@dataclass(frozen=True)
class Claim:
    """A claim that recorded values can support or contradict."""

    group: str  # the paper, or "users" for what a user gains
    text: str  # the claim in one sentence
    experiment: str
    cell: Cell  # (row, column) of the claim's subject
    other: Cell | float  # the cell of the same experiment, or the number, with which `cell` is compared
    # The effect is cell / other (the geometric mean over the seeds), or cell - other (the mean).
    scale: Literal["ratio", "difference"] = "ratio"
    side: Literal["below", "above"] = "below"  # of `limit` on which the effect lies if the claim holds
    limit: float | None = None  # None stands for 1 (ratio) or 0 (difference)
    unit: str = ""  # of a difference

    @property
    def threshold(self) -> float:
        """The limit, or its default."""
        return self.limit if self.limit is not None else float(self.scale == "ratio")


@cache
def read_claims() -> tuple[Claim, ...]:
    """Return the claims of claims.csv."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return tuple(map(_claim, csv.DictReader(file)))


def _claim(line: dict[str, Any]) -> Claim:
    row, column = line["other row"], line["other column"]
    return Claim(
        line["group"],
        line["claim"],
        line["experiment"],
        (line["row"], line["column"]),
        (row, column) if column else float(row),
        line["scale"],
        line["side"],
        float(line["limit"]) if line["limit"] else None,
        line["unit"],
    )


class Finding(NamedTuple):
    """What the values say about a claim. The numbers are NaN if there are no values."""

    claim: Claim
    effect: float
    low: float  # the ends of the 95 % interval of the effect
    high: float
    seeds: int  # number of seeds that have both values
    corrected: float  # p of a two-sided paired t test against the limit, corrected by Holm's method

    @property
    def verdict(self) -> str:
        """One of "yes", "no: the opposite", "not shown", and, if there are no values, "not rerun"."""
        if not self.seeds:
            return "not rerun"
        if not self.corrected < LEVEL:
            return "not shown"
        holds = (self.effect < self.claim.threshold) == (self.claim.side == "below")
        return "yes" if holds else "no: the opposite"


def judge(claims: Sequence[Claim], results: Mapping[str, Result]) -> list[Finding]:
    """Return what the results say about each claim; KeyError if a file lacks a cell that a claim names."""
    samples = [_sample(claim, results.get(claim.experiment)) for claim in claims]
    corrected = [math.nan] * len(claims)
    for group in dict.fromkeys(claim.group for claim in claims):
        members = [i for i, claim in enumerate(claims) if claim.group == group]
        for i, value in zip(members, holm([_p(claims[i], samples[i]) for i in members]), strict=True):
            corrected[i] = value
    found = []
    for claim, sample, p in zip(claims, samples, corrected, strict=True):
        over = interval(sample) if sample else Interval(math.nan, math.nan)
        ends = [over.mean, over.mean - over.half, over.mean + over.half]
        effect, low, high = map(math.exp, ends) if claim.scale == "ratio" else ends
        found.append(Finding(claim, effect, low, high, len(sample), p))
    return found


def _p(claim: Claim, sample: Sequence[float]) -> float:
    """Return the p value of a paired t test of the effects against the claim's limit; NaN without values."""
    limit = math.log(claim.threshold) if claim.scale == "ratio" else claim.threshold
    return paired_p([value - limit for value in sample]) if sample else math.nan


def _sample(claim: Claim, result: Result | None) -> list[float]:
    """Return the finite effects, at most one for each seed; of a ratio, the logarithms."""
    if not isinstance(result, Recorded):
        return []
    ours = result.values(*claim.cell)
    other = claim.other
    theirs = result.values(*other) if isinstance(other, tuple) else [other] * len(ours)
    if claim.scale == "difference":
        found = [a - b for a, b in zip(ours, theirs, strict=True)]
    else:
        found = [math.log(a / b) if a > 0 and b > 0 else math.nan for a, b in zip(ours, theirs, strict=True)]
    return [value for value in found if math.isfinite(value)]
