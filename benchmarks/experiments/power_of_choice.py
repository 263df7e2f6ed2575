"""The simulations of Power-of-Choice: quadratics, the profile and skew of selection, and Synthetic(1,1).

Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning" (AISTATS 2022),
section 5 and appendices F and G.1. Its K clients, of which m train, are M and K here; ``rand`` is `md`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from strategies.numerics.arrays import Floats, Ints
from strategies.selectors import Feedback, Selection, Selector, create

STEPS, STEP_SIZE = 2, 2e-5
"""τ and η of the quadratic."""
RANDOM = "rand"

Float32s = npt.NDArray[np.float32]


class Arm(NamedTuple):
    """A selector under test.

    Attributes
    ----------
    label : str
        Row of the table.
    selector : str
        Name in the registry.
    settings : dict
        Its settings.
    """

    label: str
    selector: str
    settings: dict[str, Any] = {}  # noqa: RUF012 (never changed)


def _select(selector: Selector, round: int, losses: Callable[[Ints], Floats]) -> Selection:
    """Ask the candidates for their losses, where the selector has any, and choose."""
    asked = selector.candidates(round)
    reports = None if asked is None else {"loss": losses(asked)}
    return selector.select(round, candidates=asked, reports=reports)


# The quadratic: F_k(w) = (h_k/2) ||w - w_k*||², which is eq. 87 with e_k = h_k w_k*.


class Quadratic(NamedTuple):
    """The clients of the quadratic; gradient descent on each is known in closed form.

    Attributes
    ----------
    sizes : ndarray, shape (M,)
        Data, sums to 1: p.
    curvatures : ndarray, shape (M,)
        h, positive.
    optima : ndarray, shape (M, v)
        w_k*, at which F_k is 0.
    """

    sizes: Floats
    curvatures: Floats
    optima: Floats

    @property
    def optimum(self) -> Floats:
        """(v,) the minimiser of F = sum_k p_k F_k."""
        scale = self.sizes * self.curvatures
        w: Floats = scale @ self.optima / scale.sum()
        return w

    def losses(self, w: Floats, clients: Ints) -> Floats:
        """Return F_k(w) (n,) of these clients."""
        apart = w - self.optima[clients]
        losses: Floats = 0.5 * self.curvatures[clients] * np.einsum("kv,kv->k", apart, apart)
        return losses


class Descent(NamedTuple):
    """What a run on the quadratic left.

    Attributes
    ----------
    gaps : ndarray, shape (T + 1,)
        (F(w) - F*) / (F(w_0) - F*) before each round and after the last.
    counts : ndarray, shape (M,)
        How often each client was chosen.
    path : ndarray, shape (P, v)
        w before round 0, T/20, 2T/20, ... and after the last.
    """

    gaps: Floats
    counts: Floats
    path: Floats


def make_quadratic(seed: int, num_clients: int, dimension: int = 5) -> Quadratic:
    """Draw the clients: h ~ U(1, 20), e ~ N(0, 1) (the paper: arbitrary), p the power law with a = 3."""
    rng = np.random.default_rng(seed)
    curvatures = rng.uniform(1, 20, num_clients)
    sizes = rng.power(3, num_clients)
    e = rng.normal(size=(num_clients, dimension))
    return Quadratic(sizes / sizes.sum(), curvatures, e / curvatures[:, None])


def descend(problem: Quadratic, selector: Selector, num_rounds: int) -> Descent:
    """Run federated averaging on the quadratic from w = (1, ..., 1).

    Parameters
    ----------
    problem : Quadratic
        The clients.
    selector : Selector
        Who trains; one that does not learn from updates.
    num_rounds : int
        T, a multiple of 20.
    """
    # τ steps of gradient descent shrink w - w_k* by (1 - η h_k)^τ.
    moves: Floats = 1 - (1 - STEP_SIZE * problem.curvatures) ** STEPS
    optimum, w = problem.optimum, np.ones(problem.optima.shape[1])
    gaps, counts, path = np.empty(num_rounds + 1), np.zeros(problem.sizes.size), []
    for round in range(num_rounds):
        gaps[round] = (w - optimum) @ (w - optimum)
        if round % (num_rounds // 20) == 0:
            path.append(w)
        selection = _select(selector, round, functools.partial(problem.losses, w))
        chosen = selection.clients
        counts[chosen] += selection.counts
        w = w + (selection.weights * moves[chosen]) @ (problem.optima[chosen] - w)
    gaps[-1] = (w - optimum) @ (w - optimum)
    # F has one curvature in all directions, so gaps go with the squared distance.
    return Descent(gaps / gaps[0], counts, np.array([*path, w]))


def _arms(*candidates: int) -> tuple[Arm, ...]:
    return Arm(RANDOM, "md"), *(Arm(f"d={d}", "pow-d", {"num_candidates": d}) for d in candidates)


QUADRATIC_ARMS = {
    30: (*_arms(6, 15, 30), Arm("adapow", "adapow-d", {"halve_every": 5000})),
    100: (*_arms(20, 100), Arm("adapow", "adapow-d", {"halve_every": 5000})),
}


def _run_arm(problem: Quadratic, arm: Arm, seed: int, num_rounds: int) -> Descent:
    selector = create(
        arm.selector,
        problem.sizes.size,
        client_sizes=problem.sizes,
        clients_per_round=problem.sizes.size // 10,
        seed=seed,
        **arm.settings,
    )
    return descend(problem, selector, num_rounds)


def run_quadratic(seed: int, num_clients: int = 30, num_rounds: int = 20_000, quick: bool = False) -> Outcome:
    """Measure how fast and how far each arm gets; a tenth of the clients train in a round."""
    num_rounds = num_rounds // 4 if quick else num_rounds
    problem = make_quadratic(seed, num_clients)
    cells: dict[Cell, float] = {}
    lines: dict[str, Curve] = {}
    shown = np.arange(0, num_rounds + 1, max(1, num_rounds // 200))
    for arm in QUADRATIC_ARMS[num_clients]:
        gaps = _run_arm(problem, arm, seed, num_rounds).gaps
        for level in (0.1, 0.01):
            cells[arm.label, f"rounds to {level:g}"] = _first(gaps <= level)
        cells[arm.label, "log10 final gap"] = math.log10(gaps[-num_rounds // 20 :].mean())
        lines[arm.label] = Curve(shown.astype(float), gaps[shown])
    return Outcome(cells, {f"{num_clients} clients": lines})


def _first(reached: npt.NDArray[np.bool_]) -> float:
    """Return the first round at which it is true, NaN if never."""
    return float(np.argmax(reached)) if reached.any() else math.nan


# Selection skew (Definition 3.2) and profile (appendix G.1).


def selection_shares(problem: Quadratic, selector: Selector, points: Floats, num_samples: int) -> Floats:
    """Return, for each w (P, v), what share of a cohort each client is on average: (P, M), rows sum to 1.

    The candidates of so many rounds are drawn by the selector; of each set those with the largest losses at
    w win, as in ``selector.select``, whose calls would take minutes here.
    """
    everyone = np.arange(problem.sizes.size)
    first = selector.candidates(0)
    if first is None:  # `md`: losses do not matter
        return np.tile(selector.probabilities, (len(points), 1))
    if first.size == everyone.size:
        num_samples = 1  # the candidates are always the same
    sets = np.array([selector.candidates(round) for round in range(num_samples)])
    k = selector.select(0, candidates=first, reports={"loss": first.astype(float)}).clients.size
    shares = np.empty((len(points), everyone.size))
    for share, w in zip(shares, points, strict=True):
        losses = problem.losses(w, everyone)[sets]
        winners = np.take_along_axis(sets, np.argpartition(-losses, k - 1, axis=1)[:, :k], axis=1)
        share[:] = np.bincount(winners.ravel(), minlength=everyone.size) / winners.size
    return shares


def skews_at(problem: Quadratic, shares: Floats, w: Floats) -> Floats:
    """Return ρ (eq. 5) of selections with these shares (P, M), losses being evaluated at w (v,)."""
    losses = problem.losses(w, np.arange(problem.sizes.size))
    skews: Floats = shares @ losses / (problem.sizes @ losses)
    return skews


def smallest_skews(problem: Quadratic, shares: Floats) -> Floats:
    """Return the minimum of ρ over all w' for selections with these shares (P, M): exact.

    Both sides of the fraction are quadratic forms of (w', 1), so it is their smallest generalised eigenvalue.
    """

    def forms(weights: Floats) -> Floats:
        """Return the (P, v + 1, v + 1) matrices of sum_k weights_k h_k ||w' - w_k*||²."""
        ends = np.column_stack([-problem.optima, np.linalg.norm(problem.optima, axis=1) ** 2])
        scale = weights * problem.curvatures
        matrices = np.zeros((len(weights), ends.shape[1], ends.shape[1]))
        inner = np.arange(ends.shape[1] - 1)
        matrices[:, inner, inner] = scale.sum(axis=1)[:, None]
        matrices[:, -1] = scale @ ends
        matrices[:, :, -1] = matrices[:, -1]
        return matrices

    root = np.linalg.inv(np.linalg.cholesky(forms(problem.sizes[None])[0]))
    return np.asarray(np.linalg.eigvalsh(root @ forms(shares) @ root.T)[:, 0], dtype=np.float64)


def run_profile(
    seed: int, num_rounds: int = 5000, num_points: int = 200, num_samples: int = 10_000, quick: bool = False
) -> Outcome:
    """Measure how often each client is chosen, and how skewed the choice is, with 30 clients."""
    if quick:
        num_points, num_samples = num_points // 4, num_samples // 4
    problem = make_quadratic(seed, 30)
    m, rng = problem.sizes.size, np.random.default_rng((seed, 1))
    # In all directions from the optimum, from a hundredth to a hundred times as far as the clients' own lie.
    spread = np.linalg.norm(problem.optima - problem.optimum, axis=1).mean()
    directions = rng.normal(size=(num_points, problem.optima.shape[1]))
    directions *= (spread * np.geomspace(0.01, 100, num_points) / np.linalg.norm(directions, axis=1))[:, None]
    cells: dict[Cell, float] = {}
    lines: dict[str, Curve] = {}
    for arm in _arms(6, 15, 30):
        selector = create(
            arm.selector, m, client_sizes=problem.sizes, clients_per_round=m // 10, seed=seed, **arm.settings
        )
        descent = descend(problem, selector, num_rounds)
        points = np.vstack([problem.optimum + directions, descent.path])
        shares = selection_shares(problem, selector, points, num_samples)
        on_path = shares[num_points:]
        here = np.diag([skews_at(problem, on_path, w) for w in descent.path]).min()
        at_optimum = skews_at(problem, shares, problem.optimum)
        cells |= {
            (arm.label, "ρ̄"): float(smallest_skews(problem, shares).min()),
            (arm.label, "ρ̃"): float(at_optimum.max()),
            (arm.label, "ρ̄ on the way"): float(here),
            (arm.label, "ρ̃ on the way"): float(at_optimum[num_points:].max()),
        }
        profile = descent.counts / descent.counts.sum()
        cells |= {
            (arm.label, "largest share, %"): 100 * float(profile.max()),
            (arm.label, "chosen < 0.1 %"): float((profile < 0.001).sum()),
            (arm.label, "correlation with p"): float(np.corrcoef(profile, problem.sizes)[0, 1]),
        }
        lines[arm.label] = Curve(np.arange(1.0, m + 1), 100 * np.sort(profile)[::-1])
    return Outcome(cells, {"30 clients, 3 a round": lines})


# Synthetic(1,1): multinomial logistic regression, ten classes, on clients that agree in nothing.


class Samples(NamedTuple):
    """The clients' data, one client after the other.

    Attributes
    ----------
    x : ndarray, shape (N, 61)
        Inputs, the last one 1.
    y : ndarray of int, shape (N,)
        Classes.
    sizes, starts : ndarray of int, shape (M,)
        How many samples each client has, and where they begin.
    """

    x: Float32s
    y: Ints
    sizes: Ints
    starts: Ints


CLASSES = 10


def make_synthetic(seed: int, num_clients: int = 30, dimension: int = 60) -> Samples:
    """Draw Synthetic(1,1) as Li et al. (FedProx, 2020; Sahu et al. in the paper) say, section 5.1.

    y = argmax(W x + b); W and b ~ N(u, 1), u ~ N(0, 1); x ~ N(v, Σ), Σ_jj = j^-1.2, v_j ~ N(B, 1),
    B ~ N(0, 1): u, v and B are the client's own. It has 50 samples and a lognormal(4, 2) number more.
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
    """Return the mean loss (A, M) of each model (A, 10, 61) on each client's samples."""
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
    """Train n models at once, each on one client, by mini-batch gradient descent.

    Parameters
    ----------
    samples : Samples
        All data.
    models : ndarray, shape (n, 10, 61)
        Where they start.
    clients : ndarray of int, shape (n,)
        On whose data.
    picks : ndarray of int, shape (n, τ, b)
        Each step's samples: positions in the client's own.
    rate : float
        η.

    Returns
    -------
    models : ndarray, shape (n, 10, 61)
        The trained ones.
    losses : ndarray, shape (n,)
        Mean of the mini-batches' losses.
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


def _synthetic_arms(k: int) -> tuple[Arm, ...]:
    return (
        Arm(RANDOM, "md"),
        Arm("d=2m", "pow-d", {"num_candidates": 2 * k}),
        Arm("d=10m", "pow-d", {"num_candidates": 10 * k}),
        Arm("adapow", "adapow-d"),
        Arm("cpow d=10m", "cpow-d", {"num_candidates": 10 * k, "batch_size": 50}),
        Arm("rpow d=15", "rpow-d"),
        Arm("afl", "afl"),
    )


def run_synthetic(
    seed: int, num_rounds: int = 800, cohorts: tuple[int, ...] = (1, 3), quick: bool = False
) -> Outcome:
    """Train all arms side by side on the same data; a client's mini-batches are the same in all of them."""
    num_rounds = num_rounds // 4 if quick else num_rounds
    samples = make_synthetic(seed)
    m, p = samples.sizes.size, samples.sizes / samples.sizes.sum()
    arms = [(k, arm) for k in cohorts for arm in _synthetic_arms(k)]
    selectors = [
        create(
            arm.selector,
            m,
            client_sizes=samples.sizes,
            clients_per_round=k,
            num_rounds=num_rounds,
            seed=seed,
            **arm.settings,
        )
        for k, arm in arms
    ]
    models = np.zeros((len(arms), CLASSES, samples.x.shape[1]), dtype=np.float32)
    history = np.empty((num_rounds + 1, len(arms)))
    for round in range(num_rounds):
        full = synthetic_losses(samples, models)
        history[round] = full @ p
        rng = np.random.default_rng((seed, round))
        picks = (rng.random((m, 31, 50)) * samples.sizes[:, None, None]).astype(np.int64)
        batch = functools.partial(_batch_losses, samples, picks[:, -1:])
        selections = [
            _select(
                selector,
                round,
                functools.partial(batch, models[i]) if arm.selector == "cpow-d" else full[i].__getitem__,
            )
            for i, (selector, (_, arm)) in enumerate(zip(selectors, arms, strict=True))
        ]
        owner = np.repeat(np.arange(len(arms)), [each.clients.size for each in selections])
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
    for (k, arm), losses in zip(arms, history.T, strict=True):
        row = f"m={k} {arm.label}"
        cells[row, "rounds to 0.7"] = _first(losses <= 0.7)
        cells[row, "last-50 loss"] = float(losses[-50:].mean())
        curves.setdefault(f"m = {k}", {})[arm.label] = Curve(np.arange(num_rounds + 1.0), losses)
    return Outcome(cells, curves)


def _batch_losses(samples: Samples, picks: Ints, model: Float32s, clients: Ints) -> Floats:
    """Return the loss (n,) of one model on one mini-batch (M, 1, b) of each of the clients (n,)."""
    models = np.broadcast_to(model, (clients.size, *model.shape))
    return train_synthetic(samples, models, clients, picks[clients], 0.0)[1]


def _feedback(losses: Floats) -> Feedback:
    missing = np.full(losses.size, np.nan)
    return Feedback(missing, losses, missing, missing, np.ones(losses.size, dtype=np.bool_))


PAPER = "Cho, Wang, Joshi 2022"
GAP = "(F(w) - F*) / (F(w_0) - F*)"
SETTING = (
    "h ~ U(1, 20), p the power law with a = 3, v = 5, τ = 2, η = 2e-5, a tenth of the clients a round. The "
    "paper leaves e and the start open; here e ~ N(0, 1) and w_0 = (1, ..., 1)."
)
FASTER = (
    "pow-d is faster than rand, the more so the larger d, to a higher floor; adapow is as fast as d = K "
    "and ends at the same minimum as rand."
)


def _quadratic_experiment(
    num_clients: int, name: str, known: dict[str, tuple[str, ...]], claim: str
) -> Experiment:
    columns = ("rounds to 0.1", "rounds to 0.01", "log10 final gap")
    return Experiment(
        name=name,
        title=f"Power-of-Choice on quadratics, {num_clients} clients",
        source=f"{PAPER}, Figure 2 and appendix F",
        run=functools.partial(run_quadratic, num_clients=num_clients),
        seeds=3,
        known={
            (row, column): figure
            for row, figures in known.items()
            for column, figure in zip(columns, figures, strict=False)
        },
        claim=claim,
        note=f"{SETTING} The gap is {GAP}; the final one is the mean over the last twentieth of the rounds.",
        digits=1,
        y=GAP,
        log_y=True,
    )


EXPERIMENTS = (
    _quadratic_experiment(
        30,
        "poc-quadratic",
        {
            RANDOM: ("3417", "6667", "-6.5 to -5.0"),
            "d=6": ("2417", "5333", "-4.5 to -3.1"),
            "d=15": ("1917", "5500", "-3.2 to -2.0"),
            "d=30": ("1750", "mostly never", "-2.2 to -1.7"),
            "adapow": ("1750", "7167", "-5.7 to -4.0"),
        },
        FASTER,
    ),
    _quadratic_experiment(
        100,
        "poc-quadratic-100",
        {
            RANDOM: ("3083", "5917"),
            "d=20": ("2167", "4417"),
            "d=100": ("1750", "4417", "-2.5 to -2.0"),
            "adapow": ("1750", "4167", "-4.2"),
        },
        f"as with 30 clients, with lower floors: {FASTER}",
    ),
    Experiment(
        name="poc-profile",
        title="Power-of-Choice on quadratics: who is chosen, and the skew of the choice",
        source=f"{PAPER}, Definition 3.2, Figures 2(d) and 8 (appendix G.1)",
        run=run_profile,
        seeds=3,
        claim="ρ̄ and ρ̃ are 1 for rand, and ρ̄ > 1 for every d; both grow with d. How often pow-d chooses a "
        "client does not follow its data.",
        note=f"{SETTING} 5000 rounds, 30 clients. ρ̄ (eq. 6) is the minimum over 200 w in all directions and, "
        "exactly, over all w'; ρ̃ (eq. 7) the maximum over the same w. On the way: w where the run passed, "
        "w' = w for the minimum. The paper's ρ̄ > 1 holds there only: near the optimum of those whom a "
        "skewed choice prefers, their losses are below the average. Shares of all choices; chosen < 0.1 % "
        "counts clients.",
        x="client, by how often it is chosen",
        y="% of all choices",
    ),
    Experiment(
        name="poc-synthetic",
        title="Power-of-Choice on Synthetic(1,1), logistic regression",
        source=f"{PAPER}, Figure 3 and appendix F",
        run=run_synthetic,
        seeds=3,
        known={
            (f"m={k} {row}", column): figure
            for k, row, column, figure in (
                (1, RANDOM, "rounds to 0.7", "131, median 95"),
                (1, "d=2m", "rounds to 0.7", "97, median 59"),
                (1, "d=10m", "rounds to 0.7", "44, median 47"),
                (1, "adapow", "rounds to 0.7", "58, median 51"),
                (3, RANDOM, "rounds to 0.7", "93, median 52"),
                (3, "d=2m", "rounds to 0.7", "29, median 24"),
                (3, "d=10m", "rounds to 0.7", "46, median 49"),
                (1, RANDOM, "last-50 loss", ".325"),
                (1, "d=2m", "last-50 loss", ".287"),
                (1, "d=10m", "last-50 loss", ".390"),
                (1, "adapow", "last-50 loss", ".310"),
            )
        },
        claim="d = 10m reaches a loss of 0.7 in a third of rand's rounds, d = 2m in half, with a slightly "
        "higher floor; adapow is 3 times as fast as rand, without the floor.",
        note="30 clients, m of them a round, τ = 30 steps on batches of 50, η = 0.05, halved after 300 and "
        "after 600 of 800 rounds. The paper does not run cpow, rpow and afl here. The last two go by losses "
        "of local training, which say how hard a client's task is rather than how badly the model fits it: "
        "clients with easy tasks are hardly chosen again.",
        y="loss of the global model on all data",
        log_y=True,
    ),
)
