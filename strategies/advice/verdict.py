"""The advice: which selector to use, or how many rounds of the log would tell."""

import math
from dataclasses import dataclass

from .off_policy import Interval
from .replay import BASELINE, Evidence

MARGIN = 0.05
"""Variances that differ by less than this share count as equal."""


@dataclass(frozen=True)
class Advice:
    """What the evidence says.

    Attributes
    ----------
    selector : str or None
        The name of the selector to use; None if the log cannot tell.
    best : str
        The name with the smallest estimate.
    rival : str
        The name that can be told from `best` the least, if the log cannot tell; otherwise "".
    rounds : int
        Roughly how many rounds would tell, if the log cannot tell; otherwise 0.
    """

    selector: str | None
    best: str
    rival: str = ""
    rounds: int = 0


def advise(evidence: Evidence, fixed: frozenset[str]) -> Advice:
    """Return the advice.

    A selector can be advised if two things hold. With 95 % confidence for each other selector, its variance
    is at most `MARGIN` larger than that of the other one. And unless it is `BASELINE`, its interval lies
    below 1. Of the selectors that can be advised, a fixed one is preferred to one that learns, and then
    the smaller estimate.

    Parameters
    ----------
    evidence : Evidence
        What the log says about each selector.
    fixed : frozenset of str
        The names of the fixed distributions.
    """
    names = evidence.names
    estimates = {name: evidence.against(name) for name in names}
    best = min(names, key=lambda name: estimates[name].value)
    order = sorted(names, key=lambda name: (name not in fixed, name != BASELINE, estimates[name].value))
    for name in order:
        if not _doubts(evidence, name, estimates):
            return Advice(name, best)
    doubts = _doubts(evidence, best, estimates)
    rival = max(doubts, key=lambda name: doubts[name])
    return Advice(None, best, rival, _rounded(evidence.num_rounds * doubts[rival]))


def _doubts(evidence: Evidence, name: str, estimates: dict[str, Interval]) -> dict[str, float]:
    """Return the selectors that `name` cannot be told from, and how many times as many rounds would tell.

    The logarithmic half-width of an interval shrinks as the root of the number of rounds.
    """
    doubts = {}
    for other in evidence.names:
        if other == name:
            continue
        against = estimates[name] if other == BASELINE else evidence.against(name, other)
        if against.high > 1 + MARGIN or (other == BASELINE and against.high >= 1):
            limit = 1.0 if other == BASELINE else 1 + MARGIN
            doubts[other] = _factor(against, limit)
    return doubts


def _factor(interval: Interval, limit: float) -> float:
    """Return how many times as many rounds make the interval end below the limit."""
    room = math.log(limit / min(interval.value, 1.0))
    width = math.log(interval.high / interval.value)
    return (width / room) ** 2 if room > 0 else math.inf


def _rounded(rounds: float) -> int:
    """Return a number of rounds, rounded up to two digits; 0 if it is not finite."""
    if not math.isfinite(rounds):
        return 0
    unit = 10 ** max(0, math.floor(math.log10(max(rounds, 1))) - 1)
    return int(math.ceil(rounds / unit) * unit)
