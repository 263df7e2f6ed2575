"""The experiments of appendix G of the OSMD paper: all samplers on MNIST, KMNIST and Fashion-MNIST.

The paper uses mini-batches of 5 images; mini-batches of 1 image, which make the norms noisier, are added
here. Balanced sizes are 10 images; the paper does not give this number. a is λ² ||g||² of a client, and ā the
bound of all a that the learning rates of the OSMD family depend on.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiments.methods import OWN_DRAWS
from benchmarks.experiments.osmd.logistic_regression import (
    BALANCED,
    MakeInformed,
    SectionGRun,
    lipschitz_constants,
    section_g,
)
from benchmarks.experiments.regret import Oracle
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome
from strategies.numerics.arrays import Floats
from strategies.selectors import Selector, create

K, T = 10, 1000
ORACLE = "optimal (oracle)"

Ways = Mapping[str, Mapping[str, Any]]
"""Ways to train: name in the columns of the table -> arguments of `section_g`."""

SKEWED_WAYS: Ways = {"batch 5": {}, "batch 1": {"batch_size": 1}, "batch 5, λ = 1/M": {"equal_weights": True}}
BALANCED_WAYS: Ways = {"batch 5": {"holdings": BALANCED}, "batch 1": {"holdings": BALANCED, "batch_size": 1}}


def _trials(seed: int, num_rounds: int, lipschitz: Floats) -> dict[str, MakeInformed]:
    """Return the rows of the table: label -> function that makes the row's selector.

    A selector with "asked" in its label knows all clients' norms at the initial model, over all their images;
    in the OSMD family these norms fix ā, as in appendix C.3. The others know only the data sizes, and
    ``lipschitz-is`` the constants `lipschitz` (M,). Without "asked", ā is the largest a seen so far; with the
    doubling trick that of the block before, so in version v1 asking would change nothing.
    """
    new = partial(create, clients_per_round=K, num_rounds=num_rounds, seed=seed)

    def row(name: str, *, norms_known: bool = False, **settings: Any) -> MakeInformed:
        def make(sizes: Floats, norms: Floats) -> Selector:
            known: dict[str, Any] = {"update_norms": norms} if norms_known else {}
            return new(name, sizes.size, client_sizes=sizes, **known, **settings)

        return make

    def knowing_norms(name: str) -> MakeInformed:
        make = row(name, rates="v1", ask_norms=True)

        def informed(sizes: Floats, norms: Floats) -> Selector:
            selector = make(sizes, norms)
            selector.learn_norms(np.arange(sizes.size), norms)
            return selector

        return informed

    def oracle(sizes: Floats, norms: Floats) -> Selector:
        selector = Oracle(sizes.size, K, seed, 0)
        selector.set_sizes(np.arange(sizes.size), sizes)
        return selector

    return {
        "uniform": row("uniform"),
        "md (fixed p ∝ λ)": row("md"),
        "lipschitz-is": row("lipschitz-is", lipschitz=lipschitz),
        "osmd, v2": row("osmd", rates="v2"),
        "adaptive-osmd, v2": row("adaptive-osmd", rates="v2"),
        "adaptive-osmd": row("adaptive-osmd", rates="v1"),
        "adaptive-osmd × 100": row("adaptive-osmd", rates="v1", learning_rate_multiplier=100.0),
        "adaptive-doubling-osmd, v2": row("adaptive-doubling-osmd", rates="v2"),
        "adaptive-doubling-osmd": row("adaptive-doubling-osmd", rates="v1"),
        "osmd, asked": knowing_norms("osmd"),
        "adaptive-osmd, asked": knowing_norms("adaptive-osmd"),
        "mabs": row("mabs"),
        "vrb": row("vrb"),
        "avare": row("avare"),
        "avare, asked": row("avare", norms_known=True),
        "forecast": row("forecast", **OWN_DRAWS),
        "forecast, asked": row("forecast", **OWN_DRAWS, norms_known=True),
        ORACLE: oracle,
    }


def _authors_trials(seed: int, num_rounds: int, lipschitz: Floats) -> dict[str, MakeInformed]:
    """Return the rows of the authors' setting: some rows of `_trials`, and Adaptive-OSMD with a fixed ā.

    ā is the largest a before training. In most rows it is computed with the weights 1/M in place of λ.
    """
    new = partial(create, clients_per_round=K, num_rounds=num_rounds, seed=seed)

    def with_fixed_a_max(equal_weights: bool, **settings: Any) -> MakeInformed:
        def make(sizes: Floats, norms: Floats) -> Selector:
            shares = 1 / sizes.size if equal_weights else sizes / sizes.sum()
            a_max = float((shares * norms).max()) ** 2
            return new("adaptive-osmd", sizes.size, client_sizes=sizes, a_max=a_max, **settings)

        return make

    rows = _trials(seed, num_rounds, lipschitz)
    return {name: rows[name] for name in ("uniform", "md (fixed p ∝ λ)", "mabs", "vrb", "avare")} | {
        "adaptive-osmd, ā with 1/M": with_fixed_a_max(True, rates="v1"),
        "adaptive-osmd, ā with 1/M, v2": with_fixed_a_max(True),
        "adaptive-osmd, ā with 1/M, printed γ": with_fixed_a_max(True, rates="v1", gamma="printed"),
        "adaptive-osmd, ā with λ": with_fixed_a_max(False, rates="v1"),
        **{name: rows[name] for name in ("forecast", ORACLE)},
    }


def run(
    seed: int,
    data: Path,
    ways: Ways = SKEWED_WAYS,
    step_size: float = 0.075,
    num_rounds: int = T,
    rows: Callable[[int, int, Floats], dict[str, MakeInformed]] = _trials,
) -> Outcome:
    """Train with every selector, in every way."""
    cells: dict[Cell, float] = {}
    losses: dict[str, dict[str, Curve]] = {}
    regrets: dict[str, dict[str, Curve]] = {}
    for way, settings in ways.items():
        history = _train(seed, data, step_size, num_rounds, settings, rows)
        end = {name: those[-1] for name, (_, those) in history.items()}
        for name, last in end.items():
            cells[name, f"regret, {way}"] = last.regret / end["uniform"].regret
            cells[name, f"loss, {way}"] = last.loss
            cells[name, f"accuracy, {way}"] = last.accuracy
        losses[f"training loss, {way}"] = {
            name: Curve(rounds, np.array([each.loss for each in those]))
            for name, (rounds, those) in history.items()
        }
        regrets[f"cumulative regret, {way}"] = {
            name: Curve(rounds, np.array([each.regret for each in those]))
            for name, (rounds, those) in history.items()
            if name != ORACLE  # a logarithmic axis cannot show the oracle's regret of 0
        }
    return Outcome(cells, losses | regrets)


def _train(
    seed: int,
    data: Path,
    step_size: float,
    num_rounds: int,
    settings: Mapping[str, Any],
    rows: Callable[[int, int, Floats], dict[str, MakeInformed]],
) -> dict[str, tuple[Floats, list[SectionGRun]]]:
    """Train with every selector; return row -> (20 equally spaced rounds, the states after them)."""
    clients = {key: settings[key] for key in ("holdings", "num_clients") if key in settings}
    trials = rows(seed, num_rounds, lipschitz_constants(seed, data, **clients))
    rounds: list[float] = []
    history: dict[str, list[SectionGRun]] = {name: [] for name in trials}

    def watch(round: int, runs: Mapping[str, SectionGRun]) -> None:
        rounds.append(round)
        for name, now in runs.items():
            history[name].append(now)

    section_g(
        trials,
        seed,
        data,
        step_size=step_size,
        num_rounds=num_rounds,
        watch=watch,
        every=num_rounds // 20,
        **settings,
    )
    return {name: (np.array(rounds), those) for name, those in history.items()}


DATA_SETS = {
    "": ("mnist.npz", 0.075),
    "-kmnist": ("kmnist.npz", 0.075),
    "-fashion-mnist": ("fashion-mnist.npz", 0.03),
}
"""End of an experiment's name -> (file, step size)."""
AUTHORS_WAYS: Ways = {"batch 1": {"batch_size": 1}}

EXPERIMENTS = tuple(
    Experiment(
        f"osmd-g{suffix}{form}",
        partial(run, ways=ways, step_size=step_size, rows=rows),
        seeds=seeds,
        log_y=True,
        data=file,
    )
    for suffix, (file, step_size) in DATA_SETS.items()
    for form, ways, rows, seeds in (
        ("", SKEWED_WAYS, _trials, 5),
        ("-balanced", BALANCED_WAYS, _trials, 5),
        ("-authors", AUTHORS_WAYS, _authors_trials, 10),
    )
)
