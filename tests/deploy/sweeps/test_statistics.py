"""Paired tests and Holm's correction, by examples computed by hand."""

import math

import pytest

from deploy.sweeps.statistics import Result, cells, holm, paired_p, paired_tests


def result(selector, seed, accuracy, case="", loss=1.0):
    return Result(selector, case, {}, seed, {"accuracy": accuracy, "loss": loss})


def test_holm_by_hand():
    # Sorted: .01 x 4 = .04, .02 x 3 = .06, .03 x 2 = .06, .9 x 1 = .9; each at least as large as the last.
    assert holm([0.03, 0.01, 0.9, 0.02]) == pytest.approx([0.06, 0.04, 0.9, 0.06])
    assert holm([0.4, 0.5]) == pytest.approx([0.8, 0.8])  # .4 x 2 = .8; .5 x 1 = .5, raised to .8
    assert holm([0.7, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_missing_test_does_not_count_in_holms_correction():
    corrected = holm([0.01, math.nan, 0.2])
    assert corrected[0] == pytest.approx(0.02)
    assert math.isnan(corrected[1])
    assert corrected[2] == pytest.approx(0.2)


def test_a_paired_test_by_hand():
    # Differences 1, 2, 3: mean 2, deviation 1, t = 2 sqrt(3) = 3.4641 with 2 degrees of freedom. Then
    # p = 1 - t / sqrt(2 + t^2) = 1 - 3.4641 / sqrt(14) = 0.07418.
    assert paired_p([1.0, 2.0, 3.0]) == pytest.approx(1 - 2 * math.sqrt(3) / math.sqrt(14))
    assert paired_p([-1.0, -2.0, -3.0]) == paired_p([1.0, 2.0, 3.0])
    assert paired_p([0.0, 0.0]) == 1
    assert paired_p([0.5, 0.5]) == 0
    assert math.isnan(paired_p([1.0]))
    assert math.isnan(paired_p([1.0, math.nan]))


def test_only_trials_of_the_same_settings_and_seed_are_compared():
    results = [
        *(result("a", seed, 0.5 + seed / 100) for seed in (1, 2, 3)),
        *(result("b", seed, 0.6 + seed / 100 + shift) for seed, shift in ((1, 0), (2, 0.01), (9, 0))),
        result("b", 1, 0.0, case="other"),
    ]
    accuracy = [each for each in paired_tests(results) if each.metric == "accuracy"]
    assert [(each.case, each.selector, each.other, each.pairs) for each in accuracy] == [
        ("", "b", "a", 2),
        ("other", "b", "a", 0),
    ]
    assert accuracy[0].difference.mean == pytest.approx(0.105)
    assert accuracy[0].corrected == accuracy[0].p  # one test only: the other has no pairs
    assert accuracy[1].verdict == "not shown"


def test_a_baseline_reduces_the_number_of_tests():
    # Differences from c vary a little over the seeds, so each test is possible.
    results = [
        result(name, seed, base + seed / 100 + seed**2 / factor)
        for name, base, factor in (("a", 0.2, 700), ("b", 0.4, 900), ("c", 0.6, 1100))
        for seed in (1, 2, 3)
    ]
    against_c = [each for each in paired_tests(results, "c") if each.metric == "accuracy"]
    assert [(each.selector, each.other, each.verdict) for each in against_c] == [
        ("a", "c", "lower"),
        ("b", "c", "lower"),
    ]
    assert against_c[0].corrected == pytest.approx(max(holm([each.p for each in against_c])[0], 0))
    assert len([each for each in paired_tests(results) if each.metric == "accuracy"]) == 3


def test_a_trial_whose_loss_is_not_finite_has_no_interval():
    (cell,) = cells([result("a", 1, 0.5), result("a", 2, None)])
    assert math.isnan(cell.accuracy.mean)
    assert cell.seeds == [1, 2]
