"""Clients trained as one batch give the numbers of the same clients trained one after another."""

import numpy as np
import pytest
import torch
from torch import nn

import tasks
from simulation.kernels import MLP, Loop, Plan, Softmax, kernel_of
from simulation.kernels.torch_functional import Torch
from simulation.simulator import Simulator
from strategies.rounds.seeds import client_seed
from tasks.federated_data import Dataset

from ..support.simulators import KERNELS, data_of, start


def check_same_models(ours, theirs, arrays, atol=1e-5):
    for row in range(ours.losses.size):
        one, other = ours.updates.model(row), theirs.updates.model(row)
        assert one.keys() == other.keys() == arrays.keys()
        for key in arrays:
            np.testing.assert_allclose(one[key], other[key], atol=atol, rtol=0)


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
def test_a_batch_of_clients_is_trained_as_one_client_after_another(name, plan):
    kernel, task = KERNELS[name]
    loop = Loop(tasks.create(task))
    data, arrays = data_of(), start(kernel)
    clients = np.array([9, 0, 4, 7, 1, 8, 3, 5, 2, 6])
    ours, theirs = kernel.train(arrays, data, clients, plan), loop.train(arrays, data, clients, plan)
    check_same_models(ours, theirs, arrays)
    np.testing.assert_allclose(ours.updates.norms(), theirs.updates.norms(), rtol=1e-4)
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-5)
    np.testing.assert_allclose(ours.gradient_variances, theirs.gradient_variances, rtol=1e-3)
    weights = np.linspace(0.1, 2, clients.size)
    weights[3] = 0
    one, other = ours.updates.combined(weights), theirs.updates.combined(weights)
    for key in arrays:
        np.testing.assert_allclose(one[key], other[key], atol=1e-5, rtol=1e-5)
        assert one[key].shape == arrays[key].shape


def test_dropout_trains_the_network_of_the_kept_units():
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
            step = -rate * weights[name].grad.numpy()
            np.testing.assert_allclose(array - arrays[name], step, atol=1e-6)
    alone = kernel.train(arrays, data, np.array([1]), plan).updates.model(0)
    for name, array in trained.updates.model(0).items():
        np.testing.assert_allclose(array, alone[name], atol=1e-6)
    # Evaluations use all units.
    everyone = np.arange(2)
    assert np.array_equal(kernel.losses(arrays, data, everyone), MLP(sizes).losses(arrays, data, everyone))


def test_each_step_of_a_round_drops_other_units():
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
def test_a_wrong_dropout_is_refused(sizes, dropout, why):
    with pytest.raises(ValueError, match=f"dropout = {dropout}: must be {why}"):
        MLP(sizes, dropout=dropout)


@pytest.mark.parametrize("memory", [1, 1 << 30], ids=["one by one", "together"])
@pytest.mark.parametrize("name", ["mnist-mlp", "mnist-cnn", "cifar10", "femnist", "celeba"])
def test_every_network_is_trained_as_its_task_does(name, memory):
    """With all options at once: a proximal term, controls, and the variance of gradients."""
    task = tasks.create(name)
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
        check_same_models(trained, loop, arrays, atol=1e-4)


def test_a_regression_without_a_bias():
    task = tasks.create("digits", bias=False)
    data, kernel = data_of(), kernel_of(task)
    arrays = start(kernel)
    for steps in (1, 3):  # one step is a special case
        plan = Plan(3, 1, 0.2, batch_size=16, steps=steps)
        ours, theirs = (each.train(arrays, data, np.arange(10), plan) for each in (kernel, Loop(task)))
        np.testing.assert_allclose(ours.updates.norms(), theirs.updates.norms(), rtol=1e-4)
        assert arrays.keys() == {"weight"}
        check_same_models(ours, theirs, arrays)


@pytest.mark.parametrize("name", KERNELS)
def test_losses_and_evaluation(name):
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


@pytest.mark.parametrize(("task", "kind"), [("digits", Softmax), ("mnist-mlp", MLP), ("mnist-cnn", Torch)])
def test_a_task_has_a_kernel(task, kind):
    made = tasks.create(task)
    kernel = kernel_of(made)
    assert type(kernel) is kind
    ours, theirs = kernel.initial_arrays(3), made.initial_arrays(3)
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert np.array_equal(array, theirs[name])


def test_a_network_is_trained_on_a_gpu_if_there_is_one(monkeypatch):
    made = {name: tasks.create(name) for name in ("digits", "mnist-mlp", "mnist-cnn")}
    for there, where in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr("torch.cuda.is_available", lambda there=there: there)
        assert [type(kernel_of(task)) for task in made.values()] == [Softmax, MLP, Torch]
        assert vars(kernel_of(made["mnist-cnn"]))["_device"] == where
        assert vars(kernel_of(made["mnist-mlp"], "cuda"))["_device"] == "cuda"
        assert vars(kernel_of(made["mnist-cnn"], "cpu"))["_device"] == "cpu"


def test_a_model_that_no_kernel_can_train_is_refused():
    for layer, message in ((nn.BatchNorm1d(3), "running_mean"), (nn.Dropout(), "dropout")):
        with pytest.raises(ValueError, match=message):
            Torch(lambda layer=layer: nn.Sequential(layer), lambda seed: {})


@pytest.mark.parametrize("size", [3, 64, 65, 900])
def test_the_norm_of_one_step_is_that_of_the_product(size):
    data = data_of((2, size, 1), 30)
    kernel = Softmax(30, 10)
    trained = kernel.train(start(kernel), data, np.arange(3), Plan(1, 1, 0.1, batch_size=size, steps=1))
    for row, norm in enumerate(trained.updates.norms()):
        model = trained.updates.model(row)
        moves = [model[name] - array for name, array in start(kernel).items()]
        assert norm == pytest.approx(np.sqrt(sum(float((move**2).sum()) for move in moves)), rel=1e-4)


@pytest.mark.parametrize("kernel", [Softmax(64, 10), MLP((64, 8, 10)), KERNELS["torch"][0]])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.arange(1, 101) % 11}, "labels are int64 from 0 to 10: must be whole numbers"),
        ({"labels": np.arange(100) % 10 - 1}, "labels are int64 from -1 to 8"),
        ({"labels": np.zeros(100)}, "labels are float64"),
        ({"labels": np.zeros(99, np.int64)}, r"inputs of shape \(100, 64\): must be \(99, 64\)"),
        ({"inputs": np.zeros((100, 63), np.float32)}, "63"),
        ({"offsets": np.arange(0, 121, 10)}, r"offsets = \[.* 120\]: must ascend from 0 to 100"),
        ({"offsets": np.array([0, 60, 50, 100])}, "must ascend from 0 to 100"),
    ],
)
def test_data_that_do_not_fit_are_refused(kernel, change, message):
    """A label beyond the classes would silently be read as another sample's."""
    data = data_of((10,) * 10)._replace(**change)
    with pytest.raises(ValueError, match=message):
        kernel.check(data)
    with pytest.raises(ValueError):  # noqa: PT011 (or its clients are fewer than none)
        Simulator(
            data, kernel, clients_per_round=1, num_rounds=1, learning_rate=0.1, batch_size=1, local_steps=1
        )
