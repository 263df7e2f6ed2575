"""Which method is first to 90 % of the best accuracy, in each federation with slow clients."""

from __future__ import annotations

import math
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.experiments import EXPERIMENTS
from benchmarks.results.files import Recorded
from deploy.runs.seed_statistics import Interval, interval

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.results.files import Result

SECONDS, BIAS = "s to 90 %", "bias, %"
SHOWN = ("buffered-md", "buffered-forecast", "fedbuff", "oort")
"""The methods that are compared with the first one."""
UNBIASED = ("buffered-md", "buffered-forecast")

_INTRO = """\
Mean seconds to 90 % of the best accuracy, and in brackets the difference to the first method: the mean over
the seeds, which both methods share, and its 95 % interval by Student's t. A method is within the interval of
the first, and bold, if this interval has 0: these seeds do not show that it is later. The same seeds say
which method is first, so the differences are a little too large. The biases are in percent of the error of
one round."""


class Lag(NamedTuple):
    """How much later a method is than the first method."""

    seconds: float  # mean over the seeds; NaN if a seed never reached 90 %
    behind: Interval  # seconds behind the first method

    @property
    def within(self) -> bool:
        """Whether the method is the first, or the 95 % interval of its lag behind the first contains 0."""
        return self.behind.mean == 0 or (math.isfinite(self.behind.half) and not self.behind.excludes_zero)


def first_of(result: Recorded) -> str:
    """Return the method with the least mean seconds, of those that reach 90 % with every seed."""
    means = {method: fmean(result.values(method, SECONDS)) for method in result.rows}
    return min((method for method in means if math.isfinite(means[method])), key=means.__getitem__)


def lag(result: Recorded, method: str) -> Lag:
    """Return how much later a method is than the first method."""
    ours, first = result.values(method, SECONDS), result.values(first_of(result), SECONDS)
    return Lag(fmean(ours), interval([a - b for a, b in zip(ours, first, strict=True)]))


def section(results: Mapping[str, Result]) -> list[str]:
    """Return the comparison as Markdown; empty if nothing is recorded."""
    recorded = {
        name: found
        for name in EXPERIMENTS
        if name.startswith("time-") and isinstance(found := results.get(name), Recorded)
    }
    if not recorded:
        return []
    lines = ["## Which method is first", "", *_INTRO.splitlines(), ""]
    head = ["setting", "first", "seconds of the first", *(f"`{each}`" for each in SHOWN)]
    head += ["bias of the first", *(f"of `{each}`" for each in UNBIASED)]
    lines += [f"| {' | '.join(head)} |", "|---|---|--:|" + "---|" * len(SHOWN) + "--:|" * (1 + len(UNBIASED))]
    for name, result in recorded.items():
        first = first_of(result)
        cells = [f"`{first}`", f"{lag(result, first).seconds:.0f}"]
        cells += [_shown(lag(result, method), method == first) for method in SHOWN]
        cells += [f"{fmean(result.values(method, BIAS)):.1f}" for method in (first, *UNBIASED)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    within = [name for name, result in recorded.items() if any(lag(result, each).within for each in UNBIASED)]
    without = [name for name in recorded if name not in within]
    names = " or ".join(f"`{each}`" for each in UNBIASED)
    lines += [
        "",
        f"{names} is first, or within the interval of the first, in {len(within)} of {len(recorded)} "
        "settings.",
    ]
    if without:
        lines[-1] += f" Neither is in {', '.join(without)}."
    return lines


def _shown(found: Lag, first: bool) -> str:
    if first:
        return f"**{found.seconds:.0f}**"
    if not math.isfinite(found.seconds):
        return "not with every seed"
    mean, half = found.behind
    text = f"{found.seconds:.0f} ({mean:+.0f}, [{mean - half:+.0f}, {mean + half:+.0f}])"
    return f"**{text}**" if found.within else text
