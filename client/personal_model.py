"""A client's personal model, which stays on the device, and the two parts of its update of the global model.

Zhao, Wang, Kolar, "Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback",
appendix H.1 (v1), D.1 (v2), eq. 46. The objective h of the global model w has two levels: each client's
personal model β_m minimises the loss on the client's samples and stays near w. The paper leaves the
function φ open. This module uses the following φ, in which β_m has the same shape as w::

    φ(w, β; D) = loss of β on D + μ/2 ||β - w||²
    h(w) = sum_m λ_m φ(w, β_m(w); D_m),   β_m(w) = argmin_β φ(w, β; D'_m)

λ_m is client m's share of the data. Client m's samples are split into D'_m and D_m: D'_m trains the personal
model; D_m is held out for the global model. If D_m and D'_m were the same samples, the second part of the
update (g_2, see `personal_update`) would be 0, since β_m(w) minimises φ on D'_m.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from strategies.rounds.seeds import client_seed
from tasks.base import Arrays, Task
from tasks.federated_data import Dataset

Vector = NDArray[np.float64]

CG_STEPS = 10
CG_TOLERANCE = 1e-3
"""Conjugate gradients end when the norm of the residual is at most `CG_TOLERANCE` times the norm of the right
side, and after `CG_STEPS` steps at the latest."""


class PersonalUpdate(NamedTuple):
    """The result of a round on the device."""

    personal: Arrays  # β_m, the trained personal model, which the device keeps
    parts: tuple[Vector, Vector]  # (P,) g_1 and g_2, see `personal_update`; 0 if not wanted
    loss: float  # the mean of β_m's losses on the mini-batches before each step, without the term with μ
    steps: int  # how many local steps trained β_m


def split(data: Dataset, holdout: float, seed: int) -> tuple[Dataset, Dataset]:
    """Return D' and D: a random split of the samples that is the same in every round of the run.

    ``holdout`` in (0, 1) is the share of the samples in D. Both get at least one sample, so a single sample
    is in both.
    """
    n = len(data)
    if n == 1:
        return data, data
    held_out = min(max(1, round(n * holdout)), n - 1)
    order = np.random.default_rng(client_seed(seed, 0, n, "holdout")).permutation(n)
    mine, held = np.sort(order[held_out:]), np.sort(order[:held_out])
    return Dataset(data.inputs[mine], data.labels[mine]), Dataset(data.inputs[held], data.labels[held])


def personal_update(
    task: Task,
    model: Arrays,
    personal: Arrays | None,
    data: tuple[Dataset, Dataset],
    wanted: tuple[bool, bool],
    *,
    mu: float,
    learning_rate: float,
    steps: int,
    batch_size: int,
    seed: int,
) -> PersonalUpdate:
    """Train the personal model and compute the parts of the update.

    ::

        g_1 = μ (w - β)                                          ∇_w φ(w, β; D), β fixed
        g_2 = μ (H + μ)^-1 (∇ loss(β; D) + μ (β - w))            H: the Hessian of the loss on D' at β

    β stands for β_m(w), but it is the result of the local steps of SGD, not the minimiser. So g_1 and g_2 are
    estimates, and the same w may have another β in another round.

    In the paper, G_m is the loss on D', and F_m is the loss on D. H is the Hessian of G_m, as in the paper's
    second version (v2, D.1). The first version (v1) prints the Hessian of F_m (eq. 47).

    The method of conjugate gradients solves the linear system for g_2, see `solve`. It needs only products
    of H with vectors. Each product is estimated by a difference of gradients, so H itself is not computed.

    ``model`` is w. ``personal`` is β_m of the last round in which the client took part; without it, the
    personal model starts from w. ``data`` is D' and D, see `split`. ``wanted`` says whether g_1 is needed,
    and whether g_2 is. The other arguments are those of the SGD that trains the personal model.

    Raises
    ------
    ValueError
        If the names or shapes of the personal model's arrays are not those of the model.
    """
    start = model if personal is None else personal
    shapes = {name: array.shape for name, array in model.items()}
    if {name: array.shape for name, array in start.items()} != shapes:
        raise ValueError(f"the arrays of the personal model must be those of the global model: {shapes}")
    mine, held_out = data
    # The term with proximal_mu pulls β towards β_0, the start of SGD: the gradient of this term is
    # μ (β - β_0). Adding μ (β_0 - w) gives μ (β - w), which pulls β towards w.
    pull = {name: np.float32(mu) * (start[name] - model[name]) for name in model}
    trained = task.train(
        start,
        mine,
        learning_rate=learning_rate,
        steps=steps,
        batch_size=batch_size,
        seed=seed,
        proximal_mu=mu,
        control=pull,
    )
    beta, off = trained.arrays, _flat(trained.arrays) - _flat(model)
    first = -mu * off if wanted[0] else np.zeros(off.size)
    second = np.zeros(off.size)
    if wanted[1]:
        right = _gradient(task, beta, held_out) + mu * off
        second = mu * solve(lambda v: _curvature(task, beta, mine, v) + mu * v, right)
    return PersonalUpdate(beta, (first, second), trained.loss, trained.steps)


def moved(model: Arrays, step: Vector) -> Arrays:
    """Return the model plus ``step``, shape (P,), which holds all parameters in the order of the arrays."""
    result, first = {}, 0
    for name, array in model.items():
        part = step[first : first + array.size].reshape(array.shape)
        result[name] = (array + part).astype(array.dtype)
        first += array.size
    return result


def solve(product: Callable[[Vector], Vector], right: Vector) -> Vector:
    """Return x with product(x) = right, approximately, by conjugate gradients.

    ``product`` must be linear and symmetric. If d · product(d) is not positive for the direction d of the
    next step, the iteration stops before this step.
    """
    x, residual = np.zeros(right.size), right.copy()
    direction, square = residual.copy(), float(residual @ residual)
    goal = CG_TOLERANCE**2 * square
    for _ in range(CG_STEPS):
        if square <= goal or square == 0:
            break
        image = product(direction)
        curvature = float(direction @ image)
        if not curvature > 0:
            break
        x += (square / curvature) * direction
        residual -= (square / curvature) * image
        before, square = square, float(residual @ residual)
        direction = residual + (square / before) * direction
    return x


def _flat(arrays: Arrays) -> Vector:
    return np.concatenate([np.ravel(array).astype(np.float64) for array in arrays.values()])


def _gradient(task: Task, arrays: Arrays, data: Dataset) -> Vector:
    """Return the gradient of the loss on all samples: minus the change by one SGD step of learning rate 1."""
    step = task.train(arrays, data, learning_rate=1.0, steps=1, batch_size=len(data), seed=0)
    return _flat(arrays) - _flat(step.arrays)


def _curvature(task: Task, arrays: Arrays, data: Dataset, direction: Vector) -> Vector:
    """Return the product of the loss's Hessian and ``direction``, by a central difference of gradients."""
    length = float(np.linalg.norm(direction))
    if length == 0:
        return np.zeros(direction.size)
    # The models ahead and behind lie at the distance 0.01 max(1, root mean square of the parameters) from the
    # model. At this distance, the rounding of the arrays to float32 causes a relative error below a
    # thousandth.
    step = 1e-2 * max(1.0, float(np.linalg.norm(_flat(arrays))) / np.sqrt(direction.size)) / length
    ahead, behind = (moved(arrays, sign * step * direction) for sign in (1, -1))
    change: Vector = (_gradient(task, ahead, data) - _gradient(task, behind, data)) / (2 * step)
    return change
