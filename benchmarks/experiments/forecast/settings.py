"""The experiment on further streams, with other M, K and T, where `forecast` was weak or not yet measured."""

from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.experiments.forecast.streams import (
    SELECTORS,
    MakeStream,
    Stream,
    drift,
    noise_of,
    regret_on_stream,
    sized,
    static,
)
from benchmarks.experiments.methods import Method
from benchmarks.experiments.osmd.least_squares import Trial, train_scaffold, unlike_clients
from benchmarks.experiments.report import Cell, Experiment, Outcome


class Setting(NamedTuple):
    """A stream and the size of its federation."""

    make: MakeStream  # function that makes the stream
    num_clients: int  # M, K and T
    clients_per_round: int
    num_rounds: int


def common(rng: np.random.Generator, m: int, t: int, knots: tuple[float, ...], noise: float = 0) -> Stream:
    """Multiply static norms by a factor common to all clients.

    The logarithm of the factor is linear between the values `knots`, at equally spaced rounds. Each norm is
    also multiplied by lognormal noise.
    """
    sizes, norms = static(rng, m, t)
    factor = np.exp(np.interp(np.linspace(0, len(knots) - 1, t), np.arange(len(knots)), np.log(knots)))
    return Stream(sizes, norms * factor[:, None] * rng.lognormal(0, noise, (t, m)))


def few_outweigh(rng: np.random.Generator, m: int, t: int, few: int, factor: float, noise: float) -> Stream:
    """Draw lognormal norms (σ = .3), one for each client, and multiply those of `few` clients by `factor`.

    The norms are constant over the rounds, except for lognormal noise with the standard deviation `noise`.
    """
    norms = rng.lognormal(0, 0.3, m)
    norms[rng.choice(m, few, replace=False)] *= factor
    return Stream(np.ones(m), norms * rng.lognormal(0, noise, (t, m)))


def pareto(rng: np.random.Generator, m: int, t: int, clients: float, noise: float) -> Stream:
    """Return products of two Pareto numbers: a client's, and a client's and round's; inf stands for 1."""
    own = 1.0 if np.isinf(clients) else 1 + rng.pareto(clients, m)
    norms = np.broadcast_to(own, (t, m)) * (1.0 if np.isinf(noise) else 1 + rng.pareto(noise, (t, m)))
    return Stream(np.ones(m), norms)


SETTINGS = {
    "growth": Setting(partial(common, knots=(1, 1e3)), 100, 5, 500),
    "growth, noise .5": Setting(partial(common, knots=(1, 1e3), noise=0.5), 100, 5, 500),
    "up and down": Setting(partial(common, knots=(1, 50, 1, 50, 1)), 40, 3, 600),
    "three x100": Setting(partial(few_outweigh, few=3, factor=100, noise=0), 100, 5, 400),
    "three x100, noise .5": Setting(partial(few_outweigh, few=3, factor=100, noise=0.5), 100, 5, 400),
    "Pareto clients": Setting(partial(pareto, clients=1.3, noise=np.inf), 200, 10, 200),
    "Pareto noise": Setting(partial(pareto, clients=np.inf, noise=1.6), 50, 5, 300),
    "noise 1, few visits": Setting(noise_of(1), 400, 10, 100),
    "noise 2, few visits": Setting(noise_of(2), 400, 10, 100),
    "sizes exact, noise 1, few visits": Setting(sized(1, 1, 0), 400, 10, 100),
    "static, spread .3": Setting(partial(static, spread=0.3), 40, 2, 300),
    "static, spread 2": Setting(partial(static, spread=2.0), 300, 20, 200),
    "drift, K = 20": Setting(drift, 200, 20, 200),
}
SCAFFOLD = "SCAFFOLD, σ = 10"
COLUMNS = SELECTORS | {"adaptive-osmd x1000": Method("adaptive-osmd", {"learning_rate_multiplier": 1000.0})}


def run_settings(seed: int, quick: bool = False) -> Outcome:
    """Measure all selectors in all settings, and with SCAFFOLD. If `quick`, run a tenth of the rounds."""
    cells: dict[Cell, float] = {}
    for row, setting in SETTINGS.items():
        m, k, t = setting.num_clients, setting.clients_per_round, setting.num_rounds // (10 if quick else 1)
        stream = setting.make(np.random.default_rng(seed), m, t)
        regrets = {
            column: regret_on_stream(method.made(stream.sizes, k, seed, t), stream, k)
            for column, method in COLUMNS.items()
        }
        cells |= {(row, column): regret / regrets["uniform"] for column, regret in regrets.items()}
    m, k, t = 100, 5, 50 if quick else 500
    rng = np.random.default_rng(seed)
    problem = unlike_clients(rng, 10, m)
    trials = [Trial(method.made(m, k, seed, t)) for method in COLUMNS.values()]
    tracks = train_scaffold(problem, trials, rng, num_rounds=t)
    for column, track in zip(COLUMNS, tracks, strict=True):
        cells[SCAFFOLD, column] = float(track.regret[-1] / tracks[0].regret[-1])
    return Outcome(cells)


EXPERIMENTS = (Experiment(name="forecast-settings", run=run_settings, seeds=10),)
