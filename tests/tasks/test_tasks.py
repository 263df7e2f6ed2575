import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tasks
from tasks import datasets
from tasks.base import batches
from tasks.federated_data import Dataset
from tasks.models.network import Network
from tests.support.made_data import made


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Return a folder with a little of each data set."""
    folder = tmp_path_factory.mktemp("images")
    for name in datasets.DESCRIPTIONS:
        made(folder, name, 80, 20)
    return str(folder)


# One for each model and shape of images.
MODELS = ("digits", "digits-mlp", "mnist", "mnist-mlp", "mnist-cnn", "cifar10", "femnist", "celeba")


@pytest.fixture(params=MODELS)
def task(request, images):
    return tasks.create(request.param, data_dir=images)


def test_a_step_lowers_the_loss_by_its_gradient_and_keeps_its_input(task):
    data = task.client_data(2, 3, seed=1)  # the largest client
    arrays = task.initial_arrays(1)
    before = {name: array.copy() for name, array in arrays.items()}
    settings = {"steps": 1, "batch_size": len(data), "seed": 3}
    moved = task.train(arrays, data, learning_rate=0.01, **settings).arrays
    square = sum(float(((arrays[name] - moved[name]) ** 2).sum()) for name in arrays) / 0.01**2
    # A rate so small that the loss is nearly straight: it falls by rate * ||g||².
    result = task.train(arrays, data, learning_rate=2e-3 / square, **settings)
    loss = task.evaluate(arrays, data).loss
    assert result.loss == pytest.approx(loss, rel=1e-4)
    assert loss - task.evaluate(result.arrays, data).loss == pytest.approx(2e-3, rel=0.1)
    assert result.steps == 1
    assert all(np.array_equal(arrays[name], before[name]) for name in before)
    assert list(result.arrays) == list(arrays)
    assert {name: a.dtype for name, a in result.arrays.items()} == dict.fromkeys(arrays, np.dtype(np.float32))
    assert {name: a.shape for name, a in result.arrays.items()} == {n: a.shape for n, a in arrays.items()}


def test_the_digits_tasks_stay_as_they_were():
    """A resumed run must find the initial model and the data of earlier versions."""
    found = {}
    for name in ("digits", "digits-mlp"):
        task = tasks.create(name)
        digest = hashlib.sha256()
        for key, array in task.initial_arrays(1).items():
            digest.update(key.encode() + array.tobytes())
        for m in range(10):
            for part in task.client_data(m, 10, 1):
                digest.update(part.tobytes())
        found[name] = digest.hexdigest()[:16]
    assert found == {"digits": "2ddbe159eba9e06b", "digits-mlp": "792d6d77d53b26a9"}


def test_training_is_a_function_of_its_seed(task):
    data = task.client_data(1, 2, seed=1)
    arrays = task.initial_arrays(1)
    runs = [task.train(arrays, data, learning_rate=0.1, steps=2, batch_size=4, seed=s) for s in (1, 1, 2)]
    assert all(np.array_equal(runs[0].arrays[name], runs[1].arrays[name]) for name in arrays)
    assert any(not np.array_equal(runs[0].arrays[name], runs[2].arrays[name]) for name in arrays)
    other = task.initial_arrays(2)
    is_softmax = not isinstance(task, Network)  # which starts at 0
    assert all(np.array_equal(arrays[name], other[name]) for name in arrays) == is_softmax


def test_evaluation_in_chunks_changes_nothing(monkeypatch):
    task = tasks.create("digits-mlp")
    arrays, data = task.initial_arrays(1), task.test_data()
    whole = task.evaluate(arrays, data)
    monkeypatch.setattr("tasks.models.network._CHUNK", 100)  # 100, 100, 100, 60
    assert task.evaluate(arrays, data) == pytest.approx(whole, rel=1e-6)


def test_a_networks_parameters_are_torchs():
    """Layer by layer, x W' + b gives the network's outputs; batched kernels rely on it."""
    task = tasks.create("mnist-mlp")
    arrays = task.initial_arrays(3)
    assert {name: array.shape for name, array in arrays.items()} == {
        **{"0.weight": (64, 784), "0.bias": (64,), "2.weight": (30, 64), "2.bias": (30,)},
        **{"4.weight": (10, 30), "4.bias": (10,)},
    }
    random = np.random.default_rng(0)
    x, labels = random.random((50, 784), dtype=np.float32), random.integers(10, size=50)
    h = x.astype(np.float64)
    for layer in (0, 2, 4):
        h = h @ arrays[f"{layer}.weight"].T + arrays[f"{layer}.bias"]
        h = np.maximum(h, 0) if layer < 4 else h
    log_p = h - np.log(np.exp(h).sum(axis=1, keepdims=True))
    metrics = task.evaluate(arrays, Dataset(x, labels))
    assert metrics.loss == pytest.approx(-log_p[np.arange(50), labels].mean(), rel=1e-5)
    assert metrics.accuracy == pytest.approx((log_p.argmax(axis=1) == labels).mean())


def test_networks_start_as_torchs_layers_do():
    """Uniform in ±1/sqrt(fan in), weights and biases; group norms start as the identity."""
    for name in ("mnist-mlp", "mnist-cnn", "celeba"):
        task = tasks.create(name)
        assert isinstance(task, Network)
        state = task.layers().state_dict()
        arrays = task.initial_arrays(0)
        assert list(arrays) == list(state)
        for key, array in arrays.items():
            theirs = state[key].numpy()
            assert array.shape == theirs.shape
            if array.size < 30:
                continue  # too few numbers for their spread to say much
            assert array.std() == pytest.approx(theirs.std(), rel=0.5, abs=1e-7), key
            assert abs(array).max() == pytest.approx(abs(theirs).max(), rel=0.3), key


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("mnist", 784 * 10 + 10),
        ("mnist-mlp", 784 * 64 + 64 + 64 * 30 + 30 + 30 * 10 + 10),
        ("mnist-cnn", 1_663_370),  # as McMahan et al. 2017 say of theirs
        ("femnist", 1_663_370 + 52 * 513),
        ("celeba", (3 * 9 + 1) * 32 + 3 * (32 * 9 + 1) * 32 + 4 * 64 + 800 * 2 + 2),
    ],
)
def test_networks_are_those_of_the_papers(name, parameters):
    assert sum(array.size for array in tasks.create(name).initial_arrays(0).values()) == parameters


def test_a_convolution_sees_the_picture():
    """Channels, rows, columns: a filter that looks for a red dot finds it where it is."""
    task = tasks.create("cifar10")
    assert isinstance(task, Network)
    layers = task.layers()
    pixels = np.zeros((1, 3, 32, 32), np.float32)
    pixels[0, 0, 5, 9] = 1
    import torch

    folded = layers[0](torch.from_numpy(pixels.reshape(1, -1)))
    assert folded.shape == (1, 3, 32, 32)
    assert folded[0, 0, 5, 9] == 1


def test_softmax_may_have_no_bias():
    task = tasks.create("digits", bias=False)
    arrays = task.initial_arrays(0)
    assert list(arrays) == ["weight"]
    data = task.client_data(9, 10, seed=1)
    settings = {"learning_rate": 0.5, "batch_size": 16, "seed": 3}
    more = {"proximal_mu": 0.01, "control": arrays, "measure_variance": True}
    result = task.train(arrays, data, steps=100, **settings, **more)
    assert list(result.arrays) == ["weight"]
    assert task.evaluate(result.arrays, task.test_data()).accuracy > 0.8
    # In the first step, the bias is still 0, so the weight moves as with a bias.
    with_bias = {**arrays, "bias": np.zeros(10, np.float32)}
    held = tasks.create("digits").train(with_bias, data, steps=1, **settings)
    once = task.train(arrays, data, steps=1, **settings)
    assert np.array_equal(once.arrays["weight"], held.arrays["weight"])


def test_clients_hold_the_training_set_and_none_of_the_test_set():
    task = tasks.create("digits")
    parts = [task.client_data(m, 10, seed=4) for m in range(10)]
    assert sum(map(len, parts)) == 1437
    assert len(task.test_data()) == 360
    pixels = np.concatenate([part.inputs for part in parts] + [task.test_data().inputs])
    assert pixels.min() == 0
    assert pixels.max() == 1
    # All 1,797 samples are there once: sorted rows of the whole are those of the file, whatever the split.
    again = np.concatenate(
        [task.client_data(m, 3, seed=9).inputs for m in range(3)] + [task.test_data().inputs]
    )
    assert np.array_equal(pixels[np.lexsort(pixels.T)], again[np.lexsort(again.T)])


def test_a_task_distributes_samples_by_its_partition():
    balanced = tasks.create("digits", partition="balanced")
    assert {len(balanced.client_data(m, 10, 1)) for m in range(10)} == {143, 144}
    two_classes = tasks.create("digits", partition="groups:10")
    for m in range(20):
        group = two_classes.client_group(m, 20, 1)
        assert group is not None
        assert set(two_classes.client_data(m, 20, 1).labels.tolist()) == {group, (group + 1) % 10}
    assert balanced.client_group(0, 10, 1) is None


def test_natural_clients_are_users(tmp_path):
    random = np.random.default_rng(0)
    users = random.integers(6, size=90)
    np.savez(
        tmp_path / "femnist.npz",
        x_train=np.repeat(users, 784).reshape(90, 28, 28).astype(np.uint8),  # each user's own grey
        y_train=random.integers(62, size=90),
        users_train=users,
        x_test=np.zeros((2, 28, 28), np.uint8),
        y_test=np.zeros(2, int),
    )
    task = tasks.create("femnist", partition="natural", data_dir=str(tmp_path))
    greys = [set((task.client_data(m, 6, 1).inputs * 255).round().ravel().tolist()) for m in range(6)]
    assert sorted(map(tuple, greys)) == [(m,) for m in range(6)]


@pytest.mark.parametrize("wrong", [-1, 10])
def test_an_unknown_client_is_refused(wrong):
    task = tasks.create("digits")
    for ask in (task.client_data, task.client_group):
        with pytest.raises(ValueError, match=f"^partition-id = {wrong}: must be between 0 and 9$"):
            ask(wrong, 10, 1)


@given(st.integers(1, 50), st.integers(1, 20), st.integers(1, 30))
def test_batches_use_every_sample_before_any_again(n, size, steps):
    plan = list(batches(n, size, steps, seed=0))
    assert len(plan) == steps
    assert all(len(set(batch.tolist())) == min(n, size) for batch in plan)
    epoch = n // min(n, size)
    seen = np.concatenate(plan[:epoch])
    assert len(set(seen.tolist())) == len(seen)


@pytest.mark.parametrize("name", ["digits", "digits-mlp"])
@pytest.mark.parametrize(
    ("samples", "wrong", "message"),
    [
        (0, {}, "num_samples = 0: must be >= 1"),
        (5, {"steps": 0}, "steps = 0: must be >= 1"),
        (5, {"batch_size": -1}, "batch_size = -1: must be >= 1"),
    ],
)
def test_impossible_training_is_refused(name, samples, wrong, message):
    task = tasks.create(name)
    data = task.test_data().take(np.arange(samples))
    with pytest.raises(ValueError, match=f"^{message}$"):
        task.train(
            task.initial_arrays(1),
            data,
            **{"learning_rate": 0.1, "steps": 2, "batch_size": 4, "seed": 1, **wrong},
        )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("letters", {}, "task = 'letters': must be one of digits, digits-mlp, mnist, "),
        ("digits", {"partition": "iid"}, "partition = 'iid': must be one of skewed"),
        ("mnist-cnn", {"partition": "dirichlet:0"}, "partition = 'dirichlet:0': must be dirichlet:X"),
        ("mnist-mlp", {"hidden": (64, 0)}, r"hidden = \(64, 0\): must be whole numbers >= 1"),
    ],
)
def test_unknown_names_and_values_are_refused(name, options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        tasks.create(name, **options)


def test_a_missing_torch_is_named(monkeypatch):
    for module in ("torch", "tasks.models.network", "tasks.models.mlp"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match=r"^task = 'mnist-mlp' needs torch: pip install"):
        tasks.create("mnist-mlp")


def test_the_numpy_tasks_import_nothing_heavy(images):
    code = (
        f"import sys, tasks; tasks.create('digits').client_data(0, 10, 1); "
        f"tasks.create('mnist', data_dir={images!r}).client_data(0, 10, 1); "
        f"heavy = ('torch', 'sklearn', 'scipy', 'datasets', 'flwr_datasets', 'PIL'); "
        f"sys.exit(any(name in sys.modules for name in heavy))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
