"""Appendix G of the OSMD paper: all samplers on MNIST, and on KMNIST and Fashion-MNIST if their files exist.

`logistic_regression` has the problem and the training: M = 500 clients, K = 10 a round, T = 1000 rounds. The
paper uses batches of 5; batches of 1, which have noisier norms, are added here. The paper does not say how
many images balanced clients hold; here each holds 10.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.experiments.osmd.logistic_regression import (
    BALANCED,
    MakeInformed,
    SectionGRun,
    lipschitz_constants,
    section_g,
)
from benchmarks.experiments.regret import Oracle
from benchmarks.experiments.report import Cell, Curve, Experiment, Outcome, known_cells
from strategies.numerics.arrays import Floats
from strategies.selectors import Selector, create

if TYPE_CHECKING:
    from pathlib import Path

K, T = 10, 1000
ORACLE = "optimal (oracle)"

Ways = Mapping[str, Mapping[str, Any]]
"""Settings of `section_g` by their name in the columns."""

SKEWED_WAYS: Ways = {
    "batch 5": {},
    "batch 1": {"batch_size": 1},
    "batch 5, λ = 1/M": {"equal_weights": True},
}
BALANCED_WAYS: Ways = {
    "batch 5": {"holdings": BALANCED},
    "batch 1": {"holdings": BALANCED, "batch_size": 1},
}


def _trials(seed: int, num_rounds: int, lipschitz: Floats) -> dict[str, MakeInformed]:
    """Return the rows; a selector that is not asked knows only the sizes before training."""

    def row(name: str, *, asked: bool = False, **settings: Any) -> MakeInformed:
        def make(sizes: Floats, norms: Floats) -> Selector:
            known = {"update_norms": norms} if asked else {}
            return create(
                name,
                sizes.size,
                client_sizes=sizes,
                clients_per_round=K,
                num_rounds=num_rounds,
                seed=seed,
                **known,
                **settings,
            )

        return make

    def oracle(sizes: Floats, norms: Floats) -> Selector:
        selector = Oracle(sizes.size, K, seed, 0)
        selector.set_sizes(np.arange(sizes.size), sizes)
        return selector

    return {
        "uniform": row("uniform"),
        "md (fixed p ∝ λ)": row("md"),
        "lipschitz-is": row("lipschitz-is", lipschitz=lipschitz),
        "osmd": row("osmd"),
        "adaptive-osmd, base K": row("adaptive-osmd", expert_base="K"),
        "adaptive-osmd": row("adaptive-osmd", expert_base="K2"),
        "adaptive-osmd × 100": row("adaptive-osmd", expert_base="K2", learning_rate_multiplier=100.0),
        "adaptive-doubling-osmd": row("adaptive-doubling-osmd"),
        "mabs": row("mabs"),
        "vrb": row("vrb"),
        "avare": row("avare"),
        "avare, asked": row("avare", asked=True),
        "forecast": row("forecast"),
        "forecast, asked": row("forecast", asked=True),
        ORACLE: oracle,
    }


def run(
    seed: int, data: Path, ways: Ways = SKEWED_WAYS, step_size: float = 0.075, quick: bool = False
) -> Outcome:
    """Train with every selector in several ways; quick: a tenth of the rounds."""
    cells: dict[Cell, float] = {}
    losses: dict[str, dict[str, Curve]] = {}
    regrets: dict[str, dict[str, Curve]] = {}
    for way, settings in ways.items():
        history = _train(seed, data, step_size, T // 10 if quick else T, settings)
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
            if name != ORACLE  # its regret is 0, which a logarithmic axis cannot show
        }
    return Outcome(cells, losses | regrets)


def _train(
    seed: int, data: Path, step_size: float, num_rounds: int, settings: Mapping[str, Any]
) -> dict[str, tuple[Floats, list[SectionGRun]]]:
    """Return 20 rounds (20,), the last among them, and the state of each row after them, by name."""
    clients = {key: settings[key] for key in ("holdings", "num_clients") if key in settings}
    trials = _trials(seed, num_rounds, lipschitz_constants(seed, data, **clients))
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


KNOWN = known_cells(
    {
        "uniform": "; .354; .882; ; .533; .826",
        "md (fixed p ∝ λ)": ".055; .334; .888; .048; .338; .885",
        "adaptive-osmd": ".99; .353; .881; ; .431; .851",
        "adaptive-osmd × 100": ".56; .338; .887",
        "mabs": ".86; .346; .883",
        "vrb": ".99; .359; .878",
        "avare": ".23; .339; .887; 11.6",
        "avare, asked": ".11; .337; .888",
        "forecast": ".029; ; ; .050; ; ; .24",
        ORACLE: "0; .333; .889",
    },
    [f"{measure}, {way}" for way in SKEWED_WAYS for measure in ("regret", "loss", "accuracy")],
)

PAPER = "Zhao, Wang, Kolar, Adaptive Client Sampling in Federated Learning (the OSMD paper), appendix G"
NOTE = (
    "Regret is a ratio to that of uniform sampling; loss and accuracy are those at the end. × = factor on "
    "the printed rates. Their base is K², as in the paper's first version, unless the row says K, as in its "
    "later version, which is this project's default; K² learns faster, and was chosen after both had been "
    "seen. asked: the norms of all clients are known at the start. Every row trains its own model on the "
    "same mini-batches."
)
DATA_SETS = {"": ("MNIST", "mnist.npz", 0.075, KNOWN)} | {
    "-kmnist": ("KMNIST", "kmnist.npz", 0.075, {}),
    "-fashion-mnist": ("Fashion-MNIST", "fashion-mnist.npz", 0.03, {}),
}

EXPERIMENTS = tuple(
    Experiment(
        name=f"osmd-g{suffix}{form}",
        title=f"logistic regression on {name}, {sizes} sizes",
        source=f"{PAPER} and {figure}",
        run=partial(run, ways=ways, step_size=step_size),
        seeds=3,
        known=known if not form else {},
        claim=claim,
        note=NOTE,
        log_y=True,
        data=file,
    )
    for suffix, (name, file, step_size, known) in DATA_SETS.items()
    for form, sizes, figure, ways, claim in (
        (
            "",
            "skewed",
            "Figure 10",
            SKEWED_WAYS,
            "Adaptive-OSMD trains faster than uniform sampling, MABS, VRB and Avare on all data sets.",
        ),
        ("-balanced", "balanced", "Figure 11", BALANCED_WAYS, "all methods perform similarly."),
    )
)
