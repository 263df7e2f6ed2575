"""Declared shares take the place of data sizes, in every selector."""

import numpy as np
import pytest

from strategies.options import Buffered, Overrides
from strategies.strategy import SelectionStrategy

from ...support.federations import play
from ...support.toy_grid import ToyGrid
from ..test_strategy import client

SIZES = {"a": 10, "b": 30, "c": 60, "d": 100}
STEPS = {"a": 1.0, "b": 2.0, "c": 5.0, "d": -3.0}
GROUPS = {"a": "north", "b": "north", "c": "south", "d": "south"}


def model_after(selector="full", group=GROUPS, k=4, rounds=1, **overrides):
    grid = ToyGrid({i: client(n, STEPS[n], SIZES[n], group=group.get(n)) for i, n in enumerate(SIZES, 1)})
    played = play(grid, selector, rounds, clients_per_round=k, overrides=Overrides(**overrides))
    return float(played.w[0]), played.strategy


def mean(shares):
    return sum(shares[n] * STEPS[n] for n in STEPS) / sum(shares.values())


@pytest.mark.parametrize(
    ("overrides", "shares"),
    [
        ({}, SIZES),
        ({"shares": "equal"}, dict.fromkeys(SIZES, 1)),
        ({"shares": {"a": 5, "b": 1, "c": 1}}, {"a": 5, "b": 1, "c": 1, "d": 1}),
        ({"group_shares": {"north": 3, "south": 1}}, {"a": 0.75, "b": 2.25, "c": 0.375, "d": 0.625}),
        ({"group_shares": {"north": 1, "south": 1}, "shares": "equal"}, dict.fromkeys(SIZES, 1)),
    ],
)
def test_the_model_is_the_mean_by_the_declared_shares(overrides, shares):
    w, strategy = model_after(**overrides)
    assert w == pytest.approx(mean(shares), rel=1e-6)
    targets = strategy.data_sizes.targets
    if overrides:
        np.testing.assert_allclose(targets / targets.sum(), [shares[n] / sum(shares.values()) for n in SIZES])
    else:
        assert targets is None
    assert strategy.data_sizes.remarks == {}


@pytest.mark.parametrize("selector", ["forecast", "flics"])
def test_the_long_run_mean_is_the_declared_one(selector):
    """The steps are constant, so the model divided by the rounds tends to the mean of the steps."""
    rounds = 200
    overrides = {"group_shares": {"north": 9, "south": 1}}
    w, _ = model_after(selector, k=2, rounds=rounds, **overrides)
    shares = {"a": 0.9 * 0.25, "b": 0.9 * 0.75, "c": 0.1 * 0.375, "d": 0.1 * 0.625}
    assert w / rounds == pytest.approx(mean(shares), abs=0.35)
    assert abs(mean(shares) - mean(SIZES)) > 1


def test_a_client_of_another_group_is_refused(caplog):
    w, strategy = model_after(group={**GROUPS, "d": "west"}, k=3, group_shares={"north": 1, "south": 1})
    assert len(strategy.roster) == 3
    assert "d is refused: its group is 'west': must be one of 'north', 'south'" in caplog.text
    assert w == pytest.approx((0.25 * 1 + 0.75 * 2 + 5) / 2, rel=1e-6)


def test_groups_may_be_declared_for_a_selector_without_groups():
    declared = {"groups": {"a": "south", "b": "south"}}
    w, _ = model_after(settings=declared, group_shares={"south": 1})
    assert w == pytest.approx(mean(SIZES), rel=1e-6)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"shares": "same"}, "overrides.shares = 'same': must be a mapping by identity"),
        ({"shares": {"a": 0}}, r"overrides.shares\['a'\] = 0.0: must be finite and between"),
        ({"group_shares": {"north": -1}}, r"overrides.group_shares\['north'\] = -1.0: must be finite"),
        ({"group_shares": [1, 2]}, r"overrides.group_shares = \[1, 2\]: must be a mapping"),
    ],
)
def test_wrong_shares_are_refused(overrides, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Overrides(**overrides)


@pytest.mark.parametrize("selector", ["flics", "flics-private", "personalised-osmd"])
def test_selectors_that_cannot_have_regular_clients_refuse_them(selector):
    settings = {"group_shares": "1/2", "epsilon": 4.0} if selector == "flics-private" else {}
    with pytest.raises(ValueError, match=r"overrides\.every = .*: must be empty with"):
        SelectionStrategy(
            selector, clients_per_round=2, selector_settings=settings, overrides=Overrides(every={"a": 2})
        )


def test_buffered_rounds_refuse_regular_clients():
    with pytest.raises(ValueError, match="must be empty in buffered rounds"):
        SelectionStrategy(
            "md",
            clients_per_round=2,
            mode=Buffered(concurrency=3),
            overrides=Overrides(every={"a": 2}),
        )


def test_a_regular_client_is_found_by_its_identity():
    grid = ToyGrid({i: client(n, STEPS[n], SIZES[n]) for i, n in enumerate(SIZES, 1)})
    played = play(grid, "md", 12, clients_per_round=2, overrides=Overrides(every={"a": 2}))
    a = played.strategy.roster.ids().index("a")
    trained = [a in record.selection.clients for record in played.records]
    assert all(trained[at] or trained[at + 1] for at in range(len(trained) - 1))
