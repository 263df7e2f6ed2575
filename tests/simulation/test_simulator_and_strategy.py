"""The rounds of the simulator are those of `SelectionStrategy` over a grid of apps."""

import numpy as np
import pytest

import tasks
from simulation.availability import InOrderOfArrival
from simulation.availability import create as availability_of
from simulation.kernels import MLP, Softmax
from simulation.response_times import ResponseTimes
from simulation.simulator import Simulator
from strategies.options import Deadlines, Faults, Polling

from ..server.test_apps import federation
from ..support.federations import play
from ..support.simulators import data_of, like_the_apps, run_of_apps
from ..support.strangers import honest
from ..support.toy_grid import ToyGrid


@pytest.mark.parametrize(
    ("task", "selector"),
    [
        ("digits", "forecast"),
        *(("digits-mlp", name) for name in ("adaptive-osmd", "forecast-asked", "pow-d", "cpow-d", "rpow-d")),
    ],
)
def test_the_simulator_is_the_federation_of_the_apps(tmp_path, selector, task):
    own = {
        "adaptive-osmd": {"learning_rate_multiplier": 1000},
        "forecast-asked": {"ask_norms": True},
        "cpow-d": {"batch_size": 4},
    }.get(selector, {})
    settings = " ".join(f"{name}={value}" for name, value in own.items())
    selector = selector.removesuffix("-asked")
    lines = federation(
        tmp_path, 8, num_rounds=6, seed=5, selector=selector, selector_settings=settings, task=task
    )
    kernel = Softmax(64, 10) if task == "digits" else MLP((64, 32, 10))
    simulator = like_the_apps(selector, 8, 6, kernel=kernel, selector_settings=own, faults=Faults(guard=True))
    test_data = tasks.create("digits").test_data()
    for line in (each for each in lines if each["type"] == "round" and each["round"]):
        record = simulator.step()
        assert record.selection.clients.tolist() == line["clients"]
        assert record.selection.counts.tolist() == line["counts"]
        np.testing.assert_allclose(record.weights, line["weights"], rtol=1e-4)
        np.testing.assert_allclose(record.feedback.update_norms, line["update_norms"], rtol=1e-4)
        assert record.train_loss == pytest.approx(line["train_loss"], rel=1e-4)
        metrics = simulator.evaluate(test_data)
        assert metrics.loss == pytest.approx(line["test_loss"], rel=1e-4)
        assert metrics.accuracy == pytest.approx(line["test_accuracy"], abs=1 / 360 + 1e-9)


@pytest.mark.parametrize("level", ["sane", "strict"])
def test_the_simulator_believes_the_sizes_that_the_strategy_believes(level):
    options = {"clients_per_round": 4, "faults": Faults(guard=level)}
    strategy, _, records = run_of_apps("md", 200, 3, **options)
    simulator = like_the_apps("md", 200, 3, **options)
    sizes = simulator.data_sizes
    assert strategy.data_sizes.used.tolist() == sizes.used.tolist()
    assert strategy.data_sizes.claimed.tolist() == sizes.claimed.tolist()
    assert bool(sizes.remarks) == (level == "strict")
    for record, theirs in zip(simulator.run(3), records, strict=True):
        assert record.selection.clients.tolist() == theirs.selection.clients.tolist()
        np.testing.assert_allclose(record.weights, theirs.weights, rtol=1e-9)
        assert {m: line for m, line in record.clipped.items() if "data size" in line} == {
            m: line for m, line in theirs.clipped.items() if "data size" in line
        }


@pytest.mark.parametrize(
    ("selector", "partition", "options"),
    [
        ("adaptive-osmd", "skewed", {"selector_settings": {"learning_rate_multiplier": 1000}}),
        ("md", "skewed", {"faults": Faults(guard=False, correction="rates")}),
        ("md", "skewed", {"faults": Faults(guard="strict", silence=False)}),
        ("naive-group", "groups:5", {}),
    ],
)
def test_late_clients_are_registered_as_by_the_strategy(selector, partition, options):
    process = availability_of("markov", 24, seed=2, rates=0.3)
    options = {"faults": Faults(guard=False), **options}
    _, _, records = run_of_apps(
        selector,
        24,
        12,
        partition=partition,
        grid={"availability": process},
        min_available_clients=3,
        **options,
    )
    arrivals = InOrderOfArrival(process, num_rounds=12)
    data = arrivals.renumbered(tasks.create("digits", partition=partition).federated_data(24, 5))
    simulator, again = (like_the_apps(selector, data, 12, availability=arrivals, **options) for _ in range(2))
    before = simulator.selector.num_clients
    for record, theirs in zip(simulator.run(12), records, strict=True):
        assert record.num_available == theirs.num_available
        assert record.selection.clients.tolist() == theirs.selection.clients.tolist()
        np.testing.assert_allclose(record.weights, theirs.weights, rtol=1e-4)
    assert before < simulator.selector.num_clients < 24
    assert np.isfinite(simulator.train_loss())
    again.load_state_dict(simulator.state_dict())
    assert again.selector.num_clients == simulator.selector.num_clients
    assert again.step().selection.clients.tolist() == simulator.step().selection.clients.tolist()


def strangers_and_simulator(selector, groups, rounds, strategy, simulation):
    """Run a strategy over nine honest nodes with these groups; return a simulator of clients like them."""
    common = {"clients_per_round": 4, "seed": 3}
    options = {"polling": Polling(ask_status=True, interval=0.5), "min_available_clients": 9}
    nodes = {50 - n: honest(n, group) for n, group in enumerate(groups)}
    _, records, run, _ = play(ToyGrid(nodes), selector, rounds, **{**common, **options, **strategy})
    simulator = Simulator(
        data_of((10,) * 9, 4), Softmax(4, 10), selector, num_rounds=rounds, learning_rate=0.1, batch_size=5,
        local_steps=1, client_sizes=run.selector.client_sizes, **{**common, **simulation},
    )  # fmt: skip
    return run, records, simulator


@pytest.mark.parametrize("selector", ["flics", "naive-group"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"group_shares": ".7/.1/.2"},
        {"group_shares": {"south": 1, 2: 3, "nobody": 5, 0: 2}},
        {"min_shares": "1:.3/0:.2"},
    ],
    ids=["by data", "by number", "by name", "least"],
)
def test_the_same_groups_take_part_as_with_the_strategy(selector, settings):
    """The groups that are seen first have the highest numbers, or names."""
    if selector == "naive-group" and "min_shares" in settings:
        pytest.skip("it has no minimum shares")
    groups = [2, 2, 1, 0, 1, 0, 0, 2, 1]
    if "south" in str(settings):
        groups = [{1: "south"}.get(group, group) for group in groups]
    strategy, records, simulator = strangers_and_simulator(
        selector,
        groups,
        12,
        {"selector_settings": settings},
        {"selector_settings": settings | {"groups": groups}},
    )
    selected = [record.selection.clients.tolist() for record in simulator.run(12)]
    assert selected == [record.selection.clients.tolist() for record in records]
    assert simulator.selector.state_dict()["groups"].tolist() == (
        strategy.selector.state_dict()["groups"].tolist()
    )


@pytest.mark.parametrize("selector", ["flics", "uniform"])
@pytest.mark.parametrize("over_selection", [1.0, 1.5])
def test_the_budget_of_each_round_is_that_of_the_strategy(selector, over_selection):
    faults = {"clients_per_round": 3, "faults": Faults(over_selection=over_selection, guard=False)}
    _, records, simulator = strangers_and_simulator(
        selector,
        [None] * 9,
        6,
        {"budget": "4@1/0@3/6@4", **faults},
        {"budget": lambda round: 4.9 if round < 3 else 0.5 if round == 3 else 6, **faults},
    )
    selected = [record.selection.clients.tolist() for record in simulator.run(6)]
    assert selected == [record.selection.clients.tolist() for record in records]
    assert selected[2] == []
    assert records[2].skipped == "no client was selected"
    if selector == "uniform":
        drawn = [int(record.selection.counts.sum()) for record in records]
        most = 6 if over_selection == 1 else 9
        assert drawn == [most - 2 - (most == 9), most - 2 - (most == 9), 0, most, most, most]


def _reason(failure):
    """Return a failure without the seconds, which differ by the time between two looks."""
    return failure.partition(":")[0]


@pytest.mark.parametrize(("selector", "settings"), [("md", {}), ("oort", {"pace": 0.3})])
def test_silence_is_dealt_with_as_by_the_strategy(selector, settings):
    """One client never replies, one is slow, and the others drop out now and then."""
    dropout = np.full(10, 0.05)
    dropout[2] = 1.0
    times = ResponseTimes(10, seed=3, dropout=dropout, work=np.where(np.arange(10) == 7, 12.0, 1.0))
    options = {"clients_per_round": 4, "faults": Faults(guard=False), "selector_settings": settings}
    _, _, records = run_of_apps(
        selector,
        10,
        25,
        grid={"latency": times},
        deadlines=Deadlines(round=200),
        polling=Polling(ask_status=True, interval=0.01),
        **options,
    )
    options |= {"response_times": times, "round_deadline": 200.0, "shortest_deadline": 3.0}
    begun, resumed = (like_the_apps(selector, 10, 25, **options) for _ in range(2))
    begun.run(12)
    resumed.load_state_dict(begun.state_dict())
    for ours, theirs in zip([*begun.history, *resumed.run(13)], records, strict=True):
        assert ours.selection.clients.tolist() == theirs.selection.clients.tolist()
        assert ours.silent == theirs.silent
        assert [_reason(each) for each in ours.failures.values()] == [
            _reason(each) for each in theirs.failures.values()
        ]
        assert ours.seconds == pytest.approx(theirs.seconds, abs=0.1)
    assert any(record.silent for record in records)
