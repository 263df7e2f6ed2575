"""Clients trained as one batch give the numbers of the same clients trained one after another."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAdam, FedAvgM, FedProx
from torch import nn

import tasks
from client.app import app as client_app
from simulation.availability import Availability, InOrderOfArrival
from simulation.availability import create as availability_of
from simulation.grid import InProcessGrid
from simulation.kernels import MLP, Kernel, Loop, Plan, Softmax, kernel_of
from simulation.kernels.torch_functional import Torch
from simulation.response_times import ResponseTimes
from simulation.simulator import Simulator
from strategies import SelectionStrategy
from strategies.clients.reports import Report
from strategies.options import Deadlines, Faults, Polling
from strategies.rounds.logic import RoundLogic
from strategies.rounds.replies import Reply
from strategies.rounds.seeds import client_seed
from strategies.rounds.variates import create_variates
from strategies.selectors import create
from tasks.data import Dataset, FederatedData

from ..server.test_apps import DEFAULTS, federation
from ..support.strangers import honest
from ..support.toy_grid import ToyGrid

SIZES = (1, 3, 5, 8, 16, 17, 40, 64, 65, 100)


def data_of(sizes: tuple[int, ...] = SIZES, features: int = 64, seed: int = 0) -> FederatedData:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    inputs = rng.random((offsets[-1], features), dtype=np.float32)
    return FederatedData(inputs, rng.integers(0, 10, offsets[-1]), offsets)


def torch_kernel(task: str) -> Kernel:
    """Return the kernel on `torch.func`, which `kernel_of` uses only for networks without another one."""
    made: Any = tasks.create(task)
    return Torch(made.layers, made.initial_arrays, memory=1 << 28)


KERNELS: dict[str, tuple[Kernel, str]] = {
    "softmax": (Softmax(64, 10), "digits"),
    "mlp": (MLP((64, 32, 10)), "digits-mlp"),
    "torch": (torch_kernel("digits-mlp"), "digits-mlp"),
}


def start(kernel: Kernel) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    return {
        name: array + 0.03 * rng.standard_normal(array.shape, dtype=np.float32)
        for name, array in kernel.initial_arrays(1).items()
    }


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    "plan",
    [
        Plan(3, 1, 0.5, batch_size=5, steps=1),
        Plan(3, 2, 0.1, batch_size=16, steps=5),
        Plan(3, 3, 0.1, batch_size=16, steps=0, epochs=2),
        Plan(3, 4, 0.1, batch_size=1000, steps=3),
        Plan(3, 5, 0.2, batch_size=10, steps=4, proximal_mu=0.3),
        Plan(3, 6, 0.2, batch_size=10, steps=4, measure_variance=True),
    ],
    ids=["one step", "steps", "epochs", "full batches", "proximal", "variance"],
)
def test_a_batch_of_clients_is_trained_as_one_client_after_another(name: str, plan: Plan) -> None:
    kernel, task = KERNELS[name]
    loop = Loop(tasks.create(task))
    data, arrays = data_of(), start(kernel)
    clients = np.array([9, 0, 4, 7, 1, 8, 3, 5, 2, 6])
    ours, theirs = kernel.train(arrays, data, clients, plan), loop.train(arrays, data, clients, plan)
    for row in range(clients.size):
        one, other = ours.updates.model(row), theirs.updates.model(row)
        for key in arrays:
            np.testing.assert_allclose(one[key], other[key], atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(ours.updates.norms(), theirs.updates.norms(), rtol=1e-4)
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-5)
    np.testing.assert_allclose(ours.gradient_variances, theirs.gradient_variances, rtol=1e-3)
    weights = np.linspace(0.1, 2, clients.size)
    weights[3] = 0
    one, other = ours.updates.combined(weights), theirs.updates.combined(weights)
    for key in arrays:
        np.testing.assert_allclose(one[key], other[key], atol=1e-5, rtol=1e-5)
        assert one[key].shape == arrays[key].shape


def test_dropout_trains_the_network_of_the_kept_units() -> None:
    """Of a single step on all samples: the step is that of torch's layers with the masks in between."""
    rate, sizes, dropout = 0.5, (64, 32, 16, 10), 0.3
    kernel = MLP(sizes, dropout=dropout)
    data, arrays = data_of((7, 12)), start(kernel)
    plan = Plan(3, 2, rate, batch_size=20, steps=1)
    trained = kernel.train(arrays, data, np.array([1, 0]), plan)
    for row, client in enumerate((1, 0)):
        samples = slice(data.offsets[client], data.offsets[client + 1])
        inputs = torch.from_numpy(data.inputs[samples])
        stream = np.random.default_rng(client_seed(3, 2, client, "dropout"))
        kept = stream.random((len(inputs), 32), dtype=np.float32) >= dropout
        assert 0.6 < kept.mean() < 0.8
        weights = {name: torch.from_numpy(a).requires_grad_() for name, a in arrays.items()}
        units = torch.relu(inputs @ weights["0.weight"].T + weights["0.bias"])
        units = units * torch.from_numpy(kept) / (1 - dropout)
        units = torch.relu(units @ weights["2.weight"].T + weights["2.bias"])
        logits = units @ weights["4.weight"].T + weights["4.bias"]
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(data.labels[samples]))
        loss.backward()
        assert trained.losses[row] == pytest.approx(loss.item(), rel=1e-5)
        for name, array in trained.updates.model(row).items():
            step = -rate * weights[name].grad.numpy()  # type: ignore[union-attr]
            np.testing.assert_allclose(array - arrays[name], step, atol=1e-6)
    alone = kernel.train(arrays, data, np.array([1]), plan).updates.model(0)
    for name, array in trained.updates.model(0).items():
        np.testing.assert_allclose(array, alone[name], atol=1e-6)
    # Evaluations use all units.
    everyone = np.arange(2)
    assert np.array_equal(kernel.losses(arrays, data, everyone), MLP(sizes).losses(arrays, data, everyone))


def test_each_step_of_a_round_drops_other_units() -> None:
    kernel, arrays, data = MLP((64, 32, 10), dropout=0.5), start(MLP((64, 32, 10))), data_of((20,))
    one, two = (
        kernel.train(arrays, data, np.array([0]), Plan(3, round, 0.1, batch_size=20, steps=1))
        for round in (1, 2)
    )
    assert one.losses[0] != two.losses[0]  # on the same samples
    both = kernel.train(arrays, data, np.array([0]), Plan(3, 1, 1e-9, batch_size=20, steps=2))
    assert both.losses[0] != pytest.approx(one.losses[0], rel=1e-4)


@pytest.mark.parametrize(
    ("sizes", "dropout", "why"),
    [((4, 3, 2), 1.0, "in"), ((4, 3, 2), -0.1, "in"), ((4, 2), 0.5, "0 without a hidden layer")],
)
def test_a_wrong_dropout_is_refused(sizes: tuple[int, ...], dropout: float, why: str) -> None:
    with pytest.raises(ValueError, match=f"dropout = {dropout}: must be {why}"):
        MLP(sizes, dropout=dropout)


@pytest.mark.parametrize("memory", [1, 1 << 30], ids=["one by one", "together"])
@pytest.mark.parametrize("name", ["mnist-mlp", "mnist-cnn", "cifar10", "femnist", "celeba"])
def test_every_network_is_trained_as_its_task_does(name: str, memory: int) -> None:
    """With all options at once: a proximal term, controls, and the variance of gradients."""
    task: Any = tasks.create(name)
    rng = np.random.default_rng(0)
    data = data_of((1, 4, 2, 3), task.data.num_features)
    data = data._replace(labels=data.labels % task.data.num_classes)
    arrays = start(Torch(task.layers, task.initial_arrays))
    controls = {
        m: {key: rng.normal(0, 0.1, a.shape).astype(np.float32) for key, a in arrays.items()}
        for m in range(4)
    }
    plan = Plan(3, 1, 0.02, batch_size=3, steps=2, proximal_mu=0.3, measure_variance=True)
    clients = np.array([2, 0, 3, 1])
    loop = Loop(task).train(arrays, data, clients, plan, controls)
    kernels = [Torch(task.layers, task.initial_arrays, memory=memory)]
    if name == "mnist-mlp" and memory == 1:
        kernels.append(MLP(task.sizes))
    for kernel in kernels:
        before = kernel.losses(arrays, data, clients)
        np.testing.assert_allclose(before, Loop(task).losses(arrays, data, clients), rtol=1e-4)
        trained = kernel.train(arrays, data, clients, plan, controls)
        np.testing.assert_allclose(trained.losses, loop.losses, rtol=1e-4)
        np.testing.assert_allclose(trained.gradient_variances, loop.gradient_variances, rtol=1e-3)
        for row in range(4):
            one, other = trained.updates.model(row), loop.updates.model(row)
            for key in arrays:
                np.testing.assert_allclose(one[key], other[key], atol=1e-4, rtol=0)


def test_a_regression_without_a_bias() -> None:
    task = tasks.create("digits", bias=False)
    data, kernel = data_of(), kernel_of(task)
    arrays = start(kernel)
    for steps in (1, 3):  # one step is a special case
        plan = Plan(3, 1, 0.2, batch_size=16, steps=steps)
        ours, theirs = (each.train(arrays, data, np.arange(10), plan) for each in (kernel, Loop(task)))
        np.testing.assert_allclose(ours.updates.norms(), theirs.updates.norms(), rtol=1e-4)
        for row in range(10):
            one, other = ours.updates.model(row), theirs.updates.model(row)
            assert one.keys() == {"weight"}
            np.testing.assert_allclose(one["weight"], other["weight"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", KERNELS)
def test_controls_are_added_to_each_gradient(name: str) -> None:
    kernel, task = KERNELS[name]
    data, arrays = data_of((1, 3, 5, 8, 16, 2, 2, 9, 2, 10)), start(kernel)
    rng = np.random.default_rng(1)
    clients = np.array([7, 2])
    controls = {
        int(m): {key: 0.1 * rng.standard_normal(a.shape, dtype=np.float32) for key, a in arrays.items()}
        for m in clients
    }
    plan = Plan(3, 1, 0.01, batch_size=8, steps=3)
    ours = kernel.train(arrays, data, clients, plan, controls)
    theirs = Loop(tasks.create(task)).train(arrays, data, clients, plan, controls)
    for row in range(2):
        for key in arrays:
            np.testing.assert_allclose(
                ours.updates.model(row)[key], theirs.updates.model(row)[key], atol=1e-5, rtol=0
            )


@pytest.mark.parametrize("name", KERNELS)
def test_losses_and_evaluation(name: str) -> None:
    kernel, task = KERNELS[name]
    data, arrays = data_of((1, 3, 5, 8, 16, 2, 2, 9, 2, 10)), start(kernel)
    loop = Loop(tasks.create(task))
    clients = np.array([3, 9, 0])
    np.testing.assert_allclose(
        kernel.losses(arrays, data, clients), loop.losses(arrays, data, clients), rtol=1e-5
    )
    everything = Dataset(data.inputs, data.labels)
    ours, theirs = kernel.evaluate(arrays, everything), loop.evaluate(arrays, everything)
    assert ours.accuracy == pytest.approx(theirs.accuracy, abs=1e-7)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)


@pytest.mark.parametrize(
    ("task", "kind"),
    [("digits", Softmax), ("mnist-mlp", MLP), ("mnist-cnn", Torch)],
)
def test_a_task_has_a_kernel(task: str, kind: type[Kernel]) -> None:
    made = tasks.create(task)
    kernel = kernel_of(made)
    assert type(kernel) is kind
    ours, theirs = kernel.initial_arrays(3), made.initial_arrays(3)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert np.array_equal(array, theirs[name])


def test_a_network_is_trained_on_a_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {name: tasks.create(name) for name in ("digits", "mnist-mlp", "mnist-cnn")}
    for there, where in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        assert [type(kernel_of(task)) for task in made.values()] == [Softmax, MLP, Torch]
        assert vars(kernel_of(made["mnist-cnn"]))["_device"] == where
        assert vars(kernel_of(made["mnist-mlp"], "cuda"))["_device"] == "cuda"
        assert vars(kernel_of(made["mnist-cnn"], "cpu"))["_device"] == "cpu"


def test_a_model_that_no_kernel_can_train_is_refused() -> None:
    for layer, message in ((nn.BatchNorm1d(3), "running_mean"), (nn.Dropout(), "dropout")):
        with pytest.raises(ValueError, match=message):
            Torch(lambda layer=layer: nn.Sequential(layer), lambda seed: {})  # type: ignore[misc]


def test_an_update_that_is_not_finite_is_left_out_and_spoils_nothing() -> None:
    data = data_of()
    data.inputs[data.offsets[7]] = np.nan
    for steps in (1, 2):
        simulator = Simulator(
            data, Softmax(64, 10), "full", clients_per_round=10, num_rounds=1,
            learning_rate=0.1, batch_size=64, local_steps=steps,
        )  # fmt: skip
        record = simulator.step()
        assert record.failures == {7: "the norm of the update is not finite"}
        assert all(np.isfinite(array).all() for array in simulator.arrays.values())
        assert record.weights[7] == 0


# --- the same federation as in the apps ----------------------------------------------------------------


def digits(num_clients: int, seed: int) -> FederatedData:
    task = tasks.create("digits")
    parts = [task.client_data(m, num_clients, seed) for m in range(num_clients)]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    inputs, labels = (np.concatenate([part[field] for part in parts]) for field in (0, 1))
    return FederatedData(inputs, labels, offsets)


@pytest.mark.parametrize("task", ["digits", "digits-mlp"])
@pytest.mark.parametrize(
    "selector", ["adaptive-osmd", "forecast", "forecast-asked", "pow-d", "cpow-d", "prac-delta", "rpow-d"]
)
def test_the_simulator_is_the_federation_of_the_apps(tmp_path: Path, selector: str, task: str) -> None:
    if task == "digits" and selector in ("pow-d", "cpow-d"):
        pytest.skip("all losses are equal at W = 0: rounding decides who has the largest")
    settings = {
        "adaptive-osmd": "learning-rate-multiplier=1000",
        "forecast-asked": "ask-norms=true",
        "cpow-d": "batch-size=4",
    }.get(selector, "")
    own = {
        "adaptive-osmd": {"learning_rate_multiplier": 1000},
        "forecast-asked": {"ask_norms": True},
        "cpow-d": {"batch_size": 4},
    }.get(selector, {})
    selector = selector.removesuffix("-asked")
    lines = federation(
        tmp_path, 8, num_rounds=6, seed=5, selector=selector, selector_settings=settings, task=task
    )
    kernel = Softmax(64, 10) if task == "digits" else MLP((64, 32, 10))
    simulator = Simulator(
        digits(8, 5), kernel, selector, clients_per_round=3, num_rounds=6, learning_rate=0.5,
        batch_size=16, local_steps=5, seed=5, selector_settings=own, faults=Faults(guard=True),
    )  # fmt: skip
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


@pytest.mark.parametrize("variates", ["fedvarp", "scaffold"])
def test_variates_of_a_batch_are_those_of_single_replies(variates: str) -> None:
    """Compared with `RoundLogic` given one reply per client."""
    data, kernel = data_of(), Softmax(64, 10)
    options: dict[str, Any] = {"clients_per_round": 4, "num_rounds": 5, "seed": 2}
    simulator = Simulator(
        data, kernel, "md", learning_rate=0.2, batch_size=8, local_steps=3, variates=variates, **options
    )
    logic = RoundLogic(
        create("md", 10, client_sizes=data.sizes(), **options),
        Faults(guard=False),
        local_learning_rate=0.2,
        variates=create_variates(variates),
    )
    arrays = kernel.initial_arrays(2)
    loop = Loop(tasks.create("digits"))
    for number in range(1, 6):
        chosen = logic.choose(logic.open(number))
        selection = chosen.selection
        sent = {int(m): logic.variates.outgoing(int(m)) for m in selection.clients}  # type: ignore[union-attr]
        controls = {m: control for m, control in sent.items() if control} or None
        plan = Plan(2, number, 0.2, batch_size=8, steps=3)
        trained = loop.train(arrays, data, selection.clients, plan, controls)
        replies = [
            Reply(trained.updates.model(row), Report(num_steps=3, train_loss=float(trained.losses[row])))
            for row in range(selection.clients.size)
        ]
        outcome = logic.finish(chosen, arrays, replies)
        assert outcome.arrays is not None
        arrays = outcome.arrays
        record = simulator.step()
        assert record.selection.clients.tolist() == selection.clients.tolist()
        for key in arrays:
            np.testing.assert_allclose(simulator.arrays[key], arrays[key], atol=2e-5, rtol=0)


def simulator_of(**options: Any) -> Simulator:
    return Simulator(
        data_of(), Softmax(64, 10), **{
            "selector": "adaptive-osmd", "clients_per_round": 3, "num_rounds": 20, "learning_rate": 0.1,
            "batch_size": 8, "local_steps": 2, "seed": 4, **options,
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"server_strategy": FedAdam(eta=0.1)},
        {"server_strategy": FedAvgM(server_momentum=0.9)},
        {"variates": "fedvarp", "faults": Faults(guard=True)},
        {"selector": "prac-delta"},
    ],
    ids=["plain", "adam", "momentum", "varp", "delta"],
)
def test_a_simulation_goes_on_from_its_state_bit_for_bit(options: dict[str, Any]) -> None:
    one, other = simulator_of(**options), simulator_of(**options)
    one.run(4)
    state = one.state_dict()
    one.run(3)
    other.load_state_dict(state)
    other.run(3)
    assert other.round == 7
    for key, array in one.arrays.items():
        assert np.array_equal(array, other.arrays[key])


@pytest.mark.parametrize("server_strategy", [FedAdam(eta=0.1, tau=1e-2), FedAvgM(server_momentum=0.9)])
def test_a_server_strategy_takes_the_step(server_strategy: Any) -> None:
    config = {**DEFAULTS, "num-clients": 8, "seed": 5}
    nodes = ({"partition-id": m, "num-partitions": 8} for m in range(8))
    strategy = SelectionStrategy(
        "md", clients_per_round=3, min_available_clients=8, seed=5, local_learning_rate=0.5,
        server_strategy=server_strategy, polling=Polling(ask_status=True),
    )  # fmt: skip
    kernel = Softmax(64, 10)
    result = strategy.start(
        InProcessGrid(client_app, nodes, run_config=config),
        ArrayRecord({name: Array(array) for name, array in kernel.initial_arrays(5).items()}),
        num_rounds=4,
        train_config=ConfigRecord({"learning-rate": 0.5, "local-steps": 5, "batch-size": 16}),
    )
    simulator = Simulator(
        digits(8, 5), kernel, "md", clients_per_round=3, num_rounds=4, learning_rate=0.5, batch_size=16,
        local_steps=5, seed=5, server_strategy=server_strategy, faults=Faults(guard=True),
    )  # fmt: skip
    simulator.run(4)
    for name, array in result.arrays.items():
        np.testing.assert_allclose(simulator.arrays[name], array.numpy(), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("selector", "partition", "options"),
    [
        ("adaptive-osmd", "skewed", {"selector_settings": {"learning_rate_multiplier": 1000}}),
        ("md", "skewed", {"faults": Faults(guard=False, correction="rates")}),
        ("naive-group", "groups:5", {}),
    ],
)
def test_late_clients_are_registered_as_by_the_strategy(
    selector: str, partition: str, options: dict[str, Any]
) -> None:
    process = availability_of("markov", 24, seed=2, rates=0.3)
    config = {**DEFAULTS, "num-clients": 24, "seed": 5, "partition": partition}
    nodes = ({"partition-id": m, "num-partitions": 24} for m in range(24))
    kernel, records = Softmax(64, 10), []
    options = {"clients_per_round": 3, "seed": 5, "faults": Faults(guard=False), **options}
    strategy = SelectionStrategy(
        selector, min_available_clients=3, local_learning_rate=0.5, on_round=records.append,
        polling=Polling(ask_status=True), **options,
    )  # fmt: skip
    strategy.start(
        InProcessGrid(client_app, nodes, run_config=config, availability=process),
        ArrayRecord({name: Array(array) for name, array in kernel.initial_arrays(5).items()}),
        num_rounds=12,
        train_config=ConfigRecord({"learning-rate": 0.5, "local-steps": 5, "batch-size": 16}),
    )
    arrivals = InOrderOfArrival(process, num_rounds=12)
    data = arrivals.renumbered(tasks.create("digits", partition=partition).federated_data(24, 5))
    simulator = Simulator(
        data, kernel, selector, num_rounds=12, learning_rate=0.5, batch_size=16, local_steps=5,
        availability=arrivals, **options,
    )  # fmt: skip
    before = simulator.selector.num_clients
    for record, theirs in zip(simulator.run(12), records, strict=True):
        assert record.num_available == theirs.num_available
        assert record.selection.clients.tolist() == theirs.selection.clients.tolist()
        np.testing.assert_allclose(record.weights, theirs.weights, rtol=1e-4)
    assert before < simulator.selector.num_clients < 24
    assert np.isfinite(simulator.train_loss())
    again = Simulator(
        data, kernel, selector, num_rounds=12, learning_rate=0.5, batch_size=16, local_steps=5,
        availability=arrivals, **options,
    )  # fmt: skip
    again.load_state_dict(simulator.state_dict())
    assert again.selector.num_clients == simulator.selector.num_clients
    assert again.step().selection.clients.tolist() == simulator.step().selection.clients.tolist()


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
def test_the_same_groups_take_part_as_with_the_strategy(selector: str, settings: dict[str, Any]) -> None:
    """The groups that are seen first have the highest numbers, or names."""
    if selector == "naive-group" and "min_shares" in settings:
        pytest.skip("it has no minimum shares")
    groups: list[Any] = [2, 2, 1, 0, 1, 0, 0, 2, 1]
    if "south" in str(settings):
        groups = [{1: "south"}.get(group, group) for group in groups]
    records: list[Any] = []
    options: dict[str, Any] = {"clients_per_round": 4, "seed": 3, "selector_settings": settings}
    strategy = SelectionStrategy(
        selector,
        on_round=records.append,
        polling=Polling(ask_status=True, interval=0.5),
        min_available_clients=9,
        **options,
    )
    nodes = {50 - n: honest(n, group) for n, group in enumerate(groups)}
    strategy.start(ToyGrid(nodes), ArrayRecord({"w": Array(np.zeros(2, np.float32))}), num_rounds=12)
    options["selector_settings"] = settings | {"groups": groups}
    simulator = Simulator(
        data_of((10,) * 9, 4), Softmax(4, 10), selector, num_rounds=12, learning_rate=0.1, batch_size=5,
        local_steps=1, client_sizes=strategy.selector.client_sizes, **options,
    )  # fmt: skip
    cohorts = [record.selection.clients.tolist() for record in simulator.run(12)]
    assert cohorts == [record.selection.clients.tolist() for record in records]
    assert simulator.selector.state_dict()["groups"].tolist() == (
        strategy.selector.state_dict()["groups"].tolist()
    )


@pytest.mark.parametrize("selector", ["flics", "uniform"])
@pytest.mark.parametrize("over_selection", [1.0, 1.5])
def test_the_budget_of_each_round_is_that_of_the_strategy(selector: str, over_selection: float) -> None:
    records: list[Any] = []
    options: dict[str, Any] = {
        "clients_per_round": 3,
        "seed": 3,
        "budget": "4@1/0@3/6@4",
        "faults": Faults(over_selection=over_selection, guard=False),
    }
    strategy = SelectionStrategy(
        selector,
        on_round=records.append,
        polling=Polling(ask_status=True, interval=0.5),
        min_available_clients=9,
        **options,
    )
    nodes = {50 - n: honest(n) for n in range(9)}
    strategy.start(ToyGrid(nodes), ArrayRecord({"w": Array(np.zeros(2, np.float32))}), num_rounds=6)
    options["budget"] = lambda round: 4.9 if round < 3 else 0.5 if round == 3 else 6
    simulator = Simulator(
        data_of((10,) * 9, 4), Softmax(4, 10), selector, num_rounds=6, learning_rate=0.1, batch_size=5,
        local_steps=1, client_sizes=strategy.selector.client_sizes, **options,
    )  # fmt: skip
    cohorts = [record.selection.clients.tolist() for record in simulator.run(6)]
    assert cohorts == [record.selection.clients.tolist() for record in records]
    assert cohorts[2] == []
    assert records[2].skipped == "no client was selected"
    if selector == "uniform":
        drawn = [int(record.selection.counts.sum()) for record in records]
        most = 6 if over_selection == 1 else 9
        assert drawn == [most - 2 - (most == 9), most - 2 - (most == 9), 0, most, most, most]


def test_a_client_of_a_group_without_a_share_is_named_before_round_1() -> None:
    with pytest.raises(
        ValueError, match=r"client 1 cannot take part: its group is 'west': must be one of 'a'"
    ):
        Simulator(
            data_of((10,) * 3, 4), Softmax(4, 10), "flics", clients_per_round=2, num_rounds=2, batch_size=5,
            learning_rate=0.1, local_steps=1,
            selector_settings={"groups": ["a", "west", "a"], "group_shares": {"a": 1.0}},
        )  # fmt: skip


def test_a_client_must_be_available_in_round_1() -> None:
    with pytest.raises(ValueError, match="no client is available in round 1"):
        InOrderOfArrival(Nobody(10), num_rounds=3)


@pytest.mark.parametrize(("selector", "settings"), [("md", {}), ("oort", {"pace": 0.3})])
def test_silence_is_dealt_with_as_by_the_strategy(selector: str, settings: dict[str, Any]) -> None:
    """One client never replies, one is slow, and the others drop out now and then."""
    dropout = np.full(10, 0.05)
    dropout[2] = 1.0
    times = ResponseTimes(10, seed=3, dropout=dropout, work=np.where(np.arange(10) == 7, 12.0, 1.0))
    options = {"clients_per_round": 4, "seed": 5, "faults": Faults(guard=False)}
    config = {**DEFAULTS, "num-clients": 10, "seed": 5, "partition": "skewed"}
    nodes = ({"partition-id": m, "num-partitions": 10} for m in range(10))
    kernel, records = Softmax(64, 10), []
    strategy = SelectionStrategy(
        selector, selector_settings=settings, min_available_clients=10, local_learning_rate=0.5,
        on_round=records.append, deadlines=Deadlines(round=200),
        polling=Polling(ask_status=True, interval=0.01), **options,
    )  # fmt: skip
    strategy.start(
        InProcessGrid(client_app, nodes, run_config=config, latency=times),
        ArrayRecord({name: Array(array) for name, array in kernel.initial_arrays(5).items()}),
        num_rounds=25,
        train_config=ConfigRecord({"learning-rate": 0.5, "local-steps": 5, "batch-size": 16}),
    )

    def simulator() -> Simulator:
        return Simulator(
            digits(10, 5), kernel, selector, num_rounds=25, selector_settings=settings, learning_rate=0.5,
            batch_size=16, local_steps=5, response_times=times, round_deadline=200.0,
            shortest_deadline=3.0, **options,
        )  # fmt: skip

    begun, resumed = simulator(), simulator()
    begun.run(12)
    resumed.load_state_dict(begun.state_dict())
    for ours, theirs in zip([*begun.history, *resumed.run(13)], records, strict=True):
        assert ours.selection.clients.tolist() == theirs.selection.clients.tolist()
        assert ours.silent == theirs.silent
        assert ours.seconds == pytest.approx(theirs.seconds, abs=0.1)
    assert any(record.silent for record in records)


def test_late_replies_are_left_out() -> None:
    times = ResponseTimes(10, seed=1)
    seconds = times.seconds(1)
    deadline = float(np.sort(seconds)[5:7].mean())
    simulator = simulator_of(
        selector="full", clients_per_round=10, response_times=times, round_deadline=deadline
    )
    record = simulator.step()
    assert set(record.failures) == set(np.argsort(seconds)[6:].tolist())
    assert record.seconds == deadline
    expected = seconds[record.selection.clients]
    np.testing.assert_array_equal(record.reply_seconds, np.where(expected <= deadline, expected, np.nan))
    assert simulator_of().step().reply_seconds.size == 0  # all clients reply at once
    nobody = simulator_of(response_times=ResponseTimes(10, seed=1), round_deadline=1e-9)
    assert nobody.step().skipped
    assert not nobody.arrays["weight"].any()


def test_mu_of_flowers_fedprox_reaches_local_training() -> None:
    theirs = simulator_of(server_strategy=FedProx(proximal_mu=0.5), local_steps=3)
    ours = simulator_of(proximal_mu=0.5, local_steps=3)
    plain = simulator_of(local_steps=3)
    for simulator in (theirs, ours, plain):
        simulator.run(2)
    assert np.array_equal(theirs.arrays["weight"], ours.arrays["weight"])
    assert not np.array_equal(plain.arrays["weight"], ours.arrays["weight"])


class Nobody(Availability):
    def _available(self, round: int) -> np.ndarray:
        return np.arange(10) if round == 2 else np.empty(0, dtype=np.int64)


@pytest.mark.parametrize("selector", ["uniform", "cpow-d", "pow-d", "delta", "fed-is", "optimal", "forecast"])
@pytest.mark.parametrize("guard", [False, True])
def test_a_round_without_available_clients_is_skipped(selector: str, guard: bool) -> None:
    simulator = simulator_of(selector=selector, availability=Nobody(10), faults=Faults(guard=guard))
    skipped = [record.skipped for record in simulator.run(3)]
    assert skipped == ["no client was selected", "", "no client was selected"]


def test_a_client_with_nan_samples_spoils_no_diversities() -> None:
    data = data_of()
    data.inputs[data.offsets[3]] = np.nan
    simulator = Simulator(
        data, Softmax(64, 10), "delta", clients_per_round=3, num_rounds=5, learning_rate=0.1, batch_size=8,
        local_steps=3,
    )  # fmt: skip
    assert not any(record.skipped for record in simulator.run(4))


def test_the_guard_judges_poll_reports() -> None:
    data = data_of((20,) * 10)
    data.inputs[data.offsets[3] : data.offsets[4]] *= 1e4
    options: dict[str, Any] = {
        "clients_per_round": 2, "num_rounds": 9, "learning_rate": 1e-4, "batch_size": 8, "local_steps": 1,
        "initial_arrays": start(Softmax(64, 10)), "selector_settings": {"num_candidates": 10},
    }  # fmt: skip
    records = Simulator(data, Softmax(64, 10), "pow-d", faults=Faults(guard=True), **options).run(3)
    assert "loss" in records[0].clipped[3]


@pytest.mark.parametrize("size", [3, 64, 65, 900])
def test_the_norm_of_one_step_is_that_of_the_product(size: int) -> None:
    data = data_of((2, size, 1), 30)
    kernel = Softmax(30, 10)
    trained = kernel.train(start(kernel), data, np.arange(3), Plan(1, 1, 0.1, batch_size=size, steps=1))
    for row, norm in enumerate(trained.updates.norms()):
        model = trained.updates.model(row)
        moves = [model[name] - array for name, array in start(kernel).items()]
        assert norm == pytest.approx(np.sqrt(sum(float((move**2).sum()) for move in moves)), rel=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"local_steps": 2.5}, "local_steps = 2.5: must be a whole number"),
        ({"client_sizes": [1.0] * 11}, r"client_sizes of shape \(11,\): must be \(10,\), one per client"),
        ({"faults": Faults(quorum=4)}, "faults.quorum = 4: must be between 1 and 3"),
        ({"round_deadline": -1.0}, "round_deadline = -1.0"),
        ({"proximal_mu": np.inf}, "proximal_mu = inf"),
        ({"response_times": ResponseTimes(5)}, "response_times is of 5 clients: must be of 10"),
        ({"selector": "delta", "local_steps": 1}, "local_steps = 1 with selector = 'delta'"),
        ({"local_steps": 0}, "local_steps = 0, local_epochs = 0: exactly one must be above 0"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"learning_rate": -1.0}, "learning_rate = -1.0"),
        ({"selector": "flics-private", "selector_settings": {"group_shares": [0.5, 0.5]}}, "messages"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulator_of(**options)


@pytest.mark.parametrize("kernel", [Softmax(64, 10), MLP((64, 8, 10)), KERNELS["torch"][0]])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"labels": np.arange(1, 101) % 11},
            "labels are int64 from 0 to 10: must be whole numbers",
        ),
        ({"labels": np.arange(100) % 10 - 1}, "labels are int64 from -1 to 8"),
        ({"labels": np.zeros(100)}, "labels are float64"),
        ({"labels": np.zeros(99, np.int64)}, r"inputs of shape \(100, 64\): must be \(99, 64\)"),
        ({"inputs": np.zeros((100, 63), np.float32)}, "63"),
        ({"offsets": np.arange(0, 121, 10)}, r"offsets = \[.* 120\]: must ascend from 0 to 100"),
        ({"offsets": np.array([0, 60, 50, 100])}, "must ascend from 0 to 100"),
    ],
)
def test_data_that_do_not_fit_are_refused(kernel: Kernel, change: dict[str, Any], message: str) -> None:
    """A label beyond the classes would silently be read as another sample's."""
    data = data_of((10,) * 10)._replace(**change)
    with pytest.raises(ValueError, match=message):
        kernel.check(data)
    with pytest.raises(ValueError):  # noqa: PT011 (or its clients are fewer than none)
        Simulator(
            data, kernel, clients_per_round=1, num_rounds=1, learning_rate=0.1, batch_size=1, local_steps=1
        )


def test_a_client_without_samples_is_refused() -> None:
    data = data_of((5, 4))._replace(offsets=np.array([0, 5, 5, 9]))
    with pytest.raises(ValueError, match="client 1 has no samples"):
        Simulator(
            data, Softmax(64, 10), clients_per_round=1, num_rounds=1, learning_rate=0.1, batch_size=1,
            local_steps=1,
        )  # fmt: skip


def test_arguments_of_a_wrong_type_are_refused() -> None:
    with pytest.raises(TypeError, match=r"availability = 0\.3: must be an Availability, such as"):
        simulator_of(availability=0.3)
    with pytest.raises(TypeError, match="data is of type FederatedData: must be a Dataset"):
        simulator_of().evaluate(data_of())  # type: ignore[arg-type]


def test_only_eligible_clients_are_selected() -> None:
    options = {
        "learning_rate": 0.5,
        "batch_size": 16,
        "local_steps": 2,
        "clients_per_round": 2,
        "num_rounds": 6,
    }
    data, kernel = digits(8, 5), Softmax(64, 10)
    names = [f"{'site' if m < 5 else 'lab'}-{m}" for m in range(8)]
    simulator = Simulator(data, kernel, "uniform", eligible="site-*", client_names=names, **options)
    for record in simulator.run(6):
        assert record.selection.clients.max() < 5
        assert (record.num_available, record.num_ineligible, record.eligible) == (5, 3, "site-*")
    with pytest.raises(
        ValueError, match=r"eligible = 'ward-\*': no client meets this; the names are client-0"
    ):
        Simulator(data, kernel, eligible="ward-*", **options)
    with pytest.raises(ValueError, match="knows names and groups only"):
        Simulator(data, kernel, eligible="charging=true", **options)
