"""The bounds of the OSMD paper beside the measured regret and heterogeneity, on the problem of appendix F.

`bounds` has the bounds, `least_squares` the problem and the training.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from benchmarks.experiments.osmd import bounds
from benchmarks.experiments.osmd.least_squares import Problem, Track, Trial, train, unlike_clients
from benchmarks.experiments.osmd.section_f import ALPHA, PAPER, SIGMAS, K, M, T
from benchmarks.experiments.report import Cell, Experiment, Outcome
from strategies.numerics.arrays import Floats
from strategies.numerics.projection import project_floored_simplex
from strategies.selectors import Selector, create
from strategies.selectors.osmd.rates import num_experts, smallest_rate

MARGIN = 10.0
"""ā (v2: A_max) over the largest a before training, so that no later a is larger, as the theorems demand."""


class Comparator(NamedTuple):
    """Probabilities that the regret is measured against.

    Attributes
    ----------
    q : ndarray, shape (T, M)
        The probabilities.
    losses : float
        The sum of l_t(q^t).
    variation : float
        TV(q).
    """

    q: Floats
    losses: float
    variation: float


def comparators(roots: Floats, floor: float) -> dict[str, Comparator]:
    """Return the best q^t of each round, above the floor and of all, and the best constant q above the floor.

    `roots` (T, M) holds sqrt(a) of all clients in each round.
    """
    with np.errstate(divide="ignore"):
        dynamic = np.array([project_floored_simplex(np.log(root), floor) for root in roots])
        fixed = project_floored_simplex(0.5 * np.log((roots**2).sum(axis=0)), floor)
    every = roots / roots.sum(axis=1, keepdims=True)
    found = {"best p ≥ α/M": dynamic, "best p": every, "best fixed p ≥ α/M": np.tile(fixed, (len(roots), 1))}
    return {
        name: Comparator(
            q,
            float(np.divide(roots**2, q, out=np.zeros(q.shape), where=q > 0).sum() / K),
            float(np.abs(np.diff(q, axis=0)).sum()),
        )
        for name, q in found.items()
    }


def _selectors(seed: int, num_rounds: int, a_max: float) -> dict[tuple[str, str], Selector]:
    """Return the selectors: (name, version) -> selector with the printed rates and γ, and with a fixed ā."""
    made = {}
    for name in ("osmd", "adaptive-osmd", "adaptive-doubling-osmd"):
        for version in ("v1", "v2"):
            gamma = {} if name == "osmd" else {"gamma": "printed"}
            made[name, version] = create(
                name,
                M,
                clients_per_round=K,
                num_rounds=num_rounds,
                seed=seed,
                alpha=ALPHA,
                rates=version,
                a_max=a_max,
                **gamma,
            )
    return made


def _bound(name: str, at: bounds.Setting, a_max: float, track: Track, against: Comparator) -> float:
    """Return the theorem's bound of a selector's regret against a comparator with q >= α/M."""
    rounds, variation = len(track.roots), against.variation
    if name == "osmd":
        rate = smallest_rate(at.version, M, K, ALPHA, rounds, 0) / a_max
        return bounds.intrinsic_regret(at, rate, variation, (track.roots**2).max(axis=1))
    blocks = 2 ** (rounds.bit_length() - 1) if name == "adaptive-doubling-osmd" else rounds
    experts = num_experts(at.version, M, ALPHA, blocks)
    of = bounds.doubling_regret if name == "adaptive-doubling-osmd" else bounds.ensemble_regret
    return of(at, rounds, a_max, variation, experts)


def gradients_on_the_way(problem: Problem, num_rounds: int, step: float = 0.1) -> tuple[Floats, Floats]:
    """Return ||∇F_m(w)|| (W, M) and ||∇F(w)|| (W,) at 20 models on the path of gradient descent from 0."""
    n = problem.y.shape[1]
    hessians = problem.x.transpose(0, 2, 1) @ problem.x / n
    rights = (problem.y[:, None] @ problem.x)[:, 0] / n
    w, norms, means = np.zeros(problem.x.shape[2]), [], []
    for round in range(num_rounds):
        g = hessians @ w - rights
        if round % max(1, num_rounds // 20) == 0:
            norms.append(np.linalg.norm(g, axis=1))
            means.append(float(np.linalg.norm(g.mean(axis=0))))
        w = w - step * g.mean(axis=0)
    return np.array(norms), np.array(means)


def run_bounds(seed: int, num_rounds: int = T, quick: bool = False) -> Outcome:
    """Measure regrets, and compute their bounds; compute ζ² on the path of gradient descent.

    If `quick`, train for a tenth of the rounds.
    """
    num_rounds = num_rounds // 10 if quick else num_rounds
    cells: dict[Cell, float] = {}
    for sigma in SIGMAS:
        rng = np.random.default_rng(seed)
        problem = unlike_clients(rng, sigma, M)
        a_max = MARGIN * float(problem.initial_norms().max() / M) ** 2
        selectors = _selectors(seed, num_rounds, a_max)
        trials = [Trial(selector) for selector in selectors.values()]
        tracks = train(problem, trials, rng, clients_per_round=K, num_rounds=num_rounds)
        for (name, version), track in zip(selectors, tracks, strict=True):
            row, at = f"{name}, {version}, σ={sigma:g}", bounds.Setting(version, M, K, ALPHA)
            if (track.roots**2).max() > a_max:
                raise ValueError(f"{row}: an a exceeds ā, which the theorems exclude; raise MARGIN")
            # The track has the regret against the best p of each round, whose loss is known.
            own = float(track.regret[-1] + (track.roots.sum(axis=1) ** 2).sum() / K)
            any_p = float((track.roots**2).sum()) * M / (ALPHA * K)
            for against, comparator in comparators(track.roots, ALPHA / M).items():
                regret = own - comparator.losses
                if against == "best p":
                    if name != "osmd":
                        continue
                    rate = smallest_rate(version, M, K, ALPHA, num_rounds, 0) / a_max
                    bound = _bound(name, at, a_max, track, comparator)
                    bound += bounds.projection_error(at, rate, comparator.q, track.roots)
                else:
                    bound = _bound(name, at, a_max, track, comparator)
                cells[row, f"bound, {against}"] = math.log10(bound / regret)
            cells[row, "any p ≥ α/M"] = math.log10(any_p / track.regret[-1])
        zeta = bounds.heterogeneity(*gradients_on_the_way(problem, num_rounds), alpha=ALPHA)
        row = f"ζ², σ={sigma:g}"
        cells[row, "best fixed / uniform"] = zeta.fixed / zeta.uniform
        cells[row, "least / uniform"] = max(zeta.least, 0.0) / zeta.uniform
    return Outcome(cells)


EXPERIMENTS = (
    Experiment(
        name="osmd-bounds",
        title="the bounds of the regret beside the regret: log10 of their ratio",
        source=f"{PAPER}, Theorems 1, 3 and 4, Corollary 3; later version, Theorems 6, 8 and 10, section 4",
        run=run_bounds,
        claim="the regret is at most the bound, which grows as the root of T.",
        note="The problem of section F, printed rates and γ, ā = 10 times the largest a before training, so "
        "that no a exceeds it. 0 would be a tight bound, 6 one that is a million times too large. Bound: of "
        "the regret against the best p ≥ α/M of each round, against the best p of each round (with the error "
        "of the projection; for osmd only), and against the best constant p. any p ≥ α/M: a bound that holds "
        "for every p above the floor, however it is chosen, since then l_t(p) ≤ M/(αK) sum a. ζ²: on 20 "
        "models of the path of gradient descent instead of all models, the best fixed p ≥ α/M and the best p "
        "of each model, relative to uniform sampling; version 1 has no floor for the best fixed p. The "
        "theorems of the doubling trick are for blocks that start from the uniform p; here they start warm.",
        digits=2,
    ),
)
