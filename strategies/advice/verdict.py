"""The advice: which selector to use; if the log does not show it, how many rounds a log must have."""

import math
from dataclasses import dataclass

from .off_policy import Interval
from .replay import BASELINE, Evidence

MARGIN = 0.05
"""Variances that differ by less than this share count as equal."""


@dataclass(frozen=True)
class Advice:
    """The selector to use; if the log does not suffice, what it lacks."""

    selector: str | None  #: the name of the selector to use; None if the log does not suffice
    best: str  #: the name with the smallest estimate
    rival: str = ""  #: if there is no selector: the name that is hardest to distinguish from ``best``
    rounds: int = 0  #: if there is no selector: roughly how many rounds would suffice


def advise(evidence: Evidence, fixed: frozenset[str]) -> Advice:
    """Return the advice.

    A selector can be advised if two things hold. First, its variance exceeds that of each other selector by
    at most the share `MARGIN`, each with 95 % confidence. Second, its variance is below that of `BASELINE`
    with 95 % confidence, unless it is `BASELINE`. Of these selectors, fixed ones are preferred to those that
    learn, then `BASELINE`, then the smallest estimate.
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
    """Return the selectors because of which `name` cannot be advised, each with the result of `_factor`."""
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
    """Return by how much the number n of rounds must grow until the interval (~ 1/√n) is below the limit."""
    room = math.log(limit / min(interval.value, 1.0))
    width = math.log(interval.high / interval.value)
    return (width / room) ** 2 if room > 0 else math.inf


def _rounded(rounds: float) -> int:
    if not math.isfinite(rounds):
        return 0
    unit = 10 ** max(0, math.floor(math.log10(max(rounds, 1))) - 1)
    return int(math.ceil(rounds / unit) * unit)
