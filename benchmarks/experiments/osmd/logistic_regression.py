"""The problem and the training of the OSMD paper's appendix G: logistic regression on images, 500 clients.

All A trials of a comparison are trained side by side on the same mini-batches, and the gradient norms of all
clients are computed, so the regret of each trial is known. The loss is the cross-entropy of the softmax over
the C classes. The paper has two misprints: the sum in its softmax runs to K instead of C, and its
cross-entropy has no minus sign.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.experiments.regret import Oracle, excess, feedback_of
from strategies.numerics.arrays import Floats, Ints
from strategies.selectors import Selector

SKEWED = {1: 0.65, 5: 0.2, 30: 0.1, 100: 0.05}
"""Skewed sizes: number of images that a client holds -> share of the clients that hold this number."""
BALANCED = {10: 1.0}
"""Balanced sizes, in the form of `SKEWED`. The total number of images is about the same as with `SKEWED`."""
VALIDATION = 10
"""Number of validation images divided by the number of clients."""
CLASSES = 10

Images = npt.NDArray[np.float32]

MakeInformed = Callable[[Floats, Floats], Selector]
"""(data sizes (M,), norms ||g_m|| (M,) of the clients' gradients at the initial model) -> new selector."""


class SectionGRun(NamedTuple):
    """The state of one trial after a round."""

    regret: float  # cumulative regret
    loss: float  # training loss, sum_m λ_m times the mean cross-entropy of client m's images
    accuracy: float  # share of the validation images that are classified correctly, in [0, 1]


Watch = Callable[[int, Mapping[str, SectionGRun]], None]
"""A function of a round's number and of the states of all trials after this round, by name of the trial."""


class _Group(NamedTuple):
    """The clients that hold n images each."""

    clients: Ints  # (c,)
    images: Images  # (c, n, pixels)
    labels: Ints  # (c, n)


class _Batch(NamedTuple):
    """A mini-batch of b images for each client of a group."""

    images: Images  # (c, b, pixels)
    errors: Images  # (c, b, A, classes): class probabilities minus the one-hot label, for each trial's model
    norms: Floats  # (A, c) ||g_m||


def section_g(
    makes: Mapping[str, MakeInformed],
    seed: int,
    data: Path,
    *,
    batch_size: int = 5,
    holdings: Mapping[int, float] = SKEWED,
    equal_weights: bool = False,
    num_clients: int = 500,
    clients_per_round: int = 10,
    num_rounds: int = 1000,
    step_size: float = 0.075,
    watch: Watch | None = None,
    every: int = 1,
) -> dict[str, SectionGRun]:
    """Train multi-class logistic regression without intercepts by mini-batch SGD, a model for each selector.

    Every model starts at 0. A round changes it by w <- w - μ sum_m c_m g_m over the selected clients. g_m is
    the mean gradient over min(`batch_size`, n_m) of client m's n_m images, drawn without replacement. (The
    paper calls the samples of a mini-batch i.i.d., so it draws with replacement.) Pixels are divided by 255.
    `data` holds images ``x_train`` (N, 28, 28) of uint8 and labels ``y_train`` (N,). λ_m is in proportion to
    the client's images; with `equal_weights`, it is 1/M, and selectors get the size 1 for each. An `Oracle`
    gets the norms of all clients before it selects. `watch` is called after each round that is a multiple of
    `every`.

    Returns the state of each trial after the last round, by name.
    """
    rng = np.random.default_rng(seed)
    groups, images, labels = _split(rng, data, num_clients, holdings)
    held = np.empty(num_clients)
    for group in groups:
        held[group.clients] = group.labels.shape[1]
    sizes = np.ones(num_clients) if equal_weights else held
    shares = sizes / sizes.sum()

    w = np.zeros((images.shape[1], 1, CLASSES), dtype=np.float32)
    start = np.empty(num_clients)
    for group in groups:
        start[group.clients] = _batch(group.images, group.labels, w).norms[0]
    selectors = {name: make(sizes, start) for name, make in makes.items()}

    w = np.repeat(w, len(selectors), axis=1)
    norms, regrets = np.empty((len(selectors), num_clients)), np.zeros(len(selectors))

    def so_far() -> dict[str, SectionGRun]:
        runs = {}
        for trial, name in enumerate(selectors):
            loss = sum(shares[group.clients] @ _losses(group, w[:, trial]) for group in groups)
            accuracy = float(((images @ w[:, trial]).argmax(axis=1) == labels).mean())
            runs[name] = SectionGRun(float(regrets[trial]), float(loss), accuracy)
        return runs

    for round in range(1, num_rounds + 1):
        batches = []
        for group in groups:
            picks = _picks(rng, group, batch_size)
            batches.append(_batch(group.images[picks], group.labels[picks], w))
            norms[:, group.clients] = batches[-1].norms
        for trial, selector in enumerate(selectors.values()):
            if isinstance(selector, Oracle):
                selector.norms = norms[trial]
            lost = excess(shares * norms[trial], selector.probabilities)
            regrets[trial] += max(lost, 0.0) / clients_per_round  # negative only by rounding
            selection = selector.select(round)
            weights = np.zeros(num_clients)
            weights[selection.clients] = selection.weights
            for group, batch in zip(groups, batches, strict=True):
                _step(w[:, trial], batch, trial, step_size * weights[group.clients])
            selector.update(round, selection, feedback_of(norms[trial, selection.clients]))
        if watch and round % every == 0:
            watch(round, so_far())
    return so_far()


def lipschitz_constants(
    seed: int, data: Path, *, holdings: Mapping[int, float] = SKEWED, num_clients: int = 500
) -> Floats:
    """Return an upper bound of the Lipschitz constant of each client's gradient in `section_g`, (M,).

    A sample with the pixels x and the class probabilities q has the Hessian (diag(q) - q q') ⊗ x x', whose
    first factor has eigenvalues of at most 1/2. So half of the largest eigenvalue of the mean of x x' is a
    bound.
    """
    constants = np.empty(num_clients)
    for group in _split(np.random.default_rng(seed), data, num_clients, holdings)[0]:
        of_images = group.images @ group.images.transpose(0, 2, 1)
        constants[group.clients] = np.linalg.eigvalsh(of_images)[:, -1] / (2 * group.labels.shape[1])
    return constants


def _split(
    rng: np.random.Generator, data: Path, num_clients: int, holdings: Mapping[int, float]
) -> tuple[list[_Group], Images, Ints]:
    """Return the clients grouped by data size, the V validation images (V, pixels) and their labels (V,)."""
    with np.load(data) as file:
        missing = {"x_train", "y_train"} - set(file.files)
        if missing:
            raise ValueError(f"{data} holds {sorted(file.files)}: must hold {sorted(missing)} too")
        x, y = file["x_train"], file["y_train"].astype(np.int64)
    counts = [round(share * num_clients) for share in holdings.values()]
    counts[0] += num_clients - sum(counts)
    needed = sum(n * c for n, c in zip(holdings, counts, strict=True)) + VALIDATION * num_clients
    if len(x) < needed:
        raise ValueError(f"{data} holds {len(x)} images: must be at least {needed}")
    order = rng.permutation(len(x))[:needed]
    images = x[order].reshape(needed, -1).astype(np.float32) / np.float32(255)
    labels, clients = y[order], rng.permutation(num_clients)
    groups, client, image = [], 0, 0
    for n, c in zip(holdings, counts, strict=True):
        mine = slice(image, image + n * c)
        groups.append(
            _Group(clients[client : client + c], images[mine].reshape(c, n, -1), labels[mine].reshape(c, n))
        )
        client, image = client + c, image + n * c
    return groups, images[image:], labels[image:]


def _picks(rng: np.random.Generator, group: _Group, batch_size: int) -> tuple[Ints, Ints]:
    """Draw min(batch_size, n) of each client's n images; return the indexes into `_Group.images`."""
    c, n = group.labels.shape
    own = np.arange(n) if n <= batch_size else rng.random((c, n)).argpartition(batch_size)[:, :batch_size]
    return np.arange(c)[:, None], np.broadcast_to(own, (c, min(n, batch_size)))


def _batch(images: Images, labels: Ints, w: Images) -> _Batch:
    """Return errors and gradient norms of mini-batches (c, b, pixels) at models w (pixels, A, classes)."""
    c, b, pixels = images.shape
    logits = (images.reshape(c * b, pixels) @ w.reshape(pixels, -1)).reshape(c, b, *w.shape[1:])
    errors = np.exp(logits - logits.max(axis=-1, keepdims=True))
    errors /= errors.sum(axis=-1, keepdims=True)
    errors[np.arange(c)[:, None], np.arange(b), :, labels] -= 1
    # ||sum_i x_i e_i'||² = sum_ij <x_i, x_j> <e_i, e_j>, so the norms need no explicit gradients.
    of_images = images @ images.transpose(0, 2, 1)
    trials = errors.transpose(2, 0, 1, 3)
    squares = (of_images * (trials @ trials.transpose(0, 1, 3, 2))).sum(axis=(2, 3), dtype=np.float64)
    return _Batch(images, errors, np.sqrt(np.maximum(squares, 0)) / b)


def _step(w: Images, batch: _Batch, trial: int, factors: Floats) -> None:
    """Subtract a group's gradients times `factors` (c,) in place from a trial's model w (pixels, classes)."""
    drawn = np.flatnonzero(factors)
    if drawn.size:
        images, errors = batch.images[drawn], batch.errors[drawn, :, trial]
        errors = errors * (factors[drawn] / images.shape[1])[:, None, None].astype(np.float32)
        w -= images.reshape(-1, len(w)).T @ errors.reshape(-1, CLASSES)


def _losses(group: _Group, w: Images) -> Floats:
    """Return each client's mean cross-entropy (c,) in nats, for a group and a model w (pixels, classes)."""
    logits = (group.images @ w).astype(np.float64)
    logits -= logits.max(axis=2, keepdims=True)
    right = np.take_along_axis(logits, group.labels[:, :, None], axis=2)[:, :, 0]
    losses: Floats = (np.log(np.exp(logits).sum(axis=2)) - right).mean(axis=1)
    return losses
