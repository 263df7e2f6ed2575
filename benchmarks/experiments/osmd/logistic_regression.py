"""The test bed of the OSMD paper's appendix G: logistic regression on MNIST and the like, over 500 clients.

With skewed sizes 65 / 20 / 10 / 5 % of the clients hold 1 / 5 / 30 / 100 training images, drawn at random;
with balanced sizes each holds 10. All trials of a comparison are trained side by side on the same
mini-batches. The test bed knows every client's gradient, so it can score a trial by its regret
(`benchmarks.experiments.regret`). All results are functions of the seed.
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
"""Share of the clients by the number of images that each holds."""
BALANCED = {10: 1.0}
"""The same with equal sizes, and about as many images in total."""
VALIDATION = 10
"""Validation images per client."""
CLASSES = 10

Images = npt.NDArray[np.float32]

MakeInformed = Callable[[Floats, Floats], Selector]
"""Makes a selector from the clients' sizes (M,) and ||g_m|| (M,) at the start, the answers to a poll."""


class SectionGRun(NamedTuple):
    """The state of one trial after a round.

    Attributes
    ----------
    regret : float
        Cumulative regret.
    loss : float
        Training loss, sum_m λ_m times the mean cross-entropy of client m's images.
    accuracy : float
        Share of the validation images that are classified correctly.
    """

    regret: float
    loss: float
    accuracy: float


Watch = Callable[[int, Mapping[str, SectionGRun]], None]
"""Called with a round's number and the state of each trial after it, by name."""


class _Group(NamedTuple):
    """The clients that hold n images each."""

    clients: Ints  # (c,)
    images: Images  # (c, n, pixels)
    labels: Ints  # (c, n)


class _Batch(NamedTuple):
    """A mini-batch of b images for each client of a group."""

    images: Images  # (c, b, pixels)
    errors: Images  # (c, b, A, classes): softmax minus the label, for each trial's model
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
    """Train multi-class logistic regression without bias by mini-batch SGD, with the draws of each selector.

    The model starts at 0 and steps by w <- w - μ sum_m c_m g_m; g_m is the mean gradient over
    min(`batch_size`, n_m) of client m's images, drawn without replacement. Pixels are divided by 255. An
    `Oracle` gets all norms of a round before it draws.

    Parameters
    ----------
    makes : mapping of str to callable
        Each trial's selector, by name.
    seed : int
        Seed of the split and of the mini-batches.
    data : Path
        An npz file with `x_train` (N, 28, 28) of uint8 and `y_train` (N,).
    batch_size : int
        B, >= 1.
    holdings : mapping of int to float
        Share of the clients by the number of images held; sums to 1.
    equal_weights : bool
        Whether λ = 1/M, and selectors get sizes 1 (default: λ in proportion to the images held).
    num_clients, clients_per_round, num_rounds, step_size
        M, K, T and μ.
    watch : callable, optional
        Called after each `every`-th round.
    every : int
        >= 1.

    Returns
    -------
    dict of str to SectionGRun
        By name.

    Raises
    ------
    OSError, ValueError
        If the file cannot be read or holds too little.
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
            regrets[trial] += max(lost, 0.0) / clients_per_round  # below 0 is rounding
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
    """Return an upper bound of the Hessian of each client's loss in `section_g`, (M,).

    The Hessian is (diag(q) - q q') ⊗ mean x x' for class probabilities q; its first factor is at most 1/2.
    Parameters are those of `section_g`.
    """
    constants = np.empty(num_clients)
    for group in _split(np.random.default_rng(seed), data, num_clients, holdings)[0]:
        of_images = group.images @ group.images.transpose(0, 2, 1)
        constants[group.clients] = np.linalg.eigvalsh(of_images)[:, -1] / (2 * group.labels.shape[1])
    return constants


def _split(
    rng: np.random.Generator, data: Path, num_clients: int, holdings: Mapping[int, float]
) -> tuple[list[_Group], Images, Ints]:
    """Return the clients by size, and the validation images (V, pixels) with their labels (V,)."""
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
    """Return the indexes of min(batch_size, n) of the n images of each client."""
    c, n = group.labels.shape
    own = np.arange(n) if n <= batch_size else rng.random((c, n)).argpartition(batch_size)[:, :batch_size]
    return np.arange(c)[:, None], np.broadcast_to(own, (c, min(n, batch_size)))


def _batch(images: Images, labels: Ints, w: Images) -> _Batch:
    """Return the errors and norms of a mini-batch (c, b, ...) at models w (pixels, A, classes)."""
    c, b, pixels = images.shape
    logits = (images.reshape(c * b, pixels) @ w.reshape(pixels, -1)).reshape(c, b, *w.shape[1:])
    errors = np.exp(logits - logits.max(axis=-1, keepdims=True))
    errors /= errors.sum(axis=-1, keepdims=True)
    errors[np.arange(c)[:, None], np.arange(b), :, labels] -= 1
    # ||sum_i x_i e_i'||² = sum_ij <x_i, x_j> <e_i, e_j>: the gradients themselves are not needed.
    of_images = images @ images.transpose(0, 2, 1)
    trials = errors.transpose(2, 0, 1, 3)
    squares = (of_images * (trials @ trials.transpose(0, 1, 3, 2))).sum(axis=(2, 3), dtype=np.float64)
    return _Batch(images, errors, np.sqrt(np.maximum(squares, 0)) / b)


def _step(w: Images, batch: _Batch, trial: int, factors: Floats) -> None:
    """Subtract factors (c,) times the clients' gradients from one trial's model (pixels, classes)."""
    drawn = np.flatnonzero(factors)
    if drawn.size:
        images, errors = batch.images[drawn], batch.errors[drawn, :, trial]
        errors = errors * (factors[drawn] / images.shape[1])[:, None, None].astype(np.float32)
        w -= images.reshape(-1, len(w)).T @ errors.reshape(-1, CLASSES)


def _losses(group: _Group, w: Images) -> Floats:
    """Return each client's mean cross-entropy (c,)."""
    logits = (group.images @ w).astype(np.float64)
    logits -= logits.max(axis=2, keepdims=True)
    right = np.take_along_axis(logits, group.labels[:, :, None], axis=2)[:, :, 0]
    losses: Floats = (np.log(np.exp(logits).sum(axis=2)) - right).mean(axis=1)
    return losses
