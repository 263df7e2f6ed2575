"""Compares trials of one seed: statistics of each trial, and its difference from uniform selection.

One seed cannot show that a selector is better: in half of the cases, two trials of uniform selection with
different random draws differ by more than the noise between rounds. So this module calls no selector better.
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

BASELINES = ("uniform", "md")
LAST = 5  # the number of last values of a metric that are averaged for its final value
NOISE_WINDOW = 10  # the number of last changes of a metric from which the noise is estimated
ONE_SEED = (
    "Other random draws alone can cause differences of this size; repeat with --seeds 1-5 before "
    "drawing a conclusion."
)


@dataclass(frozen=True)
class Summary:
    """Statistics of one trial. A number is NaN if the history has no finite value for it."""

    test_loss: float
    """Mean test loss of the last `LAST` evaluated rounds; NaN if one of these losses is not finite."""
    test_accuracy: float
    """Mean test accuracy of the last `LAST` evaluated rounds, from 0 to 1; NaN if one is not finite."""
    train_loss: float
    """Mean of the finite training losses of the last `LAST` rounds."""
    distinct: float
    """Mean number of distinct selected clients per round."""
    seconds: float
    """Mean duration of a round, s."""
    bytes: float
    """Mean number of bytes that a round sends and receives."""
    failures: int
    """Number of replies that were missing or unusable, in all rounds."""
    large_share: float
    """Share of all draws that selected one of the large clients (see `large_clients`), from 0 to 1."""


@dataclass(frozen=True)
class Difference:
    """The difference in one metric between a trial and the baseline, in their last evaluated rounds."""

    value: float
    """The trial's mean of the last `LAST` values, minus the baseline's mean."""
    noise: float
    """How much the metric changes between evaluations: the standard deviation of its last `NOISE_WINDOW`
    changes, in the trial or in the baseline, whichever is larger. A difference up to this size counts as
    noise. A larger difference may still be due to the seed."""

    @property
    def known(self) -> bool:
        """Whether `value` and `noise` are finite."""
        return math.isfinite(self.value) and math.isfinite(self.noise)

    @property
    def within_noise(self) -> bool:
        """Whether the difference is no larger than the noise."""
        return abs(self.value) <= self.noise


def large_clients(sizes: Sequence[float]) -> set[int]:
    """Return the indexes of the smallest set of clients that together hold at least half of all samples."""
    large: set[int] = set()
    held = 0.0
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if held >= sum(sizes) / 2:
            break
        large.add(index)
        held += sizes[index]
    return large


def summarise(trial: RunHistory) -> Summary:
    """Compute the statistics of a trial from its history."""
    rounds = trial.trained
    large = large_clients(trial.client_sizes)
    draws = [pair for line in rounds for pair in zip(line["clients"], line["counts"], strict=True)]
    drawn = sum(count for _, count in draws)
    return Summary(
        test_loss=_mean(_values(rounds, "test_loss")[-LAST:]),
        test_accuracy=_mean(_values(rounds, "test_accuracy")[-LAST:]),
        train_loss=_mean(_finite(_values(rounds, "train_loss")[-LAST:])),  # null in rounds without replies
        distinct=_mean([len(line["clients"]) for line in rounds]),
        seconds=_mean(_finite(_values(rounds, "seconds"))),
        bytes=sum(_mean(_finite(_values(rounds, f"bytes_{way}"))) for way in ("sent", "received")),
        failures=sum(len(line["failures"]) for line in rounds),
        large_share=sum(count for client, count in draws if client in large) / drawn if drawn else math.nan,
    )


def difference(trial: RunHistory, baseline: RunHistory, metric: str) -> Difference:
    """Compare the last values of a trial and of the baseline in `metric`: "test_loss" or "test_accuracy"."""
    ours, theirs = _values(trial.trained, metric), _values(baseline.trained, metric)
    return Difference(
        value=_mean(ours[-LAST:]) - _mean(theirs[-LAST:]),
        noise=float(np.max([_noise(ours), _noise(theirs)])),
    )


def area_ratio(trial: RunHistory, baseline: RunHistory) -> float:
    """Return the area under the trial's test-loss curve, divided by the area under the baseline's curve.

    The areas are sums of trapezoids. The ratio is NaN if the baseline's area is 0.
    """
    ours, theirs = (_area(_values(each.rounds, "test_loss")) for each in (trial, baseline))
    return ours / theirs if theirs else math.nan


def faults(trial: RunHistory) -> dict[str, dict[str, int]]:
    """Count for each client the rounds in which it failed, was clipped or was quarantined.

    Returns by client id: the number of rounds for each of "failed" (the client's reply was missing or
    unusable), "clipped" and "quarantined". The client with the largest sum of these numbers is first. Clients
    without such rounds are left out, and so are numbers that are 0.
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
    """Compare the selections of two trials, round by round.

    Returns the number of rounds in which both trials drew the same clients equally often, and the number of
    rounds that both trials have.
    """
    ours, theirs = ({line["round"]: _counts(line) for line in each.trained} for each in (trial, baseline))
    both = ours.keys() & theirs.keys()
    return sum(ours[round] == theirs[round] for round in both), len(both)


def baseline_of(labels: Sequence[str]) -> str:
    """Return the selector with which the others are compared: uniform or md if there, otherwise the first."""
    return next((name for name in BASELINES if name in labels), labels[0] if labels else "")


def verdict(trials: Sequence[RunHistory]) -> list[str]:
    """Describe how each trial differs from the baseline (`baseline_of`).

    Returns one sentence for each finished trial except the baseline, followed by a caveat. If no comparison
    is possible, one line with the reason. The list is empty if the baseline is not finished, or if no other
    trial is finished.
    """
    name = baseline_of([trial.label for trial in trials])
    baseline = next((trial for trial in trials if trial.label == name and trial.finished), None)
    others = [trial for trial in trials if trial is not baseline and trial.finished]
    if baseline is None or not others:
        return []
    if min(len(_values(trial.trained, "test_loss")) for trial in (baseline, *others)) <= NOISE_WINDOW:
        needed = f"more than {NOISE_WINDOW} evaluated rounds are needed"
        return [f"Too few rounds to tell a difference from noise: {needed}."]
    if not difference(baseline, baseline, "test_loss").known:
        return [_not_finite(baseline)]
    return [*(_sentence(trial, baseline) for trial in others), ONE_SEED]


def number(value: float | None, form: str, unit: str = "", *, scale: float = 1.0) -> str:
    """Format `scale` times a number of a history. A dash stands for a missing or non-finite number."""
    return "–" if value is None or not math.isfinite(value) else f"{scale * value:{form}}{unit}"


def duration(seconds: float | None, unit: str = "") -> str:
    """Format seconds with one decimal; below 1, 0.1 and 0.01 s with two, three and four decimals.

    Examples
    --------
    >>> duration(5.13, " s"), duration(0.0123), duration(None)
    ('5.1 s', '0.012', '–')
    """
    decimals = next((each for each in (1, 2, 3) if (seconds or 0) >= 10 ** (1 - each)), 4)
    return number(seconds, f".{decimals}f" if seconds else ".1f", unit)


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
    return (
        f"{trial.label}: {differs}; drew the same clients as {baseline.label} in {same} of {rounds} rounds."
    )


def _not_finite(trial: RunHistory) -> str:
    return f"{trial.label}: no comparison, since its test loss or accuracy was not finite."


def _counts(line: Line) -> dict[str, int]:
    return dict(zip(line["client_ids"], line["counts"], strict=True))


def _values(rounds: Sequence[Line], key: str) -> list[float]:
    """Return the values of the rounds that have this key. A null stands for a number that is not finite."""
    return [math.nan if line[key] is None else float(line[key]) for line in rounds if key in line]


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _noise(values: Sequence[float]) -> float:
    changes = [later - earlier for earlier, later in pairwise(values[-NOISE_WINDOW - 1 :])]
    return statistics.stdev(changes) if len(changes) > 1 and all(map(math.isfinite, changes)) else math.nan


def _area(values: Sequence[float]) -> float:
    return sum((a + b) / 2 for a, b in pairwise(values))
