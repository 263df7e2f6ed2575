"""Designs of draws on the same scores: how many rounds, how steady, and how exact the aggregate is.

All rows select in proportion to data (`md`), so they differ only in the design. 10 of 100 clients train in a
round; their labels are Dirichlet(0.1). All rows of a seed share the data, the initial model and each
client's mini-batches. The features are those that a server can remember: for each client λ_m times the mean
½ old + ½ new of its updates, as 24 random projections.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

import tasks
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from simulation.kernels import Kernel, Plan, kernel_of
from simulation.kernels.base import StackedUpdates
from strategies import designs
from strategies.numerics.arrays import Floats, Ints
from strategies.numerics.sampling import Draw
from strategies.numerics.streams import generator
from tasks.base import Arrays
from tasks.federated_data import Dataset, FederatedData

BASELINE = "independent"
NUM_CLIENTS, CLIENTS_PER_ROUND, BATCH_SIZE = 100, 10, 16
PROJECTIONS = 24
TESTED = 2_000  # at most this many test samples are used
WINDOW = 3  # an accuracy is reached when the mean of so many rounds reaches it
LAST = 20  # rounds at the end whose accuracy and loss are averaged
ERROR_EVERY, REDRAWS = 20, 100  # how often the error of the aggregate is measured, from how many draws


@dataclass(frozen=True)
class Setting:
    """A task and its training."""

    task: str
    learning_rate: float
    local_steps: int
    num_rounds: int
    level: int  # accuracy in % to be reached


def run(seed: int, path: Path | None = None, *, setting: Setting, quick: bool = False) -> Outcome:
    """Train with each design; `quick` trains for a fifth of the rounds."""
    num_rounds = setting.num_rounds // 5 if quick else setting.num_rounds
    task = tasks.create(setting.task, partition="dirichlet:0.1", data_dir=str(path.parent) if path else "")
    data, test, kernel = task.federated_data(NUM_CLIENTS, seed), task.test_data(), kernel_of(task, "cpu")
    if len(test) > TESTED:
        test = test.take(generator(seed, 0, "tested").permutation(len(test))[:TESTED])
    cells: dict[Cell, float] = {}
    curves = {}
    for design in designs.DESIGNS:
        accuracy, losses, errors = _train(design, setting, num_rounds, data, test, kernel, seed)
        smooth = np.convolve(accuracy, np.full(WINDOW, 1 / WINDOW), "valid")
        curves[design] = Curve(np.arange(WINDOW, num_rounds + 1.0), smooth)
        cells[design, f"rounds to {setting.level} %"] = curves[design].first(smooth >= setting.level)
        cells[design, "final accuracy, %"] = float(accuracy[-LAST:].mean())
        cells[design, "final loss"] = float(losses[-LAST:].mean())
        cells[design, "wobble of the loss"] = float(losses[-LAST:].std())
        cells[design, "error of the aggregate"] = float(errors.mean())
    return Outcome(cells, {"": curves})


def _train(
    design: str,
    setting: Setting,
    num_rounds: int,
    data: FederatedData,
    test: Dataset,
    kernel: Kernel,
    seed: int,
) -> tuple[Floats, Floats, Floats]:
    """Return accuracies in % (T,), losses (T,), and the aggregate's errors in every 20th round.

    An error is divided by that of independent draws for the same model.
    """
    arrays = kernel.initial_arrays(seed)
    shares: Floats = data.sizes() / data.sizes().sum()
    width = sum(array.size for array in arrays.values())
    projection = generator(seed, 0, "projection").standard_normal((width, PROJECTIONS)).astype(np.float32)
    remembered = np.full((NUM_CLIENTS, PROJECTIONS), np.nan)

    def drawn(design: str, rng: np.random.Generator) -> Draw:
        def features(clients: Ints) -> Floats:
            known: Floats = shares[clients, None] * remembered[clients]
            return known

        return designs.draw(design, shares, CLIENTS_PER_ROUND, rng, features)

    accuracy, losses, errors = [], [], []
    for number in range(1, num_rounds + 1):
        plan = Plan(seed, number, setting.learning_rate, BATCH_SIZE, setting.local_steps)
        if number % ERROR_EVERY == 0:
            inner, _ = products(kernel, arrays, data, plan)
            own, independent = (
                _error(partial(drawn, each), inner, shares, generator(seed, number, "redraws"))
                for each in (design, BASELINE)
            )
            errors.append(own / independent)
        draw = drawn(design, generator(seed, number, "draw"))
        updates = kernel.train(arrays, data, draw.clients, plan).updates
        moves = updates.combined(draw.importance * shares[draw.clients])
        arrays = {name: array + moves[name] for name, array in arrays.items()}
        sketches, old = (_updates(updates) @ projection).astype(np.float64), remembered[draw.clients]
        remembered[draw.clients] = np.where(np.isnan(old), sketches, 0.5 * old + 0.5 * sketches)
        metrics = kernel.evaluate(arrays, test)
        accuracy.append(100 * metrics.accuracy)
        losses.append(metrics.loss)
    return np.array(accuracy), np.array(losses), np.array(errors)


def _updates(updates: object) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    assert isinstance(updates, StackedUpdates)  # of all kernels here
    return updates.rows


def products(kernel: Kernel, arrays: Arrays, data: FederatedData, plan: Plan) -> tuple[Floats, Floats]:
    """Return the inner products (M, M) of the updates that all clients would send, and their losses (M,)."""
    trained = kernel.train(arrays, data, np.arange(data.num_clients), plan)
    rows = _updates(trained.updates)
    return (rows @ rows.T).astype(np.float64), trained.losses


def _error(
    drawn: Callable[[np.random.Generator], Draw], inner: Floats, shares: Floats, rng: np.random.Generator
) -> float:
    """Return the root of the mean of ‖Σ W_m λ_m u_m - Σ λ_m u_m‖² from the u's inner products."""
    total = 0.0
    for _ in range(REDRAWS):
        draw, off = drawn(rng), -shares
        off[draw.clients] += draw.importance * shares[draw.clients]
        total += float(off @ inner @ off)
    return float(np.sqrt(total / REDRAWS))


DIGITS = Setting("digits", learning_rate=0.5, local_steps=10, num_rounds=120, level=90)
MNIST = Setting("mnist-mlp", learning_rate=0.1, local_steps=20, num_rounds=150, level=90)

EXPERIMENTS = (
    Experiment("draws-digits", partial(run, setting=DIGITS), seeds=20, y="test accuracy, %"),
    Experiment("draws-mnist", partial(run, setting=MNIST), seeds=10, y="test accuracy, %", data="mnist.npz"),
)
