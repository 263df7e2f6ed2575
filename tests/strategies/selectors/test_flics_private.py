"""FLICS with private groups: two exchanges, estimated counts, privacy."""

import re

import numpy as np
import pytest

from strategies.numerics.budget_allocation import water_fill
from strategies.numerics.randomised_response import coin_privacy, randomise
from strategies.selectors import Selection
from strategies.selectors.flics.flics_private import FLICSPrivateSelector, alike
from strategies.selectors.invitation import GroupMember

from ...support.selections import feedback

TRUTH = 50.0
"""An ε with which all clients report the truth."""


def private(num_clients, epsilon=TRUTH, **arguments):
    return FLICSPrivateSelector(
        num_clients,
        epsilon=epsilon,
        **({"clients_per_round": 2, "seed": 1, "group_shares": "1/1"} | arguments),
    )


def accept(selector, round, candidates, answers, accepts):
    """Return the selection for these reports and answers of the candidates."""
    reports = {"group": np.array(answers, dtype=float), "accepts": np.array(accepts, dtype=float)}
    return selector.select(round, candidates=candidates, reports=reports)


def answered(selection, responded=None):
    return feedback(np.ones(selection.clients.size), responded)


# A round by hand.


def test_all_clients_are_invited_if_at_most_k_are_available():
    """One of group 0 and two of group 1; p = 1/3, 2/3."""
    selector = private(5, clients_per_round=3, group_shares="1/2")
    candidates = selector.candidates(1, unavailable=[0, 4])
    assert candidates.tolist() == [1, 2, 3]
    invitation = selector.invitation(1, candidates, {"group": np.array([1.0, 0.0, 1.0])})
    np.testing.assert_array_equal(invitation.rates[invitation.versions], np.ones((3, 2)))
    np.testing.assert_allclose(invitation.scales, [1 / 3 / 1, 2 / 3 / 2])

    selection = accept(selector, 1, candidates, [1, 0, 1], [1, 1, 1])
    assert selection.clients.tolist() == [1, 2, 3]
    for array in (selection.weights, selection.probabilities, selection.importance, selection.counts):
        np.testing.assert_array_equal(array, np.ones(3))
    np.testing.assert_allclose(selection.expected, [1, 2], atol=1e-12)
    # Client 3, of group 1, fails: the others' weights stay, and it is not counted.
    np.testing.assert_array_equal(selector.finalize(selection, [True, True, False]), [1, 1, 0])
    selector.update(1, selection, answered(selection, np.array([True, True, False])))
    state = selector.state_dict()
    np.testing.assert_allclose(state["participants"], [1, 1], atol=1e-12)
    assert state["rounds"] == 1
    # Next time ŝ = (1 + 1)/2, (1 + 2)/2.
    invitation = selector.invitation(2, candidates, {"group": np.array([1.0, 0.0, 1.0])})
    np.testing.assert_allclose(invitation.scales, [1 / 3 / 1, 2 / 3 / 1.5])


def test_each_half_is_sent_rates_made_from_the_others_answers():
    groups = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1])
    selector = private(9, clients_per_round=4, group_shares="3/1", seed=3)
    invitation = selector.invitation(1, np.arange(9), {"group": groups.astype(float)})
    halves = invitation.versions
    assert set(halves) == {0, 1}
    counted = np.zeros(2)
    for version in (0, 1):
        others = np.bincount(groups[halves != version], minlength=2)
        a = others * 9 / others.sum()
        expected = water_fill([3, 1], [0, 0], 4, a) / a
        np.testing.assert_allclose(invitation.rates[version], expected, atol=1e-9)
        counted += expected * np.bincount(groups[halves == version], minlength=2)
    np.testing.assert_allclose(invitation.scales, [0.75 / counted[0], 0.25 / counted[1]])
    again = selector.invitation(1, np.arange(9), {"group": groups.astype(float)})
    np.testing.assert_array_equal(again.rates, invitation.rates)


def test_a_client_without_an_answer_is_not_available():
    selector = private(6, clients_per_round=6)
    candidates = np.array([5, 3, 1, 0])
    invitation = selector.invitation(1, candidates, {"group": np.array([1.0, np.nan, 0.0, 0.0])})
    assert invitation.clients.tolist() == [5, 1, 0]
    assert invitation.versions.shape == (3,)
    # 1 does not answer the invitation, 0 says no: all that is counted is client 5.
    selection = accept(selector, 1, candidates, [1, np.nan, 0, 0], [1, 1, np.nan, 0])
    assert selection.clients.tolist() == [5]
    np.testing.assert_allclose(selection.expected[1], 1, atol=1e-12)
    gone = selector.select(
        1,
        available=[0, 1],
        candidates=candidates,
        reports={"group": np.array([1.0, 0, 0, 0]), "accepts": np.ones(4)},
    )
    assert gone.clients.tolist() == [1, 0]
    selector.remove_clients([1])
    assert accept(selector, 1, candidates, [1, 1, 0, 0], [1, 1, 1, 1]).clients.tolist() == [5, 3, 0]


def test_a_round_in_which_all_say_no_is_counted_and_one_without_candidates_is_not():
    selector = private(8, clients_per_round=2)
    nobody = accept(selector, 1, [], [], [])
    selector.update(1, nobody, answered(nobody))
    assert selector.state_dict()["rounds"] == 0
    no = accept(selector, 1, np.arange(8), np.arange(8) % 2, np.zeros(8))
    assert no.clients.size == 0
    selector.update(1, no, answered(no))
    assert selector.state_dict()["rounds"] == 1


def test_a_budget_below_1_invites_nobody():
    selector = private(8)
    reports = {"group": np.zeros(8)}
    invitation = selector.invitation(1, np.arange(8), reports, budget=0.9)
    assert not invitation.rates.any()
    with_answers = reports | {"accepts": np.zeros(8)}
    selection = selector.select(1, candidates=np.arange(8), reports=with_answers, budget=0.9)
    selector.update(1, selection, answered(selection))
    assert selector.state_dict()["rounds"] == 0


# Unbiased over time.


def run(epsilon, rounds, seed):
    """Return ((rounds, 3) each group's weight in the estimate over its share, (rounds,) how many took part).

    Groups of 120, 240 and 240, half of them here; group 1 sleeps in every third round, and in group 2 a fifth
    of those who said yes fail.
    """
    groups = np.repeat(np.arange(3), [120, 240, 240])
    shares = np.array([0.2, 0.3, 0.5])
    rng = np.random.default_rng(seed)
    selector = private(600, epsilon, clients_per_round=30, seed=seed, group_shares=shares.tolist())
    estimates, sizes = np.zeros((rounds, 3)), np.zeros(rounds)
    for round in range(rounds):
        here = np.flatnonzero((rng.random(600) < 0.5) & ((groups != 1) | (round % 3 > 0)))
        said = randomise(groups[here], 3, epsilon, rng)
        invitation = selector.invitation(round, here, {"group": said.astype(float)})
        yes = rng.random(here.size) < invitation.rates[invitation.versions, groups[here]]
        selection = accept(selector, round, here, said, yes)
        chosen = groups[selection.clients]
        responded = rng.random(chosen.size) < np.where(chosen == 2, 0.8, 1.0)
        weights = selector.finalize(selection, responded) * invitation.scales[chosen]
        estimates[round] = np.bincount(chosen, weights, 3) / shares
        sizes[round] = chosen.size
        selector.update(round, selection, answered(selection, responded))
    return estimates, sizes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "processes", "rounds", "bound"),
    [
        (3.0, 6, 240, 0.12),
        pytest.param(3.0, 16, 1200, 0.03, marks=pytest.mark.slow),
        pytest.param(1.5, 16, 1200, 0.05, marks=pytest.mark.slow),
    ],
)
def test_the_estimate_is_unbiased_over_time(epsilon, processes, rounds, bound):
    """Each group's weight is right within 5 standard errors over the processes, and .02.

    The first quarter of the rounds is left out: while counts are few, p/ŝ is off, as 1/ŝ is convex.
    """
    runs = [run(epsilon, rounds, seed) for seed in range(processes)]
    means = np.array([estimates[rounds // 4 :].mean(axis=0) for estimates, _ in runs])
    error = 5 * means.std(axis=0, ddof=1) / np.sqrt(processes)
    print(epsilon, means.mean(axis=0), error, np.mean([sizes.mean() for _, sizes in runs]))
    assert (error < bound).all()  # small enough to say something
    assert (np.abs(means.mean(axis=0) - 1) < error + 0.02).all()
    assert 20 < np.mean([sizes.mean() for _, sizes in runs]) < 31


# Privacy.


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("rates", [[1.0, 0.5, 0.002], [0.0, 0.01, 0.1], [0.99, 1.0, 1.0], [0.3, 0.3, 0.3]])
def test_rates_are_made_alike(rates, epsilon):
    a = np.array([3.0, 40.0, 500.0])
    moved = alike(rates, a, 25.0, epsilon)
    assert ((moved >= 0) & (moved <= 1)).all()
    assert coin_privacy(moved) <= epsilon * (1 + 1e-9)
    np.testing.assert_allclose(moved @ a, rates @ a if coin_privacy(rates) <= epsilon else min(25, rates @ a))


def test_a_bound_on_the_coin_holds_for_what_is_sent():
    groups = np.repeat([0.0, 1.0], [10, 390])
    for bound in (None, 1.0):
        selector = private(400, 3.0, clients_per_round=20, coin_epsilon=bound)
        rates = selector.invitation(1, np.arange(400), {"group": groups}).rates
        told = max(coin_privacy(each) for each in rates)
        assert told > 2 if bound is None else told <= bound * (1 + 1e-9)


def test_a_member_keeps_to_the_protocol():
    member = GroupMember(2, 4, 1.0, secret=7)
    assert len({member.report(round) for round in range(50)}) == 1
    fresh = [
        GroupMember(2, 4, 1.0, secret, permanent=False).report(round)
        for secret in range(40)
        for round in range(40)
    ]
    fixed = [GroupMember(2, 4, 1.0, secret).report(3) for secret in range(1600)]
    honest = np.e / (np.e + 3)
    for said in (fresh, fixed):  # within 5 standard errors
        assert abs(np.mean(np.array(said) == 2) - honest) < 5 * np.sqrt(honest * (1 - honest) / 1600)
    coins = [member.accepts(round, [0.0, 1.0, 0.3, 1.0]) for round in range(1600)]
    assert abs(np.mean(coins) - 0.3) < 5 * np.sqrt(0.21 / 1600)
    assert coins == [member.accepts(round, [0.0, 1.0, 0.3, 1.0]) for round in range(1600)]
    assert member.accepts(1, [0, 0, 1, 0])
    assert not member.accepts(1, [1, 1, 0, 1])
    assert member.scale([1.0, 2.0, 3.5, 4.0]) == 3.5


def test_members_and_server_play_rounds():
    """The whole protocol; what the server sees is answers, coins and sums."""
    rng = np.random.default_rng(0)
    members = [
        GroupMember(i % 2, 2, 4.0, secret=int(rng.integers(2**60)), permanent=False) for i in range(40)
    ]
    selector = private(40, 4.0, clients_per_round=10)
    totals = np.zeros(2)
    for round in range(1, 101):
        asked = selector.candidates(round)
        said = np.array([members[i].report(round) for i in asked], dtype=float)
        invitation = selector.invitation(round, asked, {"group": said})
        accepts = [
            members[i].accepts(round, invitation.rates[version])
            for i, version in zip(invitation.clients, invitation.versions, strict=True)
        ]
        selection = accept(selector, round, asked, said, accepts)
        weights = selector.finalize(selection, np.ones(selection.clients.size, dtype=bool))
        for i, weight in zip(selection.clients, weights, strict=True):
            totals[members[i].group] += weight * members[i].scale(invitation.scales)
        selector.update(round, selection, answered(selection))
    np.testing.assert_allclose(totals / 100, [0.5, 0.5], atol=0.1)
    assert selector.state_dict()["rounds"] == 100


# Bad input.


@pytest.mark.parametrize(
    ("answers", "accepts", "text"),
    [
        ([0, 1, 2], [1, 1, 1], "reports['group'] holds 2.0: must be a group from 0 to 1"),
        ([0, 1, -1], [1, 1, 1], "holds -1.0"),
        ([0, 1, 0.5], [1, 1, 1], "holds 0.5"),
        ([0, 1], [1, 1, 1], "reports['group'] has shape (2,): must be (3,)"),
        ([0, 1, 1], [1, 1], "reports['accepts'] has shape (2,): must be (3,)"),
        ([0, 1, 1], [1, 0.5, 1], "reports['accepts'] must hold 1 (yes), 0 (no)"),
    ],
)
def test_bad_reports_change_nothing(answers, accepts, text):
    selector = private(4)
    with pytest.raises(ValueError, match=re.escape(text)):
        accept(selector, 1, [0, 1, 2], answers, accepts)
    with pytest.raises(ValueError, match="must hold 'accepts' and 'group' of the candidates"):
        selector.select(1, candidates=[0], reports={"group": np.zeros(1)})
    with pytest.raises(ValueError, match="reports = None: must hold"):
        selector.select(1)


def test_only_its_own_selections_are_learned_from():
    ones = np.ones(1)
    other = Selection(np.array([0]), ones.astype(int), ones, ones, ones)
    with pytest.raises(TypeError, match="must be what flics-private selected"):
        private(2).update(1, other, answered(other))


def test_a_state_of_other_groups_is_refused():
    with pytest.raises(ValueError, match=r"state\['participants'\] has 3 groups: must be 2"):
        private(4).load_state_dict(private(4, group_shares="1/1/1").state_dict())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((3, 3, 1.0, 5), "group = 3: must be between 0 and 2"),
        ((0, 0, 1.0, 5), "num_groups = 0"),
        ((0, 3, 1.0, -5), "secret = -5"),
        ((0, 3, 0.0, 5), "epsilon = 0.0: must be > 0"),
        ((0, 3, np.nan, 5), "epsilon = nan"),
    ],
)
def test_bad_members_are_refused(arguments, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        GroupMember(*arguments)
    member = GroupMember(0, 2, 1.0, 5)
    for rates in ([0.5], [0.5, 1.1], [np.nan, 0.5], [-0.1, 0.5]):
        with pytest.raises(ValueError, match="rates"):
            member.accepts(1, rates)
    with pytest.raises(ValueError, match="scales holds inf"):
        member.scale([np.inf, 1.0])
