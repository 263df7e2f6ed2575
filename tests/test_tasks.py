import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tasks
from tasks import digits
from tasks.base import Dataset, batches
from tasks.partitions import skewed_sizes, split


@pytest.fixture(params=tasks.available())
def task(request: pytest.FixtureRequest) -> tasks.Task:
    return tasks.create(request.param)


def test_training_lowers_the_loss_and_leaves_its_input_alone(task: tasks.Task) -> None:
    data = task.client_data(9, 10, seed=1)
    arrays = task.initial_arrays(1)
    before = {name: array.copy() for name, array in arrays.items()}
    result = task.train(arrays, data, learning_rate=0.5, steps=100, batch_size=16, seed=3)
    assert all(np.array_equal(arrays[name], before[name]) for name in before)
    assert task.evaluate(result.arrays, task.test_data()).accuracy > 0.8
    assert task.evaluate(result.arrays, data).loss < task.evaluate(arrays, data).loss
    assert result.steps == 100
    assert {name: a.dtype for name, a in result.arrays.items()} == dict.fromkeys(arrays, np.dtype(np.float32))


def test_training_is_a_function_of_its_seed(task: tasks.Task) -> None:
    data = task.client_data(8, 10, seed=1)
    arrays = task.initial_arrays(1)
    runs = [task.train(arrays, data, learning_rate=0.1, steps=5, batch_size=8, seed=s) for s in (1, 1, 2)]
    name = next(iter(arrays))
    assert np.array_equal(runs[0].arrays[name], runs[1].arrays[name])
    assert not np.array_equal(runs[0].arrays[name], runs[2].arrays[name])


def test_a_softmax_step_is_the_gradient_of_the_loss() -> None:
    task = tasks.create("digits")
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=a.shape).astype(np.float32) for name, a in task.initial_arrays(0).items()}
    data = Dataset(rng.normal(size=(7, 64)).astype(np.float32), rng.integers(10, size=7))
    after = task.train(arrays, data, learning_rate=1e-3, steps=1, batch_size=7, seed=0).arrays
    for name in arrays:
        moved = (arrays[name] - after[name]) / 1e-3
        for where in [tuple(rng.integers(n) for n in arrays[name].shape) for _ in range(5)]:
            shifted = {key: value.astype(np.float64) for key, value in arrays.items()}
            losses = []
            for sign in (1, -1):
                shifted[name][where] = arrays[name][where] + sign * 1e-4
                losses.append(task.evaluate(shifted, data).loss)
            assert moved[where] == pytest.approx((losses[0] - losses[1]) / 2e-4, abs=2e-3)


def test_clients_share_the_training_set_out_and_the_test_set_is_nobodys() -> None:
    parts = [digits.client_data(m, 10, seed=4) for m in range(10)]
    assert sum(map(len, parts)) == 1437
    assert len(digits.test_data()) == 360
    pixels = np.concatenate([part.inputs for part in parts] + [digits.test_data().inputs])
    assert pixels.min() == 0
    assert pixels.max() == 1
    # All 1,797 samples are there once: sorted rows of the whole are those of the file, whatever the split.
    again = np.concatenate(
        [digits.client_data(m, 3, seed=9).inputs for m in range(3)] + [digits.test_data().inputs]
    )
    assert np.array_equal(pixels[np.lexsort(pixels.T)], again[np.lexsort(again.T)])


def test_sizes_are_skewed_as_in_section_g() -> None:
    assert skewed_sizes(10, 1437).tolist() == [10] * 6 + [49, 49, 295, 984]
    sizes = skewed_sizes(500, 325 * 1 + 100 * 5 + 50 * 30 + 25 * 100)  # the paper's own
    assert sizes.tolist() == [1] * 325 + [5] * 100 + [30] * 50 + [100] * 25


@given(st.integers(1, 60), st.integers(0, 2000))
def test_sizes_sum_and_nobody_is_empty(num_clients: int, extra: int) -> None:
    sizes = skewed_sizes(num_clients, num_clients + extra)
    assert sizes.sum() == num_clients + extra
    assert sizes.min() >= 1
    assert np.all(np.diff(sizes) >= 0)
    parts = split(sizes, seed=1)
    assert [len(part) for part in parts] == sizes.tolist()
    assert sorted(np.concatenate(parts).tolist()) == list(range(num_clients + extra))


def test_more_clients_than_samples_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num-clients = 11: must be between 1 and 10"):
        skewed_sizes(11, 10)


@given(st.integers(1, 50), st.integers(1, 20), st.integers(1, 30))
def test_batches_use_every_sample_before_any_again(n: int, size: int, steps: int) -> None:
    plan = list(batches(n, size, steps, seed=0))
    assert len(plan) == steps
    assert all(len(set(batch.tolist())) == min(n, size) for batch in plan)
    epoch = n // min(n, size)
    seen = np.concatenate(plan[:epoch])
    assert len(set(seen.tolist())) == len(seen)


def test_unknown_task_is_refused() -> None:
    with pytest.raises(ValueError, match=r"task = 'mnist': must be one of digits, digits-mlp"):
        tasks.create("mnist")


def test_the_numpy_task_imports_neither_torch_nor_scikit_learn() -> None:
    code = (
        "import sys, tasks; t = tasks.create('digits'); t.client_data(0, 10, 1); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'sklearn', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
