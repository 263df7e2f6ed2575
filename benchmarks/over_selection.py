"""The cost of over-selection: the first replies are no random sample, so the aggregate is biased.

``cohort bench over-selection [--rounds 4000] [--seeds 5] [--json]``

M clients differ in speed, and their updates depend on it: the update of client m is a direction common to
all, plus a direction in proportion to m's speed, plus one of its own, plus noise. A round needs the replies
of K clients. It selects K and waits for all of them, or it selects more and goes on with the first K replies.
For each way the table has the duration of a round and the error of the aggregate relative to Σ λ_m u_m: that
of the mean over rounds (relative bias, ‖mean error‖ / ‖Σ λ_m u_m‖), and that of a single round (relative
RMSE). The first quarter of the rounds, in which response rates are learned, does not count.

- ``equal``: `Selector.finalize` alone, weights c_m S/S', which is right if all clients are early equally
often;
- ``rates``: corrected by `ResponseRates`;
- ``not normalised``: the same, with ``normalised=False``: c_m/ρ_m.

Bias and RMSE with `uniform`, M = 100, K = 10; ``--rounds 2000 --seeds 3``; their standard errors are up to
.035 and .07::

    speeds differ by  asked    time    equal        rates        not normalised
    e^0.3             1.0 K    1.00    .00  .68     -            -
                      1.3 K     .63    .14  .68     .02  .69     .00  .71
                      1.5 K     .52    .21  .70     .04  .70     .00  .73
                      2.0 K     .41    .33  .74     .06  .76     .02  .84
    e^1.0             1.3 K     .40    .25  .71     .10  .75     .03  .87
                      1.5 K     .27    .37  .76     .18  .78     .09  .86
                      2.0 K     .16    .58  .88     .32  .88     .19  .98

Noise averages out over the rounds, bias does not. No weights help where slow clients are hardly ever early:
their updates are missing.
"""

import json
import math
from typing import NamedTuple

import numpy as np

from strategies.numerics.arrays import Bools, Floats
from strategies.rounds.response_rates import ResponseRates
from strategies.selectors import Selection, create

M, K, D = 100, 10, 20
FACTORS = (1.0, 1.3, 1.5, 2.0)  # selected clients over K
WAYS = ("equal", "rates", "not normalised")
JITTER = 0.5  # standard deviation of the logarithm of a client's time from round to round


class Row(NamedTuple):
    """The results of one factor and one weighting: means over seeds, with their standard errors."""

    selector: str
    spread: float  # of the logarithm of the clients' mean times
    factor: float
    way: str
    time: float  # of a round, relative to selecting K clients and waiting for all
    bias: float
    bias_error: float
    rmse: float
    rmse_error: float


class Federation:
    """Clients that differ in speed, size and data.

    Parameters
    ----------
    seed : int
        Of the federation and all that happens in it.
    spread : float
        Standard deviation of the logarithm of the clients' mean times.
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
        """Return which clients are among the first K to reply (S,), and after how long the K-th replies."""
        noise = JITTER * self.rng.standard_normal(selection.clients.size)
        times = np.exp(self.log_times[selection.clients] + noise)
        last = np.sort(times)[min(K, times.size) - 1]
        return times <= last, float(last)


def play(seed: int, name: str, spread: float, factor: float, rounds: int) -> tuple[float, Floats]:
    """Return a round's mean time, and for each of `WAYS` the relative bias and RMSE: (ways, 2)."""
    federation, rates = Federation(seed, spread), ResponseRates(M)
    plain = ResponseRates(M, normalised=False)
    selector = create(name, M, client_sizes=federation.sizes, clients_per_round=K, seed=seed)
    times, errors = [], np.zeros((rounds, len(WAYS), D))
    for round in range(rounds):
        selection = selector.select(round, budget=math.ceil(factor * K))
        responded, time = federation.answer(selection)
        who = selection.clients
        weights = selector.finalize(selection, responded)
        ways = (
            weights,
            rates.correct(weights, who, responded),
            plain.correct(weights, who, responded),
        )
        rates.observe(who, responded)
        plain.observe(who, responded)
        noise = federation.rng.standard_normal((who.size, D)) / math.sqrt(D)
        errors[round] = np.stack(ways) @ (federation.updates[who] + noise) - federation.target
        times.append(time)
    errors = errors[rounds // 4 :] / np.linalg.norm(federation.target)
    # The mean of n errors also contains noise, whose expected square is subtracted.
    square = (errors.mean(axis=0) ** 2 - errors.var(axis=0) / len(errors)).sum(axis=1)
    bias = np.sqrt(np.maximum(square, 0))
    rmse = np.sqrt((errors**2).sum(axis=2).mean(axis=0))
    return float(np.mean(times)), np.stack([bias, rmse], axis=1)


def compare(name: str, spread: float, rounds: int, seeds: int) -> list[Row]:
    """Measure all factors and weightings with one selector and one spread of speeds."""
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


def run(rounds: int, seeds: int, as_json: bool) -> None:
    """Print the table, or one JSON object per row."""
    if not as_json:
        print(f"M = {M}, K = {K}; {rounds} rounds, {seeds} seeds, ± standard error\n")
        print(f"{'selector':12}{'speeds':>8}{'asked':>7}{'time':>7}  {'weights':15}{'bias':>15}{'RMSE':>15}")
    for name in ("uniform", "md"):
        for spread in (0.3, 1.0):
            for row in compare(name, spread, rounds, seeds):
                if as_json:
                    print(json.dumps(row._asdict()), flush=True)
                    continue
                bias, rmse = (
                    f"{value:.3f} ± {off:.3f}"
                    for value, off in ((row.bias, row.bias_error), (row.rmse, row.rmse_error))
                )
                asked = f"{name:12}{spread:>8}{row.factor:>6.1f}K{row.time:>7.2f}"
                print(f"{asked}  {row.way:15}{bias:>15}{rmse:>15}", flush=True)
