"""The synthetic experiments of the OSMD paper: appendix F, and SCAFFOLD from appendix E of the later version.

Unless an experiment says otherwise, there are M = 100 clients of equal weight, K = 5 draws a round,
mini-batches of 10 samples, the step size 0.1, α = 0.4, and T = 1000 rounds; the paper does not give T. Unless
a row says "printed γ", the rate γ of the experts' weights is the scale-free one. Before training, clients
report the norms of their gradients over all their samples, except in rows "cold" and with SCAFFOLD.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import numpy as np

from benchmarks.experiments.methods import OWN_DRAWS
from benchmarks.experiments.osmd.least_squares import (
    Problem,
    Track,
    Trial,
    one_feature_each,
    train,
    train_scaffold,
    unlike_clients,
)
from benchmarks.experiments.osmd.section_f_selectors import (
    M,
    Make,
    Maker,
    T,
    make_authors,
    make_f1,
    make_f2,
    make_f3,
    make_f4,
    make_scaffold,
)
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from strategies.numerics.arrays import Floats
from strategies.selectors import Selector

SIGMAS = (1.0, 3.0, 10.0)
STEP_SIZES = (1.0, 0.5, 0.1, 0.05, 0.01)


def _regret(track: Track, first: Track) -> float:
    return float(track.regret[-1] / first.regret[-1])


def _loss(track: Track, first: Track) -> float:
    return float(track.loss[-1] / first.loss[-1])


def _error(track: Track, first: Track) -> float:
    return float(track.error[-1] / first.error[-1])


def _loss_all_rounds(track: Track, first: Track) -> float:
    return float(np.exp(np.log(track.loss / first.loss).mean()))


REGRET_AND_LOSS = {"regret": _regret, "final loss": _loss}


def compare(
    seed: int,
    num_rounds: int = T,
    *,
    make: Make,
    measures: Mapping[str, Callable[[Track, Track], float]] = REGRET_AND_LOSS,
    training: Callable[..., list[Track]] = train,
    spread: Literal["variance", "std"] = "variance",
) -> Outcome:
    """Run a comparison on the problem of appendix F for every σ in `SIGMAS`.

    `make` makes the selectors, and `training` trains with them. `measures` are the columns: name -> function
    of the row's track and the first row's track.
    """
    tracks: dict[float, dict[str, Track]] = {}
    for sigma in SIGMAS:
        rng = np.random.default_rng(seed)
        problem = unlike_clients(rng, sigma, M, spread=spread)
        selectors = make(Maker(seed, num_rounds), problem)
        trials = [Trial(selector) for selector in selectors.values()]
        results = training(problem, trials, rng, num_rounds=num_rounds)
        tracks[sigma] = dict(zip(selectors, results, strict=True))
    cells: dict[Cell, float] = {}
    for name, measure in measures.items():
        for sigma, rows in tracks.items():
            first = next(iter(rows.values()))
            for row, track in rows.items():
                cells[row, f"{name}, σ={sigma:g}"] = measure(track, first)
    return Outcome(cells, _curves({f"σ = {sigma:g}": rows for sigma, rows in tracks.items()}))


def _curves(tracks: Mapping[str, Mapping[str, Track]]) -> dict[str, dict[str, Curve]]:
    """Return the panels of a figure like the paper's: training losses first, then cumulative regrets."""
    panels = {}
    for title, series in (("training loss", "loss"), ("cumulative regret", "regret")):
        for setting, rows in tracks.items():
            panels[f"{title}, {setting}"] = {
                row: _thinned(getattr(track, series))
                for row, track in rows.items()
                if getattr(track, series)[0] > 0  # a logarithmic axis cannot show the oracle's regret of 0
            }
    return panels


def _thinned(y: Floats, points: int = 50) -> Curve:
    """Return a curve of about `points` values of y (T,), at equally spaced rounds that include the last."""
    rounds = np.arange(y.size, 0, -max(1, y.size // points))[::-1]
    return Curve(rounds.astype(np.float64), y[rounds - 1])


def run_f5(seed: int, num_rounds: int = T) -> Outcome:
    """Run F.5: compare with `lipschitz-is`, which draws in proportion to the Lipschitz constants.

    Each selector is trained with all `STEP_SIZES`; its result is the one with the least final loss.
    """

    def make(new: Maker, problem: Problem) -> Mapping[str, Selector]:
        asked = problem.initial_norms()
        return {
            "lipschitz-is": new("lipschitz-is", lipschitz=(problem.x**2).sum(axis=2).mean(axis=1)),
            "adaptive-osmd": new.adaptive(1, asked),
            "adaptive-osmd × 100": new.adaptive(100, asked),
            "forecast, cold": new("forecast", **OWN_DRAWS),
            "optimal (oracle)": new.oracle(0),
        }

    tracks: dict[str, dict[str, Track]] = {}
    losses: dict[Cell, float] = {}
    regrets: dict[Cell, float] = {}
    sizes: dict[Cell, float] = {}
    for nu in SIGMAS:
        rng = np.random.default_rng(seed)
        problem = one_feature_each(rng, nu, M)
        trials = [
            (row, Trial(selector, step))
            for step in STEP_SIZES
            for row, selector in make(Maker(seed, num_rounds), problem).items()
        ]
        results = train(problem, [trial for _, trial in trials], rng, num_rounds=num_rounds)
        best: dict[str, Track] = {}
        for (row, trial), track in zip(trials, results, strict=True):
            if row not in best or track.loss[-1] < best[row].loss[-1]:
                best[row], sizes[row, f"step size, ν={nu:g}"] = track, trial.step_size
        for row, track in best.items():
            losses[row, f"log10 loss, ν={nu:g}"] = math.log10(track.loss[-1] / track.loss[0])
            regrets[row, f"regret, ν={nu:g}"] = _regret(track, best["lipschitz-is"])
        tracks[f"ν = {nu:g}"] = best
    return Outcome({**losses, **regrets, **sizes}, _curves(tracks))


def run_f6(seed: int, num_rounds: int = T) -> Outcome:
    """Run F.6: measure how ā (the largest a of a round), the sum of ā², TV and the regret grow."""
    cells: dict[Cell, float] = {}
    panels: dict[str, dict[str, Curve]] = {
        name: {} for name in ("ā", "sum of ā²", "total variation", "cumulative regret")
    }
    for sigma in SIGMAS:
        rng = np.random.default_rng(seed)
        problem = unlike_clients(rng, sigma, M)
        new, asked = Maker(seed, num_rounds), problem.initial_norms()
        trials = {"": Trial(new.adaptive(1, asked)), ", × 100": Trial(new.adaptive(100, asked))}
        tracks = train(problem, list(trials.values()), rng, num_rounds=num_rounds)
        for how, track in zip(trials, tracks, strict=True):
            row = f"σ = {sigma:g}{how}"
            largest = (track.roots**2).max(axis=1)
            best = track.roots / track.roots.sum(axis=1, keepdims=True)
            steps = np.abs(np.diff(best, axis=0)).sum(axis=1)
            variation = np.append(np.nan, steps.cumsum())  # there is no round before round 1
            series = (largest, (largest**2).cumsum(), variation, track.regret)
            tenth = max(1, num_rounds // 10)
            cells[row, "ā, last tenth / first"] = float(largest[-tenth:].mean() / largest[:tenth].mean())
            for panel, y in zip(panels, series, strict=True):
                panels[panel][row] = _thinned(y)
                if panel != "ā":
                    cells[row, f"{panel}: power of t"] = math.log2(y[-1] / y[num_rounds // 2 - 1])
            cells[row, "variation a round"] = float(steps.mean())
    return Outcome(cells, panels)


_experiment = partial(Experiment, log_y=True, seeds=20)

EXPERIMENTS = (
    _experiment("osmd-f1", partial(compare, make=make_f1)),
    _experiment("osmd-f2", partial(compare, make=make_f2)),
    _experiment("osmd-f-std", partial(compare, make=make_authors, spread="std")),
    _experiment(
        "osmd-f-authors",
        partial(compare, make=make_authors, spread="std", training=partial(train, summed=True)),
    ),
    _experiment("osmd-f3", partial(compare, make=make_f3)),
    _experiment("osmd-f4", partial(compare, make=make_f4, measures=REGRET_AND_LOSS | {"error": _error})),
    _experiment("osmd-f5", run_f5, seeds=10),
    _experiment("osmd-f6", run_f6),
    _experiment(
        "osmd-scaffold",
        partial(
            compare,
            make=make_scaffold,
            measures=REGRET_AND_LOSS | {"loss, all rounds": _loss_all_rounds},
            training=train_scaffold,
        ),
    ),
)
