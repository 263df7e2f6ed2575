"""The numbers of the summary, computed by hand; sentences that claim no more than one seed supports."""

import math

import numpy as np
import pytest

from deploy.runs.trial_statistics import (
    ONE_SEED,
    area_ratio,
    baseline_of,
    difference,
    faults,
    large_clients,
    number,
    same_selections,
    summarise,
    verdict,
)
from server.history import RunHistory

from ...support.histories import write_history

FALLING = [2.0 - 0.1 * k for k in range(13)]  # 12 rounds, without any noise


def test_the_large_clients_are_the_fewest_that_hold_half_of_the_samples():
    assert large_clients([10, 20, 30, 60]) == {3}
    assert large_clients([10, 20, 30, 59]) == {3, 2}
    assert large_clients([5, 5, 5]) == {0, 1}
    assert large_clients([]) == set()


def test_summary_in_numbers(tmp_path):
    history = write_history(tmp_path / "a", [2.0, 1.5, 1.0], clients=[[0, 3], [3]])
    summary = summarise(history)
    assert summary.test_loss == pytest.approx(1.25)
    assert summary.test_accuracy == pytest.approx(0.875)
    assert summary.train_loss == pytest.approx(1.35)
    assert summary.distinct == 1.5
    assert summary.seconds == 2.0
    assert summary.failures == 1
    assert summary.large_share == pytest.approx(3 / 5)  # draws: 0, 0, 3, then 3, 3


def test_a_trial_without_rounds_has_no_numbers(tmp_path):
    summary = summarise(write_history(tmp_path / "a", [2.0], end=False))
    assert math.isnan(summary.test_loss)
    assert summary.failures == 0


def test_area_under_the_loss_curve(tmp_path):
    baseline = write_history(tmp_path / "a", [2.0, 1.0, 1.0])  # 1.5 + 1
    trial = write_history(tmp_path / "b", [2.0, 0.5, 0.5])  # 1.25 + 0.5
    assert area_ratio(trial, baseline) == pytest.approx(1.75 / 2.5)


def test_a_steady_fall_is_not_noise_and_a_zigzag_is(tmp_path):
    steady = write_history(tmp_path / "a", FALLING)
    zigzag = write_history(tmp_path / "b", [x + 0.2 * (-1) ** k for k, x in enumerate(FALLING)])
    assert difference(steady, steady, "test_loss").noise == pytest.approx(0, abs=1e-12)
    # The changes alternate between +0.3 and -0.5, five of each: sample deviation 0.4 * sqrt(10 / 9).
    assert difference(steady, zigzag, "test_loss").noise == pytest.approx(0.4 * math.sqrt(10 / 9))


@pytest.mark.parametrize(("shift", "words"), [(-0.05, "lower"), (0.05, "higher")])
def test_a_difference_beyond_the_noise_is_stated_without_judgement(tmp_path, shift, words):
    trials = [
        write_history(tmp_path / "a", FALLING),
        write_history(tmp_path / "b", [x + shift for x in FALLING], "md", clients=[[0, 3]] * 9 + [[1]] * 3),
    ]
    area = 100 * (area_ratio(trials[1], trials[0]) - 1)
    assert verdict(trials) == [
        f"md: {words} test loss by 0.050, accuracy {-10 * shift:+.1f} points, area under the loss curve "
        f"{area:+.0f} %; drew the same clients as uniform in 9 of 12 rounds.",
        ONE_SEED,
    ]


def test_an_accuracy_beyond_the_noise_is_a_difference_too(tmp_path):
    zigzag = [x + 0.2 * (-1) ** k for k, x in enumerate(FALLING)]
    trials = [write_history(tmp_path / "a", zigzag), write_history(tmp_path / "b", zigzag, "md")]
    for line in trials[1].trained:
        line["test_accuracy"] += 0.1
    assert verdict(trials)[0].startswith("md: the same test loss, accuracy +10.0 points, area")


def test_differences_within_the_noise_are_not_stated(tmp_path):
    zigzag = [x + 0.2 * (-1) ** k for k, x in enumerate(FALLING)]
    trials = [
        write_history(tmp_path / "a", zigzag),
        write_history(tmp_path / "b", [x - 0.05 for x in zigzag], "md"),
    ]
    assert verdict(trials) == [
        "md: no difference that this run can show (test loss -0.050, accuracy +0.5 points, area under the "
        "loss curve -4 %); drew the same clients as uniform in 12 of 12 rounds.",
        ONE_SEED,
    ]


def test_one_seed_never_makes_a_trial_better_or_worse(tmp_path):
    """Uniform against uniform with other draws: the noise within a run says nothing about other runs."""
    rng = np.random.default_rng(0)
    for trial in range(20):
        trials = [
            write_history(tmp_path / f"{trial}-{name}", FALLING + rng.normal(0, 0.3) * np.arange(13), name)
            for name in ("uniform", "md")
        ]
        text = " ".join(verdict(trials))
        assert "better" not in text
        assert "worse" not in text
        assert text.endswith(ONE_SEED)


def test_selections_are_compared_by_id_and_count_in_any_order(tmp_path):
    uniform = write_history(tmp_path / "a", [2.0] * 5, clients=[[0, 1], [0, 1], [0, 1], [0, 1]])
    other = write_history(tmp_path / "b", [2.0] * 5, clients=[[0, 1], [0, 2], [1, 0], [0, 1]])
    third, last = other.trained[2:]
    third["counts"] = [1, 2]  # client-00 twice again, only named second
    last["clients"] = [7, 8]  # indexes are a trial's own
    assert same_selections(other, uniform) == (3, 4)


def test_a_loss_that_is_not_finite_does_not_affect_the_other_trials(tmp_path):
    diverging = [*FALLING[:9], None, None, None, None]
    trials = [
        write_history(tmp_path / "a", FALLING),
        write_history(tmp_path / "b", diverging, "osmd"),
        write_history(tmp_path / "c", FALLING, "md"),
    ]
    assert math.isnan(summarise(trials[1]).test_loss)
    assert math.isnan(area_ratio(trials[1], trials[0]))
    first, second, last = verdict(trials)
    assert first == "osmd: no comparison, since its test loss or accuracy was not finite."
    assert second.startswith("md: no difference that this run can show (test loss +0.000, ")
    assert last == ONE_SEED
    trials[0].rounds[-1]["test_loss"] = None
    assert verdict(trials) == ["uniform: no comparison, since its test loss or accuracy was not finite."]


def test_a_tiny_difference_has_no_minus_sign(tmp_path):
    trials = [
        write_history(tmp_path / "a", FALLING),
        write_history(tmp_path / "b", [x - 1e-5 for x in FALLING], "md"),
    ]
    assert "-0" not in verdict(trials)[0]


def test_noise_needs_two_changes(tmp_path):
    trial = write_history(tmp_path / "a", [2.0, 1.0, 0.5])
    assert math.isnan(difference(trial, trial, "test_loss").noise)


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_missing_or_non_finite_number_is_a_dash(value):
    assert number(value, ".1f", " %", scale=100) == "–"
    assert number(0.5, ".1f", " %", scale=100) == "50.0 %"


def test_the_baseline_is_uniform_or_md_or_else_the_first(tmp_path):
    assert baseline_of(["forecast", "md", "uniform"]) == "uniform"
    assert baseline_of(["forecast", "md"]) == "md"
    assert baseline_of(["forecast", "osmd"]) == "forecast"
    two = [write_history(tmp_path / name, FALLING, name) for name in ("forecast", "md")]
    assert verdict(two)[0].startswith("forecast: ")
    assert "the same clients as md in" in verdict(two)[0]


def test_no_verdict_from_few_rounds_or_an_unfinished_trial(tmp_path):
    uniform = write_history(tmp_path / "a", FALLING)
    md = write_history(tmp_path / "b", FALLING, "md")
    unfinished = write_history(tmp_path / "c", FALLING, "md", end=False)
    assert verdict([md]) == []
    assert verdict([uniform]) == []
    assert verdict([uniform, unfinished]) == []
    short = [write_history(tmp_path / name, FALLING[:11], name) for name in ("uniform", "md")]
    [reason] = verdict(short)
    assert reason.endswith("a difference from noise: more than 10 evaluated rounds are needed.")


def test_clients_with_most_faults_come_first(tmp_path):
    trial = RunHistory(tmp_path / "history.jsonl")
    for round, failed in enumerate(["a", "a", "b", "a"], start=1):
        line = {"round": round, "failures": [{"client": failed, "reason": "late"}]}
        trial.rounds.append(
            line | {"clipped": [{"client": "c", "reason": "norm"}] * (round == 2), "quarantined": ["b"]}
        )
    assert faults(trial) == {"b": {"failed": 1, "quarantined": 4}, "a": {"failed": 3}, "c": {"clipped": 1}}
