"""Which method is first to a share of the best accuracy, among slow clients and on real tasks."""

import math
from collections.abc import Mapping
from statistics import fmean
from typing import NamedTuple

from benchmarks.experiments import EXPERIMENTS
from benchmarks.experiments.real_tasks import LEVELS, SPEEDS
from benchmarks.experiments.report import markdown
from benchmarks.results.files import Recorded, Result
from deploy.runs.seed_statistics import Interval, interval

SECONDS, BIAS = "s to 90 %", "bias, %"
SHOWN = ("buffered-md", "buffered-forecast", "fedbuff", "oort")
"""The methods that are compared with the first one."""
UNBIASED = ("buffered-md", "buffered-forecast")
DEFAULT = "forecast, balanced"
COSTS = ("rounds", "MB", *(f"s ({slow})" for slow in SPEEDS))


class Lag(NamedTuple):
    """How much later a method is than the first method, in the unit of a column, for example seconds."""

    cost: float  # mean over the seeds; NaN if a seed never reached the accuracy
    behind: Interval  # behind the first method

    @property
    def within(self) -> bool:
        """Whether the method is the first, or the 95 % interval of its lag behind the first contains 0."""
        return self.behind.mean == 0 or (math.isfinite(self.behind.half) and not self.behind.excludes_zero)


def first_of(result: Recorded, column: str = SECONDS) -> str:
    """Return the method with the least mean in a column, of those that reach the accuracy with every seed."""
    means = {method: fmean(result.values(method, column)) for method in result.rows}
    return min((method for method in means if math.isfinite(means[method])), key=means.__getitem__)


def lag(result: Recorded, method: str, column: str = SECONDS) -> Lag:
    """Return how much later a method is than the first method."""
    ours, leader = result.values(method, column), result.values(first_of(result, column), column)
    return Lag(fmean(ours), interval([a - b for a, b in zip(ours, leader, strict=True)]))


def first(results: Mapping[str, Result]) -> list[str]:
    """Return the comparison as Markdown; empty if nothing is recorded."""
    recorded = _recorded(results, "time-")
    if not recorded:
        return []
    lines = [["setting", "first", "seconds of the first", *(f"`{each}`" for each in SHOWN)]]
    lines[0] += ["bias of the first", *(f"of `{each}`" for each in UNBIASED)]
    for name, result in recorded.items():
        leader = first_of(result)
        cells = [name, f"`{leader}`", f"{lag(result, leader).cost:.0f}"]
        cells += [_shown(lag(result, method), method == leader) for method in SHOWN]
        lines.append([*cells, *(f"{fmean(result.values(each, BIAS)):.1f}" for each in (leader, *UNBIASED))])
    within = [name for name, result in recorded.items() if any(lag(result, each).within for each in UNBIASED)]
    without = [name for name in recorded if name not in within]
    names = " or ".join(f"`{each}`" for each in UNBIASED)
    count = f"in {len(within)} of {len(recorded)} settings."
    rest = f" Neither is in {', '.join(without)}." if without else ""
    return [
        *markdown(lines, "llr" + "l" * len(SHOWN) + "rrr"),
        "",
        f"{names} is first, or within the interval of the first, {count}{rest}",
    ]


def default_first(results: Mapping[str, Result]) -> list[str]:
    """Return, as Markdown, where the default is first on real tasks; empty if nothing is recorded."""
    recorded = _recorded(results, "real-")
    if not recorded:
        return []
    lines = [["setting", *COSTS]]
    counts = dict.fromkeys(COSTS, 0)
    for name, result in recorded.items():
        line = [name]
        for cost in COSTS:
            columns = {level: f"{cost} to {level} %" for level in LEVELS}
            behind = {
                level: first_of(result, column)
                for level, column in columns.items()
                if not lag(result, DEFAULT, column).within
            }
            counts[cost] += len(LEVELS) - len(behind)
            text = ", ".join(f"{level} %: `{leader}`" for level, leader in behind.items())
            line.append(f"{len(LEVELS) - len(behind)} of {len(LEVELS)}" + (f" ({text})" if text else ""))
        lines.append(line)
    of = len(LEVELS) * len(recorded)
    return markdown([*lines, ["all", *(f"{count} of {of}" for count in counts.values())]])


def _recorded(results: Mapping[str, Result], prefix: str) -> dict[str, Recorded]:
    """Return the recorded results of the experiments whose names begin with `prefix`, in their order."""
    return {
        name: found
        for name in EXPERIMENTS
        if name.startswith(prefix) and isinstance(found := results.get(name), Recorded)
    }


def _shown(found: Lag, leads: bool) -> str:
    if leads:
        return f"**{found.cost:.0f}**"
    if not math.isfinite(found.cost):
        return "not with every seed"
    mean, half = found.behind
    text = f"{found.cost:.0f} ({mean:+.0f}, [{mean - half:+.0f}, {mean + half:+.0f}])"
    return f"**{text}**" if found.within else text
