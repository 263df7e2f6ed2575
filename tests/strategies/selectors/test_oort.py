"""Oort: Algorithm 1 of its paper, step by step."""

import math

import numpy as np
import pytest

from strategies.selectors import create

from ...support.selections import feedback

SIZES = np.array([10.0, 20.0, 30.0, 40.0, 50.0, 60.0])
M = SIZES.size


def explored(losses, seconds=None, *, clients_per_round=6, **settings):
    """A selector to which every client has replied once, in round 1."""
    selector = create("oort", M, client_sizes=SIZES, clients_per_round=clients_per_round, **settings)
    selection = selector.select(1)
    order = selection.clients
    assert sorted(order.tolist()) == list(range(M))
    said = feedback(np.ones(M), losses=np.array(losses)[order], **timed(seconds, order))
    selector.update(1, selection, said)
    return selector


def timed(seconds, order):
    return {} if seconds is None else {"seconds": np.array(seconds, dtype=float)[order]}


def test_all_clients_are_explored_first_and_then_a_share_that_decays_to_its_least_value():
    selector = create("oort", 1_000, clients_per_round=10)
    fresh = []
    for round in range(1, 121):
        selection = selector.select(round)
        assert selection.clients.size == 10
        new = selector.state_dict()["last_rounds"][selection.clients] == 0
        fresh.append(int(new.sum()))
        selector.update(round, selection, feedback(np.ones(10), losses=np.ones(10)))
    wanted = [10 - math.floor(10 * (1 - max(0.2, 0.9 * 0.98**t))) for t in range(120)]
    assert fresh[0] == 10  # nobody is explored
    assert fresh[1:80] == wanted[1:80]
    assert fresh[-1] == 2


def test_utilities_are_those_of_the_paper():
    """Clipped |B| loss, plus sqrt(0.1 log R / L), times (T/D)^2 for the clients that take longer than T."""
    losses, seconds = [1.0, 1.0, 2.0, 0.5, 3.0, 0.1], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    selector = explored(losses, seconds, pace=0.5, clip=0.8)
    raw = SIZES * losses
    clipped = np.minimum(raw, np.quantile(raw, 0.8)) + np.sqrt(0.1 * np.log(2) / 1)
    penalty = np.array([1, 1, 1, (3 / 4) ** 2, (3 / 5) ** 2, (3 / 6) ** 2])  # T: the third of six
    everyone = selector._presence(None, None)
    np.testing.assert_allclose(selector._utilities(everyone, np.arange(M)), clipped * penalty)


def test_without_durations_nobody_is_penalised():
    with_none, without = explored([1.0] * M), explored([1.0] * M, [1, 1, 1, 1, 1, 9], clients_per_round=6)
    for selector in (with_none, without):  # W K = 120 clients: T is infinite among six
        p = selector._utilities(selector._presence(None, None), np.arange(M))
        np.testing.assert_allclose(np.minimum(SIZES, np.quantile(SIZES, 0.95)), p - np.sqrt(0.1 * np.log(2)))


def test_only_utilities_near_the_last_one_are_admitted_in_proportion():
    selector = explored([6.0, 3.0, 2.0, 0.1, 0.1, 0.1])
    # |B| loss = 60, 60, 60, 4, 5, 6: with K = 3 the third is 60, and 0.9 · 60 admits three
    rarely = create(
        "oort", M, client_sizes=SIZES, clients_per_round=3, exploration=0.0, clip=1.0, cut_off=0.9
    )
    rarely.load_state_dict(selector.state_dict())
    for round in range(2, 30):
        assert sorted(rarely.select(round).clients.tolist()) == [0, 1, 2]
    assert rarely.probabilities[3:].tolist() == [0, 0, 0]


def test_the_pacer_takes_a_step_when_the_utility_falls():
    selector = create("oort", 4, clients_per_round=2, window=3, exploration=0.0, pace=0.25)
    steps = []
    for round in range(1, 13):
        selection = selector.select(round)
        loss = 1.0 if round <= 9 else 0.1
        said = feedback(np.ones(2), losses=np.full(2, loss), seconds=np.array([1.0, 2.0]))
        selector.update(round, selection, said)
        steps.append(int(selector.state_dict()["steps"]))
    assert steps == [0] * 11 + [1]


def test_clients_that_were_selected_too_often_are_left_out_while_others_are_there():
    selector = create("oort", 6, clients_per_round=1, most_draws=3, exploration=0.5)
    for round in range(1, 19):
        selection = selector.select(round)
        selector.update(round, selection, feedback(np.ones(1), losses=np.ones(1)))
    assert selector.state_dict()["draws"].tolist() == [3] * 6
    assert selector.select(19).clients.size == 1  # nobody else is there


def test_a_client_without_a_loss_and_odd_durations_stop_nothing():
    selector = explored(
        [np.nan, 0.0, 1e308, 1.0, -1.0, 1.0], [0.0, np.nan, 1e308, 1.0, 1e-300, 1.0], pace=0.1
    )
    for round in range(2, 20):
        selection = selector.select(round)
        assert selection.clients.size == M
        assert np.isfinite(selection.weights).all()
    p = selector.probabilities
    assert np.isfinite(p).all()
    assert p.sum() == pytest.approx(1)


@pytest.mark.parametrize("seed", range(3))
def test_a_client_that_always_fails_is_selected_no_more_often_than_others(seed):
    """A failed exploration is an exploration, so the client is not explored again in each round."""
    selector, draws = create("oort", 6, clients_per_round=2, seed=seed), np.zeros(6)
    for round in range(1, 121):
        selection = selector.select(round)
        draws[selection.clients] += 1
        responded = selection.clients != 0
        selector.update(round, selection, feedback(np.ones(2), losses=np.ones(2), responded=responded))
    assert 0 < draws[0] <= 1.3 * draws[1:].mean()
