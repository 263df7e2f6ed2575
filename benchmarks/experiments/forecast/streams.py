"""Synthetic streams of update norms, and the experiment that compares selectors with `forecast` on them.

A stream has the norm of every client in every round. The norms do not depend on the selection, so all
selectors meet the same norms. Selectors are compared by cumulative regret (`benchmarks.experiments.regret`).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.experiments.methods import OWN_DRAWS, Method
from benchmarks.experiments.regret import excess, feedback_of
from benchmarks.experiments.report import Experiment, Outcome
from strategies.numerics.arrays import Floats
from strategies.selectors import Selector

SPREAD = 1.0
"""Standard deviation of the logarithm of the norms that `static` returns. Most streams are made from these
norms."""


class Stream(NamedTuple):
    """The norms of all clients in all rounds."""

    sizes: Floats  # (M,) data sizes of the clients, > 0
    norms: Floats  # (T, M) ||g_m|| of each client in each round


MakeStream = Callable[[np.random.Generator, int, int], Stream]
"""A function that makes a stream from a source of randomness, M and T."""


def static(rng: np.random.Generator, m: int, t: int, spread: float = SPREAD) -> Stream:
    """Return norms that are lognormal over the clients, and constant over the rounds. Sizes are equal."""
    return Stream(np.ones(m), np.tile(rng.lognormal(0, spread, m), (t, 1)))


def changed(factor: Callable[[np.random.Generator, int, int], Floats]) -> MakeStream:
    """Return a function that multiplies the static norms by what `factor` returns: (T, M), (T, 1) or (M,)."""

    def stream(rng: np.random.Generator, m: int, t: int) -> Stream:
        sizes, norms = static(rng, m, t)
        return Stream(sizes, norms * factor(rng, m, t))

    return stream


def noise_of(spread: float) -> MakeStream:
    """Return a function that makes static norms, each multiplied by noise: exp(N(0, `spread`²))."""
    return changed(lambda rng, m, t: rng.lognormal(0, spread, (t, m)))


def some(factor: float, share: float, since: float) -> MakeStream:
    """Multiply the static norms of a share of the clients by a factor, from a share of the rounds on."""

    def factors(rng: np.random.Generator, m: int, t: int) -> Floats:
        found = np.ones((t, m))
        found[int(since * t) :, rng.choice(m, max(1, int(share * m)), replace=False)] = factor
        return found

    return changed(factors)


def sized(power: float, noise: float, own: float) -> MakeStream:
    """Return a function that makes norms which depend on the clients' data sizes.

    λ ||g|| is proportional to size^power times a lognormal factor for each client, and lognormal noise for
    each client and round, with the standard deviations `own` and `noise`.
    """

    def stream(rng: np.random.Generator, m: int, t: int) -> Stream:
        sizes = rng.lognormal(0, 1.5, m)
        r = sizes**power * rng.lognormal(0, own, m) * rng.lognormal(0, noise, (t, m))
        return Stream(sizes, r / sizes)

    return stream


def _turns(rng: np.random.Generator, m: int, t: int) -> Floats:
    turn = (np.arange(t) // 100 % 2 == 0)[:, None]
    return np.where((np.arange(m) < m // 2) == turn, 10.0, 1.0)


drift = changed(lambda rng, m, t: np.exp(rng.normal(0, 0.03, (t, m)).cumsum(axis=0)))
"""Multiplies each static norm by a factor whose logarithm is a random walk with steps N(0, .03²)."""
STREAMS: dict[str, MakeStream] = {
    "static": static,
    "common decay": changed(lambda rng, m, t: np.geomspace(1, 1e-3, t)[:, None]),
    "drift": drift,
    "a tenth jumps": some(30, share=0.1, since=0.5),
    "noise 1": noise_of(1),
    "noise 2": noise_of(2),
    "sizes uninformative": sized(0, 0, 1.5),
    "sizes anti-informative": sized(-1, 0, 0.5),
    "sizes exact, noise 1": sized(1, 1, 0),
    "all equal": lambda rng, m, t: Stream(np.ones(m), np.ones((t, m))),
    "everybody x100": changed(lambda rng, m, t: np.where(np.arange(t)[:, None] < t // 2, 1.0, 100.0)),
    "half-half cycle": changed(_turns),  # the halves take turns of 100 rounds
    "80 % zeros": some(0, share=0.8, since=0),
}


def regret_on_stream(selector: Selector, stream: Stream, clients_per_round: int) -> float:
    """Return the cumulative regret >= 0 of a selector on a stream, in the unit of its squared norms."""
    r = stream.norms * (stream.sizes / stream.sizes.sum())
    regret = 0.0
    for round, norms in enumerate(stream.norms, start=1):
        regret += excess(r[round - 1], selector.probabilities)
        selection = selector.select(round)
        selector.update(round, selection, feedback_of(norms[selection.clients]))
    return regret / clients_per_round


def make_stream(name: str, seed: int, num_clients: int = 100, num_rounds: int = 1000) -> Stream:
    """Return the stream that is called `name` in `STREAMS`, drawn with a seed."""
    return STREAMS[name](np.random.default_rng(seed), num_clients, num_rounds)


SELECTORS = {
    **{name: Method(name) for name in ("uniform", "md", "avare", "mabs", "vrb", "k-vib")},
    # The best of six on seed 100, in the mean of logs.
    "k-vib, γ x.001": Method("k-vib", {"gamma_multiplier": 0.001}),
    "adaptive-osmd x100": Method("adaptive-osmd", {"learning_rate_multiplier": 100.0}),
    "forecast": Method("forecast", OWN_DRAWS),
}
"""Column of the table -> method."""


def run_streams(seed: int, num_rounds: int = 1000) -> Outcome:
    """Measure all `SELECTORS` on every stream."""
    k, cells = 5, {}
    for stream_name in STREAMS:
        stream = make_stream(stream_name, seed, num_rounds=num_rounds)
        regrets = {
            column: regret_on_stream(method.made(stream.sizes, k, seed, num_rounds), stream, k)
            for column, method in SELECTORS.items()
        }
        # If all norms are equal, uniform sampling has no regret to divide by. Then the cell is the loss
        # divided by the least possible loss.
        r = stream.norms * (stream.sizes / stream.sizes.sum())
        least = float((r.sum(axis=1) ** 2).sum()) / k
        for column, regret in regrets.items():
            equal = regrets["uniform"] < 1e-9 * least
            cells[stream_name, column] = 1 + regret / least if equal else regret / regrets["uniform"]
    return Outcome(cells)


EXPERIMENTS = (Experiment(name="forecast-streams", run=run_streams, seeds=3),)
