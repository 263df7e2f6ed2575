"""Cohort, the default selector: a prior from sizes, corrected by what each client sent, by 32 experts.

Not from a paper. For unbiased sampling the best p is in proportion to r_m = λ_m ||g_m||, so sampling is
forecasting: 32 experts forecast each r_m, and those that explained the last draws are believed.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Array, Bools, Floats, Ints
from ..numerics.rejection import accepted, uniform_stream
from ..numerics.sum_tree import SumTree
from .base import Selector
from .last_norms import LARGEST_NORM, LastNormSelector
from .probability import StreamSelector
from .records import Feedback, Selection

MEMORIES = np.array([1.0, 3.0, 12.0, np.inf])  # c, in visits
STRENGTHS = np.array([0.02, 0.3, 3.0, 30.0])  # κ, in visits
EXPERTS = 2 * MEMORIES.size * STRENGTHS.size
START_OF_WEAKEST = 0.7  # weight on κ = .02 at the start
FORGET, SHARE = 0.998, 0.002
MAX_QUOTIENT = 20.0
CALIBRATION_RATE = DISPERSION_RATE = SPREAD_RATE = 0.05
LEVEL_MEMORY, LEVEL_RATE = 0.9, 0.15
RESTART, RESTART_DEVIATIONS = 1.5, 5 * 1.4826
SMOOTHING = 0.1  # of the mean score
ON_SCORES, ON_EVERYBODY, ON_PRIOR = 0.9, 0.05, 0.05
RIDGE, STEEPEST = 4.0, 3.0
WIDTH, REACH = 0.02, 800  # of a class of log sizes; classes on each side of the median
X = WIDTH * np.arange(-REACH, REACH + 1, dtype=np.float64)  # (C,) log size over the median
SMALLEST_Y, LARGEST_Y = 1e-4, 1e12
TRIES = 16


class _Layout(NamedTuple):
    """What follows from the sizes alone."""

    classes: npt.NDArray[np.int16]  # (M,)
    members: Ints  # (M,) clients ordered by class
    starts: Ints  # (C + 1,) where each class begins in `members`


class _Prior(NamedTuple):
    log_mean: float  # log L
    log_geometric: float  # the same, of geometric means
    slope: float  # b
    boost: float  # u²
    mass: Floats  # (C,) π


class _Mixture(NamedTuple):
    """p_m = on_score * score_m + on_each + on_prior * π_m for the living."""

    prior: _Prior
    on_score: float
    on_each: float
    on_prior: float
    mean_score: float
    living: Floats  # (C,) how many of each class live
    unseen: Floats  # (C,) and were not seen


class CohortSelector(StreamSelector):
    """p ∝ forecasts of r_m = λ_m ||g_m||, plus a little of uniform and of the prior.

    With y = r e^(-g), g a level common to all, n_m visits and x_m = log size in classes of width .02::

        π_m   = L e^(b x_m);  b: ridge regression (strength 4 towards 1) of log mean y on x over the seen
        θ_e   = (κ π + n̄ s_c) / (κ + n̄),  n̄ = min(n, c)          s_c: mean of y with gain 1/n̄
        θ_e   = exp((κ log π' + n̄ l_c) / (κ + n̄) + h_e)           l_c: the same of log y; h_e calibrates
        log w_e <- .998 log w_e - (1/φ) sum_m N_m [min(y/θ_e, 20) + log θ_e], then a share of .002 for all
        score = sum_e w_e θ_e sqrt(1 + (u⁴ - 1) .1 / (.1 + n)) of the seen, π u² of the others
        p     = .9 score / sum + .05 / M + .05 π / sum π

    for the memories c = 1, 3, 12, ∞, the strengths κ = .02, .3, 3, 30 and both means: 32 experts. φ is the
    running mean of (y/θ - 1)² and u the RMS over the mean of s_∞/π. Every y and θ in losses and level has a
    tenth of the mean score added, about what the floor of p adds: forecasts are judged by the p they make.

    Why it works. Draws come from p ∝ θ, and there the variance of the estimate is a quasi-likelihood of y
    given θ: no importance weights are needed to learn, so there is nothing to explode. c = 1 with small κ is
    Avare, κ = 30 is `md`, geometric means stand heavy tails, and b notices when sizes mislead.

    The level. A change that all share is no news of one client: when the mean of y/θ over about the last ten
    rounds is off 1 by more than two standard errors, g follows; when the median of a round jumps up by a
    factor of 4.5 and 5 robust deviations, g jumps with it. A bolder level (the running mean of clipped
    log-ratios) ran away under heavy noise: the clip made it fall, each fall made the clients seen last look
    large, and they alone were drawn.

    Measured (`benchmarks.streams`, M = 100, K = 5, T = 1000, cold start, 6 to 9 seeds; the constants were
    chosen on other seeds with M = 80, K = 4): regret over that of uniform sampling, mean ± spread.

    ======================  ===========  ===========    ======================  ===========  ===========
    setting                 cohort       best other     setting                 cohort       best other
    ======================  ===========  ===========    ======================  ===========  ===========
    section F, σ = 1        .74 ± .21    .93 avare      lognormal noise 1       .39 ± .10    1 uniform
    section F, σ = 3        .28 ± .16    .35 avare      lognormal noise 2       .62 ± .21    1 uniform
    section F, σ = 10       .15 ± .08    .19 avare      sizes uninformative     .028 ± .004  .034 avare
    static                  .026 ± .003  .026 avare     sizes anti-informative  .022 ± .002  .061 avare
    common decay            .19 ± .02    .30 avare      sizes exact, noise 1    .135 ± .064  .131 md
    drift                   .026 ± .002  .026 avare     everybody ×100          .009 ± .002  1 uniform
    a tenth jumps ×30       .045 ± .027  .144 avare     half-half cycle         .21 ± .06    .59 avare
    80 % zeros              .025 ± .003  .034 avare     all equal (loss)        1.000        1 uniform
    ======================  ===========  ===========    ======================  ===========  ===========

    The others are `uniform`, `md` and `avare`. Where it loses: exact sizes cost 3 % over `md`; on static or
    drifting norms without noise it only equals `avare`; and where few clients outweigh all others (section F,
    σ = 10) its spread over seeds is large, and single runs do worse than `avare`, which visits all soon.

    A round costs O(K log S + C), S clients ever seen and C = 1601 classes: scores are cached, a round
    recomputes those drawn and max(100, 10 K) more in turn, and draws come from a sum tree over the seen, from
    the classes, and from all. O(M) are only changes of M or of sizes, and rounds with many away.

    `update_norms` (per client; below 0 = unknown) are norms known before the first round, from a query of
    all: they save the exploration.
    """

    name = "cohort"
    per_client = LastNormSelector.per_client
    state_axes: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **Selector.state_axes,
        "slots": ("clients",),  # row of a client in the arrays of the seen; -1: not seen
        "seen": ("rows",),  # client of a row; there is room for more
        "visits": ("rows",),  # n
        "means": ("rows", "memories"),  # s_c
        "log_means": ("rows", "memories"),  # l_c
        "scores": ("rows",),  # 0 for the removed
        "num_seen": (),
        "cursor": (),  # whose score is recomputed next
        "sums": ("classes", "terms"),  # of `_terms` over the seen and living
        "log_weights": ("experts",),  # log w
        "shifts": ("geometric",),  # h
        "median_size": (),  # where x = 0
        "unit": (),  # of r; 0 until there is one
        "level": (),  # g
        "evidence": ("moments",),  # sums of N, N y/θ, N (y/θ)² over the last rounds
        "dispersion": (),  # φ
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
        """Correct the sizes of clients, see `Selector.set_sizes`; the norms seen stay as they were."""
        before = self.client_sizes
        super().set_sizes(clients, client_sizes)
        rows = self._rows()
        ratio = (self.client_sizes / before)[self._array("seen")[rows]]
        means, log_means, scores = (self._array(key).copy() for key in ("means", "log_means", "scores"))
        means[rows] *= ratio[:, None]
        log_means[rows] += np.log(ratio)[:, None]
        scores[rows] *= ratio
        self._assign({"means": means, "log_means": log_means, "scores": scores})
        self._assign({"sums": self._summed(self._living)})

    def _initial_state(self) -> dict[str, Array]:
        weights = np.full((2, MEMORIES.size, STRENGTHS.size), (1 - START_OF_WEAKEST) / 24)
        weights[:, :, 0] = START_OF_WEAKEST / 8
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
            "sums": np.zeros((X.size, 5)),
            "log_weights": np.log(weights.ravel()),
            "shifts": np.zeros(EXPERTS // 2),
            "median_size": np.array(np.median(self.client_sizes)),
            "unit": np.array(0.0),
            "level": np.array(0.0),
            "evidence": np.zeros(3),
            "dispersion": np.array(1.0),
            "spread": np.array(1.0),
        }

    def _joined(self, living: Bools) -> dict[str, Array]:
        slots = self._array("slots")
        return {"slots": np.concatenate([slots, np.full(living.size - slots.size, -1, dtype=np.int32)])}

    def _left(self, living: Bools) -> dict[str, Array]:
        scores = np.where(living[self._array("seen")], self._array("scores"), 0.0)
        return {"scores": scores, "sums": self._summed(living)}

    def _distribution(self) -> Floats:
        if not self._num_living:
            return np.zeros(self.num_clients)
        return np.where(self._living, self._probabilities_of(np.arange(self.num_clients)), 0.0)

    def _learn_known(self, first: int) -> None:
        """Learn from the norms known beforehand of the clients from `first` on."""
        norms = self._array("update_norms")[first:]
        clients = first + np.flatnonzero(norms >= 0)
        if clients.size:
            ones, missing = np.ones(clients.size), np.full(clients.size, np.nan)
            selection = Selection(clients, ones.astype(np.int64), ones, ones, ones)
            feedback = Feedback(norms[norms >= 0], missing, missing, missing, ones > 0)
            self._assign(self._learn(0, selection, feedback))

    def _check_state(self, state: Mapping[str, Array]) -> None:
        super()._check_state(state)
        for key in ("means", "sums", "log_weights", "shifts", "evidence"):
            if state[key].shape[-1] != self._array(key).shape[-1]:
                raise ValueError(f"state[{key!r}] has shape {state[key].shape}: must be as of this version")
        if len(state["sums"]) != X.size:
            raise ValueError(f"state['sums'] has {len(state['sums'])} classes: must be {X.size}")
        if int(state["num_seen"]) != np.count_nonzero(state["slots"] != np.int32(-1)):
            raise ValueError(f"state['num_seen'] is {state['num_seen']}: must be the number of slots in use")

    def _learn(self, round: int, selection: Selection, feedback: Feedback) -> dict[str, Array]:
        usable = feedback.responded & np.isfinite(feedback.update_norms) & self._living[selection.clients]
        if not usable.any():
            return {}
        clients, counts = selection.clients[usable], selection.counts[usable]
        r = self.client_sizes[clients] * np.minimum(feedback.update_norms[usable], LARGEST_NORM)
        unit = float(self._array("unit")) or float(r.mean())
        level = float(self._array("level"))

        slots = self._array("slots")[clients]
        known = slots >= 0
        visits, means, log_means = (
            np.where(known.reshape(-1, *[1] * (a.ndim - 1)), a[slots], 0)
            for a in (self._array("visits"), self._array("means"), self._array("log_means"))
        )
        classes = self._laid_out().classes[clients]
        mixture = self._mixed()
        thetas = _forecasts(visits, means, log_means, X[classes], mixture.prior, self._array("shifts"))
        smooth = SMOOTHING * mixture.mean_score
        log_weights = self._array("log_weights")
        theta: Floats = np.exp(log_weights) @ thetas

        y = _relative(r, unit, level)
        jump, spread = self._jump(y[known], theta[known])
        level = min(max(level + jump, -600.0), 600.0)
        y = _relative(r, unit, level)

        quotient = np.minimum((y + smooth) / (thetas + smooth), MAX_QUOTIENT)
        dispersion = float(self._array("dispersion"))
        log_weights = FORGET * log_weights
        log_weights -= np.clip(1 / dispersion, 0.02, 5) * ((quotient + np.log(thetas + smooth)) @ counts)
        weights = np.exp(log_weights - log_weights.max())
        weights = (1 - SHARE) * weights / weights.sum() + SHARE / EXPERTS
        ratio = (y + smooth) / (theta + smooth)
        error = float(counts @ np.minimum((ratio - 1) ** 2, 100) / counts.sum())
        off = np.minimum(y / thetas[EXPERTS // 2 :], MAX_QUOTIENT) @ counts / counts.sum() - 1
        shifts: Floats = np.clip(self._array("shifts") + CALIBRATION_RATE * off, -20, 20)
        evidence, step = self._trend(np.minimum(ratio[known], MAX_QUOTIENT), counts[known])
        level = min(max(level + step, -600.0), 600.0)
        y = _relative(r, unit, level)

        gain = 1 / np.minimum(visits[:, None] + 1, MEMORIES)
        new_means = means + gain * (y[:, None] - means)
        new_log_means = log_means + gain * (np.log(np.maximum(y, SMALLEST_Y))[:, None] - log_means)
        sums = self._array("sums").copy()
        np.add.at(
            sums, classes, _terms(visits + 1, new_means, new_log_means) - _terms(visits, means, log_means)
        )

        # The rows of the seen change in place, or a round would copy them all; nothing fails from here on.
        slots, num_seen = self._rows_for(clients, slots)
        self._patch("visits", slots, visits + 1)
        self._patch("means", slots, new_means)
        self._patch("log_means", slots, new_log_means)
        cursor, extra = int(self._array("cursor")), min(num_seen, max(100, 10 * self._clients_per_round))
        stale = np.union1d(slots, (cursor + np.arange(extra)) % num_seen)
        scores = self._scores(stale, weights, _prior(sums), shifts)
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
            "evidence": evidence,
            "dispersion": np.array(dispersion + DISPERSION_RATE * (error - dispersion)),
            "spread": np.array(spread),
        }

    def _jump(self, y: Floats, theta: Floats) -> tuple[float, float]:
        """Return by how much all jumped up (0: not at all), and the new spread."""
        spread = float(self._array("spread"))
        if not y.size:
            return 0.0, spread
        ratio = np.log(np.maximum(y, 1e-300) / theta)
        median, jump = float(np.median(ratio)), 0.0
        if y.size >= 3 and median > max(RESTART, RESTART_DEVIATIONS * spread / math.sqrt(y.size)):
            jump = median
        typical = float(np.median(np.minimum(np.abs(ratio - jump), 5)))
        return jump, spread + SPREAD_RATE * (typical - spread)

    def _trend(self, ratio: Floats, counts: Ints) -> tuple[Floats, float]:
        """Return the new evidence on the mean of y/θ, and by how much the level follows it."""
        evidence: Floats = self._array("evidence")
        if not ratio.size:
            return evidence, 0.0
        evidence = LEVEL_MEMORY * evidence + np.array([counts.sum(), counts @ ratio, counts @ ratio**2])
        mean = evidence[1] / evidence[0]
        variance = max(evidence[2] / evidence[0] - mean**2, 0.0) / evidence[0] + 1e-4
        sure = max(0.0, 1 - 4 * variance / max((mean - 1) ** 2, 1e-12)) * min(1.0, evidence[0] / 20)
        return evidence, LEVEL_RATE * sure * math.log(max(mean, 0.05))

    def _scores(self, rows: Ints, weights: Floats, prior: _Prior, shifts: Floats) -> Floats:
        seen, visits = self._array("seen")[rows], self._array("visits")[rows]
        x = X[self._laid_out().classes[seen]]
        means, log_means = self._array("means")[rows], self._array("log_means")[rows]
        theta = weights @ _forecasts(visits, means, log_means, x, prior, shifts)
        boosted = theta * np.sqrt(1 + (prior.boost**2 - 1) * 0.1 / (0.1 + visits))
        return np.where(self._living[seen], boosted, 0.0)

    def _probabilities_of(self, clients: Ints) -> Floats:
        mixture = self._mixed()
        slots = self._array("slots")[clients]
        prior = mixture.prior.mass[self._laid_out().classes[clients]]
        score = np.where(slots >= 0, self._array("scores")[slots], mixture.prior.boost * prior)
        p: Floats = mixture.on_score * score + mixture.on_each + mixture.on_prior * prior
        return p

    def _stream(self, rng: np.random.Generator) -> Callable[[int], Ints]:
        mixture, tree = self._mixed(), self._sum_tree()
        slots, living, seen = self._array("slots"), self._living, self._array("seen")
        by_score = mixture.on_score * tree.total
        unseen, prior = mixture.unseen * mixture.prior.mass, mixture.living * mixture.prior.mass
        parts = [by_score, mixture.on_score * mixture.prior.boost * unseen.sum(), ON_EVERYBODY, ON_PRIOR]
        ends = np.cumsum(parts)
        pool = self.num_clients if 2 * self._num_living >= self.num_clients else np.flatnonzero(living)
        anybody = accepted(uniform_stream(pool, rng), lambda clients: living[clients], 0.5)

        def draw(n: int) -> Ints:
            part = np.searchsorted(ends[:-1], rng.random(n) * ends[-1], side="right")
            clients = np.empty(n, dtype=np.int64)
            sizes = np.bincount(part, minlength=4)
            clients[part == 0] = seen[tree.find(rng.random(sizes[0]) * tree.total)]
            clients[part == 1] = self._draw_in_classes(
                sizes[1], unseen, lambda c: living[c] & (slots[c] < 0), rng
            )
            clients[part == 2] = anybody(sizes[2])
            clients[part == 3] = self._draw_in_classes(sizes[3], prior, lambda c: living[c], rng)
            return clients

        return draw

    def _draw_in_classes(
        self, n: int, masses: Floats, wanted: Callable[[Ints], Bools], rng: np.random.Generator
    ) -> Ints:
        """Draw n times a class in proportion to `masses` (C,), and one of its wanted clients uniformly."""
        clients = np.full(n, -1)
        if n == 0:
            return clients
        layout = self._laid_out()
        ends = np.cumsum(masses)
        # The last end is exactly 1 and random() < 1: a class has mass.
        classes = np.searchsorted(ends / ends[-1], rng.random(n), side="right")
        first, size = layout.starts[classes], layout.starts[classes + 1] - layout.starts[classes]
        open_ = np.arange(n)
        for _ in range(TRIES):
            tried = layout.members[first[open_] + rng.integers(size[open_])]
            good = wanted(tried)
            clients[open_[good]] = tried[good]
            open_ = open_[~good]
            if not open_.size:
                return clients
        for each in np.unique(classes[open_]):  # few of a class are wanted: look through it
            members = layout.members[layout.starts[each] : layout.starts[each + 1]]
            members = members[wanted(members)]
            here = open_[classes[open_] == each]
            clients[here] = members[rng.integers(members.size, size=here.size)]
        return clients

    # The rows of the seen.

    def _rows(self) -> slice:
        return slice(0, int(self._array("num_seen")))

    def _rows_for(self, clients: Ints, slots: Ints) -> tuple[Ints, int]:
        """Return (rows of the clients, number of rows), new ones for those not seen before."""
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

    def _summed(self, living: Bools) -> Floats:
        rows = self._rows()
        seen = self._array("seen")[rows]
        here = living[seen]
        terms = _terms(*(self._array(key)[rows][here] for key in ("visits", "means", "log_means")))
        sums = np.zeros((X.size, 5))
        np.add.at(sums, self._laid_out().classes[seen[here]], terms)
        return sums

    # What follows from the state.

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
            return np.bincount(self._laid_out().classes[self._living], minlength=X.size).astype(np.float64)

        def compute() -> _Mixture:
            sums = self._array("sums")
            prior = _prior(sums)
            living = self._cached("living in classes", ("living", "client_sizes"), count)
            unseen = living - sums[:, 0]
            total = self._sum_tree().total + prior.boost * float(unseen @ prior.mass)
            return _Mixture(
                prior,
                ON_SCORES / total,
                ON_EVERYBODY / self._num_living,
                ON_PRIOR / float(living @ prior.mass),
                total / self._num_living,
                living,
                unseen,
            )

        return self._cached("mixture", ("sums", "living", "client_sizes"), compute)


def _relative(r: Floats, unit: float, level: float) -> Floats:
    """Return y = r e^(-g), at most 1e12; `unit` 0 says that all r are 0."""
    with np.errstate(over="ignore"):
        return np.minimum(r / (unit or 1.0) * math.exp(-level), LARGEST_Y)


def _terms(visits: Ints, means: Floats, log_means: Floats) -> Floats:
    """Return (n, 5) what the prior sums: 1, s, s², log s, l of the longest memory; 0 for the unseen."""
    s = means[:, -1]
    seen = visits > 0
    return np.stack(
        [seen, s, s**2, np.where(seen, np.log(np.maximum(s, SMALLEST_Y)), 0.0), log_means[:, -1]], axis=1
    )


def _prior(sums: Floats) -> _Prior:
    """Return the prior from the sums (C, 5) of `_terms` by class."""
    count, total, squares, logs, log_means = sums.T
    n = count.sum()
    if n == 0:
        return _Prior(0.0, 0.0, 1.0, 1.0, np.exp(X))
    centred = X - count @ X / n
    b = float((centred @ logs + RIDGE) / (count @ centred**2 + RIDGE))
    b = min(max(b, -STEEPEST), STEEPEST)
    flat = np.exp(-b * X)
    mean = float(total @ flat / n)
    log_geometric = float((log_means.sum() - b * (count @ X)) / n)
    if mean <= 0:  # all seen sent 0
        return _Prior(0.0, log_geometric, b, 1.0, np.exp(b * X))
    boost = max(1.0, float(squares @ flat**2 / n) / mean**2)
    return _Prior(math.log(mean), log_geometric, b, boost, mean * np.exp(b * X))


def _forecasts(
    visits: Ints, means: Floats, log_means: Floats, x: Floats, prior: _Prior, shifts: Floats
) -> Floats:
    """Return θ of each expert (32, n): arithmetic, then geometric means; memories, then strengths."""
    tilt = prior.slope * x
    # The share of the prior, κ/(κ + n̄); clients come last, or NumPy's inner loops would be four long.
    share = STRENGTHS[:, None] / (STRENGTHS[:, None] + np.minimum(visits, MEMORIES[:, None])[:, None])
    thetas = np.empty((2, MEMORIES.size, STRENGTHS.size, x.size))
    for out, known, guess in (
        (thetas[0], means.T, np.exp(prior.log_mean + tilt)),
        (thetas[1], log_means.T, prior.log_geometric + tilt),
    ):
        np.multiply(share, (guess - known)[:, None], out=out)
        out += known[:, None]
    thetas[1] += shifts.reshape(MEMORIES.size, STRENGTHS.size, 1)
    np.exp(thetas[1], out=thetas[1])
    return thetas.reshape(EXPERTS, x.size)
