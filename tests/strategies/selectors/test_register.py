"""A selector of one's own is found by its name."""

import doctest

import numpy as np
import pytest

from simulation.kernels import Softmax
from simulation.simulator import Simulator
from strategies import SelectionStrategy, selectors
from strategies.selectors import registry
from strategies.selectors.baselines.md import MultinomialSelector
from tasks.federated_data import FederatedData


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(registry, "_SELECTORS", dict(registry._SELECTORS))


def test_the_example_runs():
    assert doctest.testmod(registry).failed == 0
    assert "by-square-root" in selectors.available()


def test_a_strategy_and_the_simulator_take_it_by_its_name():
    @selectors.register
    class Mine(MultinomialSelector):
        name = "mine"

    assert selectors.register(Mine) is Mine
    SelectionStrategy("mine", clients_per_round=2)
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(12, 4)).astype(np.float32), rng.integers(3, size=12)
    data = FederatedData(inputs, labels, offsets=np.array([0, 2, 5, 12]))
    records = {}
    for name in ("mine", "md"):
        simulator = Simulator(
            data, Softmax(4, 3), name, clients_per_round=2, num_rounds=3, learning_rate=0.1, batch_size=2,
            local_steps=1,
        )  # fmt: skip
        records[name] = [record.selection.clients.tolist() for record in simulator.run(3)]
    assert records["mine"] == records["md"]


def test_a_name_belongs_to_one():
    class Other(MultinomialSelector):
        name = "uniform"

    with pytest.raises(ValueError, match="name = 'uniform': is taken by UniformSelector"):
        selectors.register(Other)
    assert selectors.selector_type("uniform") is not Other
