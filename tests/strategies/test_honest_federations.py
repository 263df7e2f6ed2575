"""With honest clients, whatever their sizes, norms, losses, speeds and availability, the defaults change
nothing: the run is, bit for bit, the run without a guard and without quarantines for silence."""

from math import inf

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.grid import InProcessGrid
from strategies.options import Deadlines, Faults

from ..support.federations import play as play_on

UNPROTECTED = {"faults": Faults(guard=False, silence=False), "deadlines": Deadlines(shortest=inf)}
SELECTORS = {
    **{name: {} for name in ("full", "uniform", "md", "adaptive-osmd", "avare", "forecast", "prac-delta")},
    **{name: {} for name in ("fed-is", "pow-d", "rpow-d", "afl", "oort", "tifl", "timed-md", "flics")},
}


def client(name, size, norm, loss, seconds_off):
    """Return the handler of a client, which is unavailable in every ``seconds_off``-th round (0: never)."""
    asked = 0

    def handle(message):
        nonlocal asked
        kind = message.metadata.message_type
        report = {"num-examples": size, "train-loss": loss, "loss": loss}
        config = ConfigRecord({"client-id": name, "group": name[-1]})
        if kind != "train":
            asked += kind == "query.status"
            report |= {
                "available": int(not seconds_off or asked % seconds_off != 0),
                "update-norm": norm,
                "gradient-variance": norm**2,
            }
            content = RecordDict({"metrics": MetricRecord(report), "config": config})
            return Message(content, reply_to=message)
        (w,) = message.content["arrays"].to_numpy_ndarrays()
        number = int(message.content["config"]["server-round"])
        rng = np.random.default_rng([number, size])
        step = rng.normal(size=w.shape)
        report["gradient-variance"] = norm**2
        arrays = ArrayRecord([w + norm * step / np.linalg.norm(step)])
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord(report), "config": config})
        return Message(content, reply_to=message)

    return handle


def play(
    selector,
    clients,
    seconds,
    seed,
    **options,
):
    """Run seven rounds; return the model and the records."""
    speed = {}
    grid = InProcessGrid(latency=lambda message: speed[message.metadata.dst_node_id])
    for j, each in enumerate(clients):
        name = f"site-{j:02d}"
        speed[grid.add_node(handler=client(name, *each), name=name)] = seconds[j]
    k = len(clients) if selector == "full" else max(1, len(clients) // 2)
    options = {"clients_per_round": k, "min_available_clients": len(clients), "seed": seed, **options}
    return play_on(grid, selector, 7, ArrayRecord([np.zeros(20)]), **options)[:2]


@st.composite
def federations(draw):
    """Sizes over five orders of magnitude, norms within a factor of 50, any losses, speeds, absences."""
    count = draw(st.integers(1, 9))
    clients = [
        (
            draw(st.integers(1, 100_000)),
            draw(st.floats(0.02, 1.0)),
            draw(st.floats(1e-9, 1e9)) * draw(st.sampled_from([1, 1, 1, -1])),
            draw(st.sampled_from([0, 0, 0, 3])),
        )
        for _ in range(count)
    ]
    base = draw(st.floats(0.01, 100))
    return clients, [base * draw(st.floats(1, 2.5)) for _ in range(count)]


@pytest.mark.parametrize("selector", SELECTORS)
@settings(max_examples=5)
@given(federations(), st.integers(0, 1000))
def test_the_defaults_change_nothing(selector, federation, seed):
    clients, seconds = federation
    model, records = play(selector, clients, seconds, seed)
    plain, expected = play(selector, clients, seconds, seed, **UNPROTECTED)
    np.testing.assert_array_equal(model, plain)
    for record, other in zip(records, expected, strict=True):
        np.testing.assert_array_equal(record.selection.clients, other.selection.clients)
        np.testing.assert_array_equal(record.weights, other.weights)
        assert record.clipped == other.clipped == {}
        assert record.failures == other.failures
        assert record.skipped == other.skipped
        assert record.quarantined == record.silent == ()
