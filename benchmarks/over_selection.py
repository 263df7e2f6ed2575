"""The cost of over-selection: the first replies are not a random sample, so the aggregate is biased.

M clients differ in speed. The update u_m of client m is the sum of a common vector, a second common vector
times m's speed, and m's own random vector; each round adds noise. A round selects K clients and waits for
all, or selects more and continues with the first K replies. The two errors of the aggregate are relative to
its target Σ λ_m u_m: the bias ‖mean error over the rounds‖ / ‖Σ λ_m u_m‖, and the RMSE of a single round.
Both leave out the first quarter of the rounds, in which the response rates are learned.

Weights c_m are corrected for S' replies of S clients in three ways. ``equal`` (`Selector.finalize`)
multiplies each by S/S', which is unbiased if all clients reply in time equally often. ``rates``
(`ResponseRates`) divides each by the client's estimated response rate and normalises; ``not normalised`` does
not. If slow clients hardly ever reply in time, no weights remove the bias, because their updates are missing.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from strategies.numerics.arrays import Bools, Floats
from strategies.rounds.response_rates import ResponseRates
from strategies.selectors import Selection, create

M, K, D = 100, 10, 20
FACTORS = (1.0, 1.3, 1.5, 2.0)  # number of selected clients divided by K
WAYS = ("equal", "rates", "not normalised")
JITTER = 0.5  # standard deviation over the rounds of the logarithm of one client's reply time


class Row(NamedTuple):
    """The results of one over-selection factor and one way to weight replies: means over the seeds."""

    selector: str
    spread: float  # standard deviation over the clients of the logarithm of their typical reply time
    factor: float  # one of `FACTORS`
    way: str  # one of `WAYS`
    time: float  # duration of a round, divided by its duration with factor 1
    bias: float  # relative bias
    bias_error: float  # standard error of `bias`
    rmse: float  # relative RMSE
    rmse_error: float  # standard error of `rmse`


class Federation:
    """Clients that differ in speed, size and data.

    `spread` is the standard deviation over the clients of the logarithm of their typical reply time, >= 0.
    """

    def __init__(self, seed: int, spread: float) -> None:
        self.rng = np.random.default_rng(seed)
        self.sizes = self.rng.lognormal(0, 0.7, M)
        speed = self.rng.standard_normal(M)
        self.log_times = -spread * speed
        common, leaning = np.linalg.qr(self.rng.standard_normal((D, 2)))[0].T
        own = self.rng.standard_normal((M, D)) / math.sqrt(D)
        self.updates: Floats = common + speed[:, None] * leaning + own
        self.target: Floats = self.sizes @ self.updates / self.sizes.sum()

    def answer(self, selection: Selection) -> tuple[Bools, float]:
        """Return which of the S selected clients are the first K to reply, and the time of reply K."""
        noise = JITTER * self.rng.standard_normal(selection.clients.size)
        times = np.exp(self.log_times[selection.clients] + noise)
        last = np.sort(times)[min(K, times.size) - 1]
        return times <= last, float(last)


def play(seed: int, name: str, spread: float, factor: float, rounds: int) -> tuple[float, Floats]:
    """Return the mean duration of a round, and an array (len(WAYS), 2) of relative bias and relative RMSE.

    `factor` is the number of selected clients divided by K. The first quarter of the rounds does not count.
    """
    federation, rates = Federation(seed, spread), ResponseRates(M)
    plain = ResponseRates(M, normalised=False)
    selector = create(name, M, client_sizes=federation.sizes, clients_per_round=K, seed=seed)
    times, errors = [], np.zeros((rounds, len(WAYS), D))
    for round in range(rounds):
        selection = selector.select(round, budget=math.ceil(factor * K))
        responded, time = federation.answer(selection)
        who = selection.clients
        weights = selector.finalize(selection, responded)
        ways = (weights, rates.correct(weights, who, responded), plain.correct(weights, who, responded))
        rates.observe(who, responded)
        plain.observe(who, responded)
        noise = federation.rng.standard_normal((who.size, D)) / math.sqrt(D)
        errors[round] = np.stack(ways) @ (federation.updates[who] + noise) - federation.target
        times.append(time)
    errors = errors[rounds // 4 :] / np.linalg.norm(federation.target)
    # On average, the square of the mean of n errors is bias² + variance / n. The second term is subtracted.
    square = (errors.mean(axis=0) ** 2 - errors.var(axis=0) / len(errors)).sum(axis=1)
    bias = np.sqrt(np.maximum(square, 0))
    rmse = np.sqrt((errors**2).sum(axis=2).mean(axis=0))
    return float(np.mean(times)), np.stack([bias, rmse], axis=1)


def compare(name: str, spread: float, rounds: int, seeds: int) -> list[Row]:
    """Measure all factors and all ways to weight replies, with one selector and one spread of the speeds."""
    rows, base = [], 1.0
    for factor in FACTORS:
        played = [play(seed, name, spread, factor, rounds) for seed in range(seeds)]
        time = float(np.mean([time for time, _ in played]))
        base = time if factor == 1.0 else base
        figures = np.stack([each for _, each in played])  # (seeds, ways, 2)
        means, off = figures.mean(axis=0), figures.std(axis=0, ddof=1) / math.sqrt(seeds)
        for i, way in enumerate(WAYS if factor > 1 else WAYS[:1]):
            (bias, rmse), (bias_off, rmse_off) = means[i].tolist(), off[i].tolist()
            rows.append(Row(name, spread, factor, way, time / base, bias, bias_off, rmse, rmse_off))
    return rows


def measure(rounds: int, seeds: int) -> Iterator[dict[str, Any]]:
    """Yield a record for each selector, spread of the speeds, factor and way."""
    for name in ("uniform", "md"):
        for spread in (0.3, 1.0):
            yield from (row._asdict() for row in compare(name, spread, rounds, seeds))
