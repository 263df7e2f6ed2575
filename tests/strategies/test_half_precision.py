"""Models and updates that travel as float16."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from simulation.grid import InProcessGrid
from strategies import ReportingClientApp, SelectionStrategy
from strategies.clients.reports import REPORT_NORM
from strategies.half_precision import HALF, HalfPrecisionGrid, half_precision_mod
from strategies.options import Faults, Polling

from ..support.federations import play

STEP = np.array([1e-3, -2e-9, 3.0], np.float32)
START = np.array([1 / 3, 1e5, -7.7], np.float32)  # 1e5 is too large for float16


def app(step=STEP, mods=(half_precision_mod,), kind=ClientApp):
    """Return an app that adds a step to the array "w", 1 to "count", and has seen the arrays in ``seen``."""
    made = kind(mods=list(mods))

    @made.train()
    def train(message, context):
        arrays = {name: array.numpy() for name, array in message.content.array_records["arrays"].items()}
        assert HALF not in message.content or not mods
        seen.append(arrays)
        with np.errstate(over="ignore"):
            trained = {"w": arrays["w"] + step, "count": arrays["count"] + 1}
        metrics = MetricRecord({"num-examples": 1, "update-norm": float(np.sqrt(step @ step + 1))})
        content = {"metrics": metrics, "arrays": ArrayRecord({n: Array(a) for n, a in trained.items()})}
        return Message(RecordDict(content), reply_to=message)

    return made


seen = []


@pytest.fixture(autouse=True)
def _nothing_seen():
    seen.clear()


def model(w=START):
    return ArrayRecord({"w": Array(w), "count": Array(np.array([2**24 + 1], np.int64))})


def run(client, w=START, selector="full", **options):
    """Return the model after the rounds of two clients."""
    grid = HalfPrecisionGrid(InProcessGrid(client, ({} for _ in range(2))))
    options = {"polling": Polling(ask_status=False), **options}
    _, records, strategy, result = play(grid, selector, start=model(w), **options)
    return {name: array.numpy() for name, array in (result.arrays or model(w)).items()}, records, strategy


def test_a_client_gets_the_rounded_model_and_the_servers_model_keeps_its_precision():
    w = START.copy()
    w[1] = 0.1
    moved, (record,), _ = run(app(), w)
    (got, _) = seen
    assert got["w"].dtype == np.float32
    np.testing.assert_allclose(got["w"], w, rtol=2**-11)
    assert not np.array_equal(got["w"], w)
    assert got["count"] == 2**24 + 1  # whole numbers are not rounded
    np.testing.assert_allclose(moved["w"] - w, STEP, rtol=2**-11, atol=1e-7)
    assert moved["w"].dtype == np.float32
    assert moved["count"] == 2**24 + 2
    np.testing.assert_allclose(record.feedback.update_norms, np.sqrt(STEP @ STEP + 1), rtol=1e-3)
    assert not record.failures
    assert not record.clipped


def test_numbers_too_large_or_too_small_for_float16_are_scaled():
    tiny = np.array([1e-9, 1e-12, 0], np.float32)  # the least float16 is 6e-8
    moved, _, _ = run(app(tiny), np.zeros(3, np.float32))
    np.testing.assert_allclose(moved["w"], tiny, rtol=2**-10)
    huge = np.array([3e38, -1e34, 1e30], np.float32)
    run(app(np.zeros(3, np.float32)), huge)
    np.testing.assert_allclose(seen[-1]["w"], huge, rtol=2**-10)


def test_float64_stays_float64():
    moved, _, _ = run(app(np.array([1e-60, 0, 0])), np.array([0, 1e60, 0.0]))
    assert seen[0]["w"].dtype == moved["w"].dtype == np.float64


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_rejected(bad):
    moved, (record,), _ = run(app(np.array([bad, 0, 0], np.float32)))
    assert np.array_equal(moved["w"], START)
    assert all("NaN or infinite" in why for why in record.failures.values())
    assert len(record.failures) == 2


def test_an_app_without_the_mod_fails_and_its_update_is_not_used():
    moved, (record,), _ = run(app(mods=()))
    assert np.array_equal(moved["w"], START)
    assert set(record.failures.values()) == {"error 0: its app lacks half_precision_mod"}


def test_the_arrays_take_half_the_bytes():
    w = np.ones(100_000, np.float32)
    _, _, strategy = run(app(np.ones(100_000, np.float32)), w, faults=Faults(guard=False))
    taken = strategy.traffic.take()
    assert taken.bytes_sent == taken.bytes_received
    assert taken.bytes_sent == pytest.approx(2 * 200_000, rel=0.01)


def test_flowers_own_strategy_works_too():
    grid = HalfPrecisionGrid(InProcessGrid(app(), ({} for _ in range(2))))
    result = FedAvg(fraction_evaluate=0.0).start(grid, model(np.zeros(3, np.float32)), num_rounds=2)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 2 * STEP, rtol=2**-10)


def test_a_mod_passes_messages_that_are_not_rounded():
    strategy = SelectionStrategy("full", clients_per_round=2, polling=Polling(ask_status=False))
    result = strategy.start(InProcessGrid(app(), ({} for _ in range(2))), model(), num_rounds=1)
    assert np.array_equal(seen[0]["w"], START)
    assert np.array_equal(result.arrays["w"].numpy(), START + STEP)


def test_masked_updates_are_refused_before_the_first_message():
    with pytest.raises(ValueError, match=r"masked_updates = True with a HalfPrecisionGrid: must be"):
        run(app(), masked_updates=True)
    assert not seen


def test_messages_to_clients_that_mask_their_updates_are_not_rounded():
    grid = HalfPrecisionGrid(InProcessGrid(app(), [{}]))
    (node,) = grid.get_node_ids()
    content = RecordDict({"arrays": model(), "config": ConfigRecord({REPORT_NORM: True})})
    list(grid.send_and_receive([Message(content, node, "train")]))
    assert np.array_equal(seen[0]["w"], START)


def test_norms_that_a_reporting_app_is_asked_for_are_those_of_its_updates():
    step = np.array([1, 2, 2], np.float32)
    _, (record,), _ = run(app(step, kind=ReportingClientApp), selector="optimal")
    np.testing.assert_allclose(record.feedback.update_norms, 10**0.5, rtol=1e-3)
    assert not record.failures
    assert not record.clipped
    assert {each["w"].tobytes() for each in seen[:2]} == {START.tobytes()}  # the question was not rounded
    assert len({each["w"].tobytes() for each in seen}) == 2  # the training was


LIES = {
    "no lists": {"names": 1, "exponents": "x"},
    "no exponents": {"names": ["w"], "exponents": []},
    "huge exponent": {"names": ["w"], "exponents": [2000]},
    "unknown name": {"names": ["v"], "exponents": [0]},
}


@pytest.mark.parametrize("note", LIES.values(), ids=LIES.keys())
@pytest.mark.parametrize("w", [np.zeros((), np.float16), np.ones(3, np.float16), np.array(["x"] * 3)])
def test_a_liar_ends_no_round_and_moves_no_other_shape(note, w):
    def lie(message, context, call_next):
        reply = half_precision_mod(message, context, call_next)
        reply.content[HALF] = ConfigRecord(note)
        record = ArrayRecord()
        record["w"], record["count"] = Array(w), Array(np.array([0], np.int64))
        reply.content["arrays"] = record
        return reply

    moved, (record,), _ = run(app(mods=(lie,)))
    assert moved["w"].shape == (3,)
    assert np.isfinite(moved["w"]).all()
    assert record.failures or w.shape == (3,)
