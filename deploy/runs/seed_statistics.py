"""Comparisons over several seeds: means with 95 % intervals, and differences between trials of the same seed.

The intervals are those of Student's t: they hold if the results of the seeds are independent and roughly
normal. A difference is paired: both trials have the same seed, so the same data and initial model.
"""

from __future__ import annotations

import math
import re
import statistics
from typing import TYPE_CHECKING, NamedTuple

from deploy.runs.trial_statistics import baseline_of, number, summarise
from strategies.advice.off_policy import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from server.history import RunHistory

MOST = 1000  # seeds of one comparison


def parse_seeds(text: str) -> list[int]:
    """Read "1-5" or "1,3,7-9" as seeds."""
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*([0-9]{1,9})(?:-([0-9]{1,9}))?\s*", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
        if not 0 <= last - first < MOST:
            raise ValueError(f"seeds = {text!r}: must be like 1-5 or 1,3,7-9")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds) or len(seeds) > MOST:
        raise ValueError(f"seeds = {text!r}: must be at most {MOST} different seeds")
    return seeds


class Interval(NamedTuple):
    """A mean over seeds, and half the width of its 95 % interval: NaN if unknown, as with one seed."""

    mean: float
    half: float

    def shown(self, form: str, scale: float = 1.0) -> str:
        """Format the mean and, if it is known, half the width of the interval: "0.512 ± 0.021"."""
        half = f" ± {number(self.half, form, scale=scale)}" if math.isfinite(self.half) else ""
        return f"{number(self.mean, form, scale=scale)}{half}"

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 is outside of the interval."""
        return math.isfinite(self.half) and abs(self.mean) > self.half


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of values from different seeds, with its 95 % interval."""
    mean = statistics.fmean(values) if values else math.nan
    if len(values) < 2 or not math.isfinite(mean):
        return Interval(mean, math.nan)
    half = quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, half)


def by_selector(trials: Sequence[RunHistory]) -> dict[str, list[RunHistory]] | None:
    """Return the trials of each selector in the order of seeds; None if there are not several seeds.

    The result is None, too, if two trials of a selector have the same seed, a trial has no seed, or trials
    differ in their planned rounds.
    """
    found: dict[str, list[RunHistory]] = {}
    for trial in trials:
        found.setdefault(trial.label, []).append(trial)
    rounds = {trial.settings.get("num_rounds") for trial in trials}
    if len(rounds) != 1 or all(len(each) == 1 for each in found.values()):
        return None
    for each in found.values():
        seeds = [trial.settings.get("seed") for trial in each]
        if None in seeds or len(set(seeds)) < len(seeds):
            return None
        each.sort(key=lambda trial: int(trial.settings["seed"]))
    return found


def paired_verdict(groups: dict[str, list[RunHistory]]) -> list[str]:
    """Describe how each selector differs from the baseline, with a 95 % interval over the seeds.

    The baseline is that of `baseline_of`. A seed counts only if the trials of both have finished with it.
    """
    baseline = baseline_of(list(groups))
    base = {trial.settings["seed"]: summarise(trial) for trial in groups[baseline] if trial.finished}
    sentences = []
    for label, trials in groups.items():
        if label == baseline:
            continue
        pairs = [
            (summarise(trial), base[trial.settings["seed"]])
            for trial in trials
            if trial.finished and trial.settings["seed"] in base
        ]
        if len(pairs) < 2:
            sentences.append(f"{label}: too few seeds in which both have finished.")
            continue
        loss = interval([ours.test_loss - theirs.test_loss for ours, theirs in pairs])
        accuracy = interval([ours.test_accuracy - theirs.test_accuracy for ours, theirs in pairs])
        if not (math.isfinite(loss.half) and math.isfinite(accuracy.half)):
            sentences.append(f"{label}: no comparison, since a test loss was not finite.")
            continue
        shows = loss.excludes_zero or accuracy.excludes_zero
        begin = "" if shows else f"no difference that {len(pairs)} seeds can show: "
        sentences.append(
            f"{label}: {begin}test loss {loss.shown('+z.3f').replace('± +', '± ')}, accuracy "
            f"{accuracy.shown('+z.1f', 100).replace('± +', '± ')} points ({len(pairs)} seeds)."
        )
    if sentences:
        sentences.append(
            f"Differences from {baseline} between trials of the same seed, with 95 % intervals. With several "
            "selectors, one interval in twenty misses the truth by chance."
        )
    return sentences
