"""Off-policy estimates: unbiased, covered by their intervals, and the same in every unit and order."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.advice import (
    BASELINE,
    Evidence,
    Interval,
    LoggedRound,
    advise,
    check_candidate,
    check_log,
    collect,
    study,
)
from strategies.advice.log import feedback_of
from strategies.advice.off_policy import compare, quantile
from strategies.advice.predictor import Predictor
from strategies.selectors import Selection, available, create

NOBODY = np.empty(0, dtype=np.int64)
NAMES = (BASELINE, "md", "forecast")


def selectors(sizes, k, names=NAMES):
    return {
        name: create(name, sizes.size, client_sizes=sizes, clients_per_round=k, num_rounds=100)
        for name in names
    }


def draw_log(
    name,
    sizes,
    norms,
    k,
    seed,
    absent=NOBODY,
    silent=0.0,
    **given,
):
    """Draw a log; `norms` (T, M) are those of all rounds, and each reply is missing with chance `silent`."""
    selector = create(name, sizes.size, client_sizes=sizes, clients_per_round=k, seed=seed, **given)
    rng, rounds = np.random.default_rng(seed), []
    for number, all_norms in enumerate(norms, start=1):
        selection = selector.select(number, unavailable=absent)
        told = np.where(rng.random(selection.clients.size) < silent, np.nan, all_norms[selection.clients])
        rounds.append(LoggedRound.of(number, sizes, selection, told, absent))
        selector.update(number, selection, feedback_of(told))
    return rounds


def problem(seed, m=12, t=60):
    rng = np.random.default_rng(seed)
    return rng.lognormal(0, 1, m), rng.lognormal(0, 1, m) * rng.lognormal(0, 0.3, (t, m))


# The estimate of a round.


@pytest.mark.parametrize(
    "design",
    [
        {"name": "uniform"},
        {"name": "md"},
        {"name": "md", "replacement": False},
        {"name": "forecast"},
        {"name": "prac-is", "design": "systematic"},
        {"name": "md", "absent": np.array([0, 5])},
        {"name": "md", "silent": 0.1},
    ],
    ids=str,
)
def test_the_estimate_of_a_round_is_unbiased(design):
    """The mean of 700 rounds differs from the truth by less than 4.5 standard errors.

    The prediction is wrong on purpose: it changes the variance, not the mean.
    """
    sizes, norms = problem(0, t=1)
    absent = design.get("absent", NOBODY)
    q = np.stack([np.full(12, 1 / 12), sizes / sizes.sum()])
    q[:, absent] = 0
    q /= q.sum(axis=1, keepdims=True)
    prediction = np.where(q[0] > 0, np.random.default_rng(1).random(12), 0)
    evidence = Evidence([BASELINE, "md"])
    rounds = draw_log(sizes=sizes, norms=np.repeat(norms, 700, axis=0), k=3, seed=0, **design)
    replied = [round for round in rounds if round.clients.size]
    for round in replied:
        evidence.add(round, q, prediction[None])
    shares = replied[0].shares
    truth = [(((shares * norms[0]) ** 2)[p > 0] / p[p > 0]).sum() for p in q]
    estimates = np.stack(evidence._rounds)[:, 0] - np.stack(evidence._rounds)[:, 2]
    off = (estimates.mean(axis=0) - truth) / (estimates.std(axis=0) / math.sqrt(len(replied)))
    assert np.abs(off).max() < 4.5


def test_a_round_by_hand():
    """λ = .2, .8; client 1 has W = 2 and ‖g‖ = 3, so W a = 2 (.8 · 3)² = 11.52."""
    sizes = np.array([1.0, 4.0])
    one = np.ones(1)
    chosen = Selection(np.array([1]), np.array([1]), 0.5 * one, 2 * one, 1.6 * one)
    round = LoggedRound.of(1, sizes, chosen, 3 * one, NOBODY)
    evidence = Evidence([BASELINE, "md"])
    evidence.add(round, np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([[1.0, 2.0]]))
    sums, squares, errors = evidence._rounds[0]
    assert sums == pytest.approx([23.04, 14.4])
    assert errors == pytest.approx([2 * 2 / 0.5 - 3 / 0.5, 2 * 2 / 0.8 - (1 / 0.2 + 2 / 0.8)])
    assert squares == pytest.approx([23.04**2, 14.4**2])
    assert evidence.effective_draws("md") == pytest.approx(1)


# The interval.


def test_the_quantiles_are_those_of_students_t():
    assert [quantile(degrees) for degrees in (0.5, 1, 2, 10, math.inf)] == pytest.approx(
        [12.706, 12.706, 4.303, 2.228, 1.960]
    )
    assert quantile(12) == 2.179
    assert quantile(40) == pytest.approx(2.021, abs=0.002)


def test_predicted_errors_are_subtracted_unless_a_sum_becomes_negative():
    x, y = np.array([3.0, 1.0]), np.array([1.0, 1.0])
    assert compare(x, y, np.array([1.0, -1.0]), np.zeros(2)) == Interval(2, 2, 2)
    assert compare(x, y, np.array([5.0, 5.0]), np.zeros(2)).value == 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-6, 1e6))
def test_the_interval_holds_the_estimate_in_every_unit(seed, unit):
    x, y, c, d = np.random.default_rng(seed).lognormal(0, 2, (4, 20))
    one, other = compare(x, y, c, d), compare(unit * x, unit * y, unit * c, unit * d)
    assert 0 < one.low <= one.value <= one.high
    assert other == pytest.approx(one)
    assert compare(x, x, c, c) == Interval(1, 1, 1)
    there, back = compare(x, y, 0 * c, 0 * d), compare(y, x, 0 * c, 0 * d)
    assert (1 / back.value, 1 / back.high, 1 / back.low) == pytest.approx(there)


@pytest.mark.parametrize("name", ["uniform", "forecast"])
def test_intervals_cover_the_truth(name):
    """`md` and the replayed `forecast`, 20 logs of each kind: 88 to 100 % of the intervals hold the truth."""
    covered = []
    for seed in range(20):
        sizes, norms = problem(seed, t=40)
        truth = np.zeros(3)
        a = (sizes / sizes.sum() * norms) ** 2

        def watch(round, q, a=a, truth=truth):
            truth += (a[round.number - 1] / q).sum(axis=1)

        evidence, _ = collect(
            draw_log(name, sizes, norms, 3, seed), selectors(sizes, 3), name == "uniform", watch
        )
        for at, each in enumerate(NAMES[1:], start=1):
            value, low, high = evidence.against(each)
            covered.append(low <= truth[at] / truth[0] <= high)
            assert low < value < high
    assert 0.88 <= np.mean(covered) <= 1


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_the_unit_of_norms_and_sizes_makes_no_difference(seed, unit):
    sizes, norms = problem(seed, t=20)
    one, other = (
        study(draw_log("md", u * sizes, u * norms, 3, 0), selectors(u * sizes, 3), True) for u in (1.0, unit)
    )
    for name in NAMES:
        assert other.selectors[name].interval == pytest.approx(one.selectors[name].interval, rel=1e-6)
    assert one.selectors[BASELINE].interval == Interval(1, 1, 1)


# Replays.


def test_the_replay_of_the_run_is_exact():
    sizes, norms = problem(3)
    found = study(draw_log("forecast", sizes, norms, 3, 7), selectors(sizes, 3), False)
    assert {name: each.exact for name, each in found.selectors.items()} == dict.fromkeys(NAMES, True)
    found = study(draw_log("uniform", sizes, norms, 3, 7), selectors(sizes, 3), True)
    assert not found.selectors["forecast"].exact
    assert found.selectors["md"].exact


def test_a_log_of_all_clients_tells_the_truth_and_selectors_draw_by_themselves():
    sizes, norms = problem(1)
    rounds = draw_log("full", sizes, norms, 3, 0)
    truth = np.zeros(3)
    a = (sizes / sizes.sum() * norms) ** 2

    def watch(round, q):
        nonlocal truth
        truth = truth + (a[round.number - 1] / q).sum(axis=1)

    evidence, _ = collect(rounds, selectors(sizes, 3), True, watch)
    for at, name in enumerate(NAMES):
        assert evidence.against(name).value == pytest.approx(truth[at] / truth[0])
    itself = draw_log("forecast", sizes, norms, 3, 0)
    own = selectors(sizes, 3)["forecast"]
    for round in itself:
        own.update(round.number, *round.observed())
    replayed = selectors(sizes, 3)
    collect(rounds, replayed, True)
    np.testing.assert_array_equal(replayed["forecast"].probabilities, own.probabilities)


def test_clients_join_and_sizes_change():
    sizes, norms = problem(2, t=30)
    few = sizes[:8].copy()
    few[0] *= 2
    rounds = draw_log("md", few, norms[:, :8], 3, 0)[:15] + draw_log("md", sizes, norms, 3, 0)[15:]
    found = study(rounds, selectors(few, 3), True)
    assert found.rounds == 30
    assert found.selectors["md"].exact


def test_rounds_in_which_all_must_be_selected_do_not_count():
    sizes, norms = problem(2)
    rounds = draw_log("md", sizes, norms, 3, 0)
    alone = draw_log("md", sizes, norms, 3, 0, absent=np.arange(9))
    assert study(rounds[:30] + alone[30:], selectors(sizes, 3), True).rounds == 30
    with pytest.raises(ValueError, match=r"^has 9 round\(s\) with norms in which a selector must leave"):
        study(rounds[:9] + alone[9:], selectors(sizes, 3), True)
    with pytest.raises(ValueError, match=r"^all update norms are 0"):
        study(draw_log("md", sizes, 0 * norms, 3, 0), selectors(sizes, 3), True)


def test_clients_that_were_never_drawn_are_counted():
    sizes, norms = problem(2, m=200, t=12)
    rounds = draw_log("uniform", sizes, norms, 2, 0)
    seen = {client for round in rounds for client in round.clients.tolist()}
    assert study(rounds, selectors(sizes, 2), True).never_drawn == 200 - len(seen)


def test_a_prediction_is_in_the_unit_of_the_squares():
    sizes, norms = problem(5, t=200)
    norms[:] = norms[0]
    predictor = Predictor.new(sizes, 3)
    rounds = draw_log("uniform", sizes, norms, 3, 0)
    for round in rounds:
        predictor.learn(round)
    a = (sizes / sizes.sum() * norms[0]) ** 2
    np.testing.assert_allclose(predictor.predict(rounds[-1]).sum(), a.sum(), rtol=0.2)


# The advice.


class Told(Evidence):
    """Evidence whose intervals are given: by name, the logarithm of the variance; one width for all."""

    def __init__(self, values, width):
        super().__init__(list(values))
        self.values, self.width = values, width
        self._rounds = [np.zeros((3, len(values)))] * 100

    def against(self, name, other=BASELINE):
        value = self.values[name] - self.values[other]
        width = self.width if name != other else 0.0
        return Interval(*(math.exp(value + sign * width) for sign in (0, -1, 1)))


FIXED = frozenset({BASELINE, "md"})


def test_the_smallest_variance_is_advised_if_its_intervals_tell():
    told = advise(Told({BASELINE: 0.0, "md": -0.3, "forecast": -0.8}, 0.1), FIXED)
    assert (told.selector, told.best, told.rounds) == ("forecast", "forecast", 0)


def test_a_fixed_selector_is_preferred_if_none_is_better_by_more_than_a_twentieth():
    assert advise(Told({BASELINE: 0.0, "md": -0.5, "forecast": -0.52}, 0.01), FIXED).selector == "md"
    assert advise(Told({BASELINE: 0.0, "md": -0.01, "forecast": -0.02}, 0.005), FIXED).selector == BASELINE


def test_a_log_that_cannot_tell_says_how_many_rounds_would():
    """Four times the rounds halve the width: .4 to .2, which is the distance from uniform sampling."""
    told = advise(Told({BASELINE: 0.0, "forecast": -0.2}, 0.4), FIXED)
    assert (told.selector, told.best, told.rival, told.rounds) == (None, "forecast", BASELINE, 400)


def test_a_selector_whose_interval_holds_1_is_not_advised():
    assert advise(Told({BASELINE: 0.0, "forecast": -0.03}, 0.05), FIXED).selector is None


# What cannot be studied.


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pow-d", "no variance can be estimated from its log, since this selector is biased"),
        ("naive-group", "no variance can be estimated from its log, since this selector is biased"),
        ("flics", "no variance can be estimated from its log, since this selector is unbiased only over"),
        ("personalised-osmd", "no variance can be estimated from its log, since each part of an update has"),
        ("nope", "selector = 'nope': must be one of"),
    ],
)
def test_a_log_that_cannot_tell_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        check_log(name)


def test_every_selector_is_studied_or_refused_with_a_reason():
    studied, reasons = [], []
    for name in available():
        try:
            check_candidate(name)
        except ValueError as error:
            reasons.append(str(error))
            continue
        studied.append(name)
        sizes, norms = problem(0, t=15)
        study(draw_log("md", sizes, norms, 3, 0), selectors(sizes, 3, (BASELINE, name)), True)
    assert {"uniform", "md", "forecast", "avare", "adaptive-osmd", "prac-is"} <= {*studied}
    assert not {
        "full",
        "delta",
        "prac-delta",
        "pow-d",
        "flics",
        "cluster-is",
        "timed-md",
        "timed-forecast",
    } & {*studied}
    assert all(": cannot be studied, since it " in reason for reason in reasons)
