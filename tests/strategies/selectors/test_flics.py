"""FLICS and fixed quotas: participation, weights over time, budgets, groups that change."""

import doctest
import re
import sys

import numpy as np
import pytest

from strategies.numerics.convex_allocation import fill_with_budgets
from strategies.selectors import Selection
from strategies.selectors.flics import flics as flics_module
from strategies.selectors.flics.flics import FLICSSelector, FLICSSettings
from strategies.selectors.flics.naive_group import NaiveGroupSelector

from ...support.selections import feedback

BOTH = [FLICSSelector, NaiveGroupSelector]


def flics(groups, kind=FLICSSelector, **arguments):
    return kind(len(groups), **({"groups": groups, "clients_per_round": 2, "seed": 1} | arguments))


def answered(selection, responded=None):
    return feedback(np.ones(selection.clients.size), responded)


def picked(clients):
    """The selection of these clients; FLICS learns from their groups."""
    ones = np.ones(len(clients))
    return Selection(np.array(clients, dtype=int), ones.astype(int), ones, ones, ones)


def expected(selector, round=1, **who):
    """Return (G,) how many of each group take part in a round on average."""
    if isinstance(selector, FLICSSelector):
        return selector.rates(round, **who)
    context = selector._context(round, **who)
    return selector._sample(context)[0] * selector._counted(selector._available_groups(context))


def state_of(selector, *keys):
    return [selector.state_dict()[key].tolist() for key in keys]


# FLICS by hand.


def test_two_rounds_by_hand():
    """Two groups of two; data 1, 1, 1, 3, so p = 1/3, 2/3."""
    selector = flics([0, 0, 1, 1], client_sizes=[1.0, 1.0, 1.0, 3.0])
    np.testing.assert_allclose(selector.probabilities, [1 / 6, 1 / 6, 1 / 3, 1 / 3])
    np.testing.assert_allclose(expected(selector), [2 / 3, 4 / 3])  # K = 2 shared out as p

    first = picked([0, 2, 3])
    np.testing.assert_allclose(selector.finalize(first, [True] * 3), [1 / 3, 1 / 3, 1 / 3])  # p/r̂ at t = 1
    np.testing.assert_allclose(selector.finalize(first, [True, False, True]), [1 / 3, 0, 2 / 3])
    selector.update(1, first, answered(first))
    assert state_of(selector, "participants", "rounds") == [[1, 2], [1, 1]]

    # The level: 1 + 2 so far and 2 more make 5, shared as p: 5/3 - 1 and 10/3 - 2.
    np.testing.assert_allclose(expected(selector), [2 / 3, 4 / 3])
    np.testing.assert_allclose(expected(selector, budget=1), [1 / 3, 2 / 3])
    np.testing.assert_allclose(
        expected(selector, available=[0, 1, 2]), [1, 1]
    )  # one of group 1 is all there is
    # ŝ = (1 + 1)/2, (2 + 1)/2 if one of each takes part; scaled once, and not divided by S.
    np.testing.assert_allclose(selector.finalize(picked([1, 2]), [True, True]), [1 / 3, 2 / 3 / 1.5])


def test_beta_counts_as_participants_before_round_1():
    """ŝ(t) = (β + r̂ so far)/t; p = 1/2, 1/2."""
    selector = flics([0, 0, 1, 1], beta=0.5)
    np.testing.assert_allclose(expected(selector), [1, 1])
    first = picked([0, 1])
    np.testing.assert_allclose(selector.finalize(first, [True, True]), [0.2, 0.2])  # 1/2 of 2.5 each
    selector.update(1, first, answered(first))
    np.testing.assert_allclose(selector.finalize(picked([2]), [True]), [0.5 * 2 / 1.5])  # not 1
    uneven = flics([0] * 4 + [1] * 4, beta=1, group_shares="3/1")
    np.testing.assert_allclose(expected(uneven), [2, 0])  # 1 + 2 and 1 + 0, shared out as 3/1
    minimum = flics([0, 0, 1, 1], beta=0.5, group_shares="99/1", min_shares="0/0.5")
    np.testing.assert_allclose(expected(minimum), [1, 1])  # β is nobody's share
    with pytest.raises(ValueError, match=r"beta = -1\.0"):
        flics([0, 1], beta=-1)


def test_whatever_clients_report_a_round_stays_within_its_budgets():
    pytest.importorskip("cvxpy")
    rng = np.random.default_rng(0)
    for _ in range(12):
        costs, energies = 10.0 ** rng.uniform(-300, 12, (2, 12)) * rng.integers(0, 2, (2, 12))
        selector = flics(
            np.arange(12) % 4, clients_per_round=6, costs=costs, energies=energies, cost_budget=1.0,
            energy_budgets=1e-3,
        )  # fmt: skip
        rates = selector.rates(2)
        groups = np.arange(12) % 4
        for values, budget in ((costs, 1.0), (energies, 2e-3)):
            assert rates @ (np.bincount(groups, values) / 3) <= budget * (1 + 1e-6)
        assert (rates >= 0).all()
        assert (rates <= 3).all()
        assert rates.sum() <= 6 * (1 + 1e-9)


def test_a_selection_is_a_coin_per_client():
    """S is K on average within 5 standard errors, and exceeds it at times; fields fit together."""
    selector = flics(np.arange(12) % 3, clients_per_round=4, client_sizes=np.arange(1.0, 13.0))
    sizes = []
    for round in range(800):
        selection = selector.select(round)
        sizes.append(selection.clients.size)
        np.testing.assert_allclose(
            selection.weights, selector.finalize(selection, np.ones(sizes[-1], dtype=bool))
        )
        np.testing.assert_allclose(
            selection.importance * selector.probabilities[selection.clients], selection.weights, rtol=1e-12
        )
    np.testing.assert_allclose(expected(selector), 4 * np.array([22, 26, 30]) / 78)
    assert abs(np.mean(sizes) - 4) < 5 * np.std(sizes) / np.sqrt(800)
    assert max(sizes) > 4
    inclusion = (4 * np.array([22, 26, 30]) / 78 / 4)[selection.clients % 3]
    np.testing.assert_allclose(selection.probabilities, inclusion)


@pytest.mark.slow
@pytest.mark.parametrize("cost_budget", [None, 7.3])
def test_numbers_of_groups_are_drawn_by_the_server(cost_budget):
    """r is rounded up or down; a client's probability is r_j/a_j, to 5 standard errors."""
    if cost_budget is not None:
        pytest.importorskip("cvxpy")
    groups, rounds = np.array([0] * 5 + [1] * 4 + [2] * 3), 4000
    selector = flics(
        groups, clients_per_round=6, group_shares="5/3/2", design="numbers", cost_budget=cost_budget,
        costs=[1] * 5 + [1] * 4 + [3] * 3,
    )  # fmt: skip
    rates = expected(selector, unavailable=[0])
    selections = [selector.select(round, unavailable=[0]) for round in range(rounds)]
    for selection in selections:
        counts = np.bincount(groups[selection.clients], minlength=3)
        assert (np.abs(counts - rates) < 1).all()
        assert abs(counts.sum() - rates.sum()) < 1 + 1e-9
        assert counts.sum() <= 6
        np.testing.assert_allclose(selection.probabilities, (rates / [4, 4, 3])[groups[selection.clients]])
    drawn = np.bincount(np.concatenate([each.clients for each in selections]), minlength=12) / rounds
    inclusion = np.where(np.arange(12) == 0, 0, (rates / [4, 4, 3])[groups])
    assert (np.abs(drawn - inclusion) <= 5 * np.sqrt(inclusion * (1 - inclusion) / rounds)).all()


def test_all_clients_are_invited_if_at_most_k_are_available():
    selector = flics([0, 0, 1, 1], clients_per_round=3)
    selection = selector.select(1, available=[3, 0, 1])
    assert selection.clients.tolist() == [0, 1, 3]
    assert (selection.probabilities == 1).all()
    np.testing.assert_allclose(selection.weights, [0.25, 0.25, 0.5])


def test_group_shares_are_a_setting():
    for shares in ([1, 3], (0.25, 0.75), "1/3", np.array([2.0, 6.0]).tolist()):
        selector = flics([0, 0, 1, 1], group_shares=shares, client_sizes=[5.0, 1.0, 1.0, 1.0])
        np.testing.assert_allclose(selector.probabilities, [1 / 8, 1 / 8, 3 / 8, 3 / 8])
        np.testing.assert_allclose(expected(selector), [0.5, 1.5])
    selector.remove_clients([0, 1])  # normalised over the groups with registered clients
    np.testing.assert_allclose(selector.probabilities, [0, 0, 1 / 2, 1 / 2])


# Unbiased over time.


def run(selector, rounds, updates, here, rng, response=None):
    """Return (n, d) the estimates of those rounds in which somebody answered."""
    groups = selector.state_dict()["groups"]
    estimates = []
    for round in range(1, rounds + 1):
        selection = selector.select(round, available=here(rng))
        responded = np.ones(selection.clients.size, dtype=bool)
        if response is not None:
            responded = rng.random(responded.size) < response[groups[selection.clients]]
        if responded.any():
            estimates.append(selector.finalize(selection, responded) @ updates[selection.clients])
        selector.update(round, selection, answered(selection, responded))
    return np.array(estimates)


def sleepers(groups, mean_down=(1, 2, 3)):
    """Group j is awake 4 rounds, asleep mean_down[j] (Markov); half of its awake clients are available."""
    awake = np.ones(len(mean_down), dtype=bool)

    def here(rng):
        nonlocal awake
        awake = awake ^ (rng.random(awake.size) < np.where(awake, 1 / 4, 1 / np.array(mean_down)))
        return np.flatnonzero(awake[groups] & (rng.random(groups.size) < 0.5))

    return here


@pytest.mark.parametrize(
    ("response", "design"), [(None, "coins"), (np.array([1.0, 0.5, 0.8]), "coins"), (None, "numbers")]
)
@pytest.mark.parametrize(
    ("processes", "rounds", "bounds"),
    [
        (8, 220, [0.07, 0.07, 0.13, 0.21]),
        pytest.param(24, 1000, [0.02, 0.02, 0.03, 0.05], marks=pytest.mark.slow),
    ],
)
def test_the_estimate_is_unbiased_over_the_availability(response, design, processes, rounds, bounds):
    """The error bound: 5 standard errors over the processes, the first 60 rounds left out, and .02."""
    groups = np.arange(30) % 3
    shares = np.array([0.2, 0.3, 0.5])
    # How much of each group is in the estimate, and an update that differs within the groups.
    updates = np.column_stack([np.eye(3)[groups], np.random.default_rng(5).normal(groups, 0.5)])
    truth = shares @ np.array([updates[groups == j].mean(axis=0) for j in range(3)])
    means, asleep = [], []
    for seed in range(processes):
        selector = flics(groups, clients_per_round=4, group_shares=shares.tolist(), seed=seed, design=design)
        rng = np.random.default_rng(seed)
        estimates = run(selector, rounds, updates, sleepers(groups), rng, response)[60:]
        means.append(estimates.mean(axis=0))
        asleep.append(estimates[estimates[:, 2] == 0].mean(axis=0))
    error = 5 * np.std(means, axis=0, ddof=1) / np.sqrt(processes)
    assert (error < bounds).all()  # small enough to say something
    assert (np.abs(np.mean(means, axis=0) - truth) < error + 0.02).all()
    # Not so in each round: without group 2, half of the estimate is missing.
    assert np.mean(asleep, axis=0)[3] < truth[3] - 0.4


def test_participation_follows_the_targets_as_far_as_possible():
    groups = np.arange(30) % 3
    selector = flics(groups, clients_per_round=4, group_shares=[0.2, 0.3, 0.5])
    run(selector, 600, np.eye(3)[groups], sleepers(groups, mean_down=(1, 1, 1)), np.random.default_rng(0))
    participants = selector.state_dict()["participants"]
    np.testing.assert_allclose(participants / participants.sum(), [0.2, 0.3, 0.5], atol=0.01)


# Counts of participants and rounds.


def test_a_round_without_participants_is_not_counted():
    selector = flics([0, 0, 1, 1])
    first = picked([0, 2])
    for selection, responded in ((picked([]), []), (first, [False, False])):
        selector.update(1, selection, answered(selection, np.array(responded, dtype=bool)))
        assert state_of(selector, "participants", "rounds") == [[0, 0], [0, 0]]
    selector.update(2, first, answered(first, [True, False]))
    assert state_of(selector, "participants", "rounds") == [[1, 0], [1, 1]]
    selector.remove_clients([2])
    selector.update(3, first, answered(first))
    assert state_of(selector, "participants", "rounds") == [[2, 0], [2, 2]]


def test_what_norms_say_does_not_matter():
    selector = flics([0, 0, 1, 1])
    first = picked([0, 2])
    selector.update(1, first, feedback([np.nan, np.inf]))
    assert state_of(selector, "participants", "rounds") == [[1, 1], [1, 1]]


def test_a_group_seen_late_is_made_up_for():
    selector = flics([0, 0, 1, 1])
    for round in range(1, 10):
        selector.update(round, picked([0]), answered(picked([0])))
    assert selector.finalize(picked([2]), [True]).tolist() == [0.5 * 10 / 1]
    np.testing.assert_allclose(expected(selector), [0, 2])


def test_a_group_that_joins_late_counts_from_then():
    selector = flics([0, 0])
    for round in range(1, 10):
        selector.update(round, picked([0, 1]), answered(picked([0, 1])))
    selector.add_clients([2.0, 2.0], groups=[2, 2])
    np.testing.assert_allclose(selector.probabilities, [1 / 6, 1 / 6, 1 / 3, 1 / 3])
    assert selector.finalize(picked([2]), [True]).tolist() == [2 / 3]  # t = 1 for it
    selector.update(10, picked([0, 2]), answered(picked([0, 2])))
    assert state_of(selector, "participants", "rounds") == [[19, 0, 1], [10, 0, 1]]
    # In sum p_j² t_j/(n_j + r_j) the levels (n_j + r_j)/(p_j √t_j) are 3 · 19/√11 = 17.2 and 1.5 (1 + 2)/√2.
    np.testing.assert_allclose(expected(selector), [0, 0, 2])
    other = flics([0, 0])
    other.load_state_dict(selector.state_dict())
    assert other.finalize(picked([2]), [True]).tolist() == selector.finalize(picked([2]), [True]).tolist()


def test_rates_of_groups_of_different_age():
    """Level (n_j + r_j)/(p_j √t_j) with t = 16, 4: targets as 2 : 1 of 8 + 3 so far and 3 more."""
    selector = flics([0] * 5 + [1] * 5, clients_per_round=3)
    changes = {"participants": np.array([8, 3]), "rounds": np.array([15, 3])}
    selector.load_state_dict(selector.state_dict() | changes)
    np.testing.assert_allclose(expected(selector), [28 / 3 - 8, 14 / 3 - 3])


def test_a_group_can_leave_and_come_back():
    selector = flics([0, 0, 1, 1])
    selector.update(1, picked([0, 2]), answered(picked([0, 2])))
    selector.remove_clients([2, 3])
    assert selector.finalize(picked([0, 3]), [True, True]).tolist() == [1.0, 0.0]
    selector.update(2, picked([0]), answered(picked([0])))
    selector.add_clients([1.0], groups=[1])
    assert state_of(selector, "participants", "rounds") == [[2, 1], [2, 1]]
    np.testing.assert_allclose(selector.probabilities, [1 / 3, 1 / 3, 0, 0, 1 / 3])


@pytest.mark.parametrize("kind", BOTH)
def test_relabelling_groups_changes_nothing(kind):
    groups = np.array([0, 1, 1, 2, 0, 2, 2, 2])
    sizes = np.arange(1.0, 9.0)
    one, other = flics(groups, kind, client_sizes=sizes), flics(5 - 2 * groups, kind, client_sizes=sizes)
    for each in (one, other):
        each.update(1, picked([0, 3, 5]), answered(picked([0, 3, 5])))
    np.testing.assert_allclose(one.probabilities, other.probabilities)
    np.testing.assert_allclose(expected(one), expected(other)[[5, 3, 1]], atol=1e-14)


# Constraints.


def test_minimum_shares_make_a_group_catch_up():
    """Group 1 has a target of 1 %, but must be 25 % of all participants. It needs no cvxpy."""
    selector = flics([0, 0, 0, 1, 1, 1], group_shares=[0.99, 0.01], min_shares=[0, 0.25], clients_per_round=2)
    np.testing.assert_allclose(expected(selector), [1.5, 0.5])
    selector.update(1, picked([0, 1, 2]), answered(picked([0, 1, 2])))
    np.testing.assert_allclose(expected(selector), [0.75, 1.25])  # .25 · (3 + 2)
    np.testing.assert_allclose(expected(selector, available=[0, 1, 3]), [1, 1])  # as many as are available
    np.testing.assert_allclose(expected(selector, available=[0, 1]), [2, 0])
    for round in range(2, 10):
        selector.update(round, picked([0]), answered(picked([0])))
    np.testing.assert_allclose(expected(selector), [0, 2])  # .25 · 13 is more than K


def test_a_cost_budget():
    """Clients of group 1 cost 5; group 0 gets the places that they are too expensive for."""
    pytest.importorskip("cvxpy")
    selector = flics([0] * 4 + [1] * 4, clients_per_round=4, costs=[1, 1, 1, 1, 2, 8, 5, 5], cost_budget=10.0)
    np.testing.assert_allclose(expected(selector), [2.5, 1.5], rtol=1e-6)  # r_0 + r_1 = 4, r_0 + 5 r_1 = 10
    np.testing.assert_allclose(expected(selector, unavailable=[4, 5, 6, 7]), [4, 0])
    np.testing.assert_allclose(expected(selector, available=[0, 1, 2, 3, 4]), [3, 1])  # the cheap one: 2
    free = flics([0] * 4 + [1] * 4, clients_per_round=4, costs=[1, 1, 1, 1, 2, 8, 5, 5], cost_budget=100.0)
    np.testing.assert_allclose(expected(free), [2, 2])
    nothing = flics([0] * 4 + [1] * 4, costs=[0, 0, 0, 0, 1, 1, 1, 1], cost_budget=0.0)
    np.testing.assert_allclose(expected(nothing), [2, 0])
    selector.add_clients([1.0], groups=[0], costs=[3.0])
    np.testing.assert_allclose(expected(selector, available=[8, 4, 5, 6, 7]), [1, 1.4], rtol=1e-6)  # 3 + 7
    assert flics([0, 1], cost_budget=3.0).state_dict()["costs"].tolist() == [1, 1]


def test_an_energy_budget_over_time():
    """One budget for all: energy spent in a round is missing later, energy saved is left."""
    pytest.importorskip("cvxpy")
    energies = [1, 1, 1, 1, 3, 3, 3, 3]
    selector = flics([0] * 4 + [1] * 4, clients_per_round=4, energies=energies, energy_budgets=4.0)
    rates = expected(selector)
    np.testing.assert_allclose(rates @ [1, 3], 4, rtol=1e-6)
    exact = fill_with_budgets([1, 1], [0, 0], [4, 4], [0, 0], [[1, 1], [1, 3]], [4, 4])
    np.testing.assert_allclose(rates, exact)  # the costlier group has less: p/√energy
    np.testing.assert_allclose(rates[0] / rates[1], 3**0.5, rtol=1e-5)
    chosen = picked([0, 1, 4, 5])
    selector.update(1, chosen, answered(chosen, [True, True, False, True]))
    assert state_of(selector, "energy_spent") == [[2.0, 6.0]]  # clients that failed have spent it, too
    np.testing.assert_allclose(expected(selector, 2) @ [1, 3], 0, atol=1e-9)
    np.testing.assert_allclose(expected(selector, 3) @ [1, 3], 4, rtol=1e-6)
    assert (expected(selector, 100) == expected(flics([0] * 4 + [1] * 4, clients_per_round=4))).sum() < 2
    spent = [0.0]
    for round in range(4, 45):
        selection = selector.select(round)
        selector.update(round, selection, answered(selection))
        spent.append(selector.state_dict()["energy_spent"].sum() / round)
    assert abs(spent[-1] - 4) < 0.3


def test_an_energy_budget_for_each_group():
    """It is an upper bound on the group's rate and keeps the closed form: no cvxpy."""
    selector = flics([0] * 4 + [1] * 4, clients_per_round=4, energies=[2.0] * 8, energy_budgets="9/1")
    np.testing.assert_allclose(expected(selector), [3.5, 0.5])
    selector.update(1, picked([0, 4]), answered(picked([0, 4])))
    np.testing.assert_allclose(expected(selector, 2), [4, 0])
    np.testing.assert_allclose(expected(selector, 3), [3.5, 0.5])
    np.testing.assert_allclose(expected(selector, 100), [2, 2])
    free = flics([0] * 4 + [1] * 4, clients_per_round=4, energies=[2.0] * 4 + [0.0] * 4, energy_budgets="9/0")
    np.testing.assert_allclose(expected(free), [2, 2])


def test_all_constraints_at_once():
    """Budgets hold in every round on average; minimum shares yield to them."""
    pytest.importorskip("cvxpy")
    rng = np.random.default_rng(4)
    groups = np.arange(40) % 4
    selector = flics(
        groups,
        clients_per_round=8,
        group_shares="4/3/2/1",
        min_shares=[0, 0, 0, 0.3],
        costs=rng.uniform(1, 5, 40),
        cost_budget=15.0,
        energies=rng.uniform(0, 2, 40),
        energy_budgets=5.0,
    )
    state = selector.state_dict()
    for round in range(1, 30):
        here = np.flatnonzero(rng.random(40) < 0.6)
        spent = selector.state_dict()["energy_spent"].sum()
        inclusion = (selector.rates(round, available=here) / np.bincount(groups[here], minlength=4))[
            groups[here]
        ]
        assert inclusion.sum() <= 8 * (1 + 1e-9)
        assert inclusion @ state["costs"][here] <= 15 * (1 + 1e-9)
        assert spent + inclusion @ state["energies"][here] <= max(spent, 5 * round) * (1 + 1e-9)
        selection = selector.select(round, available=here)
        selector.update(round, selection, answered(selection))
    participants = selector.state_dict()["participants"]
    assert abs(participants[3] / participants.sum() - 0.3) < 0.05


def test_the_examples_of_all_constraints_hold():
    pytest.importorskip("cvxpy")
    found = doctest.testmod(flics_module)
    assert found.attempted > 8
    assert found.failed == 0


def test_a_missing_cvxpy_is_an_error_at_the_start(monkeypatch):
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    for settings in ({"cost_budget": 3.0}, {"energy_budgets": 3.0}):
        with pytest.raises(ModuleNotFoundError, match=r"needs cvxpy: pip install 'cohort-app\[optim\]'"):
            flics([0, 1], **settings)
    flics([0, 1], min_shares=[0.1], energy_budgets=[3.0, 2.0]).select(1)


@pytest.mark.parametrize("kind", BOTH)
def test_bad_joiners_change_nothing(kind):
    selector = flics([0, 0, 1, 1], kind, group_shares=[1, 1])
    before = selector.state_dict()
    for joining, text in (
        ({"groups": [2]}, "groups holds 2: must be"),
        ({"groups": [0, 1]}, "groups has shape (2,)"),
        ({}, "groups = None"),
        ({"groups": [0], "colour": [1]}, "colour"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            selector.add_clients([1.0], **joining)
    assert selector.num_clients == 4
    for key, array in selector.state_dict().items():
        np.testing.assert_array_equal(array, before[key])


# Fixed quotas.


def test_numbers_of_groups_go_by_name():
    """Group 0 is the first that `group_shares` names, in all settings."""
    text = flics(
        [0] * 4 + [1] * 4,
        clients_per_round=4,
        group_shares="north:9/south:1",
        min_shares="south:0.5",
        energy_budgets="south:1/north:100",
    )
    np.testing.assert_allclose(text.rates(1), [3.0, 1.0])
    again = FLICSSettings.of(
        {"group_shares": {"north": 9, "south": 1}, "min_shares": {"south": 0.5}}
        | {"energy_budgets": {"south": 1, "north": 100}},
        "flics",
    )
    assert again == text.settings
    assert again.group_names == ("north", "south")
    assert again.only_named_groups
    minimum = FLICSSettings.of({"min_shares": {"rural": 0.3}}, "flics")
    assert minimum.group_names == ("rural",)
    assert not minimum.only_named_groups  # the others have no minimum, and take part
    assert flics([1, 1, 0], min_shares={"rural": 0.5}).rates(1).tolist() == [1.0, 1.0]


def test_quotas_by_hand():
    """p = .5, .25, .25 and K = 4: two, one, one; group 2 is absent and not made up for."""
    groups = [0, 0, 0, 1, 1, 2, 2]
    selector = flics(groups, NaiveGroupSelector, group_shares=[2, 1, 1], clients_per_round=4)
    for round in range(20):
        selection = selector.select(round, unavailable=[5, 6, 0])
        assert np.bincount(np.take(groups, selection.clients)).tolist() == [2, 1]
        np.testing.assert_array_equal(selection.weights, np.full(3, 1 / 3))
        expected_p = np.where(np.isin(selection.clients, [1, 2]), 1, 0.5)
        np.testing.assert_array_equal(selection.probabilities, expected_p)
    np.testing.assert_allclose(selector.finalize(selection, [True, False, False]), [1, 0, 0])
    # K = 3: quotas 1.5, .75, .75; the one of group 0 is always taken, one of group 1 in 3 of 4 rounds.
    np.testing.assert_allclose(expected(selector, available=[0, 3, 4], budget=3), [1, 0.75, 0])


def test_quotas_are_right_on_average():
    """Inclusions over 1,500 rounds are within 5 standard errors of `Selection.probabilities`; S is K."""
    groups = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
    selector = flics(groups, NaiveGroupSelector, client_sizes=np.arange(1.0, 11.0), clients_per_round=3)
    seen, p = np.zeros(10), np.zeros(10)
    for round in range(1500):
        selection = selector.select(round)
        assert selection.clients.size == 3
        seen[selection.clients] += 1 / 1500
        p[selection.clients] = selection.probabilities
    np.testing.assert_allclose(p, 3 * selector.probabilities)
    assert (np.abs(seen - p) <= 5 * np.sqrt(p * (1 - p) / 1500)).all()


def test_quotas_are_biased_only_where_groups_are_scarce():
    """Update 1 in group 2, 0 elsewhere: its share is right (5 standard errors) only if it is available."""
    groups = np.arange(30) % 3
    updates = (groups == 2).astype(float)
    for scarce in (False, True):
        selector = flics(groups, NaiveGroupSelector, group_shares=[1, 1, 2], clients_per_round=6)
        rng = np.random.default_rng(0)
        estimates = []
        for round in range(400):
            few = rng.random(30) < (0.15 if scarce else 1.0)
            here = np.flatnonzero((groups < 2) | few)
            selection = selector.select(round, available=here)
            estimates.append(selection.weights @ updates[selection.clients])
        error = np.std(estimates) / np.sqrt(400)
        off = 0.5 - np.mean(estimates)
        assert off > 5 * error + 0.1 if scarce else abs(off) <= 5 * error + 1e-12
    assert selector.unbiased == "none"


def weight_of_the_last_three(lone_groups, since, rounds=60):
    """Three of twenty clients, each a group of its own, stay away before round `since`.

    Return their share of all weights, and the largest weight of an update.
    """
    groups = [0, 1] * 8 + [0, 2, 3, 4]
    selector = flics(groups, clients_per_round=5, seed=1, lone_groups=lone_groups)
    total = np.zeros(20)
    largest = 0.0
    for number in range(1, rounds + 1):
        selection = selector.select(number, available=np.arange(20 if number >= since else 17))
        total[selection.clients] += selection.weights
        largest = max(largest, selection.weights.max(initial=0))
        selector.update(number, selection, feedback(np.ones(selection.clients.size)))
    return float(total[17:].sum() / total.sum()), largest


@pytest.mark.parametrize("since", [10, 31, 50])
def test_a_client_that_is_a_group_of_its_own_does_not_make_up_for_missed_rounds(since):
    """Their share of the data is .15. The paper's form gives them .35 if they come in round 50 of 60."""
    present = (61 - since) / 60
    share, largest = weight_of_the_last_three("clients", since)
    assert share <= 0.15 * present + 0.02
    assert largest <= 0.4
    share, largest = weight_of_the_last_three("groups", since)
    assert share >= 0.15
    assert largest >= 0.5


def test_a_declared_share_and_a_client_that_is_always_there_change_nothing():
    assert weight_of_the_last_three("clients", 1) == weight_of_the_last_three("groups", 1)
    one, other = (
        flics([0, 0, 1], clients_per_round=2, group_shares="2/1", lone_groups=each)
        for each in ("clients", "groups")
    )
    for number in range(1, 30):
        here = np.arange(3 if number % 5 == 0 else 2)
        for selector in (one, other):
            selection = selector.select(number, available=here)
            selector.update(number, selection, feedback(np.ones(selection.clients.size)))
    assert np.array_equal(one.select(30).weights, other.select(30).weights)


def test_clients_that_are_groups_of_their_own_get_their_share_of_the_rounds_in_which_they_are_there():
    """Over 2,000 rounds, in proportion to size x availability; the weights of a round sum to 1 on average."""
    chance, sizes = np.array([1.0, 1.0, 0.5, 0.2, 0.8]), np.array([3.0, 1.0, 2.0, 1.0, 3.0])
    selector = flics(list(range(5)), clients_per_round=2, client_sizes=sizes)
    rng, total, rounds = np.random.default_rng(3), np.zeros(5), 2000
    for number in range(1, rounds + 1):
        here = np.flatnonzero(rng.random(5) < chance)
        selection = selector.select(number, available=here)
        total[selection.clients] += selection.weights
        selector.update(number, selection, feedback(np.ones(selection.clients.size)))
    target = sizes * chance / (sizes * chance).sum()
    np.testing.assert_allclose(total / rounds, target, atol=0.02)
    np.testing.assert_allclose(selector.target_shares(), target, atol=0.02)


def test_a_checkpoint_from_before_presence_was_counted_is_loaded():
    selector = flics([0, 0, 1], clients_per_round=2)
    selection = selector.select(1)
    selector.update(1, selection, feedback(np.ones(selection.clients.size)))
    state = selector.state_dict()
    del state["present"]
    again = flics([0, 0, 1], clients_per_round=2)
    again.load_state_dict(state)
    assert np.array_equal(again.select(2).weights, selector.select(2).weights)
