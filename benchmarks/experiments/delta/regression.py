"""DELTA's regression under gradient noise: figures 4 and 9 to 13 (section 5, appendices G, H.2 and H.3).

The clients fit (A, b) in y = log((A x - b)²/2) by local SGD. The paper's figures 9 and 10 show gradients on
image data; here they show the gradients of this regression.
"""

from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.experiments.delta.synthetic import poll_and_select, reports_of
from benchmarks.experiments.methods import Method
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from strategies.numerics.arrays import Floats
from strategies.selectors import Feedback, Selection, Selector, create
from strategies.selectors.delta.practical import PracticalSelector


class Regression(NamedTuple):
    """Clients that fit (A, b) in y = log((A x - b)² / 2) to their samples."""

    x: npt.NDArray[np.float32]  # (M, samples) samples of each client, without noise
    y: npt.NDArray[np.float32]
    noise: Floats  # (M,) standard deviation of the noise that is added to each entry of a client's gradients

    @property
    def step_variances(self) -> Floats:
        """σ² (M,): the variance of a client's gradient in one local step, E||noise||² over two entries."""
        return 2 * self.noise**2


REGRESSION_METHODS = {
    "FedAvg": Method("uniform"),
    "FedAvg, distinct": Method("uniform", {"replacement": False}),
    "IS": Method("fed-is"),
    "DELTA": Method("delta"),
    "Power-of-Choice": Method("pow-d"),
}
"""Row of the tables -> method. `Run.error` of each row is divided by that of the first row."""
EXTREMES_METHODS = {
    "practical IS": (Method("prac-is"), "norm"),
    "practical DELTA": (Method("prac-delta"), "diversity"),
    "IS": (Method("fed-is"), "norm"),
    "DELTA": (Method("delta"), "diversity"),
}
"""Beginning of the row labels -> (method, what is recorded). Appendix G is about the practical forms, but the
captions of its figures name FedIS and DELTA, so both forms are here."""
LOCAL_STEPS, RATE = 5, 0.001
OPTIMUM = (10.0, 1.0)
"""The true (A, b)."""
OTHER = (8.0, 2.0)
"""The other true (A, b) of Figure 11."""
FAR = (5.0, 0.0)
"""A start (A, b). On the way from this start to either optimum, A x - b stays positive for all samples x."""
OFF_POLE = 0.15
"""The least distance of the samples x from the pole of y at x = b/A."""


def make_regression(
    seed: int,
    noise: float,
    num_samples: int = 1000,
    num_clients: int = 20,
    optimum: tuple[float, float] = OPTIMUM,
) -> Regression:
    """Draw clients with samples x ~ b/A + U(0.15, 1.15) and noise levels ~ U(0, 2ν), where ν is `noise`."""
    rng = np.random.default_rng(seed)
    (a, b), low = optimum, optimum[1] / optimum[0] + OFF_POLE
    x = rng.uniform(low, low + 1, (num_clients, num_samples)).astype(np.float32)
    y = 2 * np.log(np.abs(np.float32(a) * x - np.float32(b)) / np.float32(2**0.5))
    return Regression(x, y, noise * rng.uniform(0, 2, num_clients))


def local_updates(problem: Regression, w: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return the sum of each client's noisy gradients from w (2,), (M, 2), and its loss at w (M,)."""
    m = len(problem.x)
    local = np.tile(w, (m, 1))
    noise = rng.normal(size=(LOCAL_STEPS, m, 2)) * problem.noise[:, None]
    losses = np.empty(m)
    for step in range(LOCAL_STEPS):
        a, b = local.astype(np.float32).T[:, :, None]
        inner = a * problem.x - b
        residuals = 2 * np.log(np.abs(inner) / np.float32(2**0.5)) - problem.y
        if step == 0:
            losses = np.mean(residuals**2, axis=1, dtype=np.float64)
        slope = 4 * residuals / inner
        gradients = np.stack([np.einsum("ms,ms->m", slope, problem.x), -slope.sum(axis=1)], axis=1)
        local = local - RATE * (gradients / problem.x.shape[1] + noise[step])
    return (w - local) / RATE, losses


class Run(NamedTuple):
    """The result of one method."""

    losses: Floats  # (T,) mean loss over the clients before each round
    error: float  # sum over the rounds of the squared distance between the aggregate and the mean update
    # (T, 2) largest and the smallest value of all clients in each round: of ||g_i||, and of ||g_i - mean g||.
    norms: Floats
    diversities: Floats
    # (2, T) The largest ratio, over the clients i, of ||g_i|| to its value in the last round in which client
    # i was selected; and the same for ||g_i - mean g||. NaN in the first round.
    growths: Floats


def make_selector(method: Method, num_clients: int, seed: int) -> Selector:
    """Return a selector of 10 clients a round. DELTA gets the number of local steps, which eq. 13 needs."""
    settings = {"local_steps": LOCAL_STEPS} if method.selector in ("delta", "prac-delta") else {}
    return create(
        method.selector, num_clients, clients_per_round=10, seed=seed, **settings, **method.settings
    )


def feedback_of(g: Floats, variances: Floats, selection: Selection) -> Feedback:
    """Return what the server learns if all selected clients respond; g (M, 2) are all updates.

    Diversities are distances from the mean of the selected updates, with the selection's weights.
    """
    updates = g[selection.clients]
    mean = selection.weights @ updates / selection.weights.sum()
    return Feedback(
        np.linalg.norm(updates, axis=1),
        np.full(len(updates), np.nan),
        variances[selection.clients],
        np.linalg.norm(updates - mean, axis=1),
        np.ones(len(updates), dtype=np.bool_),
    )


def train(problem: Regression, method: Method, seed: tuple[int, int], num_rounds: int, start: Floats) -> Run:
    """Train with a selector. All selectors have the same gradient noise. `seed` is the pair (seed, ν)."""
    selector = make_selector(method, len(problem.x), seed[0])
    w, error = start, 0.0
    losses, extremes = np.empty(num_rounds), np.empty((2, num_rounds, 2))
    last, growths = np.full((2, len(problem.x)), np.nan), np.full((2, num_rounds), np.nan)
    for round in range(num_rounds):
        g, each = local_updates(problem, w, np.random.default_rng((*seed, round)))
        losses[round] = each.mean()
        reports = reports_of(g, problem.step_variances)
        now = np.stack([reports[kind] for kind in ("update_norm", "diversity")])
        extremes[:, round] = np.stack([now.max(axis=1), now.min(axis=1)], axis=1)
        if round:
            growths[:, round] = np.nanmax(now / last, axis=1)
        selection = poll_and_select(selector, round, reports | {"loss": each})
        if isinstance(selector, PracticalSelector):
            selector.update(round, selection, feedback_of(g, problem.step_variances, selection))
        last[:, selection.clients] = now[:, selection.clients]
        estimate = selection.weights @ g[selection.clients]
        error += float(((estimate - g.mean(axis=0)) ** 2).sum())
        w = w - RATE * estimate
    return Run(losses, error, extremes[0], extremes[1], growths)


def run_regression(
    seed: int,
    num_rounds: int = 2000,
    noises: tuple[int, ...] = (20, 30, 40),
    start: tuple[float, float] = OPTIMUM,
    num_clients: int = 20,
    num_samples: int = 1000,
    optimum: tuple[float, float] = OPTIMUM,
) -> Outcome:
    """Train the regression with 10 clients a round, for several ν, from a start (A, b).

    If the start is not the optimum, the table has the rounds until a quarter of the first loss is reached.
    """
    cells: dict[Cell, float] = {}
    curves: dict[str, dict[str, Curve]] = {}
    for noise in noises:
        column = f"ν = {noise}"
        problem = make_regression(seed, noise, num_samples, num_clients, optimum)
        baseline = 0.0
        for label, method in REGRESSION_METHODS.items():
            run = train(problem, method, (seed, noise), num_rounds, np.array(start))
            baseline = baseline or run.error
            if start != optimum:
                over_time = Curve(np.arange(float(num_rounds)), run.losses)
                cells[label, f"rounds, {column}"] = over_time.first(run.losses <= run.losses[0] / 4)
            cells[label, column] = float(np.log10(run.losses[-num_rounds // 2 :].mean()))
            curves.setdefault(column, {})[label] = _blocks(run.losses)
            cells[label, f"error², {column}"] = run.error / baseline
    return Outcome(cells, curves)


def _blocks(values: Floats) -> Curve:
    """Return a curve of about 100 points, each the mean of a block of the values (T,).

    A block has two rounds or more: the loss of a start at the optimum is 0, which no logarithmic axis can
    show.
    """
    every = max(2, values.size // 100)
    at: Floats = np.arange(0.5, values.size // every) * every
    return Curve(at, values[: at.size * every].reshape(-1, every).mean(axis=1))


def run_extremes(seed: int, num_rounds: int = 2000, noise: int = 1) -> Outcome:
    """Record the extreme norms (in runs with IS) and diversities (DELTA) of all clients, and how they grow.

    Each selector runs in its practical form and with full information, and starts far from the optimum.
    """
    problem, tenth = make_regression(seed, noise), max(1, num_rounds // 10)
    cells: dict[Cell, float] = {}
    curves: dict[str, dict[str, Curve]] = {}
    for label, (method, quantity) in EXTREMES_METHODS.items():
        run = train(problem, method, (seed, noise), num_rounds, np.array(FAR))
        values, growth, bound = run.norms, run.growths[0, 1:], "U"
        if quantity == "diversity":
            values, growth, bound = run.diversities, run.growths[1, 1:], "Ũ"
        for which, of, extreme in (
            ("largest", values[:, 0], values[:, 0].max()),
            ("smallest", values[:, 1], values[:, 1].min()),
        ):
            row = f"{label}: {which} {quantity}"
            cells[row, "first tenth"] = float(of[:tenth].mean())
            cells[row, "last tenth"] = float(of[-tenth:].mean())
            cells[row, "largest of a round / mean"] = float(of.max() / of.mean())
            cells[row, "extreme"] = float(extreme)
            curves.setdefault(f"{quantity} with {label}", {})[which] = _blocks(of)
        row = f"{label}: {bound} of the {quantity}"
        cells[row, "first tenth"] = float(growth[:tenth].mean())
        cells[row, "last tenth"] = float(growth[-tenth:].mean())
        cells[row, "extreme"] = float(growth.max())
    return Outcome(cells, curves)


_experiment = partial(Experiment, digits=2, log_y=True)
_regression = partial(_experiment, y="mean squared error")

EXPERIMENTS = (
    _regression("delta-regression", run_regression, seeds=10),
    _regression("delta-regression-far", partial(run_regression, noises=(1, 5, 20), start=FAR)),
    _regression("delta-regression-8-2", partial(run_regression, start=FAR, optimum=OTHER)),
    _regression("delta-regression-200", partial(run_regression, start=FAR, num_clients=200, num_samples=100)),
    _experiment("delta-extremes", run_extremes, y="norm, diversity"),
)
