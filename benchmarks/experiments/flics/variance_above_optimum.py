"""Theorem 2 of the FLICS paper, measured: the variance of FLICS compared with the offline optimum's."""

import numpy as np
import numpy.typing as npt

from benchmarks.experiments.flics.availability import PROCESSES
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from strategies.numerics.arrays import Floats
from strategies.numerics.budget_allocation import water_fill


def fill_rounds(targets: npt.ArrayLike, available: npt.ArrayLike, budgets: npt.ArrayLike) -> Floats:
    """Return the rates r(t) of FLICS (T, G) for weights p (G,), available clients (T, G) and budgets (T,)."""
    a = np.asarray(available, dtype=np.float64)
    rates, counts = np.zeros(a.shape), np.zeros(a.shape[1])
    for t, budget in enumerate(np.asarray(budgets, dtype=np.float64)):
        rates[t] = water_fill(targets, counts, float(budget), a[t])
        counts += rates[t]
    return rates


def offline_participation(targets: npt.ArrayLike, available: npt.ArrayLike, budgets: npt.ArrayLike) -> Floats:
    """Return the solution s (G,) of the paper's problem OffVar (eq. 8): the best mean rates of the groups.

    These are the mean rates with the least sum_j p_j²/s_j, if all rounds are known beforehand; at most 16 of
    the weights p (G,) are not 0. The paper's OffVar also demands that every s_j is at least a constant r_min.
    Here neither OffVar nor FLICS has r_min.

    The solution is exact, but all sets of groups are enumerated. Mean rates s are possible if, for all sets A
    of groups, ``sum_{j in A} s_j <= f(A)`` with ``f(A) = (1/T) sum_t min(k(t), sum_{j in A} a_j(t))``. These
    s are a polymatroid, on which sum_j p_j²/s_j is least if the sorted levels s_j/p_j are lexicographically
    largest (Fujishige, "Lexicographically optimal base of a polymatroid", 1980). Let A be the set with the
    lowest f(A)/p(A): this ratio is the level of all groups in A. The others' levels follow in the same way,
    with A's fixed.
    """
    p, a, k = (np.asarray(each, dtype=np.float64) for each in (targets, available, budgets))
    best, wanted = np.zeros(p.size), np.flatnonzero(p)
    if wanted.size > 16:
        raise ValueError(f"targets has {wanted.size} groups with p > 0: must be at most 16")
    sets = np.arange(2**wanted.size)
    members = (sets[:, None] >> np.arange(wanted.size)) & 1
    weight = members @ p[wanted]
    most = np.zeros(sets.size)
    for rows in np.array_split(np.arange(len(a)), 1 + a.shape[0] * sets.size // 2**21):
        most += np.minimum(k[rows, None], a[np.ix_(rows, wanted)] @ members.T).sum(axis=0)
    most /= len(a)
    known = 0
    while known < sets[-1]:
        larger = sets[(sets & known == known) & (sets != known)]
        levels = (most[larger] - most[known]) / (weight[larger] - weight[known])
        lowest = larger[np.argmin(levels)]
        new = wanted[members[lowest & ~known].astype(np.bool_)]
        best[new] = p[new] * levels.min()
        known = int(lowest)
    return best


NUM_GROUPS, K = 10, 20
MEANS = np.geomspace(1, 100, NUM_GROUPS)
"""Mean number of available clients of each group. The process "trace" uses only their ratios.

With the paper's uniform availability, each group always has at least as many available clients as its quota K
p_j, which is 2 for K = 20. Here the process "uniform" has 1 client of the first group in every round, and 1
or 2 of the second. In `table_1`, "uniform" has enough clients for the quotas.
"""
SHARES = np.full(NUM_GROUPS, 1 / NUM_GROUPS)
"""The groups' weights p in the objective, which sum to 1."""

HORIZONS = (10, 50, 200, 1000, 4000)
"""Numbers of rounds T for which the table has a column."""


def variance(participation: Floats, groups: Floats) -> float:
    """Return sum_j p_j²/s_j (eq. 5) over the groups j with ``groups[j] > 0``; `participation` is s (G,).

    s_j is the mean over the rounds of the expected number of clients of group j that take part; 0 gives
    infinity.
    """
    served = groups > 0
    with np.errstate(divide="ignore"):
        return float((SHARES[served] ** 2 / participation[served]).sum())


def run_variance(seed: int, horizons: tuple[int, ...] = HORIZONS) -> Outcome:
    """Measure by how many percent each policy's variance is above that of the offline optimum."""
    horizon = horizons[-1]
    points = np.unique(np.geomspace(horizons[0], horizon, 14).round().astype(int))
    cells: dict[Cell, float] = {}
    curves: dict[str, dict[str, Curve]] = {}
    for number, (name, process) in enumerate(PROCESSES.items()):
        rng = np.random.default_rng((seed, number))
        a = process(MEANS, horizon, rng).astype(np.float64)
        for label, k in (
            (f"K = {K}", np.full(horizon, float(K))),
            ("K(t)", rng.integers(K // 4, 7 * K // 4, horizon, endpoint=True).astype(np.float64)),
        ):
            policies = {
                "FLICS": fill_rounds(SHARES, a, k),
                "naive-group": np.minimum(k[:, None] * SHARES, a),
                "uniform": a * np.minimum(1, k / np.maximum(a.sum(axis=1), 1))[:, None],
            }

            row = f"{name}, {label}"
            over_time = []
            for rounds in sorted({*horizons, *points.tolist()}):
                best = offline_participation(SHARES, a[:rounds], k[:rounds])
                excess = {
                    policy: 100 * (variance(r[:rounds].mean(axis=0), best) / variance(best, best) - 1)
                    for policy, r in policies.items()
                }
                if rounds in horizons:
                    cells[row, f"T = {rounds}"] = excess["FLICS"]
                if rounds in points:
                    over_time.append(max(excess["FLICS"], 1e-6))
            for policy in ("naive-group", "uniform"):
                cells[row, f"{policy}, T = {horizon}"] = excess[policy]
            curves.setdefault(label, {})[name] = Curve(points.astype(float), np.array(over_time))
    return Outcome(cells, curves)


BETA = 1.0
"""β, the number at which FLICS starts to count the participants of a group, see `toss`. With β = 0, σ_T (the
mean over t of sum p²/ŝ(t)) is infinite if a group misses round 1."""


def toss(a: Floats, k: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Let available clients of group j take part with probability r_j/a_j, where r are the rates of FLICS.

    `a` (T, G) are the available clients of each group, `k` (T,) the budgets. Returns r̂(t) (T, G), the number
    of participants of each group, and ŝ(t) = (β + r̂(1) + ... + r̂(t))/t.
    """
    counts, took_part, estimates = np.full(a.shape[1], BETA), np.empty(a.shape), np.empty(a.shape)
    for t, (here, budget) in enumerate(zip(a, k, strict=True)):
        rates = water_fill(SHARES, counts, budget, here)
        chances = np.divide(rates, here, out=np.zeros(rates.size), where=here > 0)
        took_part[t] = rng.binomial(here.astype(np.int64), np.minimum(1.0, chances))
        counts = counts + took_part[t]
        estimates[t] = counts / (t + 1)
    return took_part, estimates


def run_sigma(seed: int, horizons: tuple[int, ...] = HORIZONS) -> Outcome:
    """Measure by how many percent σ_T of FLICS is above the offline optimum; see `variance`."""
    cells: dict[Cell, float] = {}
    for number, (name, process) in enumerate(PROCESSES.items()):
        a = process(MEANS, horizons[-1], np.random.default_rng((seed, number))).astype(np.float64)
        k = np.full(horizons[-1], float(K))
        _, estimates = toss(a, k, np.random.default_rng((seed, number, 1)))
        terms = SHARES**2 / estimates
        for rounds in horizons:
            best = offline_participation(SHARES, a[:rounds], k[:rounds])
            served = best > 0  # the groups that were available in some round up to T
            sigma = terms[:rounds, served].sum(axis=1).mean()
            cells[name, f"T = {rounds}"] = 100 * (sigma / variance(best, best) - 1)
    return Outcome(cells, {})


EXPERIMENTS = (
    Experiment(
        name="flics-variance",
        quick={"horizons": HORIZONS[:-1]},
        run=run_variance,
        x="rounds T",
        y="excess over the offline optimum, %",
        log_y=True,
    ),
    Experiment(name="flics-sigma", run=run_sigma, quick={"horizons": HORIZONS[:-1]}),
)
