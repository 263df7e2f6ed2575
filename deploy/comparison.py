"""What selection brought: the arms of a run compared, and said no louder than one seed allows."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.history import ArmHistory, Line

BASELINE = "uniform"
LAST = 5  # rounds over which final values are averaged
NOISE_WINDOW = 10  # rounds whose changes make the noise
RULE = (
    f"A difference shows if the means of the last {LAST} rounds lie further apart than the round-to-round "
    "noise: the standard deviation of the changes from one round to the next, over the last "
    f"{NOISE_WINDOW} rounds, of the noisier one."
)
ONE_SEED = "One seed is one seed: repeat with other values of --seed before you believe a difference."


@dataclass(frozen=True)
class Summary:
    """One arm in numbers. NaN where the history does not say."""

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
    """How far an arm ended from the baseline, in one metric."""

    value: float
    """Arm minus baseline, means of the last rounds."""
    noise: float
    """The round-to-round noise (see `RULE`)."""

    @property
    def shows(self) -> bool:
        """Whether it is more than noise."""
        return abs(self.value) > self.noise


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


def summarise(arm: ArmHistory) -> Summary:
    """Put an arm into numbers."""
    rounds = arm.trained
    large = large_clients(arm.client_sizes)
    draws = [pair for line in rounds for pair in zip(line["clients"], line["counts"], strict=True)]
    return Summary(
        test_loss=_mean(_values(rounds, "test_loss")[-LAST:]),
        test_accuracy=_mean(_values(rounds, "test_accuracy")[-LAST:]),
        train_loss=_mean(_values(rounds, "train_loss")[-LAST:]),
        distinct=_mean([len(line["clients"]) for line in rounds]),
        seconds=_mean(_values(rounds, "seconds")),
        failures=sum(len(line["failures"]) for line in rounds),
        large_share=_mean([float(client in large) for client, count in draws for _ in range(count)]),
    )


def difference(arm: ArmHistory, baseline: ArmHistory, metric: str) -> Difference:
    """Compare the ends of two arms in `test_loss` or `test_accuracy`."""
    ours, theirs = _values(arm.trained, metric), _values(baseline.trained, metric)
    return Difference(
        value=_mean(ours[-LAST:]) - _mean(theirs[-LAST:]), noise=max(_noise(ours), _noise(theirs))
    )


def area_ratio(arm: ArmHistory, baseline: ArmHistory) -> float:
    """Return the area under the arm's test-loss curve (trapezoids, rounds 0 to n) over the baseline's."""
    ours, theirs = (_area(_values(each.rounds, "test_loss")) for each in (arm, baseline))
    return ours / theirs if theirs else math.nan


def verdict(arms: Sequence[ArmHistory]) -> list[str]:
    """Say in plain sentences what each selector brought relative to uniform selection.

    Returns
    -------
    list[str]
        A sentence for each arm that can be compared, and the rule by which they were judged; empty
        if there is nothing to compare.
    """
    baseline = next((arm for arm in arms if arm.label == BASELINE and arm.finished), None)
    others = [arm for arm in arms if arm is not baseline and arm.finished]
    if baseline is None or not others:
        return []
    if min(len(arm.trained) for arm in (baseline, *others)) <= NOISE_WINDOW:
        return [f"Too few rounds to tell a difference from noise: more than {NOISE_WINDOW} are needed."]
    return [*(_sentence(arm, baseline) for arm in others), RULE, ONE_SEED]


def _sentence(arm: ArmHistory, baseline: ArmHistory) -> str:
    loss = difference(arm, baseline, "test_loss")
    accuracy = difference(arm, baseline, "test_accuracy")
    area = 100 * (area_ratio(arm, baseline) - 1)
    numbers = (
        f"test loss {loss.value:+.3f} (noise {loss.noise:.3f}), accuracy {100 * accuracy.value:+.1f} points "
        f"(noise {100 * accuracy.noise:.1f}), area under the loss curve {area:+.0f} %"
    )
    better = [d.value < 0 if d is loss else d.value > 0 for d in (loss, accuracy) if d.shows]
    if not better:
        brought = "nothing that one seed could show"
    elif all(better):
        brought = "better than uniform"
    elif not any(better):
        brought = "worse than uniform"
    else:
        brought = "better in one metric and worse in the other"
    return f"{arm.label}: {brought}; {numbers}."


def _values(rounds: Sequence[Line], key: str) -> list[float]:
    return [float(line[key]) for line in rounds if line.get(key) is not None]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _noise(values: Sequence[float]) -> float:
    last = values[-NOISE_WINDOW - 1 :]
    return statistics.stdev(later - earlier for earlier, later in pairwise(last))


def _area(values: Sequence[float]) -> float:
    return sum((a + b) / 2 for a, b in pairwise(values))
