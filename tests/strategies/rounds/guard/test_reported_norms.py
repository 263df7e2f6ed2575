"""Clients report the norm of their updates; the server measures it and believes its own."""

import numpy as np
import pytest

from strategies.clients.reports import Report
from strategies.options import Faults
from strategies.rounds.aggregation import Model
from strategies.rounds.control_variates import FedVARP
from strategies.rounds.guard.reported_norms import contradictions
from strategies.rounds.logic import RoundLogic
from strategies.rounds.replies import Reply
from strategies.selectors import create

RATE = 0.5


def play(factors, rounds=1, dtype=np.float32, guard="strict", **options):
    """Rounds of eight clients, who report the norms of their updates times their factors (default: 1)."""
    selector = create("full", 8, clients_per_round=8, seed=1)
    logic = RoundLogic(
        selector,
        Faults(guard=guard, silence=False),
        local_learning_rate=RATE,
        **{"updates": "open", **options},
    )
    arrays = {"w": np.linspace(-3, 3, 50).astype(dtype)}
    records = []
    for number in range(1, rounds + 1):
        opened = logic.open(number)
        chosen = logic.choose(opened)
        replies = []
        for client in chosen.selection.clients.tolist():
            rng = np.random.default_rng([number, client])
            update = rng.normal(size=50) + 0.5
            report = Report(update_norm=float(np.linalg.norm(update)) * factors.get(client, 1.0))
            replies.append(Reply({"w": (arrays["w"] + update).astype(dtype)}, report))
        records.append(logic.finish(chosen, arrays, replies).record)
    return records


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("variates", [False, True])
def test_a_norm_that_differs_by_rounding_is_right(dtype, variates):
    for record in play({}, 4, dtype, variates=FedVARP() if variates else None):
        assert record.clipped == {}
        assert record.reported_norms.shape == (8,)
        if not variates:  # where what changes is learned from, not the update
            np.testing.assert_allclose(record.feedback.update_norms, record.reported_norms, rtol=1e-2)


@pytest.mark.parametrize("factor", [0.0, 0.9, 1.1, 1e30])
@pytest.mark.parametrize("variates", [False, True])
def test_a_wrong_norm_is_an_offence_and_is_not_believed(factor, variates):
    honest, records = (
        play(factors, 4, variates=FedVARP() if variates else None) for factors in ({}, {3: factor})
    )
    for one, other in zip(honest[:3], records[:3], strict=True):
        assert other.clipped.keys() == {3}
        assert "was reported" in other.clipped[3]
        assert other.failures == {}
        np.testing.assert_array_equal(one.feedback.update_norms, other.feedback.update_norms)
    assert records[3].quarantined == (3,)


def test_without_a_guard_both_norms_are_recorded():
    (record,) = play({3: 2.0}, guard=False)
    ratios = record.reported_norms / record.feedback.update_norms
    np.testing.assert_allclose(ratios, [1, 1, 1, 2, 1, 1, 1, 1], rtol=1e-3)
    assert record.clipped == {}


def test_nothing_is_compared_where_updates_are_hidden_or_noised():
    for updates in ("masked", "noised"):
        for record in play({3: 1.1}, 2, updates=updates):
            assert record.clipped == {}
    (masked,) = play({3: 1.1}, updates="masked")
    np.testing.assert_allclose(masked.feedback.update_norms, masked.reported_norms)


def test_an_unknown_norm_contradicts_nothing():
    nan, inf = np.nan, np.inf
    measured, reported = np.array([1.0, nan, 1.0, 0.0]), np.array([nan, 1.0, inf, 0.0])
    assert contradictions(measured, reported, 0.0).keys() == {2}


def test_rounding_is_that_of_the_types():
    ones = np.ones(100)
    assert Model({"w": ones.astype(np.float32)}).rounding() == pytest.approx(40 * 2**-23)
    assert Model({"w": ones.astype(np.float16)}).rounding() == pytest.approx(40 * 2**-10)
    assert Model({"n": ones.astype(np.int64)}).rounding() == pytest.approx(20)
