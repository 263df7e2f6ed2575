"""Selectors whose probabilities depend on durations, so that variance times a round's time is small."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from ...numerics.arrays import Array, Bools, Floats, Ints
from ...numerics.rejection import accepted
from ...numerics.sampling import Draw
from .. import checks
from ..base import Selector
from ..baselines.md import MultinomialSelector
from ..forecast.forecast import ForecastSelector
from ..presence import Presence
from ..probability import AskingSettings, ProbabilitySelector, StreamSelector
from ..records import Feedback, Selection
from . import learned
from .round_time import best_masses

LEAST, MOST = 0.25, 4.0
GROUPS, POINTS = 24, 64


class _Tilt(NamedTuple):
    """The factors by which groups of clients are drawn more or less often."""

    edges: Floats  # (G - 1,) where the groups of clients with known durations meet, in log seconds
    # (G + 1,) P_b / Q_b of `TimedSelector`; the last factor is that of clients without a known duration
    factors: Floats


class TimedSelector(StreamSelector):
    """Chooses p so that the variance of the aggregate, times the time of a round, is small.

    A mixin: list it before the base class whose distribution q it changes. The clients with known durations
    (`learned`) are sorted by duration and divided into at most 24 groups of about equal numbers. The other
    clients form one more group. ``p_m = q_m P_b / Q_b`` for a client of group b. Q_b is the sum of q over
    group b, and P_b is the sum of p over group b, which `round_time.best_masses` chooses. Weights are
    λ_m N_m / (K p_m), where N_m is how often client m was drawn, so the aggregate is unbiased in every round.
    P_b / Q_b is between a quarter and 4, so a client's weight is at most 4 times as large as with q. If some
    clients are unavailable, p is also divided by its sum over the available clients, which may make a weight
    larger by another factor of at most 4.

    The durations of a group's clients are assumed to be lognormal around the group's mean, with the learned
    noise. The durations of the other clients are assumed to be distributed as those of all clients with known
    durations. With fewer than two known durations, p = q.

    The time of a round is taken to be the expected maximum of K independent draws from the learned
    distribution of durations, which is discretised to 64 values. Luo et al., "Tackling System and Statistical
    Heterogeneity for Federated Learning with Adaptive Client Sampling" (INFOCOM 2022), minimise the same
    product with a sum that is linear in p instead of this maximum, and with durations and norms that are
    known before the run.

    This class chooses p, but no deadline D for the replies. A deadline could lower V T further, where V is
    the variance of the aggregate and T the expected time of a round. Each weight would have to be divided by
    the client's probability r_m of answering in time. Then V is in proportion to sum q²/(p r), and
    T = E[min(longest duration, D)]. For lognormal durations whose log has the standard deviation 0.5 or 1
    between clients and 0.3 within a client, the best D lowers V T by 0 to 8 % (K = 6 and 20). If the standard
    deviation within a client is 1 instead of 0.3, the best D lowers V T by 53 to 76 %, but then r_m is known
    only with an error of about 30 %, which biases the weights. Buffered rounds avoid the same waits, and need
    no r_m.

    With `lazy_from` clients or more, a round costs O(n log n) for n clients with a known duration, not O(M).
    """

    state_axes = Selector.state_axes | {
        "duration_means": ("clients",),  # mean log seconds; NaN: not known
        "duration_variances": ("clients",),
        "timed": ("timed",),  # the clients with known durations; there are spare entries at the end
        "num_timed": (),
        "duration_noise": (),
        "duration_population": ("moments of durations",),
    }

    def _initial_state(self) -> dict[str, Array]:
        return super()._initial_state() | {
            "duration_means": np.full(self.num_clients, np.nan, dtype=np.float32),
            "duration_variances": np.full(self.num_clients, np.nan, dtype=np.float32),
            "timed": np.zeros(16, dtype=np.int64),
            "num_timed": np.array(0),
            "duration_noise": np.array(learned.START_NOISE),
            "duration_population": np.zeros(2),
        }

    def _joined(self, registered: Bools) -> dict[str, Array]:
        return super()._joined(registered) | {
            key: self._extended(key, registered.size, np.nan)
            for key in ("duration_means", "duration_variances")
        }

    def _check_state(self, state: Mapping[str, Array]) -> None:
        super()._check_state(state)
        noise = np.array([float(state["duration_noise"])])
        checks.in_range("state['duration_noise']", noise, learned.LEAST_NOISE, learned.LARGEST_NOISE)
        known, number = np.flatnonzero(~np.isnan(state["duration_means"])), int(state["num_timed"])
        if not 0 <= number <= state["timed"].size or not np.array_equal(
            np.sort(state["timed"][:number]), known
        ):
            raise ValueError("state['timed']: must hold the clients whose durations are known")
        if state["duration_population"].size != 2:
            raise ValueError("state['duration_population']: must have 2 entries")

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        changes = super()._learn(round, selection, feedback)
        if feedback.seconds is None or not selection.clients.size:
            return changes
        clients = selection.clients
        before = self._array("duration_means")[clients].astype(np.float64)
        found = learned.learn(
            before,
            self._array("duration_variances")[clients].astype(np.float64),
            float(self._array("duration_noise")),
            self._array("duration_population"),
            feedback.seconds,
            feedback.responded,
        )
        fresh = clients[np.isnan(before) & ~np.isnan(found.means)]
        number, timed = int(self._array("num_timed")), self._array("timed")
        if number + fresh.size > timed.size:
            timed = np.concatenate([timed, np.zeros(max(timed.size, fresh.size), dtype=np.int64)])
            self._assign({"timed": timed})
        # Rows change in place: copies of all clients' rows would be slow.
        for key, rows, values in (
            ("timed", slice(number, number + fresh.size), fresh),
            ("duration_means", clients, found.means),
            ("duration_variances", clients, found.variances),
        ):
            array = self._state[key]
            array.flags.writeable = True
            array[rows] = values
            array.flags.writeable = False
        return changes | {
            "num_timed": np.array(number + fresh.size),
            "duration_noise": np.array(found.noise),
            "duration_population": found.population,
        }

    def _distribution(self) -> Floats:
        if not self._num_registered:
            return np.zeros(self.num_clients)
        return np.where(self._registered, self._probabilities_of(np.arange(self.num_clients)), 0.0)

    def _probabilities_of(self, clients: Ints) -> Floats:
        p: Floats = super()._probabilities_of(clients) * self._factors(clients)  # type: ignore[safe-super]
        return p

    def _draw_available(self, available: Presence, k: int, rng: np.random.Generator) -> Draw:
        if self.num_clients < self.lazy_from:
            return ProbabilitySelector._draw_available(self, available, k, rng)
        return StreamSelector._draw_available(self, available, k, rng)

    def _stream(self, rng: np.random.Generator) -> Callable[[int], Ints]:
        most = float(self._tilted().factors.max())
        stream = super()._stream(rng)  # type: ignore[safe-super]
        return accepted(stream, lambda c: rng.random(c.size) * most < self._factors(c), 1 / most)

    def _factors(self, clients: Ints) -> Floats:
        """Return (n,) P_b / Q_b of the clients' groups."""
        tilt, means = self._tilted(), self._array("duration_means")[clients]
        groups = np.searchsorted(tilt.edges, means, side="right")
        return tilt.factors[np.where(np.isnan(means), tilt.factors.size - 1, groups)]

    def _tilted(self) -> _Tilt:
        return self._cached("tilt", tuple(self._state), self._compute_tilt)

    def _compute_tilt(self) -> _Tilt:
        timed = self._array("timed")[: int(self._array("num_timed"))]
        timed = np.sort(timed[self._registered[timed]])
        even = _Tilt(np.empty(0, dtype=np.float32), np.ones(2))
        if timed.size < 2:
            return even
        means = self._array("duration_means")[timed]
        ordered = np.sort(means)
        edges = np.unique(ordered[np.arange(1, GROUPS) * means.size // GROUPS])
        groups = np.searchsorted(edges, means, side="right")
        number = edges.size + 1
        counts = np.bincount(groups, minlength=number)
        q = super()._probabilities_of(timed)  # type: ignore[safe-super]
        shares = np.bincount(groups, q, minlength=number)
        unknown = max(0.0, 1 - float(shares.sum())) if timed.size < self._num_registered else 0.0
        centres = np.bincount(groups, means.astype(np.float64), minlength=number) / np.maximum(counts, 1)
        logs, spread = _spread(centres[counts > 0], math.sqrt(float(self._array("duration_noise"))))
        shares = np.append(shares, unknown)
        rows = np.zeros((number + 1, logs.size))
        rows[:-1][counts > 0] = spread
        rows[-1] = counts @ rows[:-1] / counts.sum()
        held = shares > 0
        if not held.any():
            return even
        q = shares[held] / shares.sum()
        factors = np.ones(number + 1)
        factors[held] = best_masses(q, rows[held], np.exp(logs), self._clients_per_round, LEAST, MOST) / q
        return _Tilt(edges, factors / (float(factors @ shares) / float(shares.sum())))


def _spread(centres: Floats, deviation: float) -> tuple[Floats, Floats]:
    """Return (log seconds (n,), spread (G, n)) of normal distributions around the centres (G,)."""
    logs = np.linspace(centres.min() - 3 * deviation, centres.max() + 3 * deviation, POINTS)
    distances = (logs - centres[:, None]) / max(deviation, float(logs[1] - logs[0]) / 2)
    density = np.exp(-(distances**2) / 2)
    return logs, density / density.sum(axis=1, keepdims=True)


class TimedMultinomialSelector(TimedSelector, MultinomialSelector):
    """`md`, with draws that take durations into account, see `TimedSelector`."""

    name = "timed-md"
    summary = "by data and duration"
    equal_weight_draws = "never"  # type: ignore[assignment]
    data_independent = False


class TimedForecastSelector(TimedSelector, ForecastSelector):
    """`forecast`, with draws that take durations into account, see `TimedSelector`.

    With replacement, one draw is made from each of K equal parts of the cumulated probabilities. If there are
    10,000 clients or more, and few are absent, the K draws are independent instead. The setting `design`
    replaces both, unless it is "own".
    """

    own_design = ""
    settings_type = AskingSettings  # type: ignore[assignment]  # the draws take durations into account
    name = "timed-forecast"
    summary = "by norms and durations"
    state_axes = ForecastSelector.state_axes | TimedSelector.state_axes
