"""What over-selection costs: who answers first is not a random sample, and the aggregate leans towards them.

``python -m benchmarks.over_selection [--rounds 4000] [--seeds 5] [--json]``

Of M clients, some are fast and some are slow, and what they have to say goes with it: the update of client m
is a direction that all share, plus one that grows with m's speed, plus its own, and noise. A round wants the
replies of K clients. It asks K and waits for all; or it asks more and goes on with the first K. For each way
the table says how long a round takes, and how far the aggregate is from Σ λ_m u_m: its mean (relative bias,
‖mean error‖ / ‖Σ λ_m u_m‖), and a single round's (relative RMSE). Rounds after the first quarter count, in
which response rates are learned.

- ``equal``: `Selector.finalize` alone, weights c_m S/S', as if all were early equally often;
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

Noise averages out over rounds, and bias does not. Where the slow are hardly ever early no weights help: their
data is not there.
"""

import argparse
import json
import math
from typing import NamedTuple

import numpy as np

from strategies.numerics.arrays import Bools, Floats
from strategies.rounds.response_rates import ResponseRates
from strategies.selectors import Selection, create

M, K, D = 100, 10, 20
FACTORS = (1.0, 1.3, 1.5, 2.0)  # clients asked, of K
WAYS = ("equal", "rates", "not normalised")
JITTER = 0.5  # standard deviation of the logarithm of a client's time from round to round


class Row(NamedTuple):
    """What one way of asking and weighing comes to; means over seeds, with their standard error."""

    selector: str
    spread: float  # of the logarithm of the clients' mean times
    factor: float
    way: str
    time: float  # of a round, relative to asking K and waiting for all
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
        """Return who is among the first K to answer (S,), and how long that took."""
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
    # The mean of n errors is off by noise, too: its expected square is taken off.
    square = (errors.mean(axis=0) ** 2 - errors.var(axis=0) / len(errors)).sum(axis=1)
    bias = np.sqrt(np.maximum(square, 0))
    rmse = np.sqrt((errors**2).sum(axis=2).mean(axis=0))
    return float(np.mean(times)), np.stack([bias, rmse], axis=1)


def compare(name: str, spread: float, rounds: int, seeds: int) -> list[Row]:
    """Measure all ways with one selector and one spread of speeds."""
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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object a row instead of the table")
    given = parser.parse_args()
    if not given.json:
        print(f"M = {M}, K = {K}; {given.rounds} rounds, {given.seeds} seeds, ± standard error\n")
        print(f"{'selector':12}{'speeds':>8}{'asked':>7}{'time':>7}  {'weights':15}{'bias':>15}{'RMSE':>15}")
    for name in ("uniform", "md"):
        for spread in (0.3, 1.0):
            for row in compare(name, spread, given.rounds, given.seeds):
                if given.json:
                    print(json.dumps(row._asdict()), flush=True)
                    continue
                bias, rmse = (
                    f"{value:.3f} ± {off:.3f}"
                    for value, off in ((row.bias, row.bias_error), (row.rmse, row.rmse_error))
                )
                asked = f"{name:12}{spread:>8}{row.factor:>6.1f}K{row.time:>7.2f}"
                print(f"{asked}  {row.way:15}{bias:>15}{rmse:>15}", flush=True)


if __name__ == "__main__":
    main()
