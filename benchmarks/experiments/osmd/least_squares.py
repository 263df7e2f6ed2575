"""The test bed of the OSMD paper's appendix F: two problems of linear regression, and two ways to train.

All trials of a comparison are trained side by side. They share the data and the mini-batches and, where their
seeds agree, the random numbers of the draws. The gradients of all clients at the models of all trials are one
matrix product. The test bed knows every client's gradient, so it can score a trial by its regret.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.experiments.regret import Oracle, feedback_of
from strategies.numerics.arrays import Floats
from strategies.selectors import Selection, Selector


class Problem(NamedTuple):
    """Clients with equally many samples of y = <w*, x> + noise, all of one weight, 1/M.

    The loss is L(w) = mean over clients and samples of (y - <w, x>)²/2, and w starts at 0.

    Attributes
    ----------
    x : ndarray, shape (M, n, d)
        Features.
    y : ndarray, shape (M, n)
        Targets.
    """

    x: Floats
    y: Floats

    def initial_norms(self) -> Floats:
        """Return each client's ||g_m|| (M,) at w = 0 over all its samples: the answers to a poll."""
        norms: Floats = np.linalg.norm((self.y[:, None] @ self.x)[:, 0], axis=1) / self.y.shape[1]
        return norms


def unlike_clients(
    rng: np.random.Generator, sigma: float, num_clients: int = 100, condition: float = 25.0
) -> Problem:
    """Make the problem of appendix F (eq. 44): clients whose features differ in scale.

    w* ~ N(10, 3), d = 10, x ~ N(0, s_m Σ), Σ_jj = κ^((j-1)/(d-1) - 1), 100 samples with noise N(0, 0.1²);
    s_m is lognormal with spread σ, and the largest is scaled to 10. N's second argument is a variance. κ is
    `condition`.
    """
    n, d = 100, 10
    truth = rng.normal(10, np.sqrt(3), d)
    scale = rng.lognormal(0, sigma, num_clients)
    scale *= 10 / scale.max()
    deviations = np.sqrt(scale[:, None] * condition ** (np.arange(d) / (d - 1) - 1))
    x = rng.normal(size=(num_clients, n, d)) * deviations[:, None]
    return Problem(x, x @ truth + rng.normal(0, 0.1, (num_clients, n)))


def one_feature_each(rng: np.random.Generator, nu: float, num_clients: int = 100) -> Problem:
    """Make the problem of section F.5: each client has one feature of d = 10, of equal size for all.

    The feature is drawn uniformly, its values are N(1, 0.1²), and the entries of w* are lognormal with spread
    ν. So all Lipschitz constants of the gradients are about 1, but the gradients differ as much as w* does.
    """
    n, d = 100, 10
    truth = rng.lognormal(0, nu, d)
    feature = rng.integers(d, size=num_clients)
    x = np.zeros((num_clients, n, d))
    x[np.arange(num_clients), :, feature] = rng.normal(1, 0.1, (num_clients, n))
    return Problem(x, x @ truth + rng.normal(0, 0.1, (num_clients, n)))


class Trial(NamedTuple):
    """A selector and the step size of its model; M and K are those of the selector."""

    selector: Selector
    step_size: float = 0.1


class Track(NamedTuple):
    """The result of one trial over T rounds.

    Attributes
    ----------
    loss : ndarray, shape (T,)
        Training loss over all samples, after the round.
    regret : ndarray, shape (T,)
        Cumulative regret: the sum of l_t(p_t) - min_q l_t(q), l_t(p) = (1/K) sum_m a_m/p_m.
    error : ndarray, shape (T,)
        Cumulative squared distance between the round's step direction and that of full participation.
    roots : ndarray, shape (T, M)
        sqrt(a_m) = λ_m ||g_m||.
    """

    loss: Floats
    regret: Floats
    error: Floats
    roots: Floats


class _Recorder:
    """Plays the rounds of all trials, and records their losses, regrets and errors."""

    def __init__(
        self, problem: Problem, trials: Sequence[Trial], clients_per_round: int, num_rounds: int
    ) -> None:
        m, n, d = problem.x.shape
        x, y = problem.x.reshape(m * n, d), problem.y.reshape(m * n)
        # The loss as a quadratic form around its minimum: exact near it, and no pass over the samples.
        self._hessian, self._best = x.T @ x / y.size, np.linalg.lstsq(x, y, rcond=None)[0]
        self._least = float(((x @ self._best - y) ** 2).mean() / 2)
        self._trials, self._k = trials, clients_per_round
        self._loss = np.empty((num_rounds, len(trials)))
        self._regret, self._error = np.empty_like(self._loss), np.empty_like(self._loss)
        self._roots = np.empty((num_rounds, len(trials), m))

    def play(self, round: int, moves: Floats) -> tuple[list[Selection], Floats]:
        """Let all trials select and learn, given the moves of all clients (A, M, d).

        Returns
        -------
        list of Selection, and ndarray, shape (A, d)
            The selections, and the estimates of the mean move.
        """
        norms = np.sqrt(np.einsum("amd,amd->am", moves, moves))
        m = norms.shape[1]
        selections, estimates, p = [], np.empty((len(norms), moves.shape[2])), np.empty_like(norms)
        for i, (trial, norm) in enumerate(zip(self._trials, norms, strict=True)):
            if isinstance(trial.selector, Oracle):
                trial.selector.norms = norm
            p[i] = trial.selector.probabilities
            selection = trial.selector.select(round)
            trial.selector.update(round, selection, feedback_of(norm[selection.clients]))
            estimates[i] = selection.weights @ moves[i, selection.clients]
            selections.append(selection)
        roots = self._roots[round - 1] = norms / m
        least = roots.sum(axis=1) ** 2
        excess = (roots**2 / p).sum(axis=1) - least
        self._regret[round - 1] = (
            np.where(excess > 1e-12 * least, excess, 0) / self._k
        )  # the rest is rounding
        self._error[round - 1] = ((estimates - moves.mean(axis=1)) ** 2).sum(axis=1)
        return selections, estimates

    def evaluate(self, round: int, w: Floats) -> None:
        """Record the losses of the models (A, d)."""
        off = w - self._best
        self._loss[round - 1] = ((off @ self._hessian) * off).sum(axis=1) / 2 + self._least

    def tracks(self) -> list[Track]:
        regret, error = self._regret.cumsum(axis=0), self._error.cumsum(axis=0)
        return [
            Track(self._loss[:, i], regret[:, i], error[:, i], self._roots[:, i])
            for i in range(len(self._trials))
        ]


def _batches(
    problem: Problem, rng: np.random.Generator, size: int, replacement: bool = True
) -> tuple[Floats, Floats]:
    """Return every client's mini-batch, x (M, B, d) and y (M, B)."""
    m, n, _ = problem.x.shape
    every = np.arange(m)[:, None]
    if replacement:
        picks = every, rng.integers(n, size=(m, size))
    else:
        picks = every, rng.random((m, n)).argpartition(size)[:, :size]
    return problem.x[picks], problem.y[picks]


def _gradients(w: Floats, x: Floats, y: Floats) -> Floats:
    """Return the gradients (M, A, d) at models w (M or 1, A, d) on each client's mini-batch."""
    residuals = w @ x.transpose(0, 2, 1) - y[:, None]
    gradients: Floats = residuals @ x / y.shape[1]
    return gradients


def train(
    problem: Problem,
    trials: Sequence[Trial],
    rng: np.random.Generator,
    *,
    clients_per_round: int,
    num_rounds: int,
    batch_size: int = 10,
    replacement: bool = True,
) -> list[Track]:
    """Train by mini-batch SGD, one gradient a round: w <- w - μ sum_m c_m g_m (Algorithm 3).

    Parameters
    ----------
    problem : Problem
        The data.
    trials : Sequence[Trial]
        Fresh selectors, with their μ.
    rng : np.random.Generator
        Source of the mini-batches.
    clients_per_round, num_rounds, batch_size : int
        K, T and B.
    replacement : bool (default: True)
        Whether a client draws its mini-batch with replacement. The paper does not say. Its tables are
        measured with replacement, those of `benchmarks.privacy` and of `ForecastSelector` without.

    Returns
    -------
    list of Track
        One per trial.
    """
    recorder = _Recorder(problem, trials, clients_per_round, num_rounds)
    w, steps = (
        np.zeros((len(trials), problem.x.shape[2])),
        np.array([trial.step_size for trial in trials])[:, None],
    )
    for round in range(1, num_rounds + 1):
        g = _gradients(w, *_batches(problem, rng, batch_size, replacement)).swapaxes(0, 1)
        _, estimates = recorder.play(round, g)
        w = w - steps * estimates
        recorder.evaluate(round, w)
    return recorder.tracks()


def train_scaffold(
    problem: Problem,
    trials: Sequence[Trial],
    rng: np.random.Generator,
    *,
    clients_per_round: int,
    num_rounds: int,
    local_steps: int = 5,
    batch_size: int = 20,
) -> list[Track]:
    """Train by SCAFFOLD, control variates of option II, server rate 1; selectors learn from ||w_m - w||.

    A client takes local steps v <- v - μ (g_m(v) - c_m + c) from w. Then, with the weights of the draw::

        w <- w + sum_m weight_m (v_m - w)
        c_m <- c_m - c + (w - v_m) / (steps μ)   for each selected client m;   c = mean of all c_m

    Karimireddy et al., "SCAFFOLD" (ICML 2020), Algorithm 1. c is the mean over all clients, selected or not,
    so it needs no importance weights. Parameters are as in `train`; a trial's step size is the clients' μ.
    """
    recorder = _Recorder(problem, trials, clients_per_round, num_rounds)
    m, _, d = problem.x.shape
    w = np.zeros((len(trials), d))
    controls = np.zeros((m, len(trials), d))
    steps = np.array([trial.step_size for trial in trials])[:, None]
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
