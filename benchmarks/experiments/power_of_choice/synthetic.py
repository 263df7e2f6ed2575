"""Power-of-Choice on Synthetic(1,1): logistic regression on clients that differ in size, inputs and labels.

The labels in tables and figures have the paper's m for K.
"""

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.experiments.methods import Method
from benchmarks.experiments.power_of_choice.quadratics import RANDOM, Trial, ask_and_select
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from strategies.numerics.arrays import Floats, Ints
from strategies.selectors import Feedback

Float32s = npt.NDArray[np.float32]
CLASSES = 10


class Samples(NamedTuple):
    """The N samples of all clients, in the order of the clients."""

    x: Float32s  # (N, 61) 60 features of each sample, followed by a 1
    y: Ints  # (N,) class of each sample, 0 to 9
    sizes: Ints  # (M,) number of samples of each client, and the index of the client's first sample
    starts: Ints


def make_synthetic(seed: int, num_clients: int = 30, dimension: int = 60) -> Samples:
    """Draw Synthetic(1,1) of Li et al. (FedProx, 2020, section 5.1), whom the paper cites as Sahu et al.

    Each client has its own u, B, v, W and b, where u ~ N(0, 1), B ~ N(0, 1), v_j ~ N(B, 1), and the entries
    of W and b are N(u, 1). Its samples are x ~ N(v, Σ) with Σ_jj = j^-1.2, and y = argmax(W x + b). Their
    number is 50 plus a lognormal(4, 2) number, as in Li et al.'s code; the Power-of-Choice paper says that
    sizes follow the power law, but does not give the parameters of this law. `dimension` is the number of
    features.
    """
    rng = np.random.default_rng(seed)
    sizes = 50 + rng.lognormal(4, 2, num_clients).astype(np.int64)
    deviations = np.arange(1, dimension + 1) ** -0.6
    xs, ys = [], []
    for size in sizes:
        u, center = rng.normal(size=2)
        weights = rng.normal(u, 1, (dimension, CLASSES))
        bias = rng.normal(u, 1, CLASSES)
        x = rng.normal(rng.normal(center, 1, dimension), deviations, (size, dimension))
        xs.append(np.column_stack([x, np.ones(size)]).astype(np.float32))
        ys.append((x @ weights + bias).argmax(axis=1))
    return Samples(np.concatenate(xs), np.concatenate(ys), sizes, np.cumsum(sizes) - sizes)


def synthetic_losses(samples: Samples, models: Float32s) -> Floats:
    """Return the mean loss (A, M) in nats of each of A models (A, 10, 61) on each client's samples."""
    columns = np.ascontiguousarray(models.transpose(1, 0, 2)).reshape(-1, models.shape[2])
    logits = (columns @ samples.x.T).reshape(CLASSES, len(models), -1)
    truth = logits[samples.y, :, np.arange(samples.y.size)].T
    largest = logits.max(axis=0)
    losses = np.log(np.exp(logits - largest).sum(axis=0)) + largest - truth
    means: Floats = np.add.reduceat(losses.astype(np.float64), samples.starts, axis=1) / samples.sizes
    return means


def train_synthetic(
    samples: Samples, models: Float32s, clients: Ints, picks: Ints, rate: float
) -> tuple[Float32s, Floats]:
    """Train n models (n, 10, 61) at once, each on one client, by mini-batch SGD.

    `picks` (n, τ, b) are the b samples of each of the τ steps. Returns the trained models, and the mean loss
    (n,) of each over its mini-batches in nats, measured before the step that uses the mini-batch.
    """
    at = samples.starts[clients][:, None, None] + picks
    losses = np.zeros(len(models))
    for step in range(at.shape[1]):
        x, y = samples.x[at[:, step]], samples.y[at[:, step]][:, None]
        logits = models @ x.transpose(0, 2, 1)
        logits -= logits.max(axis=1, keepdims=True)
        truth = np.take_along_axis(logits, y, axis=1)
        shares = np.exp(logits)
        total = shares.sum(axis=1, keepdims=True)
        losses += (np.log(total) - truth).mean(axis=(1, 2))
        shares /= total
        np.put_along_axis(shares, y, np.take_along_axis(shares, y, axis=1) - 1, axis=1)
        models = models - np.float32(rate / y.shape[2]) * (shares @ x)
    return models, losses / at.shape[1]


def _synthetic_trials(k: int) -> tuple[Trial, ...]:
    return (
        Trial(RANDOM, "md"),
        Trial("d=2m", "pow-d", {"num_candidates": 2 * k}),
        Trial("d=10m", "pow-d", {"num_candidates": 10 * k}),
        Trial("adapow", "adapow-d"),
        Trial("cpow d=10m", "cpow-d", {"num_candidates": 10 * k, "batch_size": 50}),
        Trial("rpow d=15", "rpow-d"),
        Trial("afl", "afl"),
    )


def run_synthetic(seed: int, num_rounds: int = 800, clients_per_round: tuple[int, ...] = (1, 3)) -> Outcome:
    """Train all trials side by side, on the same data and with the same mini-batches of each client."""
    samples = make_synthetic(seed)
    m, p = samples.sizes.size, samples.sizes / samples.sizes.sum()
    trials = [(k, trial) for k in clients_per_round for trial in _synthetic_trials(k)]
    selectors = [
        Method(trial.selector, trial.settings).made(samples.sizes.astype(np.float64), k, seed, num_rounds)
        for k, trial in trials
    ]
    models = np.zeros((len(trials), CLASSES, samples.x.shape[1]), dtype=np.float32)
    history = np.empty((num_rounds + 1, len(trials)))
    for round in range(num_rounds):
        full = synthetic_losses(samples, models)
        history[round] = full @ p
        rng = np.random.default_rng((seed, round))
        picks = (rng.random((m, 31, 50)) * samples.sizes[:, None, None]).astype(np.int64)
        batch = functools.partial(_batch_losses, samples, picks[:, -1:])
        selections = [
            ask_and_select(
                selector,
                round,
                functools.partial(batch, models[i]) if trial.selector == "cpow-d" else full[i].__getitem__,
            )
            for i, (selector, (_, trial)) in enumerate(zip(selectors, trials, strict=True))
        ]
        owner = np.repeat(np.arange(len(trials)), [each.clients.size for each in selections])
        clients = np.concatenate([each.clients for each in selections])
        weights = np.concatenate([each.weights for each in selections]).astype(np.float32)
        rate = 0.05 * 0.5 ** ((round >= 300) + (round >= 600))
        trained, told = train_synthetic(samples, models[owner], clients, picks[clients, :30], rate)
        np.add.at(models, owner, weights[:, None, None] * (trained - models[owner]))
        for i, (selector, selection) in enumerate(zip(selectors, selections, strict=True)):
            selector.update(round, selection, _feedback(told[owner == i]))
    history[-1] = synthetic_losses(samples, models) @ p
    cells: dict[Cell, float] = {}
    curves: dict[str, dict[str, Curve]] = {}
    means = history[-50:].mean(axis=0).tolist()
    last = {(k, trial.label): mean for (k, trial), mean in zip(trials, means, strict=True)}
    for (k, trial), losses in zip(trials, history.T, strict=True):
        row = f"m={k} {trial.label}"
        curve = Curve(np.arange(num_rounds + 1.0), losses)
        cells[row, "rounds to 0.7"] = curve.first(losses <= 0.7)
        cells[row, "last-50 loss"] = last[k, trial.label]
        cells[row, "rounds to rand's"] = curve.first(losses <= 1.05 * last[k, RANDOM])
        curves.setdefault(f"m = {k}", {})[trial.label] = curve
    return Outcome(cells, curves)


def _batch_losses(samples: Samples, picks: Ints, model: Float32s, clients: Ints) -> Floats:
    """Return the loss (n,) of a model on a mini-batch `picks` (M, 1, b) of each of n clients."""
    models = np.broadcast_to(model, (clients.size, *model.shape))
    return train_synthetic(samples, models, clients, picks[clients], 0.0)[1]


def _feedback(losses: Floats) -> Feedback:
    missing = np.full(losses.size, np.nan)
    return Feedback(missing, losses, missing, missing, np.ones(losses.size, dtype=np.bool_))


EXPERIMENTS = (
    Experiment(
        name="poc-synthetic",
        run=run_synthetic,
        seeds=20,
        y="loss of the global model on all data",
        log_y=True,
    ),
)
