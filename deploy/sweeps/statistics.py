"""The statistics of a sweep: intervals over seeds, paired t tests, and Holm's correction."""

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from deploy.runs.seed_statistics import Interval, interval

METRICS = ("accuracy", "loss")
LEVEL = 0.05  # a corrected p value below this level counts as a difference


class Result(NamedTuple):
    """The result of a trial, and its place in the grid (see `grid.PlannedTrial`)."""

    selector: str
    case: str
    varied: Mapping[str, Any]
    seed: int
    values: Mapping[str, Any]
    """The trial's result, see `trial_worker.Outcome`."""


class Cell(NamedTuple):
    """The trials that differ in the seed only."""

    selector: str
    case: str
    seeds: list[int]
    accuracy: Interval
    loss: Interval


class PairedTest(NamedTuple):
    """A paired test: the same settings and seeds, with two selectors."""

    case: str
    selector: str
    other: str
    metric: str
    difference: Interval
    """The difference of the metric: `selector` minus `other`."""
    pairs: int
    """The number of seeds that both selectors have."""
    p: float
    """The p value of a two-sided paired t test; NaN with fewer than two pairs or with a non-finite value."""
    corrected: float
    """`p`, corrected by Holm's method for all comparisons of this metric in the sweep."""

    @property
    def verdict(self) -> str:
        """Whether the sweep shows a difference: "higher", "lower" or "not shown"."""
        if not self.corrected < LEVEL:
            return "not shown"
        return "higher" if self.difference.mean > 0 else "lower"


def cells(results: Sequence[Result]) -> list[Cell]:
    """Return the mean and the 95 % interval of each cell, in the order of the results."""
    found: dict[tuple[str, str], list[Result]] = {}
    for each in results:
        found.setdefault((each.case, each.selector), []).append(each)
    return [
        Cell(
            selector,
            case,
            [each.seed for each in members],
            *(interval([_value(each, metric) for each in members]) for metric in METRICS),
        )
        for (case, selector), members in found.items()
    ]


def paired_tests(results: Sequence[Result], baseline: str = "") -> list[PairedTest]:
    """Compare selectors by paired tests over the seeds, for each case and metric.

    Without a `baseline`, all pairs of selectors are compared.
    """
    selectors = list(dict.fromkeys(each.selector for each in results))
    by_place = {(each.case, each.selector, each.seed): each for each in results}
    pairs = (
        [(each, baseline) for each in selectors if each != baseline]
        if baseline
        else [(second, first) for first, second in combinations(selectors, 2)]
    )
    found = []
    for metric in METRICS:
        tests = []
        for case in dict.fromkeys(each.case for each in results):
            for selector, other in pairs:
                differences = [
                    _value(each, metric) - _value(by_place[case, other, each.seed], metric)
                    for each in results
                    if (each.case, each.selector) == (case, selector) and (case, other, each.seed) in by_place
                ]
                tests.append((case, selector, other, interval(differences), differences))
        values = [paired_p(differences) for *_, differences in tests]
        found += [
            PairedTest(case, selector, other, metric, difference, len(differences), p, corrected)
            for (case, selector, other, difference, differences), p, corrected in zip(
                tests, values, holm(values), strict=True
            )
        ]
    return found


def paired_p(differences: Sequence[float]) -> float:
    """Return the p value of a two-sided paired t test: whether the mean of the differences is 0.

    If all differences are equal, p is 1 if they are 0, and else 0. With fewer than two differences, or if one
    is not finite, p is NaN. Raises ModuleNotFoundError if SciPy is not installed.

    >>> round(paired_p([1.0, 2.0, 3.0]), 4)
    0.0742
    """
    from scipy.stats import t

    if len(differences) < 2 or not all(map(math.isfinite, differences)):
        return math.nan
    mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
    if deviation == 0:
        return float(mean == 0)
    statistic = mean / (deviation / math.sqrt(len(differences)))
    return float(2 * t.sf(abs(statistic), len(differences) - 1))


def holm(values: Sequence[float]) -> list[float]:
    """Correct p values for their number by Holm's method (1979).

    The i-th smallest of n values, counted from 0, is multiplied by n - i. A corrected value is at least as
    large as those of smaller p values, and at most 1. NaN stays NaN, and does not count in n.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    known = sorted((p, place) for place, p in enumerate(values) if not math.isnan(p))
    corrected, largest = [math.nan] * len(values), 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        corrected[place] = largest
    return corrected


def _value(result: Result, metric: str) -> float:
    value = result.values[metric]
    return math.nan if value is None else float(value)
