"""The problems and the training of the OSMD paper's appendix F: regression by SGD, FedAvg or SCAFFOLD.

All trials of a comparison are trained side by side on the same mini-batches, and with the same random numbers
of the draws if their seeds are equal. One matrix product computes the gradients of all clients at the models
of all A trials, so the regret of each trial is known.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from benchmarks.experiments.regret import Oracle, feedback_of
from strategies.numerics.arrays import Floats
from strategies.selectors import Selection, Selector


class Problem(NamedTuple):
    """Clients with n samples each of y = <w*, x> + noise, and with the weight λ_m = 1/M each.

    The loss L(w) is the mean of (y - <w, x>)²/2 over all clients and samples. The model w starts at 0.
    Misprints: the paper's L_m lacks the sum over the samples i, and L_m and the gradient step have w* for w.
    """

    x: Floats  # (M, n, d) features
    y: Floats  # (M, n) targets

    def initial_norms(self) -> Floats:
        """Return the norm of each client's gradient (M,) at w = 0 over all its samples."""
        norms: Floats = np.linalg.norm((self.y[:, None] @ self.x)[:, 0], axis=1) / self.y.shape[1]
        return norms

    def forms(self) -> tuple[Floats, Floats]:
        """Return the Hessian of each client's loss (M, d, d), and minus its gradient at w = 0 (M, d)."""
        n = self.y.shape[1]
        return self.x.transpose(0, 2, 1) @ self.x / n, (self.y[:, None] @ self.x)[:, 0] / n

    def smoothness(self) -> float:
        """Return L: the largest curvature of any client's loss."""
        return float(np.linalg.eigvalsh(self.forms()[0])[:, -1].max())


def unlike_clients(
    rng: np.random.Generator,
    sigma: float,
    num_clients: int = 100,
    condition: float = 25.0,
    spread: Literal["variance", "std"] = "variance",
) -> Problem:
    """Make the problem of appendix F (eq. 44): clients whose features differ in scale.

    Each client has 100 samples with d = 10 features x ~ N(0, s_m Σ), Σ_jj = κ^((j-1)/(d-1) - 1), and with
    noise N(0, 0.1²). The entries of w* are N(10, 3). N's second argument is a variance. The scales s_m are
    lognormal with standard deviation σ of the logarithm, then divided by a common factor so that the largest
    is 10. With `spread` "std", s_m Σ_jj is the standard deviation of feature j, as we read the authors'
    script, so the gradients are proportional to s_m², not to s_m.
    """
    n, d = 100, 10
    truth = rng.normal(10, np.sqrt(3), d)
    scale = rng.lognormal(0, sigma, num_clients)
    scale *= 10 / scale.max()
    deviations = scale[:, None] * condition ** (np.arange(d) / (d - 1) - 1)
    if spread == "variance":
        deviations = np.sqrt(deviations)
    x = rng.normal(size=(num_clients, n, d)) * deviations[:, None]
    return Problem(x, x @ truth + rng.normal(0, 0.1, (num_clients, n)))


def one_feature_each(rng: np.random.Generator, nu: float, num_clients: int = 100) -> Problem:
    """Make the problem of section F.5: only one of the d = 10 features of each client is not 0.

    The feature is random, its values are N(1, 0.1²), and the entries of w* lognormal with standard deviation
    ν of the logarithm. So all Lipschitz constants are about 1, but gradients differ as the entries of w* do.
    """
    n, d = 100, 10
    truth = rng.lognormal(0, nu, d)
    feature = rng.integers(d, size=num_clients)
    x = np.zeros((num_clients, n, d))
    x[np.arange(num_clients), :, feature] = rng.normal(1, 0.1, (num_clients, n))
    return Problem(x, x @ truth + rng.normal(0, 0.1, (num_clients, n)))


class Trial(NamedTuple):
    """A selector and the step size μ with which its model is trained."""

    selector: Selector
    step_size: float = 0.1


class Track(NamedTuple):
    """The result of one trial over T rounds."""

    loss: Floats  # (T,) training loss over all samples after each round
    # (T,) Cumulative regret after each round: the sum of l_t(p_t) - min_q l_t(q) over the rounds so far,
    # where l_t(p) = (1/K) sum_m a_m/p_m. For a_m see `roots`.
    regret: Floats
    # (T,) Sum over the rounds so far of the squared distance between the aggregate and the mean gradient or
    # update of all clients.
    error: Floats
    roots: Floats  # (T, M) sqrt(a_m) = λ_m ||g_m|| of all clients in each round
    models: Floats  # (T, d) model after each round


class _Recorder:
    """Lets all trials select and learn in each round, and records their losses, regrets and errors."""

    def __init__(
        self, problem: Problem, trials: Sequence[Trial], num_rounds: int, factor: float = 1.0
    ) -> None:
        m, n, d = problem.x.shape
        x, y = problem.x.reshape(m * n, d), problem.y.reshape(m * n)
        # The loss is computed as a quadratic form around its minimum, without a pass over the samples, and
        # without cancellation near the minimum.
        self._hessian, self._best = x.T @ x / y.size, np.linalg.lstsq(x, y, rcond=None)[0]
        self._least = float(((x @ self._best - y) ** 2).mean() / 2)
        self._trials, self._k = trials, trials[0].selector.clients_per_round
        self._factor = factor  # multiplies the norms that selectors learn from
        self._loss = np.empty((num_rounds, len(trials)))
        self._regret, self._error = np.empty_like(self._loss), np.empty_like(self._loss)
        self._roots = np.empty((num_rounds, len(trials), m))
        self._models = np.empty((num_rounds, len(trials), d))
        self.start = np.zeros((len(trials), d))  # models before round 1, and the trials' step sizes
        self.steps = np.array([trial.step_size for trial in trials])[:, None]

    def play(self, round: int, moves: Floats) -> tuple[list[Selection], Floats]:
        """Let all trials select and learn from the moves (A, M, d) that each client would send in each trial.

        Returns the selections, and the aggregates (A, d) of the selected clients' moves.
        """
        norms = np.sqrt(np.einsum("amd,amd->am", moves, moves))
        m = norms.shape[1]
        selections, estimates, p = [], np.empty((len(norms), moves.shape[2])), np.empty_like(norms)
        for i, (trial, norm) in enumerate(zip(self._trials, norms, strict=True)):
            if isinstance(trial.selector, Oracle):
                trial.selector.norms = norm
            p[i] = trial.selector.probabilities
            selection = trial.selector.select(round)
            trial.selector.update(round, selection, feedback_of(self._factor * norm[selection.clients]))
            estimates[i] = selection.weights @ moves[i, selection.clients]
            selections.append(selection)
        roots = self._roots[round - 1] = norms / m
        least = roots.sum(axis=1) ** 2
        excess = (roots**2 / p).sum(axis=1) - least
        # Rounding may make a regret of 0 negative.
        self._regret[round - 1] = np.where(excess > 1e-12 * least, excess, 0) / self._k
        self._error[round - 1] = ((estimates - moves.mean(axis=1)) ** 2).sum(axis=1)
        return selections, estimates

    def evaluate(self, round: int, w: Floats) -> None:
        """Record the losses of the models w (A, d) after a round."""
        self._models[round - 1] = w
        off = w - self._best
        self._loss[round - 1] = ((off @ self._hessian) * off).sum(axis=1) / 2 + self._least

    def tracks(self) -> list[Track]:
        regret, error = self._regret.cumsum(axis=0), self._error.cumsum(axis=0)
        return [
            Track(self._loss[:, i], regret[:, i], error[:, i], self._roots[:, i], self._models[:, i])
            for i in range(len(self._trials))
        ]


def _batches(
    problem: Problem, rng: np.random.Generator, size: int, replacement: bool = True
) -> tuple[Floats, Floats]:
    """Return a mini-batch of `size` samples of every client: x (M, size, d) and y (M, size).

    All of a client's samples, without replacement, give full gradients, and use no random numbers.
    """
    m, n, _ = problem.x.shape
    every = np.arange(m)[:, None]
    if size == n and not replacement:
        return problem.x, problem.y
    if replacement:
        picks = every, rng.integers(n, size=(m, size))
    else:
        picks = every, rng.random((m, n)).argpartition(size)[:, :size]
    return problem.x[picks], problem.y[picks]


def _gradients(w: Floats, x: Floats, y: Floats) -> Floats:
    """Return the gradients (M, A, d) of the clients' mini-batches at the models w (A, d) or (M, A, d)."""
    residuals = w @ x.transpose(0, 2, 1) - y[:, None]
    gradients: Floats = residuals @ x / y.shape[1]
    return gradients


def train(
    problem: Problem,
    trials: Sequence[Trial],
    rng: np.random.Generator,
    *,
    num_rounds: int,
    batch_size: int = 10,
    replacement: bool = True,
    summed: bool = False,
) -> list[Track]:
    """Train by mini-batch SGD with one step a round: w <- w - μ sum_m c_m g_m (Algorithm 3).

    Mini-batches are drawn with replacement, as in the paper (its samples ξ are i.i.d.); the experiment
    `report-noise` draws without. If `summed`, selectors learn from the norm of the sum of a mini-batch's
    gradients, as we read the authors' script, instead of their mean's; training and regret do not change.
    """
    factor = float(batch_size) if summed else 1.0
    recorder = _Recorder(problem, trials, num_rounds, factor)
    w, steps = recorder.start, recorder.steps
    for round in range(1, num_rounds + 1):
        g = _gradients(w, *_batches(problem, rng, batch_size, replacement)).swapaxes(0, 1)
        _, estimates = recorder.play(round, g)
        w = w - steps * estimates
        recorder.evaluate(round, w)
    return recorder.tracks()


def train_fedavg(
    problem: Problem,
    trials: Sequence[Trial],
    rng: np.random.Generator,
    *,
    num_rounds: int,
    local_steps: int = 5,
    batch_size: int = 1,
) -> list[Track]:
    """Train by FedAvg with the global step size 1 (Algorithm 4 of the later version).

    In each round every selected client m takes local steps v <- v - μ g_m(v), from w to v_m, each with its
    own mini-batch. Then w <- w - μ sum_m c_m G_m, where G_m = (w - v_m)/μ is the sum of the gradients. As in
    line 14, selectors learn from ||G_m|| divided by the root of the number of local steps; `Track.regret` and
    `Track.roots` are computed from ||G_m|| itself.
    """
    recorder = _Recorder(problem, trials, num_rounds, local_steps**-0.5)
    m, w, steps = len(problem.x), recorder.start, recorder.steps
    for round in range(1, num_rounds + 1):
        v = np.tile(w, (m, 1, 1))
        for _ in range(local_steps):
            v -= steps * _gradients(v, *_batches(problem, rng, batch_size))
        _, estimates = recorder.play(round, ((w - v) / steps).swapaxes(0, 1))
        w = w - steps * estimates
        recorder.evaluate(round, w)
    return recorder.tracks()


def train_scaffold(
    problem: Problem,
    trials: Sequence[Trial],
    rng: np.random.Generator,
    *,
    num_rounds: int,
    local_steps: int = 5,
    batch_size: int = 20,
) -> list[Track]:
    """Train by SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1) with option II and server rate 1.

    In each round every selected client m takes local steps v <- v - μ (g_m(v) - c_m + c) from w to v_m.
    Then::

        w <- w + sum_m weight_m (v_m - w)
        c_m <- c_m - c + (w - v_m) / (local_steps μ)   for each selected client m;   c = mean of all c_m

    w and c on the right are those before the round. Since c is the mean over all clients, selected or not, it
    needs no importance weights. Selectors learn from ||v_m - w||.
    """
    recorder = _Recorder(problem, trials, num_rounds)
    m, w, steps = len(problem.x), recorder.start, recorder.steps
    controls = np.zeros((m, *w.shape))
    for round in range(1, num_rounds + 1):
        common = controls.mean(axis=0)
        v = np.tile(w, (m, 1, 1))
        for _ in range(local_steps):
            v -= steps * (_gradients(v, *_batches(problem, rng, batch_size)) - controls + common)
        moves = v - w
        selections, estimates = recorder.play(round, moves.swapaxes(0, 1))
        for i, selection in enumerate(selections):
            who = selection.clients
            controls[who, i] -= common[i] + moves[who, i] / (local_steps * steps[i])
        w = w + estimates
        recorder.evaluate(round, w)
    return recorder.tracks()
