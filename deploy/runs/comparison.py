"""Comparing the trials of a run, without claiming more than one seed supports.

One run of each trial cannot show that a selector is better: two runs of uniform selection with different
draws differ by more than the round-to-round noise in half of the cases. The text here never claims it.
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

    from server.history import Line, RunHistory

BASELINE = "uniform"
LAST = 5  # rounds over which final values are averaged
NOISE_WINDOW = 10  # rounds over which the noise is estimated
ONE_SEED = (
    "Other random draws alone can cause differences of this size; repeat with other values of --seed before "
    "drawing a conclusion."
)


@dataclass(frozen=True)
class Summary:
    """One trial in numbers; NaN where the history has no value or no finite value."""

    test_loss: float
    """Mean of the last rounds (see `LAST`)."""
    test_accuracy: float
    """Mean of the last rounds, from 0 to 1."""
    train_loss: float
    """Mean of the last rounds."""
    distinct: float
    """Mean number of distinct clients per round."""
    seconds: float
    """Mean seconds per round."""
    failures: int
    """Replies that were missing or unusable."""
    large_share: float
    """Share of all draws that went to the large clients (see `large_clients`)."""


@dataclass(frozen=True)
class Difference:
    """The difference between the last rounds of a trial and of the baseline, in one metric."""

    value: float
    """Trial minus baseline, means of the last rounds."""
    noise: float
    """Standard deviation of the changes from one round to the next over the last rounds (see
    `NOISE_WINDOW`), of the noisier of the two. A run cannot show a smaller difference; only other seeds can
    tell whether a larger one is reproducible."""

    @property
    def known(self) -> bool:
        """Whether both numbers are finite."""
        return math.isfinite(self.value) and math.isfinite(self.noise)

    @property
    def within_noise(self) -> bool:
        """Whether the difference is too small for this run to show."""
        return abs(self.value) <= self.noise


def large_clients(sizes: Sequence[float]) -> set[int]:
    """Return the indexes of the fewest clients that together hold half of all samples."""
    large: set[int] = set()
    held = 0.0
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if held >= sum(sizes) / 2:
            break
        large.add(index)
        held += sizes[index]
    return large


def summarise(trial: RunHistory) -> Summary:
    """Return the summary of a trial."""
    rounds = trial.trained
    large = large_clients(trial.client_sizes)
    draws = [pair for line in rounds for pair in zip(line["clients"], line["counts"], strict=True)]
    return Summary(
        test_loss=_mean(_values(rounds, "test_loss")[-LAST:]),
        test_accuracy=_mean(_values(rounds, "test_accuracy")[-LAST:]),
        train_loss=_mean(_finite(_values(rounds, "train_loss")[-LAST:])),  # null if nobody replied
        distinct=_mean([len(line["clients"]) for line in rounds]),
        seconds=_mean(_finite(_values(rounds, "seconds"))),
        failures=sum(len(line["failures"]) for line in rounds),
        large_share=_mean([float(client in large) for client, count in draws for _ in range(count)]),
    )


def difference(trial: RunHistory, baseline: RunHistory, metric: str) -> Difference:
    """Compare the ends of two trials in `test_loss` or `test_accuracy`."""
    ours, theirs = _values(trial.trained, metric), _values(baseline.trained, metric)
    return Difference(
        value=_mean(ours[-LAST:]) - _mean(theirs[-LAST:]),
        noise=float(np.max([_noise(ours), _noise(theirs)])),
    )


def area_ratio(trial: RunHistory, baseline: RunHistory) -> float:
    """Return the area under the trial's test-loss curve (trapezoids, rounds 0 to n) over the baseline's."""
    ours, theirs = (_area(_values(each.rounds, "test_loss")) for each in (trial, baseline))
    return ours / theirs if theirs else math.nan


def faults(trial: RunHistory) -> dict[str, dict[str, int]]:
    """Count the rounds in which each client failed, was clipped or was quarantined, the largest sum first.

    Returns
    -------
    dict of str to dict
        By client: the numbers of rounds with "failed" (its reply was missing or unusable), "clipped" and
        "quarantined"; clients without any are left out.
    """
    counts: dict[str, dict[str, int]] = {}
    for line in trial.trained:
        affected = {
            "failed": [each["client"] for each in line["failures"]],
            "clipped": [each["client"] for each in line.get("clipped", ())],
            "quarantined": line.get("quarantined", ()),
        }
        for fault, clients in affected.items():
            for client in clients:
                of_client = counts.setdefault(client, {})
                of_client[fault] = of_client.get(fault, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-sum(item[1].values()), item[0])))


def same_selections(trial: RunHistory, baseline: RunHistory) -> tuple[int, int]:
    """Return in how many rounds both drew the same clients equally often, and how many rounds both have."""
    ours, theirs = ({line["round"]: _counts(line) for line in each.trained} for each in (trial, baseline))
    both = ours.keys() & theirs.keys()
    return sum(ours[round] == theirs[round] for round in both), len(both)


def verdict(trials: Sequence[RunHistory]) -> list[str]:
    """Describe how each trial differs from uniform selection.

    Returns
    -------
    list[str]
        A sentence for each finished trial, then a caveat; or why there is no comparison. Empty if there is
        nothing to compare.
    """
    if len(trials) > 1 and all(trial.label != BASELINE for trial in trials):
        return [f"For a comparison, train {BASELINE} as well (--selector {BASELINE})."]
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
    """Format a number of a history; a missing or non-finite one (None, NaN) is shown as a dash."""
    return "–" if value is None or not math.isfinite(value) else f"{scale * value:{form}}{unit}"


def _sentence(trial: RunHistory, baseline: RunHistory) -> str:
    loss = difference(trial, baseline, "test_loss")
    accuracy = difference(trial, baseline, "test_accuracy")
    if not (loss.known and accuracy.known):
        return _not_finite(trial)
    others = (
        f"accuracy {number(accuracy.value, '+z.1f', ' points', scale=100)}, "
        f"area under the loss curve {number(area_ratio(trial, baseline) - 1, '+z.0f', ' %', scale=100)}"
    )
    if loss.within_noise and accuracy.within_noise:
        differs = f"no difference that this run can show (test loss {loss.value:+z.3f}, {others})"
    elif loss.value:
        differs = f"{'lower' if loss.value < 0 else 'higher'} test loss by {abs(loss.value):.3f}, {others}"
    else:
        differs = f"the same test loss, {others}"
    same, rounds = same_selections(trial, baseline)
    return f"{trial.label}: {differs}; drew the same clients as {BASELINE} in {same} of {rounds} rounds."


def _not_finite(trial: RunHistory) -> str:
    return f"{trial.label}: no comparison, since its test loss was not finite."


def _counts(line: Line) -> dict[str, int]:
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
