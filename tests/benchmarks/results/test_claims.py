"""Claims: effects, intervals, Holm's correction, verdicts."""

import math

import pytest

from benchmarks.experiments import EXPERIMENTS
from benchmarks.results.claims import Claim, judge, read_claims
from benchmarks.results.files import Recorded, read


def result(**rows):
    """Return results with one row for each name, and the column "loss"."""
    seeds = list(range(len(next(iter(rows.values())))))
    cells = {row: {"loss": list(values)} for row, values in rows.items()}
    return Recorded("toy", "", "", "", "", "", {}, seeds, [1.0 for _ in seeds], cells)


def claim(**changes):
    settings = {"group": "g", "text": "t", "experiment": "toy", "cell": ("a", "loss"), "other": ("b", "loss")}
    return Claim(**{**settings, **changes})


def test_a_ratio_is_a_geometric_mean_with_students_interval():
    (found,) = judge([claim()], {"toy": result(a=[1.0, 2.0, 4.0], b=[2.0, 8.0, 4.0])})
    # The logarithms are -log 2, -2 log 2, 0.
    assert found.effect == pytest.approx(0.5)
    half = 4.303 * math.log(2) / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((0.5 * math.exp(-half), 0.5 * math.exp(half)))
    assert found.seeds == 3
    assert found.corrected == pytest.approx(0.2254, abs=1e-3)  # t = sqrt(3) with 2 degrees of freedom
    assert found.verdict == "not shown"


def test_a_difference_is_a_mean_and_a_seed_without_a_value_is_left_out():
    (found,) = judge(
        [claim(scale="difference", side="above")],
        {"toy": result(a=[1.0, 2.1, 3.0, None], b=[0.0, 1.0, 2.0, 5.0])},
    )
    assert found.effect == pytest.approx(1.0333, abs=1e-3)
    assert found.seeds == 3
    assert found.verdict == "yes"
    assert found.low < found.effect < found.high


@pytest.mark.parametrize(
    ("limit", "verdict"), [(None, "yes"), (0.45, "no: the opposite"), (0.5, "not shown")], ids=str
)
def test_a_verdict_needs_an_effect_on_one_side_of_the_limit(limit, verdict):
    (found,) = judge([claim(limit=limit)], {"toy": result(a=[0.5, 0.505, 0.495], b=[1.0, 1.0, 1.0])})
    assert found.verdict == verdict


def test_more_comparisons_need_smaller_p_values():
    values = {"toy": result(a=[0.5, 0.55, 0.6], b=[1.0, 1.0, 1.0])}
    (alone,) = judge([claim()], values)
    among = judge([claim()] * 20, values)[0]
    assert alone.verdict == "yes"
    assert among.corrected == pytest.approx(20 * alone.corrected)
    assert among.verdict == "not shown"
    assert (among.low, among.high) == (alone.low, alone.high)


def test_without_values_there_is_no_verdict_and_no_comparison():
    values = {"toy": result(a=[0.5, 0.55, 0.6], b=[1.0, 1.0, 1.0])}
    (found, lacking) = judge([claim(), claim(experiment="none")], values)
    assert lacking.verdict == "not rerun"
    assert math.isnan(lacking.effect)
    assert found.corrected == judge([claim()], values)[0].corrected


def test_a_single_seed_shows_nothing():
    (found,) = judge([claim()], {"toy": result(a=[0.5], b=[1.0])})
    assert found.verdict == "not shown"
    assert math.isnan(found.high)


def test_every_claim_names_an_experiment_and_its_cells():
    results = read()
    findings = judge(read_claims(), results)  # raises an error for an unknown cell
    assert len({each.text for each in read_claims()}) == len(read_claims())
    for each in findings:
        assert each.claim.experiment in EXPERIMENTS
        recorded = isinstance(results.get(each.claim.experiment), Recorded)
        assert (each.verdict == "not rerun") is not recorded, each.claim.text


def test_forecast_is_compared_with_the_best_baseline_of_each_stream():
    found = read()["forecast-streams"]
    if not isinstance(found, Recorded):
        pytest.skip("not recorded")
    for each in read_claims():
        if each.group == "forecast":
            row, other = each.cell[0], each.other
            means = {
                column: sum(found.values(row, column)) for column in found.rows[row] if column != "forecast"
            }
            assert isinstance(other, tuple)
            assert means[other[1]] == min(means.values()), row
