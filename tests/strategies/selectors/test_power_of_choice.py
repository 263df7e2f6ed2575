"""Power-of-Choice: the candidates, the selected clients, how d shrinks, and the bias of the estimate."""

import re
from itertools import permutations

import numpy as np
import pytest

from strategies.selectors.power_of_choice.afl import AFLSelector
from strategies.selectors.power_of_choice.pow_d import (
    AdaPowDSelector,
    CPowDSelector,
    PowDSelector,
    RPowDSelector,
)

from ...support.selections import feedback

SIZES = np.array([1.0, 1.0, 2.0, 4.0, 8.0, 16.0])
VARIANTS = [PowDSelector, CPowDSelector, RPowDSelector, AdaPowDSelector]


def make(kind, num_clients=6, **arguments):
    settings = {"clients_per_round": 2, "client_sizes": SIZES[:num_clients], "num_rounds": 100, "seed": 1}
    return kind(num_clients, **(settings | arguments))


def choose(selector, round, losses, **who):
    """A round of the protocol: ask the candidates, and select; losses (M,) are the clients' answers."""
    asked = selector.candidates(round, **who)
    if asked is None:
        return selector.select(round, **who)
    return selector.select(round, candidates=asked, reports={"loss": np.asarray(losses)[asked]}, **who)


def inclusion(sizes, k):
    """Inclusion probabilities of k successive draws in proportion to sizes, by enumeration."""
    p = np.asarray(sizes) / np.sum(sizes)
    result = np.zeros(p.size)
    for order in permutations(range(p.size), k):
        chance, left = 1.0, 1.0
        for client in order:
            chance *= p[client] / left
            left -= p[client]
        result[list(order)] += chance
    return result


def test_what_they_ask():
    pow_d, cpow_d = make(PowDSelector), make(CPowDSelector, batch_size=20)
    assert (pow_d.poll_settings, cpow_d.poll_settings) == ({}, {"batch-size": 20})
    assert pow_d.polls_for == cpow_d.polls_for == make(AdaPowDSelector).polls_for == {"loss"}
    assert make(RPowDSelector).polls_for == set()
    assert make(RPowDSelector).candidates(1) is None
    for round in range(20):  # the same rounds, the same candidates
        np.testing.assert_array_equal(pow_d.candidates(round), cpow_d.candidates(round))


@pytest.mark.parametrize("who", [{}, {"available": [5, 0, 1, 3]}, {"unavailable": [2, 4]}])
@pytest.mark.parametrize("kind", [PowDSelector, AdaPowDSelector])
def test_candidates_are_drawn_in_proportion_to_data(kind, who):
    """First draws and inclusions over 1,500 rounds are within 5 standard errors of successive draws'."""
    selector = (
        make(kind, num_candidates=3, drop_at=10**6)
        if kind is AdaPowDSelector
        else make(kind, num_candidates=3)
    )
    here = [0, 1, 3, 5] if who else list(range(6))
    first, included = np.zeros(6), np.zeros(6)
    for round in range(1500):
        asked = selector.candidates(round, **who)
        assert asked.size == np.unique(asked).size == 3
        first[asked[0]] += 1 / 1500
        included[asked] += 1 / 1500
    expected_first, expected = np.zeros(6), np.zeros(6)
    expected_first[here] = SIZES[here] / SIZES[here].sum()
    expected[here] = inclusion(SIZES[here], 3)
    for seen, true in ((first, expected_first), (included, expected)):
        assert (np.abs(seen - true) <= 5 * np.sqrt(true * (1 - true) / 1500)).all()


def test_the_largest_losses_win():
    selector = make(PowDSelector, num_candidates=4)
    asked = selector.candidates(1)
    assert asked.size == 4
    for losses, winners in (
        ([3.0, 9.0, -1.0, 5.0], [1, 3]),
        ([0.0, 0.0, 2.0, 7.0], [2, 3]),
        ([np.nan, 9.0, np.inf, 5.0], [1, 3]),  # no usable answer: no candidate
        ([np.nan, np.nan, np.nan, -5.0], [3]),
        ([-np.inf, np.nan, np.nan, np.nan], []),
    ):
        for scaled in (np.array(losses), 1000 * np.array(losses) + 7):
            selection = selector.select(1, candidates=asked, reports={"loss": scaled})
            assert set(selection.clients) == set(asked[winners])
            np.testing.assert_array_equal(selection.weights, np.full(len(winners), 1 / max(1, len(winners))))
            assert (selection.counts == 1).all()


def test_a_selection_by_hand():
    """Sizes 1, 1, 2 of 4 in all; all are polled, clients 0 and 2 are selected, with weight 1/2 each."""
    selector = make(PowDSelector, 3, num_candidates=3)
    assert selector.candidates(1).tolist() == [0, 1, 2]
    selection = choose(selector, 1, [5.0, 1.0, 4.0])
    order = np.argsort(selection.clients)
    assert selection.clients[order].tolist() == [0, 2]
    assert selection.weights.tolist() == [0.5, 0.5]
    assert selection.probabilities[order].tolist() == [0.25, 0.5]  # what candidates are drawn from
    assert selection.importance[order].tolist() == [2.0, 1.0]  # twice its due, as much as its due
    np.testing.assert_array_equal(selector.finalize(selection, [True, False]), [1.0, 0.0])
    assert selector.probabilities.tolist() == [0.25, 0.25, 0.5]


@pytest.mark.parametrize(
    ("averaging", "weights", "after_one_failed"),
    [
        ("plain", [1 / 2, 1 / 2], [0, 1]),
        ("sizes", [1 / 3, 2 / 3], [0, 1]),
        ("scaled-sizes", [3 / 8, 6 / 8], [0, 1.5]),
    ],
)
def test_averaging_schemes_by_hand(averaging, weights, after_one_failed):
    """Sizes 1, 1, 2: shares 1/4, 1/4, 1/2 of three clients; 0 and 2 are selected."""
    selector = make(PowDSelector, 3, num_candidates=3, averaging=averaging)
    selection = choose(selector, 1, [5.0, 1.0, 4.0])
    order = np.argsort(selection.clients)
    np.testing.assert_allclose(selection.weights[order], weights)
    np.testing.assert_allclose(selection.importance[order], np.array(weights) / [0.25, 0.5])
    answered = selection.clients == 2
    np.testing.assert_allclose(selector.finalize(selection, answered)[order], after_one_failed)
    np.testing.assert_array_equal(selector.finalize(selection, [False, False]), [0, 0])


@pytest.mark.parametrize("kind", [*VARIANTS, AFLSelector])
def test_every_selector_of_this_folder_has_the_schemes(kind):
    assert make(kind, averaging="sizes").settings.averaging == "sizes"
    with pytest.raises(ValueError, match=r"averaging = 'mean': must be one of 'plain', 'sizes'"):
        make(kind, averaging="mean")


def test_a_client_that_left_after_the_poll_is_not_selected():
    selector = make(PowDSelector, num_candidates=6)
    asked = selector.candidates(1)
    selection = selector.select(1, available=[0, 2], candidates=asked, reports={"loss": np.arange(6.0)})
    assert set(selection.clients) == {0, 2}
    assert (selection.probabilities == 1).all()  # all available clients
    selector.remove_clients([2])
    selection = selector.select(1, unavailable=[5], candidates=asked, reports={"loss": np.ones(6)})
    assert set(selection.clients) <= {0, 1, 3, 4}


@pytest.mark.parametrize("kind", [PowDSelector, RPowDSelector])
def test_ties_are_broken_at_random(kind):
    """Of four equal losses each is among the two winners half of the time, within 5 standard errors."""
    selector = make(kind, 4, client_sizes=None, num_candidates=4)
    wins = np.zeros(4)
    for round in range(800):
        wins[choose(selector, round, np.ones(4)).clients] += 1 / 800
    assert (np.abs(wins - 0.5) < 5 * 0.5 / np.sqrt(800)).all()


@pytest.mark.parametrize("here", [range(6), [0, 1, 3, 5]])
def test_d_equal_to_k_is_sampling_in_proportion_to_data_and_biased(here):
    """Footnote 2 calls it unbiased. Losses do not matter, and the largest clients get too little."""
    selector = make(RPowDSelector, num_candidates=2)
    included, rounds = np.zeros(6), 600
    for round in range(rounds):
        included[choose(selector, round, np.arange(6.0), available=here).clients] += 1 / rounds
    here = np.array(here)
    expected, due = inclusion(SIZES[here], 2), SIZES[here] / SIZES[here].sum()
    errors = np.sqrt(expected * (1 - expected) / rounds)
    assert (np.abs(included[here] - expected) <= 5 * errors).all()
    # The mean weight is inclusion/K: of client 5, far below its share of the data.
    assert included[5] / 2 < due[-1] - 0.05 - 5 * errors[-1] / 2


def test_weights_are_equal_when_all_candidates_are_selected():
    selection = choose(make(PowDSelector, num_candidates=9), 1, np.arange(6.0), available=[5, 0])
    assert set(selection.clients) == {0, 5}
    assert selection.weights.tolist() == [0.5, 0.5]
    assert selection.probabilities.tolist() == [1, 1]


@pytest.mark.parametrize("kind", VARIANTS)
def test_no_reports_are_needed_if_no_client_is_available(kind):
    selector = make(kind)
    for arguments in ({"available": []}, {"budget": 0.5}):
        assert selector.select(1, **arguments).clients.size == 0
    if selector.polls_for:
        assert selector.candidates(1, available=[]).size == 0
    selector.remove_clients(range(6))
    assert selector.select(1).clients.size == 0
    assert not selector.probabilities.any()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "reports = None: must hold 'loss' of the candidates, by which pow-d"),
        ({"candidates": [1]}, "reports = None"),
        ({"candidates": [1], "reports": {"norm": np.ones(1)}}, "reports = ['norm']: must hold 'loss'"),
        ({"candidates": [1, 6], "reports": {"loss": np.ones(2)}}, "candidates holds 6"),
        ({"candidates": [1, 2], "reports": {"loss": np.ones(3)}}, "reports['loss'] has shape (3,)"),
    ],
)
def test_bad_reports_are_refused(arguments, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        make(PowDSelector).select(1, **arguments)


def test_a_budget_is_this_rounds_k():
    selector = make(PowDSelector, num_candidates=5)
    asked = selector.candidates(1)
    for budget, size in ((1, 1), (3.9, 3), (9, 5)):
        reports = {"loss": np.arange(5.0)}
        assert selector.select(1, candidates=asked, reports=reports, budget=budget).clients.size == size
    assert make(RPowDSelector, num_candidates=2).select(1, budget=5).clients.size == 5  # d grows with it


# d over the rounds.


def numbers_of_candidates(selector, rounds):
    return [selector.candidates(round).size for round in rounds]


def test_defaults_of_d():
    equal = {"num_clients": 40, "client_sizes": None, "clients_per_round": 3}
    assert numbers_of_candidates(make(PowDSelector, **equal), [0, 99]) == [6, 6]
    assert numbers_of_candidates(make(CPowDSelector, **equal), [0, 99]) == [6, 6]
    assert numbers_of_candidates(make(AdaPowDSelector, **equal), [0, 49, 50, 99]) == [40, 40, 3, 3]
    rpow_d = make(RPowDSelector, **equal)
    assert rpow_d._num_candidates(1) == 20
    rpow_d.remove_clients(range(36))
    assert rpow_d._num_candidates(1) == 3


def test_schedules_of_d():
    equal = {"num_clients": 40, "client_sizes": None, "clients_per_round": 3}
    selector = make(PowDSelector, **equal, num_candidates="20@1/10@4/0@6")
    assert numbers_of_candidates(selector, range(8)) == [20, 20, 20, 20, 10, 10, 6, 6]
    selector = make(AdaPowDSelector, **equal, num_candidates=[(0, 12), (60, 5)])  # no drop of its own
    assert numbers_of_candidates(selector, [0, 59, 60, 99]) == [12, 12, 5, 5]
    selector = make(AdaPowDSelector, **equal, halve_every=10)
    assert numbers_of_candidates(selector, [0, 9, 10, 20, 30, 40, 10**6]) == [40, 40, 20, 10, 5, 3, 3]
    selector = make(AdaPowDSelector, **equal, halve_every=10, num_candidates=16, drop_at=25)
    assert numbers_of_candidates(selector, [9, 10, 20, 24, 25]) == [16, 8, 4, 4, 3]
    selector = make(AdaPowDSelector, **equal, drop_at=7, num_rounds=None)
    assert numbers_of_candidates(selector, [6, 7]) == [40, 3]
    assert numbers_of_candidates(make(AdaPowDSelector, **equal | {"num_rounds": 1}), [0, 1]) == [40, 3]


def test_a_resumed_run_drops_at_the_round_of_its_state():
    selector, longer = make(AdaPowDSelector), make(AdaPowDSelector, num_rounds=1000)
    longer.load_state_dict(selector.state_dict())
    assert numbers_of_candidates(longer, [49, 50]) == [6, 2]


# rpow-d's memory.


def test_the_last_loss_stands_for_the_client():
    """Never-selected clients come first; then those with the largest of their last losses."""
    selector = make(RPowDSelector, client_sizes=None, num_candidates=6)
    seen = []
    for round, losses in enumerate(([5.0, 1.0], [3.0, 4.0], [2.0, 9.0])):
        selection = selector.select(round)
        assert not np.isin(selection.clients, seen).any()
        selector.update(round, selection, feedback([1.0, 1.0], losses=losses))
        seen += selection.clients.tolist()
    last = dict(zip(seen, [5.0, 1.0, 3.0, 4.0, 2.0, 9.0], strict=True))
    for expected in ({9.0, 5.0}, {4.0, 3.0}):
        selection = selector.select(7)
        assert {last[client] for client in selection.clients} == expected
        selector.update(7, selection, feedback([1.0, 1.0], losses=[0.5, 0.5]))
    selector.add_clients([1.0])
    assert 6 in selector.select(8).clients


def test_losses_that_are_missing_or_late_teach_nothing():
    selector = make(RPowDSelector)
    selection = selector.select(1)
    before = selector.state_dict()["losses"]
    assert np.isposinf(before).all()
    selector.update(1, selection, feedback([1.0, 1.0], losses=[np.nan, np.inf]))
    assert np.isposinf(selector._last_losses()).all()  # nothing is known of any client
    gone = selection.clients[0]
    selector.remove_clients([gone])
    selector.update(1, selection, feedback([1.0, 1.0], losses=[2.0, -3.0]))
    losses = selector.state_dict()["losses"]
    assert losses[selection.clients[1]] == -3.0
    assert not np.isfinite(losses[gone])


def test_a_selected_client_that_never_responded_counts_as_typical():
    selector = make(RPowDSelector)
    selection = selector.select(1)
    silent, heard = selection.clients
    selector.update(1, selection, feedback([1.0, 1.0], [False, True], losses=[np.nan, 3.0]))
    again = selector.load_state_dict(selector.state_dict()) or selector
    expected = np.full(again.num_clients, np.inf)
    expected[[silent, heard]] = 3.0
    np.testing.assert_array_equal(again._last_losses(), expected)


@pytest.mark.filterwarnings("error")
def test_losses_near_the_largest_float_have_a_finite_median():
    selector = make(RPowDSelector, 3, clients_per_round=2)
    huge = np.full(2, 1.7e308)
    selector.update(0, selector.select(0, available=[0, 1]), feedback([1.0, 1.0], losses=huge))
    silent = feedback([np.nan], losses=[np.nan], responded=[False])
    selector.update(1, selector.select(1, available=[2]), silent)
    assert np.isfinite(selector._last_losses()).all()
