"""Norms that all clients are asked for before the first selection."""

import numpy as np
import pytest

from strategies.options import Faults
from strategies.rounds.logic import RoundLogic
from strategies.selectors import available, create, selector_type
from strategies.selectors.osmd.base import ExpertsSelector

from ...support.selections import assert_same_state, feedback, play

ASKING = [
    name
    for name in available()
    if "ask_norms" in selector_type(name).allowed_settings() and name != "personalised-osmd"
]
SIZES = np.array([1.0, 4.0, 2.0, 1.0, 5.0, 1.0])


def new(name, **settings):
    return create(name, 6, client_sizes=SIZES, clients_per_round=2, num_rounds=30, ask_norms=True, **settings)


def test_who_asks():
    assert ASKING == [
        "osmd",
        "adaptive-osmd",
        "adaptive-doubling-osmd",
        "avare",
        "forecast",
        "timed-forecast",
    ]


@pytest.mark.parametrize("name", ASKING)
def test_norms_are_learned_once_and_before_the_first_selection(name):
    selector = new(name)
    assert selector.asks_norms
    with pytest.raises(ValueError, match="learn_norms must be called before the selection"):
        selector.select(1)
    before = selector.state_dict()
    for clients, norms, text in (
        ([0, 1], [1.0], "update_norms"),
        ([0, 0], [1.0, 2.0], "holds 0 more than once"),
        ([0, 6], [1.0, 2.0], "holds 6"),
        ([0, 1], [1.0, -2.0], "update_norms"),
    ):
        with pytest.raises(ValueError, match=text):
            selector.learn_norms(clients, norms)
        assert_same_state(selector.state_dict(), before)
    selector.learn_norms([0, 1, 4], [3.0, np.nan, np.inf])
    assert not selector.asks_norms
    with pytest.raises(ValueError, match="does not ask for norms, or has learned them"):
        selector.learn_norms([0], [1.0])
    other = new(name)
    other.load_state_dict(selector.state_dict())
    assert not other.asks_norms
    play(other, range(1, 4))


@pytest.mark.parametrize("name", ASKING)
def test_no_answer_is_as_if_nobody_was_asked(name):
    selector = new(name)
    selector.learn_norms(range(6), np.full(6, np.nan))
    plain = create(name, 6, client_sizes=SIZES, clients_per_round=2, num_rounds=30)
    for round in range(1, 20):
        np.testing.assert_array_equal(selector.probabilities, plain.probabilities)
        for each in (selector, plain):
            play(each, [round])


@pytest.mark.parametrize("name", ["adaptive-osmd", "osmd", "adaptive-doubling-osmd"])
@pytest.mark.parametrize("lazy_from", [1, 10**9])
def test_the_largest_answer_is_a_max(name, lazy_from, monkeypatch):
    """λ = sizes/14; the largest λ||g|| is 5/14 * 2."""
    monkeypatch.setattr(ExpertsSelector, "lazy_from", lazy_from)
    settings = {"learning_rate_multiplier": 50.0}
    asked = new(name, **settings)
    asked.learn_norms(range(6), [3.0, 1.0, np.nan, 9.0, 2.0, np.nan])
    told = create(
        name, 6, client_sizes=SIZES, clients_per_round=2, num_rounds=30, a_max=(5 / 14 * 2) ** 2, **settings
    )
    for round in range(1, 30):
        selection = asked.select(round)
        for each in (asked, told):
            each.update(round, selection, feedback(1.0 + selection.clients))
        np.testing.assert_allclose(asked.probabilities, told.probabilities, rtol=1e-9)
    assert told.probabilities.max() > 1.3 * told.probabilities.min()


def test_in_the_first_version_a_block_of_doubling_has_its_own_bound():
    selector = new("adaptive-doubling-osmd", rates="v1")
    selector.learn_norms(range(6), np.full(6, 7.0))
    assert float(selector.state_dict()["reference"]) == 35.0
    play(selector, [1])
    assert 0 < float(selector.state_dict()["reference"]) < 35.0 * 5


def test_in_the_first_version_asking_has_no_effect_on_the_doubling():
    """Block 1 has one round and makes no step, and the bound of block 2 is observed in this round."""
    settings = {"rates": "v1", "learning_rate_multiplier": 50.0}
    asked = new("adaptive-doubling-osmd", **settings)
    asked.learn_norms(range(6), np.full(6, 7.0))
    plain = create(
        "adaptive-doubling-osmd", 6, client_sizes=SIZES, clients_per_round=2, num_rounds=30, **settings
    )
    for round in range(1, 30):
        np.testing.assert_array_equal(asked.probabilities, plain.probabilities)
        for each in (asked, plain):
            play(each, [round])
    assert plain.probabilities.max() > 1.3 * plain.probabilities.min()


@pytest.mark.parametrize("name", ["avare", "forecast", "timed-forecast"])
def test_answers_are_known_norms(name):
    norms = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0])
    asked = new(name)
    asked.learn_norms(range(6), norms)
    known = create(name, 6, client_sizes=SIZES, clients_per_round=2, num_rounds=30, update_norms=norms)
    for round in range(1, 4):  # avare is uniform in round 1, whatever it knows
        np.testing.assert_allclose(asked.probabilities, known.probabilities, rtol=1e-12)
        for each in (asked, known):
            play(each, [round])
    assert asked.probabilities.max() > 1.5 / 6


def test_the_round_divides_by_the_learning_rate_and_the_guard_ignores_the_impossible():
    logic = RoundLogic(new("adaptive-osmd"), Faults(guard=True), local_learning_rate=0.5)
    opened = logic.open(1, np.array([0, 2, 4]))
    clients = opened.selectable(logic.selector.registered)
    assert clients.tolist() == [0, 2, 4]
    logic.learn_norms(opened, clients, np.array([1.0, 4.0, np.nan]))
    assert float(logic.selector.state_dict()["bound"]) == pytest.approx(4.0 / 0.5 * 2)
    logic.choose(opened)
    logic = RoundLogic(new("adaptive-osmd"), Faults(guard=True))
    opened = logic.open(1)
    assert opened.selectable(logic.selector.registered).tolist() == list(range(6))
    logic.learn_norms(opened, np.arange(6), np.array([1.0, -4.0, np.inf, np.nan, 1.0, 1.0]))
    assert float(logic.selector.state_dict()["bound"]) == 5.0
