from collections.abc import Mapping
from math import inf, nan, sqrt
from typing import Any

import numpy as np
import pytest

from strategies.clients.reports import Report
from strategies.options import Faults
from strategies.rounds.aggregation import TOGETHER
from strategies.rounds.control_variates import FedVARP
from strategies.rounds.logic import RoundLogic
from strategies.rounds.replies import Reply
from strategies.rounds.stages import Chosen
from strategies.rounds.waiting.wait_time import enough_replies
from strategies.selectors import Selection, available, create, selector_type


def logic(
    m=4,
    k=2,
    name="uniform",
    settings=None,
    variates=None,
    **faults,
):
    selector = create(name, m, clients_per_round=k, num_rounds=10, seed=1, **(settings or {}))
    return RoundLogic(
        selector,
        Faults(**{"guard": False, "silence": False, **faults}),
        local_learning_rate=0.5,
        variates=variates,
    )


def selection(clients, weights):
    ones = np.ones(len(clients))
    return Selection(np.array(clients), np.ones(len(clients), dtype=int), ones / 4, ones, np.array(weights))


MODEL = {"w": np.array([1.0, 2.0], np.float32), "steps": np.array(5, np.int64)}


def reply(*w, steps=5, **report):
    return Reply({"w": np.array(w, np.float32), "steps": np.array(steps)}, Report(**report))


def choose(rounds, number=1, available=None, reports=None):
    return rounds.choose(rounds.open(number, available), reports).selection


def finish(rounds, chosen, replies, model=MODEL, number=1):
    return rounds.finish(Chosen(rounds.open(number), chosen, chosen.clients.size), model, replies)


def moved(outcome):
    assert outcome.arrays is not None
    assert outcome.record.skipped == ""
    return outcome.arrays


def test_the_pseudo_gradient_is_the_weighted_sum_of_the_updates():
    replies = [reply(3, 2, train_loss=1.0), reply(1, 3, steps=6, train_loss=4.0)]
    outcome = finish(logic(), selection([2, 0], [0.5, 2.0]), replies)
    arrays, record = moved(outcome), outcome.record
    assert arrays["w"].tolist() == [1 + 0.5 * 2, 2 + 2.0 * 1]
    assert arrays["steps"].dtype == np.int64
    assert arrays["steps"] == 5 + 2
    assert record.feedback.update_norms.tolist() == [2 / 0.5, np.sqrt(2) / 0.5]
    assert record.train_loss == pytest.approx((0.5 * 1 + 2 * 4) / 2.5)
    assert record.failures == {}
    assert MODEL["w"].tolist() == [1, 2]


class Undecodable(dict[str, Any]):
    def __getitem__(self, name):
        raise OSError("torn")


BAD = {
    "error 8: killed": Reply(failure="error 8: killed"),
    r"arrays are named \[\], the model's": Reply(),
    r"arrays are named \['v'\], the model's are \['steps', 'w'\]": Reply({"v": np.zeros(2)}),
    r"'w' has shape \(3,\), the model's has \(2,\)": Reply({"w": np.zeros(3), "steps": np.array(1)}),
    "must be of real numbers": Reply({"w": np.array(["a", "b"]), "steps": np.array(1)}),
    "complex128: must be of real numbers": Reply({"w": np.array([1j, 0]), "steps": np.array(1)}),
    "'w' holds NaN or infinite": reply(nan, 0),
    "holds NaN or infinite": reply(inf, 0),
    "the norm of the update is not finite": Reply({"w": np.array([1e300, 0]), "steps": np.array(1)}),
    "unreadable array 'w': torn": Reply(Undecodable(w=0, steps=0)),
}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_reply_is_left_out_and_the_weights_of_the_others_grow(reason):
    outcome = finish(logic(), selection([2, 0], [0.5, 0.5]), [BAD[reason], reply(2, 2)])
    assert moved(outcome)["w"].tolist() == [1 + 1.0 * 1, 2]  # weight 0.5, doubled: one of two replied
    record = outcome.record
    assert record.weights.tolist() == [0, 1.0]
    assert record.feedback.responded.tolist() == [False, True]
    assert np.isnan(record.feedback.update_norms[0])
    assert list(record.failures) == [2]
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(record.failures[2])


def test_without_any_reply_the_round_is_skipped():
    outcome = finish(logic(), selection([2], [0.5]), [Reply(failure="late")])
    assert outcome.arrays is None
    assert outcome.record.weights.tolist() == [0]
    assert outcome.record.skipped == "0 usable of 1 reply: fewer than the quorum of 1"
    assert np.isnan(outcome.record.train_loss)
    assert list(outcome.client_models()) == []


def test_no_client_is_selected():
    outcome = finish(logic(), selection([], []), [])
    assert outcome.arrays is None
    assert outcome.record.failures == {}
    assert outcome.record.skipped == "no client was selected"


def test_below_the_quorum_only_response_rates_are_learned():
    rounds = logic(name="prac-is", quorum=2, correction="rates")
    before = rounds.state_dict()
    chosen = selection([2, 0, 1], [0.5, 0.5, 0.5])
    replies = [reply(9, 9, train_loss=3.0), Reply(failure="late"), reply(nan, 1)]
    outcome = finish(rounds, chosen, replies)
    assert outcome.arrays is None
    assert list(outcome.client_models()) == []
    record = outcome.record
    assert record.skipped == "1 usable of 3 replies: fewer than the quorum of 2"
    assert list(record.failures) == [0, 1]
    assert record.weights.tolist() == [0, 0, 0]
    assert not record.feedback.responded.any()
    after = rounds.state_dict()
    for name in before:
        assert np.array_equal(before[name], after[name]) == name.startswith("selector/"), name
    assert rounds.responses.rates([2]) > rounds.responses.rates([0])
    # One more usable reply reaches the quorum.
    outcome = finish(rounds, chosen, [replies[0], reply(1, 2), replies[2]])
    weight = outcome.record.weights[0]
    assert moved(outcome)["w"].tolist() == [1 + weight * 8, 2 + weight * 7]
    assert not np.array_equal(rounds.state_dict()["selector/levels"], before["selector/levels"])


def test_float16_models_are_summed_in_float32():
    model = {"w": np.zeros(1, np.float16)}
    replies = [Reply({"w": np.array([1e-4], np.float16)})] * 3
    arrays = moved(finish(logic(k=3), selection([0, 1, 2], [1 / 3] * 3), replies, model))
    assert arrays["w"].dtype == np.float16
    assert arrays["w"][0] == np.float16(1e-4)


def test_a_step_that_overflows_changes_nothing():
    replies = [reply(3e38, 0), reply(3e38, 0)]
    outcome = finish(logic(), selection([2, 0], [1.0, 1.0]), replies)
    assert outcome.arrays is None
    assert outcome.record.skipped == "the step is not finite"
    assert outcome.record.failures == dict.fromkeys([0, 2], "the step with this update is not finite")
    assert not outcome.record.feedback.responded.any()
    assert outcome.record.weights.tolist() == [0, 0]


class Counted(Mapping[str, Any]):
    """Arrays that are created on access; counts how many are alive at a time."""

    alive = 0
    most = 0

    def __init__(self, w):
        self.w, self.times = w, 0

    def __getitem__(self, name):
        self.times += 1
        array = np.array(self.w, np.float32).view(Watched)
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)
        return array

    def __iter__(self):
        return iter(["w"])

    def __len__(self):
        return 1


class Watched(np.ndarray[Any, Any]):
    def __del__(self):
        if self.base is not None and not isinstance(self.base, Watched):
            Counted.alive -= 1


@pytest.mark.parametrize("one_is_bad", [False, True])
def test_few_replies_are_decoded_at_a_time(one_is_bad):
    """Once if all replies are usable; otherwise the usable ones once more."""
    Counted.alive = Counted.most = 0
    num = 3 * TOGETHER // 2
    total = num * (num - 1) / 2
    sent = [Counted([float(i), 0.0]) for i in range(num)]
    sent[3].w[1] = nan if one_is_bad else 0.0
    model = {"w": np.zeros(2, np.float32)}
    chosen = selection(list(range(num)), [1 / num] * num)
    outcome = finish(logic(m=num, k=num), chosen, [Reply(each) for each in sent], model)
    assert moved(outcome)["w"] == pytest.approx([(total - 3) / (num - 1) if one_is_bad else total / num, 0.0])
    times = [2 if one_is_bad else 1] * num
    times[3] = 1
    assert [each.times for each in sent] == times
    assert Counted.most <= TOGETHER + 1  # an array of the last group lives until the next group is decoded


def test_the_step_is_the_same_after_one_pass_or_two():
    rng = np.random.default_rng(1)
    model = {"w": rng.standard_normal(40_000).astype(np.float32)}
    replies = [Reply({"w": model["w"] + rng.standard_normal(40_000, np.float32)}) for _ in range(3)]
    once = finish(logic(), selection([0, 1, 2], [0.5, 1.0, 1.5]), replies, model)
    replies.insert(1, Reply({"w": np.full(40_000, nan)}))
    # One of four is not usable: the others have 3/4 of the weights, which grow by 4/3.
    twice = finish(logic(), selection([0, 3, 1, 2], [0.375, 0.0, 0.75, 1.125]), replies, model)
    assert twice.record.weights[[0, 2, 3]].tolist() == once.record.weights.tolist() == [0.5, 1.0, 1.5]
    assert moved(once)["w"].tobytes() == moved(twice)["w"].tobytes()


def test_the_order_of_arrays_in_a_reply_changes_no_bit():
    rng = np.random.default_rng(1)
    model = {f"layer{i}": rng.standard_normal((7, 5)).astype(np.float32) for i in range(6)}
    clients = [
        {name: a + rng.standard_normal(a.shape, np.float32) for name, a in model.items()} for _ in "abc"
    ]
    chosen = selection([2, 0, 1], [0.1, 0.7, 0.3])

    def bits(replies):
        outcome = finish(logic(), chosen, [Reply(arrays) for arrays in replies], model)
        norms = outcome.record.feedback.update_norms.tobytes()
        return norms, {name: array.tobytes() for name, array in moved(outcome).items()}

    backwards = [dict(reversed(arrays.items())) for arrays in clients]
    assert bits(clients) == bits(backwards)


def test_the_selector_learns_from_the_round():
    rounds = logic(m=4, k=2, name="adaptive-osmd", settings={"learning_rate_multiplier": 1000})
    before = rounds.selector.probabilities
    chosen = choose(rounds)
    replies = [reply(1, 2 + 10.0 * (client == chosen.clients[0])) for client in chosen.clients]
    finish(rounds, chosen, replies)
    assert rounds.selector.probabilities[chosen.clients[0]] > before[chosen.clients[0]]


@pytest.mark.parametrize(
    ("name", "here", "rests"), [("rpow-d", 20, True), ("rpow-d", 6, False), ("uniform", 20, False)]
)
def test_only_clients_of_a_selector_that_prefers_large_losses_rest_and_only_while_enough_are_left(
    name, here, rests
):
    rounds = logic(20, 5, name, guard="strict")
    numbers = []
    for number in range(1, 10):
        opened = rounds.open(number, np.arange(here))
        numbers.append(opened.num_available)
        assert opened.quarantined.size == 0
        chosen = rounds.choose(opened)
        assert chosen.selection.counts.sum() == 5
        losses = 1.0 + (chosen.selection.clients < 3)
        rounds.finish(chosen, MODEL, [reply(1.0, 2.0, train_loss=loss) for loss in losses])
    assert (min(numbers) < here) == rests
    assert min(numbers) >= here / 2


def test_quarantined_clients_are_not_selectable():
    rounds = logic(m=6, k=2, guard={"strikes": 1, "memory": 1})
    rounds.guard.judge(1, [2, 3], [nan, nan], [nan, nan], [nan, nan], {0: "garbage", 1: "garbage"})
    everyone, some = rounds.open(2), rounds.open(2, np.array([0, 2, 4]))
    assert (everyone.num_available, everyone.quarantined.tolist()) == (4, [2, 3])
    assert (some.num_available, some.quarantined.tolist()) == (2, [2])
    drawn = {int(c) for number in range(2, 10) for c in choose(rounds, number).clients}
    assert drawn == {0, 1, 4, 5}
    assert set(choose(rounds, 2, np.array([0, 2, 4])).clients) == {0, 4}


def test_quarantines_end_early_as_far_as_the_quorum_needs():
    """Those that end first; then the guard judges replies, but counts no offence."""
    for quorum, back in ((1, [0, 1]), (2, [0, 1]), (3, [0, 1, 2])):
        rounds = logic(m=4, k=2, guard={"strikes": 1, "memory": 1, "quarantine": 4}, quorum=quorum)
        for number, clients in ((1, [0, 1]), (2, [2]), (3, [3])):
            garbage = dict.fromkeys(range(len(clients)), "garbage")
            missing = [nan] * len(clients)
            rounds.guard.judge(number, clients, missing, missing, missing, garbage)
        opened = rounds.open(4)
        assert opened.released.tolist() == back
        assert opened.selectable(rounds.selector.registered).tolist() == back
        assert opened.quarantined.tolist() == sorted({0, 1, 2, 3} - set(back))
        rounds.guard.judge(4, [0], [nan], [nan], [nan], {0: "garbage"})
        assert rounds.end_of_quarantine(4, 0) == 6


def test_the_clients_that_are_not_selectable_are_in_the_record():
    """Quarantined, unavailable and removed clients."""
    rounds = logic(m=6, k=2, guard={"strikes": 1, "memory": 1})
    assert absent_in(rounds, 1) == []
    rounds.guard.judge(1, [2], [nan], [nan], [nan], {0: "garbage"})
    rounds.remove_clients([5])
    assert absent_in(rounds, 2) == [2, 5]
    assert absent_in(rounds, 3, np.array([0, 2, 4])) == [1, 2, 3, 5]
    assert rounds.open(4).absent(rounds.selector.registered, most=1) is None


def absent_in(rounds, number, available=None):
    chosen = rounds.choose(rounds.open(number, available))
    replies = [reply(1.0, 1.0)] * chosen.selection.clients.size
    absent = rounds.finish(chosen, MODEL, replies).record.absent
    return absent.tolist()


@pytest.mark.parametrize("name", [name for name in available() if name != "flics-private"])
def test_available_and_unavailable_give_the_same_selection(name):
    """Bit for bit with 20,000 clients, where selectors avoid a pass over all of them."""
    m = 20_000
    per_client = {"groups": np.arange(m) % 4, "lipschitz": 1.0 + np.arange(m) % 5}
    settings = {key: per_client[key] for key in selector_type(name).per_client if key in per_client}
    selector = create(name, m, clients_per_round=5, num_rounds=10, seed=1, **settings)
    left_out = np.array([3, 17, 30])
    chosen = []
    for here in ({"unavailable": left_out}, {"available": np.setdiff1d(np.arange(m), left_out)}):
        candidates = selector.candidates(1, **here)
        values = None if candidates is None else 2 + np.cos(3.1 * candidates)
        reports = dict.fromkeys(selector.polls_for, values)
        chosen.append(selector.select(1, **here, candidates=candidates, reports=reports))
    for field in ("clients", "counts", "probabilities", "importance", "weights"):
        assert getattr(chosen[0], field).tobytes() == getattr(chosen[1], field).tobytes()


def test_removed_clients_leave_all_parts_of_the_round():
    rounds = logic(m=4, k=4, name="full", guard={"strikes": 1, "memory": 1}, variates=FedVARP())
    choose(rounds)
    replies = [Reply({"w": np.ones(1)}), Reply({"w": np.array([nan])}), *[Reply({"w": np.ones(1)})] * 2]
    finish(rounds, selection([0, 1, 2, 3], [0.25] * 4), replies, {"w": np.zeros(1)})
    rounds.remove_clients([1, 2])
    opened = rounds.open(2)
    assert (opened.num_available, opened.quarantined.size) == (2, 0)
    assert sorted(choose(rounds, 2).clients) == [0, 3]
    assert rounds.variates.num_seen == 2


def test_reports_and_budget_reach_the_selector():
    losses = np.array([1.0, 9.0, nan, 5.0, 2.0, 3.0])
    for over_selection, most in ((1.0, {1, 3}), (1.5, {1, 3, 5})):
        rounds = logic(m=6, k=2, name="pow-d", settings={"num_candidates": 6}, over_selection=over_selection)
        opened = rounds.open(1)
        assert opened.candidates is not None
        chosen = rounds.choose(opened, {"loss": losses[opened.candidates]})
        assert set(chosen.selection.clients) == most
        assert chosen.enough == 2


# --- diversities and variances ------------------------------------------------------------------------------


def test_diversities_are_distances_from_the_weighted_mean():
    """By hand: updates (2, 0) and (0, 1) with weights 3/4 and 1/4 have the mean (1.5, 0.25)."""
    rounds = logic(name="prac-delta")
    replies = [reply(3, 2, gradient_variance=4.0), reply(1, 3, gradient_variance=9.0)]
    outcome = finish(rounds, selection([2, 0], [1.5, 0.5]), replies)
    feedback = outcome.record.feedback
    expected = np.array([sqrt(0.5**2 + 0.25**2), sqrt(1.5**2 + 0.75**2)]) / 0.5  # local learning rate
    assert feedback.diversities == pytest.approx(expected)
    assert feedback.gradient_variances.tolist() == [4.0, 9.0]
    assert moved(outcome)["w"].tolist() == [1 + 1.5 * 2, 2 + 0.5 * 1]
    # eq. 16: the two divide their mass in proportion to sqrt(ζ²/2 + σ²/2).
    scores = np.sqrt(expected**2 / 2 + np.array([4.0, 9.0]) / 2)
    p = rounds.selector.probabilities
    levels = rounds.state_dict()["selector/levels"]
    assert levels[[2, 0]] == pytest.approx(2 * scores / scores.sum())
    assert (p[0] > p[2]) == (scores[1] > scores[0])


def test_diversities_may_be_distances_from_the_plain_mean():
    rounds = logic(name="prac-delta", settings={"diversity_mean": "plain"})
    outcome = finish(rounds, selection([2, 0], [1.5, 0.5]), [reply(3, 2), reply(1, 3)])
    assert outcome.record.feedback.diversities == pytest.approx([sqrt(1 + 0.25) / 0.5] * 2)


def test_diversities_are_measured_only_if_the_selector_uses_them():
    outcome = finish(logic(name="prac-is"), selection([2, 0], [1.5, 0.5]), [reply(3, 2), reply(1, 3)])
    assert np.isnan(outcome.record.feedback.diversities).all()


def test_missing_replies_have_no_part_in_the_mean():
    replies = [reply(3, 2), Reply(failure="late"), reply(3, 2)]
    outcome = finish(logic(name="prac-delta"), selection([2, 0, 1], [1, 1, 1]), replies)
    assert outcome.record.feedback.diversities == pytest.approx([0, nan, 0], nan_ok=True)


# --- a guard, response rates, variates ---------------------------------------------------------------------


def test_a_clipped_update_is_clipped_in_sum_norm_and_client_models():
    rounds = logic(m=20, k=20, name="prac-is", guard={"level": "strict", "deviations": 1.0})
    model = {"w": np.zeros(2)}
    clients = list(range(20))
    replies = [Reply({"w": np.array([0.0, 1.0])}) for _ in clients]
    replies[3] = Reply({"w": np.array([3.0, 0.0])})
    outcome = finish(rounds, selection(clients, [0.05] * 20), replies, model)
    assert list(outcome.record.clipped) == [3]
    assert outcome.record.failures == {}
    norms = outcome.record.feedback.update_norms
    assert norms[3] == pytest.approx(2 * norms[0])
    assert moved(outcome)["w"] == pytest.approx([0.05 * 0.5 * norms[3], 0.95])
    sent = dict(outcome.client_models())
    assert list(sent) == clients
    assert sent[0] is replies[0].arrays
    assert sent[3]["w"] == pytest.approx([0.5 * norms[3], 0])


def test_unusable_replies_are_offences_and_missing_ones_are_not():
    rounds = logic(guard=True)
    replies = [Reply(failure="late"), reply(nan, 1), Reply(failure="two models", sent=True), reply(1, 3)]
    outcome = finish(rounds, selection([2, 0, 1, 3], [1, 1, 1, 1]), replies)
    assert set(outcome.record.failures) == {0, 1, 2}
    assert rounds.state_dict()["guard/offences"][:, 0].tolist() == [1, 1, 0, 0]
    assert moved(outcome)["w"].tolist() == [1, 2 + 4.0]


def test_weights_follow_the_response_rates():
    rounds = logic(correction="rates")
    rates = rounds.responses
    for _ in range(20):
        rates.observe([2, 0], [True, False])
        rates.observe([2, 0], [True, True])
    expected = rates.correct([0.5, 0.5], [2, 0], [True, True])
    outcome = finish(rounds, selection([2, 0], [0.5, 0.5]), [reply(3, 2), reply(1, 3)])
    assert outcome.record.weights.tolist() == expected.tolist()
    assert expected[1] > 1.5 * expected[0]
    assert expected.sum() == pytest.approx(1)


def test_with_variates_the_baseline_is_subtracted_from_an_update():
    """Computed by hand: FedVARP with λ = 1/2; only the first round has client 1."""
    rounds = logic(m=2, k=2, name="full", variates=FedVARP())
    model = {"w": np.zeros(2)}
    choose(rounds, 1)
    first = finish(
        rounds,
        selection([0, 1], [0.5, 0.5]),
        [Reply({"w": np.array(w)}) for w in ([2.0, 0], [0, 4.0])],
        model,
    )
    assert moved(first)["w"].tolist() == [1, 2]
    choose(rounds, 2)
    second = finish(rounds, selection([0], [0.5]), [Reply({"w": np.array([5.0, 0])})], model)
    assert second.record.feedback.update_norms.tolist() == [3 / 0.5]
    assert moved(second)["w"].tolist() == [1 + 0.5 * 3, 2]
    choose(rounds, 3)
    third = finish(rounds, selection([0], [0.5]), [Reply({"w": np.array([5.0, 0])})], model)
    assert third.record.feedback.update_norms.tolist() == [0]
    assert moved(third)["w"].tolist() == [2.5, 2]


def test_the_mean_of_the_variates_is_over_available_clients():
    rounds = logic(m=3, k=3, name="full", variates=FedVARP())
    model = {"w": np.zeros(1)}
    choose(rounds, 1)
    replies = [Reply({"w": np.array([w])}) for w in (3.0, 6.0, 90.0)]
    finish(rounds, selection([0, 1, 2], [1 / 3] * 3), replies, model)
    choose(rounds, 2, np.array([0, 1]))
    outcome = finish(rounds, selection([0], [0.0]), [replies[0]], model)
    assert moved(outcome)["w"] == pytest.approx([4.5])


@pytest.mark.parametrize("name", ["flics", "naive-group"])
def test_with_variates_groups_keep_their_weight_over_time(name):
    """Mean of 400 rounds; one of two groups, with other data, is available in a third of them."""
    groups = np.repeat([0, 1], 4)
    settings = {"groups": groups, "group_shares": (3.0, 1.0), "client_sizes": [1.0, 9, 1, 9, 1, 1, 1, 9]}
    rounds = logic(m=8, k=3, name=name, settings=settings, variates=FedVARP())
    rng, total = np.random.default_rng(3), np.zeros(2)
    for number in range(1, 401):
        here = np.arange(8) if rng.random() < 1 / 3 else np.arange(4)
        chosen = rounds.choose(rounds.open(number, here))
        replies = [Reply({"w": np.eye(2)[groups[client]]}) for client in chosen.selection.clients]
        outcome = rounds.finish(chosen, {"w": np.zeros(2)}, replies)
        total += 0 if outcome.arrays is None else outcome.arrays["w"]
    assert total / 400 == pytest.approx([0.75, 0.25], abs=0.02)


def test_a_selector_that_makes_up_for_missing_replies_is_not_corrected_twice():
    groups = {"groups": [0, 0, 1, 1]}
    with pytest.raises(ValueError, match="correction = 'rates': must be 'equal' with selector = 'flics'"):
        logic(name="flics", settings=groups, correction="rates")


@pytest.mark.parametrize(
    ("counts", "k", "quorum", "enough"),
    [
        ([1] * 5, 3, 1, 3),  # the first K of all selected clients
        ([1] * 13, 10, 1, 10),
        ([1] * 4, 5, 1, 4),  # no more clients
        ([3, 1, 1], 3, 1, 2),  # three of five draws; three clients
        ([3, 1, 1], 3, 3, 3),
        ([], 3, 2, 0),
    ],
)
def test_how_many_replies_are_enough(counts, k, quorum, enough):
    ones = np.ones(len(counts))
    chosen = Selection(np.arange(len(counts)), np.array(counts, dtype=int), ones, ones, ones)
    assert enough_replies(chosen, k, quorum) == enough


def test_the_state_has_all_parts():
    rounds = logic(m=6, k=3, name="adaptive-osmd", guard=True, correction="rates", variates=FedVARP())
    for number in (1, 2):
        chosen = rounds.choose(rounds.open(number))
        rounds.finish(chosen, {"w": np.ones(3)}, [Reply({"w": np.zeros(3)})] * chosen.selection.clients.size)
    state = rounds.state_dict()
    assert {name.partition("/")[0] for name in state} == {"selector", "guard", "responses", "variates"}


def test_a_state_with_unknown_parts_is_refused():
    state = logic(correction="rates").state_dict()
    with pytest.raises(ValueError, match="'responses/asked': must have entries of selector only"):
        logic().load_state_dict(state)


def test_new_clients_join_all_parts_of_the_round():
    rounds = logic(correction="rates", guard=True)
    rounds.add_clients([1.0, 1.0])
    assert rounds.selector.num_clients == rounds.guard.state_dict()["pauses"].size == 6
    assert rounds.responses.rates(range(6)).size == 6
