"""Clients that train at least once in so many rounds: with every selector, without a bias."""

import numpy as np
import pytest

from strategies.options import Budgets, Faults, Overrides
from strategies.rounds.logic import RoundLogic
from strategies.rounds.replies import Reply
from strategies.selectors import available, create, selector_type

from ...support.selections import SETTINGS, SIZES, K, M, assert_same_state, norm_of, per_client

MODEL = {"w": np.zeros(3, np.float32)}
EVERY = {0: 1, 5: 4}
ALLOWED = []
for _name in available():
    try:
        Overrides(every={"a": 2}).check(selector_type(_name))
    except ValueError as error:
        if not str(error).startswith("overrides.settings has no"):  # a setting that the tests give
            continue
    ALLOWED.append(_name)


def logic(name="md", every=EVERY, m=M, k=K, seed=5, sizes=SIZES, **more):
    settings = SETTINGS.get(name, {}) | per_client(name, m)
    selector = create(
        name, m, client_sizes=sizes[:m], clients_per_round=k, num_rounds=40, seed=seed, **settings
    )
    return RoundLogic(selector, Faults(guard=False, silence=False), every=every, **more)


def chosen(rounds, number, here=None):
    opened = rounds.open(number, here)
    reports = None
    if opened.candidates is not None:
        values = norm_of(opened.candidates, number)
        reports = dict.fromkeys(rounds.selector.polls_for, values)
    return rounds.choose(opened, reports)


def played(rounds, numbers, here=None, silent=()):
    """Play rounds, and return their selections; the clients in ``silent`` do not reply."""
    selections = []
    for number in numbers:
        choice = chosen(rounds, number, here)
        replies = [
            Reply(failure="no reply")
            if client in silent
            else Reply({"w": np.full(3, norm_of(client, number), np.float32)})
            for client in choice.selection.clients.tolist()
        ]
        rounds.finish(choice, MODEL, replies)
        selections.append(choice.selection)
    return selections


def test_nearly_all_selectors_allow_it():
    refused = set(available()) - set(ALLOWED)
    assert refused == {"flics", "flics-private", "personalised-osmd"}


@pytest.mark.parametrize("name", ALLOWED)
def test_a_regular_client_trains_in_time_and_the_others_are_drawn_as_well(name):
    rounds = logic(name)
    selections = played(rounds, range(1, 25))
    drawn = [set(selection.clients.tolist()) for selection in selections]
    assert all(0 in clients for clients in drawn)
    assert all(any(5 in clients for clients in drawn[at : at + 4]) for at in range(len(drawn) - 3))
    assert len(set.union(*drawn)) > 3
    most = M if name in ("full", "flics") else K
    for selection in selections:
        assert np.unique(selection.clients).size == selection.clients.size
        if rounds.selector.fixed_size:
            assert selection.clients.size <= most


@pytest.mark.parametrize("here", [None, np.array([0, 2, 4, 5, 7])])
@pytest.mark.parametrize("name", ["uniform", "adaptive-osmd", "forecast", "fed-is"])
def test_the_estimate_stays_unbiased(name, here):
    """The mean over 400 seeds is within 5 standard errors: a false alarm about once in a million."""
    updates = np.random.default_rng(9).normal(loc=[0, 1, 5], size=(M, 3))
    clients = np.arange(M) if here is None else here
    truth = np.average(updates[clients], axis=0, weights=SIZES[clients])
    estimates = []
    for seed in range(400):
        selection = chosen(logic(name, seed=seed), 4, here).selection
        assert selection.clients[0] == 0
        assert 5 in selection.clients
        estimates.append(selection.weights @ updates[selection.clients])
    error = np.std(estimates, axis=0) / np.sqrt(len(estimates))
    assert (np.abs(np.mean(estimates, axis=0) - truth) <= 5 * error + 1e-12).all()


@pytest.mark.parametrize("name", ["pow-d", "divfl", "oort"])
def test_weights_of_a_biased_selector_share_what_the_due_clients_leave(name):
    selection = chosen(logic(name), 4).selection
    due = np.isin(selection.clients, [0, 5])
    np.testing.assert_allclose(selection.weights[due], SIZES[[0, 5]] / SIZES.sum())
    assert selection.weights.sum() == pytest.approx(1)


def test_a_client_that_does_not_reply_stays_due():
    rounds = logic(every={5: 3})
    silent = played(rounds, range(1, 8), silent=[5])
    assert [5 in each.clients for each in silent[2:]] == [True] * 5
    assert 5 in played(rounds, [8])[0].clients
    assert (rounds.regular.state_dict()["trained"] == 8).all()


def test_clients_that_are_overdue_longest_come_first_and_leave_a_place_for_the_others():
    rounds = logic(every={1: 1, 3: 2, 6: 4, 7: 1})
    selection = chosen(rounds, 4).selection
    assert selection.clients[:2].tolist() == [1, 7]
    assert selection.clients.size == K
    assert not {1, 7} & set(selection.clients[2:].tolist())
    everybody = chosen(rounds, 4, np.array([1, 3, 7])).selection
    assert sorted(everybody.clients.tolist()) == [1, 3, 7]
    assert everybody.weights.sum() == pytest.approx(1)


def test_an_absent_client_is_due_when_it_comes_back():
    rounds = logic(every={5: 2})
    others = np.array([0, 1, 2, 3, 4])
    assert not any(5 in each.clients for each in played(rounds, range(1, 9), others))
    assert 5 in played(rounds, [9])[0].clients


def test_the_budget_of_a_round_holds():
    rounds = logic(every={1: 1, 3: 1}, budgets=Budgets(K, "3@1/1@2/0@3"))
    assert [each.clients.size for each in played(rounds, [1, 2, 3])] == [3, 1, 0]


def test_a_resumed_run_is_the_same_run_also_with_clients_that_have_joined():
    straight, before = logic("forecast"), logic("forecast")
    for rounds in (straight, before):
        played(rounds, range(1, 6))
        rounds.add_clients([3.0])
        rounds.regular.declare({M: 3})
        played(rounds, [6])
    after = logic("forecast", m=M + 1, sizes=np.append(SIZES, 3.0), every=EVERY | {M: 3})
    after.load_state_dict(before.state_dict())
    for one, other in zip(played(straight, range(7, 20)), played(after, range(7, 20)), strict=True):
        np.testing.assert_array_equal(one.clients, other.clients)
        np.testing.assert_array_equal(one.weights, other.weights)
    assert_same_state(straight.state_dict(), after.state_dict())


@pytest.mark.parametrize(
    ("every", "message"),
    [
        ({"a": 0}, r"overrides.every\['a'\] = 0: must be >= 1"),
        ({"a": 2.5}, r"overrides.every\['a'\] = 2.5: must be an integer"),
        ({3: 1}, r"overrides.every holds the identity 3: must be text"),
    ],
)
def test_wrong_numbers_of_rounds_are_refused(every, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Overrides(every=every)
