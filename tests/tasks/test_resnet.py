"""ResNet-18 on a few pictures: it is large, so each test takes few samples and steps."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import tasks
from simulation.kernels import Loop, Plan, kernel_of
from simulation.kernels.torch_functional import Torch
from tasks.federated_data import Dataset, federate
from tasks.models.network import Network
from tests.support.made_data import made


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cifar")
    made(folder, "cifar100", 12, 4, classes=4)
    return tasks.create("cifar100", partition="balanced", data_dir=str(folder))


def test_it_is_resnet_18_with_group_norm(task):
    """Convolutions of He et al. 2016, table 1, the first of 3 x 3; two numbers per channel of a norm."""
    assert isinstance(task, Network)
    arrays = task.initial_arrays(1)
    state = task.layers().state_dict()
    assert list(arrays) == list(state)
    assert {name: array.shape for name, array in arrays.items()} == {
        k: tuple(v.shape) for k, v in state.items()
    }
    widths = [64, 64, 128, 256, 512]
    blocks = sum(9 * a * b + 3 * 9 * b * b + (a * b if a != b else 0) for a, b in pairwise(widths))
    norms = 2 * (64 + 4 * 64 + 5 * (128 + 256 + 512))
    assert sum(array.size for array in arrays.values()) == 27 * 64 + blocks + norms + 512 * 100 + 100
    for key, array in arrays.items():
        if array.ndim == 4:
            assert abs(array).max() == pytest.approx(array[0].size ** -0.5, rel=0.01), key


@pytest.mark.slow
def test_it_learns_and_the_batched_simulation_trains_it_alike(task):
    data, arrays = task.federated_data(4, 1), task.initial_arrays(1)
    plan = Plan(3, 1, 0.005, batch_size=3, steps=3)
    kernel = kernel_of(task, "cpu")
    assert isinstance(kernel, Torch)
    clients = np.array([2])
    ours, theirs = kernel.train(arrays, data, clients, plan), Loop(task).train(arrays, data, clients, plan)
    one, other = ours.updates.model(0), theirs.updates.model(0)
    for key in arrays:
        np.testing.assert_allclose(one[key], other[key], atol=2e-5, rtol=0)
    mine = data.client(2)
    assert task.evaluate(one, mine).loss < task.evaluate(arrays, mine).loss


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_trains_it_as_the_cpu_does_and_the_same_each_time(task):
    data, arrays = task.federated_data(4, 1), task.initial_arrays(1)
    plan, clients = Plan(3, 1, 0.005, batch_size=3, steps=3), np.array([0, 2])
    cpu, gpu, again = (
        kernel_of(task, where).train(arrays, data, clients, plan) for where in ("cpu", "cuda", "cuda")
    )
    for position in range(clients.size):
        expected, found, same = (each.updates.model(position) for each in (cpu, gpu, again))
        for key in arrays:
            np.testing.assert_allclose(found[key], expected[key], atol=5e-5, rtol=0)
            assert np.array_equal(found[key], same[key])
    np.testing.assert_allclose(gpu.updates.norms(), cpu.updates.norms(), rtol=1e-3)
    np.testing.assert_allclose(gpu.losses, cpu.losses, rtol=1e-4)
    sums = (each.updates.combined(np.array([0.5, 2.0])) for each in (cpu, gpu))
    for expected, found in zip(*(each.values() for each in sums), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


def test_grey_images_of_another_size_fit():
    from tasks.models.resnet import ResNet18

    network = ResNet18("mnist")
    kernel = kernel_of(network, "cpu")
    kernel.check(federate(Dataset(np.zeros((1, 784), np.float32), np.zeros(1, np.int64)), [np.array([0])]))
    assert network.initial_arrays(0)["1.weight"].shape == (64, 1, 3, 3)


def test_data_without_images_are_refused():
    from tasks.models.resnet import ResNet18

    with pytest.raises(ValueError, match=r"^data set = 'sent140': must have images for ResNet-18$"):
        ResNet18("sent140")
