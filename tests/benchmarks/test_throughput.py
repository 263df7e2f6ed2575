"""The throughput benchmark: what it measures is what it says, and what is missing is reported."""

import ast
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.throughput import processes
from benchmarks.throughput.engines import ENGINES, create
from benchmarks.throughput.engines.in_process import train
from benchmarks.throughput.report import TOLERANCE, reference
from benchmarks.throughput.workloads import WORKLOADS, load, read, save
from simulation.kernels import MLP, Plan

ROOT = Path(__file__).parents[2]
ENGINE_FILES = ROOT / "benchmarks" / "throughput" / "engines"


def benchmark(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", "throughput", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parameters", "clients", "samples"),
    [
        ("W1", 7850, 500, 325 + 5 * 100 + 30 * 50 + 100 * 25),
        ("W2", 52500, 100, 50_000),
        ("W3", 52500, 10_000, 500_000),
    ],
)
def test_workloads_have_the_shapes_of_their_titles(name, parameters, clients, samples):
    workload = WORKLOADS[name]
    sizes = workload.sizes()
    assert sum(values.size for values in workload.initial()) == parameters
    assert (sizes.size, sizes.sum()) == (clients, samples)
    counts = dict(zip(*np.unique(sizes, return_counts=True), strict=True))
    assert counts == {size: round(share * clients) for share, size in workload.shares}


def test_samples_are_noise_or_those_of_a_file(tmp_path):
    workload = WORKLOADS["W1"]
    noise = workload.data()
    assert noise.inputs.shape == (int(workload.sizes().sum()), 784)
    assert noise.inputs.dtype == np.float32
    assert 0 <= noise.inputs.min() < 0.01 < 0.99 < noise.inputs.max() <= 1
    assert (noise.sizes() == workload.sizes()).all()
    again = workload.data()
    assert all((each == other).all() for each, other in zip(noise[:3], again[:3], strict=True))

    images = np.repeat(np.arange(10, dtype=np.uint8), 784).reshape(10, 28, 28)
    np.savez(tmp_path / "digits.npz", x_train=images, y_train=np.arange(10, dtype=np.uint8))
    drawn = workload.data(tmp_path / "digits.npz")
    assert (drawn.sizes() == workload.sizes()).all()
    np.testing.assert_allclose(drawn.inputs[:, 0], drawn.labels / 255, rtol=1e-6)
    assert set(drawn.labels) == set(range(10))


def test_processes_share_samples_but_not_writes(tmp_path):
    workload = WORKLOADS["W1"].alone()
    data = workload.data()
    save(workload, data, tmp_path)
    assert {read(tmp_path): "can be hashed"}[workload]
    mine, theirs = load(tmp_path), load(tmp_path)
    mine.inputs[:] = -1
    assert (theirs.inputs == data.inputs).all()
    assert (load(tmp_path).inputs == data.inputs).all()


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_app_trains_as_the_reference(name):
    workload = WORKLOADS[name].alone()
    client = workload.data().client(0)
    model = workload.initial()
    train(model, client, workload, seed=1)
    expected = reference(workload, client)
    moved = max(float(np.abs(a - b).max()) for a, b in zip(expected, workload.initial(), strict=True))
    assert moved > 10 * TOLERANCE
    for mine, theirs in zip(model, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=TOLERANCE / 10)


def test_the_reference_follows_the_slope_of_the_loss():
    """Its step is what finite differences of the loss say, in a few coordinates of every layer."""
    workload = WORKLOADS["W3"].alone()
    client = workload.data().client(0)
    one_step = workload.__class__(**{**workload.__dict__, "steps": 1})
    start = [values.astype(np.float64) for values in workload.initial()]

    def loss(model):
        values = client.inputs.astype(np.float64)
        for layer in range(0, len(model), 2):
            values = (np.maximum(values, 0) if layer else values) @ model[layer] + model[layer + 1]
        values = values - values.max(axis=1, keepdims=True)
        own = values[np.arange(len(client)), client.labels]
        return float(np.mean(np.log(np.exp(values).sum(axis=1)) - own))

    after = reference(one_step, client)
    rng = np.random.default_rng(0)
    for number, values in enumerate(start):
        for at in rng.integers(values.size, size=5):
            shifted = [[array.copy() for array in start] for _ in range(2)]
            for sign, model in zip((1, -1), shifted, strict=True):
                model[number].flat[at] += sign * 1e-5
            slope = (loss(shifted[0]) - loss(shifted[1])) / 2e-5
            step = (values.flat[at] - after[number].flat[at]) / workload.learning_rate
            assert step == pytest.approx(slope, abs=1e-7, rel=1e-3)


def test_cpu_time_covers_all_processes_and_stopped_ones_use_none():
    busy = "while True: pass"
    code = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {busy!r}])\n{busy}"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 60
        while len(processes.tree(process.pid)) < 2 or processes.cpu_seconds(process.pid) < 0.5:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        own = time.clock_gettime((~process.pid << 3) | 2)
        assert processes.cpu_seconds(process.pid) > own
        processes.send(process.pid, signal.SIGSTOP)
        time.sleep(0.1)
        stopped = processes.cpu_seconds(process.pid)
        time.sleep(0.5)
        assert processes.cpu_seconds(process.pid) == stopped
        assert processes.peak_megabytes(process.pid) > 5
    finally:
        processes.send(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
def test_json_has_the_costs_of_each_engine_or_its_error(tmp_path):
    before = {each.name for each in Path("/tmp").glob("cohort-*")}
    missing = tmp_path / "python"
    run = benchmark(
        "--workload", "W1", "--engines", "in-process,pfl", "--seconds", "0.2", "--turns", "2",
        "--peers-python", str(missing), "--json",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)["W1"]
    assert list(found) == ["in-process", "pfl"]
    mine = found["in-process"]
    # A second of this process's time cannot hold more than a second of CPU: it has one thread.
    assert 0 < mine["updates_per_s"] * mine["cpu_ms"] / 1000 < 1.2
    assert mine["start_s"] > 0
    assert str(missing) in found["pfl"]["error"]
    assert "pip install -r benchmarks/peers.txt" in found["pfl"]["error"]
    assert {each.name for each in Path("/tmp").glob("cohort-*")} <= before


@pytest.mark.slow
def test_engines_take_turns_and_the_table_compares_them_with_the_loop():
    pytest.importorskip("torch")
    run = benchmark("--workload", "W1", "--engines", "loop,in-process", "--seconds", "0.5", "--turns", "2")
    assert run.returncode == 0, run.stderr
    head, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in run.stdout.splitlines())
    rows = {line[0]: dict(zip(head, line, strict=True)) for line in lines}
    assert list(rows) == ["W1, loop", "W1, in-process"]
    assert float(rows["W1, loop"]["cpu of loop"]) == 1
    ratio = float(rows["W1, in-process"]["cpu ms"]) / float(rows["W1, loop"]["cpu ms"])
    assert float(rows["W1, in-process"]["cpu of loop"]) == pytest.approx(ratio, rel=0.02)


@pytest.mark.slow
def test_engines_do_the_same_work():
    pytest.importorskip("torch")
    run = benchmark("--check", "--engines", "batched,in-process,loop", "--json")
    assert run.returncode == 0, run.stdout + run.stderr
    for distances in json.loads(run.stdout).values():
        assert all(each["difference"] <= TOLERANCE for each in distances.values())


def test_products_multiplies_as_much_as_batched(tmp_path, monkeypatch):
    workload = replace(WORKLOADS["W3"], num_clients=4, clients_per_round=4)
    done = Counter()  # shape of a product and its inner size -> number of products
    matmul = np.matmul

    def counting(left, right, **more):
        if left.shape[-2] > 1:  # else it sums the errors of a bias
            shape = left.shape[-2], left.shape[-1], right.shape[-1]
            done[shape] += max(left.size // (shape[0] * shape[1]), right.size // (shape[1] * shape[2]))
        return matmul(left, right, **more)

    monkeypatch.setattr(np, "matmul", counting)
    engine = create("products", workload, workload.data(), tmp_path)
    engine.run(1)
    expected = dict(done)
    done.clear()
    clients, plan = np.arange(4), Plan(0, 1, 0.05, workload.batch_size, workload.steps)
    kernel = MLP(workload.layers)
    kernel.train(kernel.initial_arrays(0), workload.data(), clients, plan)
    assert expected == dict(done)


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_has_its_class(name):
    module = ast.parse((ENGINE_FILES / f"{ENGINES[name].module}.py").read_text())
    assert any(isinstance(each, ast.ClassDef) and each.name == ENGINES[name].kind for each in module.body)
