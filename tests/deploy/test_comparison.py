"""The numbers of the summary, worked out by hand, and a verdict that does not boast."""

import math
from pathlib import Path

import pytest

from deploy.comparison import ONE_SEED, RULE, area_ratio, difference, large_clients, summarise, verdict

from .histories import write_history

FALLING = [2.0 - 0.1 * k for k in range(13)]  # 12 rounds, without any noise


def test_the_large_clients_are_the_fewest_that_hold_half_of_the_samples() -> None:
    assert large_clients([10, 20, 30, 60]) == {3}
    assert large_clients([10, 20, 30, 59]) == {3, 2}
    assert large_clients([5, 5, 5]) == {0, 1}
    assert large_clients([]) == set()


def test_summary_in_numbers(tmp_path: Path) -> None:
    history = write_history(tmp_path / "a", [2.0, 1.5, 1.0], clients=[[0, 3], [3]])
    summary = summarise(history)
    assert summary.test_loss == pytest.approx(1.25)
    assert summary.test_accuracy == pytest.approx(0.875)
    assert summary.train_loss == pytest.approx(1.35)
    assert summary.distinct == 1.5
    assert summary.seconds == 2.0
    assert summary.failures == 1
    assert summary.large_share == pytest.approx(3 / 5)  # draws: 0, 0, 3, then 3, 3


def test_an_arm_without_rounds_has_no_numbers(tmp_path: Path) -> None:
    summary = summarise(write_history(tmp_path / "a", [2.0], end=False))
    assert math.isnan(summary.test_loss)
    assert summary.failures == 0


def test_area_under_the_loss_curve(tmp_path: Path) -> None:
    baseline = write_history(tmp_path / "a", [2.0, 1.0, 1.0])  # 1.5 + 1
    arm = write_history(tmp_path / "b", [2.0, 0.5, 0.5])  # 1.25 + 0.5
    assert area_ratio(arm, baseline) == pytest.approx(1.75 / 2.5)


def test_a_steady_fall_is_not_noise_and_a_zigzag_is(tmp_path: Path) -> None:
    steady = write_history(tmp_path / "a", FALLING)
    zigzag = write_history(tmp_path / "b", [x + 0.2 * (-1) ** k for k, x in enumerate(FALLING)])
    assert difference(steady, steady, "test_loss").noise == pytest.approx(0, abs=1e-12)
    # The changes alternate between +0.3 and -0.5, five of each: sample deviation 0.4 * sqrt(10 / 9).
    assert difference(steady, zigzag, "test_loss").noise == pytest.approx(0.4 * math.sqrt(10 / 9))


@pytest.mark.parametrize(
    ("shift", "words"),
    [(-0.05, "better than uniform"), (0.05, "worse than uniform")],
)
def test_a_difference_beyond_the_noise_is_said(tmp_path: Path, shift: float, words: str) -> None:
    arms = [
        write_history(tmp_path / "a", FALLING),
        write_history(tmp_path / "b", [x + shift for x in FALLING], "md"),
    ]
    sentence, *rest = verdict(arms)
    assert sentence.startswith(f"md: {words}; test loss {shift:+.3f} (noise 0.000)")
    assert rest == [RULE, ONE_SEED]


def test_a_difference_within_the_noise_is_nothing(tmp_path: Path) -> None:
    zigzag = [x + 0.2 * (-1) ** k for k, x in enumerate(FALLING)]
    arms = [
        write_history(tmp_path / "a", zigzag),
        write_history(tmp_path / "b", [x - 0.05 for x in zigzag], "md"),
    ]
    assert verdict(arms)[0].startswith("md: nothing that one seed could show; test loss -0.050")


def test_no_verdict_without_a_baseline_or_from_few_rounds_or_an_unfinished_arm(tmp_path: Path) -> None:
    uniform = write_history(tmp_path / "a", FALLING)
    md = write_history(tmp_path / "b", FALLING, "md")
    unfinished = write_history(tmp_path / "c", FALLING, "md", end=False)
    assert verdict([md, md]) == []
    assert verdict([uniform]) == []
    assert verdict([uniform, unfinished]) == []
    short = [write_history(tmp_path / name, FALLING[:11], name) for name in ("uniform", "md")]
    assert verdict(short) == ["Too few rounds to tell a difference from noise: more than 10 are needed."]
