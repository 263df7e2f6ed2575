"""What selection brought: the trials of a run compared, and said no louder than one seed allows.

One run of each trial cannot show that one is better: uniform selection against itself, with other draws,
differs by more than the noise from round to round in half of the cases. So nothing here says so.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.runs.history import Line, TrialHistory

BASELINE = "uniform"
LAST = 5  # rounds over which final values are averaged
NOISE_WINDOW = 10  # rounds whose changes make the noise
ONE_SEED = (
    "The draws of one seed alone make differences of this size; repeat with other values of --seed before "
    "believing one."
)


@dataclass(frozen=True)
class Summary:
    """One trial in numbers. NaN where the history does not say, or says that it was not finite."""

    test_loss: float
    """Mean of the last rounds (see `LAST`)."""
    test_accuracy: float
    """Mean of the last rounds, from 0 to 1."""
    train_loss: float
    """Mean of the last rounds."""
    distinct: float
    """Mean number of distinct clients a round."""
    seconds: float
    """Mean seconds a round."""
    failures: int
    """Replies that were missing or of no use."""
    large_share: float
    """Share of all draws that went to the large clients (see `large_clients`)."""


@dataclass(frozen=True)
class Difference:
    """How far an trial ended from the baseline, in one metric."""

    value: float
    """Trial minus baseline, means of the last rounds."""
    noise: float
    """Standard deviation of the changes from one round to the next, over the last rounds (see
    `NOISE_WINDOW`), of the noisier one. A smaller difference could not be seen in this run; whether a larger
    one would come again, only other seeds can tell."""

    @property
    def known(self) -> bool:
        """Whether there are numbers to compare."""
        return math.isfinite(self.value) and math.isfinite(self.noise)

    @property
    def within_noise(self) -> bool:
        """Whether this run could not show it."""
        return abs(self.value) <= self.noise


def large_clients(sizes: Sequence[float]) -> set[int]:
    """Return the indexes of the fewest clients that together hold half of all samples."""
    chosen: set[int] = set()
    held = 0.0
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if held >= sum(sizes) / 2:
            break
        chosen.add(index)
        held += sizes[index]
    return chosen


def summarise(trial: TrialHistory) -> Summary:
    """Put an trial into numbers."""
    rounds = trial.trained
    large = large_clients(trial.client_sizes)
    draws = [pair for line in rounds for pair in zip(line["clients"], line["counts"], strict=True)]
    return Summary(
        test_loss=_mean(_values(rounds, "test_loss")[-LAST:]),
        test_accuracy=_mean(_values(rounds, "test_accuracy")[-LAST:]),
        train_loss=_mean(_finite(_values(rounds, "train_loss")[-LAST:])),  # null too where nobody answered
        distinct=_mean([len(line["clients"]) for line in rounds]),
        seconds=_mean(_finite(_values(rounds, "seconds"))),
        failures=sum(len(line["failures"]) for line in rounds),
        large_share=_mean([float(client in large) for client, count in draws for _ in range(count)]),
    )


def difference(trial: TrialHistory, baseline: TrialHistory, metric: str) -> Difference:
    """Compare the ends of two trials in `test_loss` or `test_accuracy`."""
    ours, theirs = _values(trial.trained, metric), _values(baseline.trained, metric)
    return Difference(
        value=_mean(ours[-LAST:]) - _mean(theirs[-LAST:]),
        noise=float(np.max([_noise(ours), _noise(theirs)])),
    )


def area_ratio(trial: TrialHistory, baseline: TrialHistory) -> float:
    """Return the area under the trial's test-loss curve (trapezoids, rounds 0 to n) over the baseline's."""
    ours, theirs = (_area(_values(each.rounds, "test_loss")) for each in (trial, baseline))
    return ours / theirs if theirs else math.nan


def faults(trial: TrialHistory) -> dict[str, dict[str, int]]:
    """Count for each client with faults how often what befell it, who has most first.

    Returns
    -------
    dict of str to dict
        "left out" (its reply was missing or of no use), "bounded" and "put aside", in rounds.
    """
    counts: dict[str, dict[str, int]] = {}
    for line in trial.trained:
        befell = {
            "left out": [each["client"] for each in line["failures"]],
            "clipped": [each["client"] for each in line.get("clipped", ())],
            "put aside": line.get("quarantined", ()),
        }
        for what, clients in befell.items():
            for client in clients:
                of = counts.setdefault(client, {})
                of[what] = of.get(what, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-sum(item[1].values()), item[0])))


def same_cohorts(trial: TrialHistory, baseline: TrialHistory) -> tuple[int, int]:
    """Return in how many rounds both drew the same clients, each as often, and how many rounds both have."""
    ours, theirs = ({line["round"]: _cohort(line) for line in each.trained} for each in (trial, baseline))
    both = ours.keys() & theirs.keys()
    return sum(ours[round] == theirs[round] for round in both), len(both)


def verdict(trials: Sequence[TrialHistory]) -> list[str]:
    """Say in plain sentences how each trial differs from uniform selection.

    Returns
    -------
    list[str]
        A sentence for each trial that finished, and what to make of them, or why there is none; empty if there
        is nothing to compare.
    """
    if len(trials) > 1 and all(trial.label != BASELINE for trial in trials):
        return [f"To tell, train {BASELINE} as well (--selector {BASELINE})."]
    baseline = next((trial for trial in trials if trial.label == BASELINE and trial.finished), None)
    others = [trial for trial in trials if trial is not baseline and trial.finished]
    if baseline is None or not others:
        return []
    if min(len(trial.trained) for trial in (baseline, *others)) <= NOISE_WINDOW:
        return [f"Too few rounds to tell a difference from noise: more than {NOISE_WINDOW} are needed."]
    if not difference(baseline, baseline, "test_loss").known:
        return [_not_finite(baseline)]
    return [*(_sentence(trial, baseline) for trial in others), ONE_SEED]


def number(value: float | None, form: str, unit: str = "", *, scale: float = 1.0) -> str:
    """Format a number from a history; a dash stands for what is unknown or was not finite (None, NaN)."""
    return "–" if value is None or not math.isfinite(value) else f"{scale * value:{form}}{unit}"


def _sentence(trial: TrialHistory, baseline: TrialHistory) -> str:
    loss = difference(trial, baseline, "test_loss")
    accuracy = difference(trial, baseline, "test_accuracy")
    if not (loss.known and accuracy.known):
        return _not_finite(trial)
    others = (
        f"accuracy {number(accuracy.value, '+z.1f', ' points', scale=100)}, "
        f"area under the loss curve {number(area_ratio(trial, baseline) - 1, '+z.0f', ' %', scale=100)}"
    )
    if loss.within_noise and accuracy.within_noise:
        differs = f"no difference that this run could show (test loss {loss.value:+z.3f}, {others})"
    elif loss.value:
        differs = f"{'lower' if loss.value < 0 else 'higher'} test loss by {abs(loss.value):.3f}, {others}"
    else:
        differs = f"the same test loss, {others}"
    same, rounds = same_cohorts(trial, baseline)
    return f"{trial.label}: {differs}; drew the same clients as {BASELINE} in {same} of {rounds} rounds."


def _not_finite(trial: TrialHistory) -> str:
    return f"{trial.label}: nothing to compare: its test loss was not finite."


def _cohort(line: Line) -> dict[str, int]:
    return dict(zip(line["client_ids"], line["counts"], strict=True))


def _values(rounds: Sequence[Line], key: str) -> list[float]:
    return [math.nan if line.get(key) is None else float(line[key]) for line in rounds]


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _noise(values: Sequence[float]) -> float:
    changes = [later - earlier for earlier, later in pairwise(values[-NOISE_WINDOW - 1 :])]
    return statistics.stdev(changes) if len(changes) > 1 and all(map(math.isfinite, changes)) else math.nan


def _area(values: Sequence[float]) -> float:
    return sum((a + b) / 2 for a, b in pairwise(values))
