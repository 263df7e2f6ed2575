"""DELTA's synthetic experiments: a toy with three clients, and variances of the aggregate."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.experiments.report import Cell, Experiment, Outcome
from strategies.numerics.arrays import Floats
from strategies.selectors import Feedback, Selection, Selector, create

METHODS = {"FedAvg": "uniform", "IS": "fed-is", "DELTA": "delta"}
"""Row of the tables -> name of the selector."""
NO_FLOOR = 1e-9
"""The setting `floor` where the paper has none: it must be positive, and is too small to change a result."""


def _settings(name: str, **settings: Any) -> dict[str, Any]:
    """Return those of the settings that the selector `name` has. `uniform` has only `replacement`."""
    return {key: value for key, value in settings.items() if name != "uniform" or key == "replacement"}


def reports_of(g: Floats, variances: Floats | float = 0.0) -> dict[str, Floats]:
    """Return the reports of M clients with the updates g (M, d), and the variances that they report."""
    diversity = np.linalg.norm(g - g.mean(axis=0), axis=1)
    return {
        "update_norm": np.linalg.norm(g, axis=1),
        "diversity": diversity,
        "gradient_variance": np.full(len(g), variances),
    }


def poll_and_select(selector: Selector, round: int, reports: Mapping[str, Floats]) -> Selection:
    """Poll the candidates, if the selector polls, and select. `reports` has the answers of all clients."""
    asked = selector.candidates(round)
    if asked is None:
        return selector.select(round)
    told = {kind: reports[kind][asked] for kind in selector.polls_for}
    return selector.select(round, candidates=asked, reports=told)


def sampling_distribution(name: str, g: Floats, **settings: Any) -> Floats:
    """Return the probabilities q (M,) with which a selector draws if it knows the updates g (M, d).

    A selection has only the probabilities of its clients, so rounds are played until all have been selected.
    """
    m, q = len(g), np.zeros(len(g))
    selector = create(name, m, clients_per_round=m - 1, **_settings(name, **settings))
    reports, round = reports_of(g), 0
    while (q == 0).any():
        selection = poll_and_select(selector, round, reports)
        q[selection.clients] = selection.probabilities
        round += 1
    return q


def estimate_variance(g: Floats, q: Floats, k: int) -> float:
    """Return E ||aggregate - mean||² exactly, for k draws of the updates g (M, d) from q (M,).

    Draws are with replacement, and one of client m has the weight 1/(M k q_m), so the aggregate is unbiased.
    """
    mean, m = g.mean(axis=0), len(g)
    return float((((g**2).sum(axis=1) / q).sum() / m**2 - mean @ mean) / k)


# The toy of appendix B.1.

TOY = np.array([[2.0, 2.0], [4.0, 1.0], [6.0, -3.0]])
"""The gradients (3, 2) of the three clients at the model (1, 1)."""
PAIRS = {"FedAvg": [0, 1], "IS": [1, 2], "DELTA": [0, 2]}
"""The pair that the paper assumes for each method: the first two clients, the two of largest norm, and the
two of greatest diversity."""


def _successive(q: Floats) -> dict[tuple[int, int], float]:
    """Return the probability of each ordered pair of two successive draws from q without replacement."""
    return {(i, j): q[i] * q[j] / (1 - q[i]) for i, j in itertools.permutations(range(q.size), 2)}


def _distance(estimate: Floats) -> float:
    return float(np.linalg.norm(estimate - TOY.mean(axis=0)))


def run_toy(seed: int, num_rounds: int = 2000) -> Outcome:
    """Measure how far aggregates of two of the three clients are from the mean of all three."""
    mean = TOY.mean(axis=0)
    cells: dict[Cell, float] = {}
    for label, name in METHODS.items():
        q = sampling_distribution(name, TOY, floor=NO_FLOOR)
        expected, bias = 0.0, -mean
        for draw, chance in _successive(q).items():
            expected += chance * _distance(TOY[list(draw)].mean(axis=0))
            bias = bias + chance * sum(TOY[i] / (3 * 2 * q[i]) for i in draw)
        errors = {
            replacement: _errors(name, TOY, 2, seed, num_rounds, replacement=replacement, floor=NO_FLOOR)
            for replacement in (True, False)
        }
        cells |= {
            (label, "its pair, plain mean"): _distance(TOY[PAIRS[label]].mean(axis=0)),
            (label, "plain mean, expected"): float(expected),
            (label, "MSE"): estimate_variance(TOY, q, 2),
            (label, "MSE measured"): float((errors[True] ** 2).sum(axis=1).mean()),
            (label, "MSE w/o repl."): float((errors[False] ** 2).sum(axis=1).mean()),
            (label, "bias w/o repl."): float(np.linalg.norm(errors[False].mean(axis=0))),
            (label, "bias of 1/(Kp) w/o repl."): float(np.linalg.norm(bias)),
            (label, "the same, %"): 100 * float(np.linalg.norm(bias) / np.linalg.norm(mean)),
        }
    return Outcome(cells)


def _errors(name: str, g: Floats, k: int, seed: int, num_rounds: int, **settings: Any) -> Floats:
    """Return the aggregate minus the mean of the updates g (M, d) in each round (T, d)."""
    selector = create(name, len(g), clients_per_round=k, seed=seed, **_settings(name, **settings))
    reports, estimates = reports_of(g), []
    for round in range(num_rounds):
        selection = poll_and_select(selector, round, reports)
        estimates.append(selection.weights @ g[selection.clients])
    errors: Floats = np.array(estimates) - g.mean(axis=0)
    return errors


# The variance of the aggregate.


def updates_with_common_part(
    rng: np.random.Generator, num_clients: int = 50, dimension: int = 20
) -> dict[str, Floats]:
    """Return the updates (M, d) of each case: each client's own part plus a part common to all clients.

    The norms of an own part are about sqrt(d), except in "heavy-tailed"; that of the common part is a
    multiple.
    """
    own = rng.normal(size=(num_clients, dimension))
    heavy = own * rng.lognormal(0, 1, (num_clients, 1)) + 1
    return {f"common {ratio:g}": own + ratio for ratio in (0, 0.5, 1, 2, 3)} | {"heavy-tailed": heavy}


def run_variance(seed: int, num_rounds: int = 2000) -> Outcome:
    """Measure the variance of the aggregate of 5 of 50 clients, relative to uniform sampling."""
    m, k = 50, 5
    cases = updates_with_common_part(np.random.default_rng(seed), m)
    heavy = cases["heavy-tailed"]
    cells: dict[Cell, float] = {}
    for row, g in cases.items():
        uniform = estimate_variance(g, np.full(m, 1 / m), k)
        for label in ("IS", "DELTA"):
            for column, floor in ((label, NO_FLOOR), (f"{label}, floor 0.1", 0.1)):
                q = sampling_distribution(METHODS[label], g, floor=floor)
                cells[row, column] = estimate_variance(g, q, k) / uniform
    ways: dict[str, dict[str, Any]] = {
        "draws": {},
        "w/o repl.": {"replacement": False},
        "fixed size": {"design": "systematic"},
    }
    for way, settings in ways.items():
        errors = _errors("fed-is", heavy, k, seed, num_rounds, **settings)
        rmse = np.sqrt((errors**2).sum(axis=1).mean())
        cells["heavy-tailed", f"rel. RMSE, {way}"] = float(rmse / np.linalg.norm(heavy.mean(axis=0)))
    return Outcome(cells)


def run_floor(seed: int, num_clients: int = 200) -> Outcome:
    """Let `prac-is` learn scores of which a tenth are near 0, with and without a floor."""
    m, rng = num_clients, np.random.default_rng(seed)
    scores = rng.lognormal(0, 1, m)
    scores[: m // 10] *= 1e-6
    missing = np.full(m, np.nan)
    told = Feedback(scores, missing, missing, missing, np.ones(m, dtype=np.bool_))
    cells: dict[Cell, float] = {}
    for row, floor in (("all equal", 1.0), ("without floor", NO_FLOOR), ("floor 0.1", 0.1)):
        selector = create("prac-is", m, clients_per_round=m, floor=floor, seed=seed)
        selector.update(0, selector.select(0), told)
        weights = 1 / (m * selector.probabilities)
        cells[row, "effective sample size"] = float(weights.sum() ** 2 / (weights**2).sum())
        cells[row, "log10 largest weight"] = float(np.log10(weights.max()))
    return Outcome(cells)


EXPERIMENTS = (
    Experiment(name="delta-toy", run=run_toy, seeds=3),
    Experiment(name="delta-variance", run=run_variance),
    Experiment(name="delta-floor", run=run_floor, digits=1, quick={"num_clients": 50}),
)
