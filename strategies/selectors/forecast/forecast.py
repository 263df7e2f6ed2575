"""Forecast, the default selector: 32 experts forecast each client's norm from size and past norms.

This selector is not from a paper. The best p for unbiased sampling is in proportion to r_m = λ_m ||g_m||,
which is unknown before client m trains. So each expert forecasts every r_m, and the experts whose forecasts
explained the last draws get larger weights.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...designs import DESIGNS, stratified
from ...numerics.arrays import Array, Bools, Floats, Ints
from ...numerics.rejection import SMALLEST_SHARE, accepted, uniform_stream
from ...numerics.sampling import Draw, first_seen
from ...numerics.sum_tree import SumTree
from ..base import Selector
from ..importance.last_norms import LastNormSelector
from ..presence import Presence
from ..probability import LARGEST_NORM, AskingSettings, StreamSelector
from ..records import Feedback, Selection
from ..settings import setting
from . import experts
from .experts import EXPERTS, LARGEST_MEAN, MEMORIES, REACH, SMALLEST_MEAN, TERMS, WIDTH, Prior, X

# The share of p that is uniform: ON_EVERYBODY, and up to ON_START more until about FEW visits are known.
ON_EVERYBODY, ON_START, FEW = 0.05, 0.15, 5.0
CURIOSITY = 1.5  # exponent of u in the scores of unseen clients
SMOOTHING = 0.1  # the number that is added to y and θ when they are compared, in multiples of the mean score
LARGEST_LEVEL = 600.0
TRIES = 8


@dataclass(frozen=True)
class ForecastSettings(AskingSettings):
    """Settings of `ForecastSelector`."""

    design: str = setting(
        "balanced",
        choices=("own", *DESIGNS),
        doc='how a cohort is drawn from the probabilities (docs/draws.md); own: "stratified"',
    )


class _Layout(NamedTuple):
    """All clients, grouped into classes of similar size."""

    classes: npt.NDArray[np.int16]  # (M,) the class of each client
    members: Ints  # (M,) the clients, ordered by class
    starts: Ints  # (C + 1,) where each class begins in `members`


class _Mixture(NamedTuple):
    """The distribution p, as factors of scores and of the prior.

    For a seen client p_m = on_score * (its entry in "scores") + on_doubt * π_m + on_each. For a client that
    was not seen yet, p_m = on_prior * π_m + on_doubt * π_m + on_each. For a removed client p_m = 0.
    """

    prior: Prior
    on_score: float
    on_prior: float
    on_doubt: float
    on_each: float
    mean_score: float
    unseen: Floats  # (C,) the number of registered clients of each class that were not seen yet
    everybody: Floats  # (C,) the number of registered clients of each class


class ForecastSelector(StreamSelector):
    """Draws in proportion to forecasts of r_m = λ_m ||g_m||, except for shares that grow with doubt.

    A client is seen if a norm of one of its updates is known. n is the number of its known norms, which are
    called its visits. y is r e^(-g), where the level g is common to all clients. Each round adds the slope v
    to g, and then corrects g by the quotients y/θ of the last rounds. Each of 32 experts computes a forecast
    θ_e of y from the client's own past y, and from π, the estimated mean of y for clients of this size. The
    experts differ in memory, in how much π counts, and in the kind of mean. N_m is the number of draws of
    client m in the round::

        log w_e <- .998 log w_e - (1/φ) sum_m N_m [min(y/θ_e, 20) + log θ_e]
        w_e   <- .998 w_e / (sum of all w) + .002/32
        score = sqrt(1 + ν) sum_e w_e θ_e for seen clients,  u^1.5 π for other clients
        p     = (1 - d - e) score / sum + d π / sum + e / M

    θ without an index is sum_e w_e θ_e. φ is the running mean of (y/θ - 1)² over all draws, and ν the same
    mean over draws of seen clients. u is the root mean square of s/π over the seen clients, divided by the
    mean of s/π, where s is the mean of a client's y. The doubt d, in [0, .9), grows with the mean of
    log(y/θ)⁴ over the last draws of seen clients, and falls with the mean number of visits. e is .05, and up
    to .15 more while few norms are known and π differs between clients. The page docs/forecast.md derives
    these equations, and states what the selector can lose; docs/results/forecast.md has the measurements.
    The importance of a draw is at most 1/e, so at most 20, times its importance under uniform sampling if all
    clients are available, and at most 20 M/A times if A of the M clients are.

    If sizes are equal, π is uniform, so the loss sum_m r_m²/p_m is at most 1/(d + e) times that of uniform
    sampling. It is convex in p: so the regret is at most (1 - d - e) times that without d and e, plus d + e
    times that of uniform sampling. If all forecasts are right, d is at most .9/(3 + n)² after n draws of seen
    clients. The sum of this over n from 1 on is below .26. So after the first such draw, d costs in all
    rounds together at most .26 times uniform's regret of one round, if that is the same in all rounds.

    A round costs O(M). With the selector's own draws it costs O(K log S + C) for S seen clients and C = 1601
    classes of sizes, except for changes of M or of sizes, and rounds with many absent clients.

    The setting per client `update_norms` gives norms that are known before the first round, or when clients
    join; a value below 0 stands for an unknown norm. With ``ask_norms=True`` all available clients are asked
    for a norm before round 1.

    Draws are "balanced" on what is remembered of the clients' updates: in docs/results/real-tasks.md this
    needs the fewest rounds, or not significantly more. If updates are masked, nothing is remembered, and
    draws are "systematic".
    The selector's own draws, with ``design="own"``, are "stratified".
    """

    name = "forecast"
    summary = "by forecasts of their norms"
    own_design = "stratified"
    settings_type = ForecastSettings
    _settings: ForecastSettings
    per_client = LastNormSelector.per_client
    state_axes = Selector.state_axes | {
        "slots": ("clients",),  # the row of a client in the arrays of seen clients; -1: not seen
        "seen": ("rows",),  # the client of each row; there are spare rows at the end
        "visits": ("rows",),  # n
        "means": ("rows", "memories"),  # s_c, the mean of y with memory c
        "log_means": ("rows", "memories"),  # l_c, the mean of log y with memory c
        "scores": ("rows",),  # sum_e w_e θ_e as last computed; 0 for removed clients
        "num_seen": (),  # the number of rows in use
        "cursor": (),  # the row whose score is recomputed next
        "sums": ("classes", "terms"),  # the sums of `experts.terms` over seen, registered clients
        "log_weights": ("experts",),  # log w
        "shifts": ("geometric",),  # h, added to the log forecasts of the geometric experts
        "median_size": (),  # the size with x = 0: the median at the start
        "unit": (),  # r is divided by this unit; 0 if no norm above 0 is known yet
        "level": (),  # g
        "slope": (),  # v, the expected change of g per round
        "evidence": ("moments",),  # decaying sums of N, N y/θ, N (y/θ)² over rounds
        "dispersion": (),  # φ
        "noise": (),  # ν
        "doubts": ("sums",),  # decaying sums of N and N log(y/θ)⁴ over draws of seen clients; sum of all N
        "spread": (),  # running median of |log(y/θ)|
    }

    def __init__(self, num_clients: int, **arguments: Any) -> None:
        super().__init__(num_clients, **arguments)
        self._learn_known(0)

    def add_clients(self, client_sizes: npt.ArrayLike, **per_client: npt.ArrayLike) -> None:
        before = self.num_clients
        super().add_clients(client_sizes, **per_client)
        self._learn_known(before)

    def set_sizes(self, clients: npt.ArrayLike, client_sizes: npt.ArrayLike) -> None:
        """Correct the sizes of clients, see `Selector.set_sizes`; known norms do not change."""
        before = self.client_sizes
        super().set_sizes(clients, client_sizes)
        rows = self._rows()
        ratio = (self.client_sizes / before)[self._array("seen")[rows]]
        means, log_means, scores = (self._array(key).copy() for key in ("means", "log_means", "scores"))
        means[rows] *= ratio[:, None]
        log_means[rows] += np.log(ratio)[:, None]
        scores[rows] *= ratio
        known = means[rows]
        extreme = ((known > LARGEST_MEAN) | ((known > 0) & (known < SMALLEST_MEAN))).any()
        if extreme:  # the squares of means must neither overflow nor vanish
            means[rows] = np.where(known < SMALLEST_MEAN, 0.0, np.minimum(known, LARGEST_MEAN))
            log_means = np.clip(log_means, math.log(SMALLEST_MEAN), math.log(LARGEST_MEAN))
        self._assign({"means": means, "log_means": log_means, "scores": scores})
        self._assign({"sums": self._summed(self._registered)})
        if extreme:
            weights, prior = np.exp(self._array("log_weights")), experts.prior_of(self._array("sums"))
            scores = scores.copy()
            scores[rows] = self._scores(np.arange(rows.stop), weights, prior, self._array("shifts"))
            self._assign({"scores": scores})

    def _initial_state(self) -> dict[str, Array]:
        room = 16
        return {
            "slots": np.full(self.num_clients, -1, dtype=np.int32),
            "seen": np.zeros(room, dtype=np.int64),
            "visits": np.zeros(room, dtype=np.int64),
            "means": np.zeros((room, MEMORIES.size)),
            "log_means": np.zeros((room, MEMORIES.size)),
            "scores": np.zeros(room),
            "num_seen": np.array(0),
            "cursor": np.array(0),
            "sums": np.zeros((X.size, TERMS)),
            "log_weights": experts.initial_log_weights(),
            "shifts": np.zeros(EXPERTS // 2),
            "median_size": np.array(np.median(self.client_sizes)),
            "unit": np.array(0.0),
            "level": np.array(0.0),
            "slope": np.array(0.0),
            "evidence": np.zeros(3),
            "dispersion": np.array(1.0),
            "noise": np.array(0.0),
            "doubts": np.array(experts.FIRST_DOUBTS),
            "spread": np.array(1.0),
        }

    def _joined(self, registered: Bools) -> dict[str, Array]:
        return {"slots": self._extended("slots", registered.size, -1)}

    def _left(self, registered: Bools) -> dict[str, Array]:
        scores = np.where(registered[self._array("seen")], self._array("scores"), 0.0)
        return {"scores": scores, "sums": self._summed(registered)}

    def _distribution(self) -> Floats:
        if not self._num_registered:
            return np.zeros(self.num_clients)
        return np.where(self._registered, self._probabilities_of(np.arange(self.num_clients)), 0.0)

    def _learn_known(self, first: int) -> None:
        """Learn from the setting `update_norms` of the clients from index `first` on."""
        norms = self._array("update_norms")[first:]
        known = norms >= 0
        self._assign(self._learn_first(first + np.flatnonzero(known), norms[known]))

    def _learn_first(self, clients: Ints, norms: Floats) -> dict[str, Array]:
        ones, missing = np.ones(clients.size), np.full(clients.size, np.nan)
        selection = Selection(clients, ones.astype(np.int64), ones, ones, ones)
        return self._learn(0, selection, Feedback(norms, missing, missing, missing, ones > 0))

    def _check_state(self, state: Mapping[str, Array]) -> None:
        super()._check_state(state)
        for key in ("means", "sums", "log_weights", "shifts", "evidence", "doubts"):
            if state[key].shape[-1] != self._array(key).shape[-1]:
                raise ValueError(f"state[{key!r}] has shape {state[key].shape}: must be as of this version")
        if len(state["sums"]) != X.size:
            raise ValueError(f"state['sums'] has {len(state['sums'])} classes: must be {X.size}")
        if int(state["num_seen"]) != np.count_nonzero(state["slots"] != np.int32(-1)):
            raise ValueError(f"state['num_seen'] is {state['num_seen']}: must be the number of slots in use")

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        usable = feedback.responded & np.isfinite(feedback.update_norms) & self._registered[selection.clients]
        if not usable.any():
            return {}
        clients, counts = selection.clients[usable], selection.counts[usable]
        r = self.client_sizes[clients] * np.minimum(feedback.update_norms[usable], LARGEST_NORM)
        unit = float(self._array("unit")) or float(r.mean())
        slope = float(self._array("slope"))
        level = _bounded(float(self._array("level")) + (slope if round else 0.0))

        slots = self._array("slots")[clients]
        known = slots >= 0
        visits, means, log_means = (
            np.where(known.reshape(-1, *[1] * (a.ndim - 1)), a[slots], 0)
            for a in (self._array("visits"), self._array("means"), self._array("log_means"))
        )
        classes = self._laid_out().classes[clients]
        mixture = self._mixed()
        shifts, log_weights = self._array("shifts"), self._array("log_weights")
        thetas = experts.forecasts(visits, means, log_means, X[classes], mixture.prior, shifts)
        theta: Floats = np.exp(log_weights) @ thetas
        smooth = SMOOTHING * mixture.mean_score

        y = experts.relative(r, unit, level)
        jump, spread = experts.jump(y[known], theta[known], float(self._array("spread")))
        level = _bounded(level + jump)
        y = experts.relative(r, unit, level)
        dispersion, noise = float(self._array("dispersion")), float(self._array("noise"))
        weights = experts.reweighted(log_weights, thetas, y, counts, smooth, dispersion)
        shifts = experts.calibrated(shifts, thetas, y, counts)
        ratio = (y + smooth) / (theta + smooth)
        dispersion += experts.DISPERSION_RATE * (experts.squared_error(ratio, counts) - dispersion)
        if known.any():
            share = counts[known].sum() / counts.sum()
            error = experts.squared_error(ratio[known], counts[known])
            noise += experts.NOISE_RATE * share * (error - noise)
        evidence, slope, step = experts.trend(
            self._array("evidence"), slope, ratio[known], counts[known], noise
        )
        doubts = experts.doubted(self._array("doubts"), ratio, known, counts, self._num_registered)
        level = _bounded(level + step)
        y = experts.relative(r, unit, level)
        new_means, new_log_means = experts.averaged(visits, means, log_means, y)
        sums = self._array("sums").copy()
        new, old = (visits + 1, new_means, new_log_means), (visits, means, log_means)
        np.add.at(sums, classes, experts.terms(*new) - experts.terms(*old))

        # From here on no error is possible, so the rows of seen clients may change in place. Copies of all
        # rows would be slow.
        slots, num_seen = self._rows_for(clients, slots)
        self._patch("visits", slots, visits + 1)
        self._patch("means", slots, new_means)
        self._patch("log_means", slots, new_log_means)
        cursor, extra = int(self._array("cursor")), min(num_seen, max(100, 10 * self._clients_per_round))
        stale = np.union1d(slots, (cursor + np.arange(extra)) % num_seen)
        scores = self._scores(stale, weights, experts.prior_of(sums), shifts)
        tree = self._sum_tree()
        self._patch("scores", stale, scores)
        tree.assign(stale, scores)
        return {
            "num_seen": np.array(num_seen),
            "cursor": np.array((cursor + extra) % num_seen),
            "sums": sums,
            "log_weights": np.log(weights),
            "shifts": shifts,
            "unit": np.array(unit),
            "level": np.array(level),
            "slope": np.array(slope),
            "evidence": evidence,
            "dispersion": np.array(dispersion),
            "noise": np.array(noise),
            "doubts": doubts,
            "spread": np.array(spread),
        }

    def _scores(self, rows: Ints, weights: Floats, prior: Prior, shifts: Floats) -> Floats:
        seen = self._array("seen")[rows]
        visits, means, log_means = (self._array(key)[rows] for key in ("visits", "means", "log_means"))
        x = X[self._laid_out().classes[seen]]
        theta: Floats = weights @ experts.forecasts(visits, means, log_means, x, prior, shifts)
        return np.where(self._registered[seen], theta, 0.0)

    def _probabilities_of(self, clients: Ints) -> Floats:
        mixture = self._mixed()
        slots = self._array("slots")[clients]
        seen = mixture.on_score * self._array("scores")[slots]
        prior = mixture.prior.mass[self._laid_out().classes[clients]]
        p: Floats = np.where(slots >= 0, seen, mixture.on_prior * prior) + mixture.on_doubt * prior
        p += mixture.on_each
        return p

    def _draw(self, p: Floats, k: int, rng: np.random.Generator) -> Draw:
        if not self._settings.replacement:
            return super()._draw(p, k, rng)
        return stratified.draw(p, k, rng)

    def _draw_available(self, available: Presence, k: int, rng: np.random.Generator) -> Draw:
        absent = available.absent
        if not self._settings.replacement or absent is None or self.num_clients < self.lazy_from:
            return super()._draw_available(available, k, rng)
        share = 1 - float(self._probabilities_of(absent).sum()) if absent.size else 1.0
        if share < SMALLEST_SHARE:
            return super()._draw_available(available, k, rng)
        # Independent draws replace the draws of absent clients. So the expected count of an available client
        # is k p + k (1 - share) p/share = k p/share.
        spare = int(1.5 * k * (1 - share) / share) + 8 if absent.size else 0
        drawn = self._at(np.concatenate([stratified.one_in_each(k, rng), rng.random(spare)]), rng)
        taken = available.holds(drawn)
        drawn = np.concatenate([drawn[:k][taken[:k]], drawn[k:][taken[k:]]])[:k]
        if drawn.size < k:
            more = accepted(self._stream(rng), available.holds, share)(k - drawn.size)
            drawn = np.concatenate([drawn, more])
        clients, counts = first_seen(drawn)
        p = self._probabilities_of(clients) / share
        return Draw(clients, counts, p, counts / (k * p))

    def _stream(self, rng: np.random.Generator) -> Callable[[int], Ints]:
        return lambda n: self._at(rng.random(n), rng)

    def _at(self, targets: Floats, rng: np.random.Generator) -> Ints:
        """Return (n,) the clients at which the running sum of p passes the targets (n,) in [0, 1).

        The sum consists of four parts: the scores of seen clients, the prior of unseen clients by class, the
        prior of all clients by class, and the uniform part. In the first part a target determines the client.
        In the second and third part it determines the class, and one of its unseen or of all its registered
        clients is drawn. In the last part a registered client is drawn.
        """
        mixture, tree = self._mixed(), self._sum_tree()
        slots, registered = self._array("slots"), self._registered
        unseen = mixture.unseen * mixture.prior.mass
        everybody = mixture.everybody * mixture.prior.mass
        ends = np.cumsum(
            [
                mixture.on_score * tree.total,
                mixture.on_prior * unseen.sum(),
                mixture.on_doubt * everybody.sum(),
                mixture.on_each * self._num_registered,
            ]
        )
        targets = targets * ends[-1]
        part = np.searchsorted(ends[:-1], targets, side="right")
        clients = np.empty(targets.size, dtype=np.int64)
        of_seen, of_unseen, of_doubt, of_all = (part == i for i in range(4))
        clients[of_seen] = self._array("seen")[tree.find(targets[of_seen] / mixture.on_score)]
        clients[of_unseen] = self._draw_in_classes(
            (targets[of_unseen] - ends[0]) / (ends[1] - ends[0]),
            unseen,
            lambda c: registered[c] & (slots[c] < 0),
            rng,
        )
        clients[of_doubt] = self._draw_in_classes(
            (targets[of_doubt] - ends[1]) / (ends[2] - ends[1]), everybody, lambda c: registered[c], rng
        )
        pool = (
            self.num_clients if 2 * self._num_registered >= self.num_clients else np.flatnonzero(registered)
        )
        anybody = accepted(uniform_stream(pool, rng), lambda clients: registered[clients], 0.5)
        clients[of_all] = anybody(int(of_all.sum()))
        return clients

    def _draw_in_classes(
        self, targets: Floats, masses: Floats, wanted: Callable[[Ints], Bools], rng: np.random.Generator
    ) -> Ints:
        """Return a client for each of the `targets` (n,) in [0, 1).

        The class is where the running sum of `masses` (C,), divided by its total, passes the target. The
        client is drawn uniformly among the clients of this class for which `wanted` is True.
        """
        n = targets.size
        clients = np.full(n, -1)
        if n == 0:
            return clients
        layout = self._laid_out()
        ends = np.cumsum(masses)
        # A target may be rounded to the end of the sum. It then belongs to the last class that has mass.
        last = int(np.flatnonzero(masses)[-1])
        classes = np.minimum(np.searchsorted(ends / ends[-1], targets, side="right"), last)
        first, size = layout.starts[classes], layout.starts[classes + 1] - layout.starts[classes]
        open_ = np.arange(n)
        for _ in range(TRIES):
            tried = layout.members[first[open_] + rng.integers(size[open_])]
            good = wanted(tried)
            clients[open_[good]] = tried[good]
            open_ = open_[~good]
            if not open_.size:
                return clients
        # Few clients of these classes are wanted, so all their clients are checked.
        few, of = np.unique(classes[open_], return_inverse=True)
        spans = [layout.members[layout.starts[each] : layout.starts[each + 1]] for each in few]
        members, owners = np.concatenate(spans), np.repeat(np.arange(few.size), [len(each) for each in spans])
        good = wanted(members)
        counts = np.bincount(owners[good], minlength=few.size)
        clients[open_] = members[good][np.cumsum(counts)[of] - 1 - rng.integers(counts[of])]
        return clients

    # The rows of seen clients.

    def _rows(self) -> slice:
        return slice(0, int(self._array("num_seen")))

    def _rows_for(self, clients: Ints, slots: Ints) -> tuple[Ints, int]:
        """Return (rows of the clients, number of rows in use). Clients not seen before get new rows."""
        num_seen = int(self._array("num_seen"))
        fresh = slots < 0
        slots = slots.astype(np.int64)
        slots[fresh] = np.arange(num_seen, num_seen + fresh.sum())
        num_seen += int(fresh.sum())
        room = self._array("seen").size
        if num_seen > room:
            more = max(room, num_seen - room)
            keys = ("seen", "visits", "means", "log_means", "scores")
            arrays = {key: self._array(key) for key in keys}
            self._assign(
                {k: np.concatenate([a, np.zeros((more, *a.shape[1:]), a.dtype)]) for k, a in arrays.items()}
            )
        self._patch("slots", clients[fresh], slots[fresh])
        self._patch("seen", slots[fresh], clients[fresh])
        return slots, num_seen

    def _patch(self, key: str, rows: Ints, values: Array) -> None:
        array = self._state[key]
        array.flags.writeable = True
        array[rows] = values
        array.flags.writeable = False

    def _summed(self, registered: Bools) -> Floats:
        rows = self._rows()
        seen = self._array("seen")[rows]
        counted = registered[seen]
        terms = experts.terms(*(self._array(key)[rows][counted] for key in ("visits", "means", "log_means")))
        sums = np.zeros((X.size, TERMS))
        np.add.at(sums, self._laid_out().classes[seen[counted]], terms)
        return sums

    # Values derived from the state.

    def _laid_out(self) -> _Layout:
        def compute() -> _Layout:
            x = np.log(self.client_sizes / self._array("median_size"))
            classes = (np.clip(np.rint(x / WIDTH), -REACH, REACH) + REACH).astype(np.int16)
            starts = np.concatenate([[0], np.cumsum(np.bincount(classes, minlength=X.size))])
            return _Layout(classes, np.argsort(classes, kind="stable"), starts)

        return self._cached("layout", ("client_sizes",), compute)

    def _sum_tree(self) -> SumTree:
        return self._cached("tree", ("scores",), lambda: SumTree(self._array("scores")))

    def _mixed(self) -> _Mixture:
        def count() -> Floats:
            return np.bincount(self._laid_out().classes[self._registered], minlength=X.size).astype(
                np.float64
            )

        def compute() -> _Mixture:
            sums = self._array("sums")
            prior = experts.prior_of(sums)
            everybody = self._cached("registered in classes", ("registered", "client_sizes"), count)
            unseen = everybody - sums[:, 0]
            # For a seen client, its score times `of_seen` is the root of the expected y². For an unseen
            # client, π times `of_unseen` is √u times this root.
            of_seen, of_unseen = math.sqrt(1 + float(self._array("noise"))), prior.unlikeness**CURIOSITY
            total = of_seen * self._sum_tree().total + of_unseen * float(unseen @ prior.mass)
            doubts = self._array("doubts")
            visits, num_seen = float(doubts[2]), int(self._array("num_seen"))
            doubt = experts.doubt(doubts, visits / max(num_seen, 1))
            mass = float(everybody @ prior.mass)
            # From 1/M to 1; 1 if the prior is the same for all clients. Then more uniform draws help nobody.
            evenness = mass**2 / (self._num_registered * float(everybody @ prior.mass**2))
            on_everybody = ON_EVERYBODY + ON_START * (1 - evenness) / (1 + (visits / FEW) ** 2)
            return _Mixture(
                prior,
                (1 - on_everybody - doubt) * of_seen / total,
                (1 - on_everybody - doubt) * of_unseen / total,
                doubt / mass,
                on_everybody / self._num_registered,
                total / self._num_registered,
                unseen,
                everybody,
            )

        return self._cached("mixture", ("sums", "registered", "client_sizes", "noise", "doubts"), compute)


def _bounded(level: float) -> float:
    return min(max(level, -LARGEST_LEVEL), LARGEST_LEVEL)
