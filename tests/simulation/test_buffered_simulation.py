"""Buffered rounds of the batched simulation: those of the strategy on the in-process grid."""

from math import inf

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAdam

from simulation.response_times import ResponseTimes
from strategies import Buffered
from strategies.options import Deadlines, Faults, Polling

from ..support.simulators import like_the_apps, run_of_apps, simulator_of

CLIENTS, ROUNDS = 10, 15
MODE = Buffered(concurrency=5, size=2, max_staleness=6)
FAULTS = Faults(silence=False)


def times(**options):
    return ResponseTimes(CLIENTS, seed=3, **{"median": 10, "sigma": 1.0, "jitter": 0.3, **options})


def simulator(**options):
    selector = options.pop("selector", "forecast")
    own = {"faults": FAULTS, "mode": MODE, "response_times": times(), "round_deadline": 200.0}
    return like_the_apps(selector, CLIENTS, ROUNDS, **{"clients_per_round": 2, **own, **options})


@pytest.mark.parametrize(
    "server", [None, FedAdam(fraction_evaluate=0.0, eta=0.05)], ids=["FedAvg", "FedAdam"]
)
def test_the_simulation_is_the_strategy_on_simulated_time(server):
    slow = times(dropout=0.1)
    _, _, records = run_of_apps(
        "forecast",
        CLIENTS,
        ROUNDS,
        grid={"latency": slow},
        clients_per_round=2,
        num_rounds=ROUNDS,
        mode=MODE,
        faults=FAULTS,
        deadlines=Deadlines(round=60, shortest=inf),
        polling=Polling(ask_status=True, interval=0.05),
        server_strategy=server,
    )
    ours = simulator(response_times=slow, round_deadline=60.0, server_strategy=server)
    for mine, theirs in zip(ours.run(ROUNDS), records, strict=True):
        assert mine.selection.clients.tolist() == theirs.selection.clients.tolist()
        assert mine.selection.counts.tolist() == theirs.selection.counts.tolist()
        assert mine.staleness.tolist() == theirs.staleness.tolist()
        assert mine.failures == theirs.failures
        np.testing.assert_allclose(mine.weights, theirs.weights, rtol=1e-4)
        np.testing.assert_allclose(mine.feedback.update_norms, theirs.feedback.update_norms, rtol=1e-3)
        assert mine.seconds == pytest.approx(theirs.seconds, abs=0.5)
    assert max(record.staleness.max() for record in records) >= 3
    assert any(record.failures for record in records)


@pytest.mark.parametrize("guard", [False, True])
def test_a_simulation_goes_on_from_its_state_bit_for_bit(guard):
    options = {"faults": Faults(guard=guard, silence=False), "response_times": times(dropout=0.2)}
    one, other = simulator(**options), simulator(**options)
    one.run(7)
    state = one.state_dict()
    one.run(8)
    other.load_state_dict(state)
    other.run(8)
    assert one.seconds == other.seconds
    for ours, theirs in zip(one.history[7:], other.history, strict=True):
        assert ours.selection.clients.tolist() == theirs.selection.clients.tolist()
        assert np.array_equal(ours.weights, theirs.weights)
    for name, array in one.arrays.items():
        assert np.array_equal(array, other.arrays[name])


def test_clients_that_never_reply_without_a_deadline_end_no_round_and_the_time_is_infinite():
    never = simulator(response_times=times(dropout=1.0), round_deadline=inf)
    assert all("fewer than the quorum" in record.skipped for record in never.run(3))
    assert never.seconds == inf


@pytest.mark.parametrize("selector", ["forecast", "timed-forecast", "oort"])
def test_a_majority_of_stragglers_ends_every_round_by_the_deadline(selector):
    for mode in (MODE, None):
        options = {"mode": mode, "selector": selector, "round_deadline": 50.0}
        run = simulator(response_times=times(dropout=0.7), **options)
        records = run.run(ROUNDS)
        assert run.seconds < inf
        assert sum(not record.skipped for record in records) > ROUNDS / 5
        if mode is None:
            assert max(record.seconds for record in records) <= 50


def test_without_response_times_and_with_what_needs_whole_rounds_it_is_refused():
    with pytest.raises(ValueError, match=r"^mode = Buffered\(...\): needs response_times"):
        simulator_of(mode=MODE)
    with pytest.raises(ValueError, match="must not poll candidates before each selection"):
        simulator_of(mode=MODE, selector="pow-d", response_times=times())
