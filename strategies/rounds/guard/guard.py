"""The guard: clips implausible values, rejects replies, and quarantines clients with repeated offences."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, log
from typing import Any

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Array, Bools, Floats, Ints
from ...options import GuardSettings
from ...selectors import checks
from .buffered_directions import VersionedDirections
from .directions import RecentDirections
from .plausible_limits import Limits, Remarks
from .recent_values import NORM, POLLED, TRAINED, RecentValues

_FEW_REPLIES = 8
"""Untrue numbers are no offences if at least half of this many newest replies hold one."""
_ABSURD = 2.0
"""A large loss raises the bound above which a norm is an offence, at most by this factor."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """The guard's judgement of a round's replies. Arrays are aligned with the judged clients."""

    scales: Floats  # (S,) the factor s_m of each update, in (0, 1]; below 1, it reduces the norm to its limit
    losses: Floats  # (S,) as reported, after clipping; NaN if impossible or not reported
    gradient_variances: Floats  # (S,) likewise
    rejected: Mapping[int, str] = field(default_factory=dict)  # position -> why the reply is not used
    # Position -> the values that were clipped or ignored, in one line. Rejected replies are not listed.
    clipped: Mapping[int, str] = field(default_factory=dict)


class Guard:
    """Clips the values that clients send, counts offences, and quarantines repeat offenders.

    `level`, `factor`, `deviations`, `window` and the like are settings (`GuardSettings`). The guard draws no
    random numbers. A factor "e^x" means the exponential of x.

    **Levels.** The level "sane" is for clients that the operator registered: they are honest, and some may be
    broken. It ignores impossible numbers, bounds the norms of updates, and quarantines clients whose replies
    are garbage again and again. It rejects no usable update. The level "strict" is for clients that may lie.
    It does all of this, and what the paragraphs marked (strict) say. docs/security.md compares the levels.

    **The limit of norms.** The newest 32 norms are compared, one for each client; if a round has more, all
    norms of the round. The limit is the largest norm that the others support
    (`numerics.robust.largest_supported`). An update with a larger norm is clipped to the median norm:

    - An update is clipped only if a norm is more than e^(4 + 12/n) times the next smaller one of the n norms.
      This factor is 22,000 for n = 2, 245 for 8, 100 for 20, and 55 for many.
    - If honest norms are lognormal, and their logarithms have a standard deviation of up to 2, fewer than
      3 in 10,000 updates are clipped.
    - If fewer than a quarter of the n norms (or one of up to eight) are garbage, garbage beyond this factor
      moves the model as far as a median update would. This holds from the first round with two replies on.
      Garbage does not raise the limit for the next round.

    Gradient variances (with the square of this factor), polled norms and polled diversities have the same
    kind of limit. Losses have none, and may be negative: a client that fits its data perfectly has a loss of
    0, and the losses of the others are still true.

    **Limits by the spread** (strict). The limit of a value, losses included, is at most
    ``centre · exp(max(log factor, deviations · s (1 + s/4)))``.

    - The centre is the median of the newest 32 values, or of all values of this round if there are more than
      32.
    - s is the spread of the logarithms of values around the centres of their rounds. It is estimated from
      quartiles (`numerics.robust.bulk`) of the last values of `window` clients. If few values are known, s is
      pulled towards 0.5.

    This limit is reliable while fewer than a quarter of the clients lie. A false value within the limit is
    believed. If a few honest clients have far larger norms than all others (for example a tenth of the
    clients, thirty times as large), their updates are clipped. If their losses are not larger as well, these
    clients are quarantined.

    Large losses come with large gradients. So if a norm is x times its centre, the limit of the loss is at
    least x³ times the centre of the losses, and the limit of the gradient variance at least x² times its
    centre. Here a norm above its own limit counts as equal to that limit. With `signed_losses`, the limit of
    losses does not depend on the norm.

    **Directions** (strict). A client's agreement is an average, over its recent replies, of the cosine of its
    update with the updates of other clients (`directions.RecentDirections`; in buffered rounds
    `buffered_directions.VersionedDirections`). The cosines are computed from sketches of D numbers; D is 256,
    or the model's number of parameters if this is smaller (`numerics.sketches`). An update opposes the others
    if its client's agreement is

    - more than `direction_deviations` standard deviations, and more than 0.2, below the centre of all
      agreements, and
    - below -4/sqrt(D), as the agreements of random directions hardly ever are.

    The distance below the centre must be 5/3 times as large for a client that has sent a single reply, and
    half as large for a client with `strikes` - 1 offences in its last `memory` replies. In buffered rounds,
    -4/sqrt(D) is multiplied by `Agreements.deviations`, since averages vary less than single cosines.

    A standard deviation above 0.23 is replaced by 0.23. Early in a run, liars may be a large part of the
    known clients, and would inflate the standard deviation. The larger value is kept if 0.23 would put more
    than n/4 + 1 of the n known clients too far below the centre.

    Cosines are never below -1, so models with at most 16 parameters are not judged by direction, except in
    buffered rounds. docs/security.md ("Not promised") lists the false updates that the guard does not notice.

    **Draws** (strict). Biased selectors that learn from clients, such as `pow-d` and `oort`, may draw a
    client more often because of a lie. With such a selector, a client rests for some rounds when it was drawn
    more often than `draws` times its fair number (`RoundLogic.open`). The fair number in a round is the
    number of selected clients (in a buffered round: K, the number of arrivals that end it), times the
    client's share of the data of all n selectable clients. A share below 1/n counts as 1/n. No client rests
    if more than half of the available clients that are not quarantined would rest, or if fewer clients would
    be left than the budget K(t) or the quorum.

    **Offences.** A reply is an offence if

    - it cannot be used (unreadable, wrong shapes, NaN),
    - the norm of its update is above the limit of norms,
    - (strict) its update opposes the others,
    - (strict) it reports a norm that differs from the server's measurement by more than rounding explains,
    - (strict) it holds an impossible number, such as a negative loss without `signed_losses` (numbers from
      -1e-6 to 0 count as 0), or
    - (strict) it holds a value far beyond its limit by the spread that the rest of the reply does not
      explain. "Far beyond" means more than twice the limit, or more than e^s times the limit if this is
      larger. A large norm explains a large loss. A large loss explains a large norm, but at most doubles this
      bound for the norm.

    The strict guard rejects an update that opposes the others, and an update whose norm is such a value far
    beyond its limit. Other offences of a usable reply do not cause a rejection. A missing reply is not an
    offence.

    While fewer than 16 values of a kind are known, none counts as far beyond its limit. While directions of
    fewer than 8 clients are known, no update opposes the others. If at least half of the newest values or
    directions would be offences, none is: then the federation has changed, for example by a new learning
    rate. If at least half of the newest 8 replies (or of the round's replies) hold a number that cannot be
    true, none of these numbers is an offence: then the app reports another quantity, for example a loss that
    may be negative (`GuardSettings.signed_losses`). A signed loss is never far beyond its limit.

    **Quarantine.** A client with `strikes` offences in its last `memory` replies is quarantined for
    `quarantine` rounds. After these rounds it is selectable again, and its newest `strikes` - 1 replies count
    as offences. So one more offence, while the older ones still count, quarantines it again for twice as
    long, up to `longest_quarantine` rounds. The next quarantine is halved after each reply with a trained
    model if the client's last `memory` replies hold no offence.

    **Cost of the strict guard.** If all clients are honest, on the least squares of the OSMD paper's appendix
    F (100 clients, 600 rounds, 6 seeds; the logarithms of the clients' scales have a standard deviation of 1
    or 3), at most 0.35 % of the updates are clipped, and no client is quarantined. On softmax regression
    whose clients have labels in proportions from Dirichlet(0.1) to Dirichlet(0.5), up to three clients in a
    hundred are quarantined, and the accuracy is the same as without a guard. Minorities whose optima oppose
    those of the others lose more; docs/security.md has the figures.

    The time of a round is O(S + window) for the sane guard, O((S + 64) D + window) for the strict one, and of
    a buffered round O(128² (128 + D)), about 5 ms, for the strict one. In a poll, the guard also sorts the
    candidates.

    ``num_clients`` is M, >= 0. If ``buffered``, rounds are buffered, see "Directions".
    """

    def __init__(
        self, num_clients: int, settings: GuardSettings | None = None, *, buffered: bool = False
    ) -> None:
        self._settings = settings or GuardSettings()
        self.strict = self._settings.level == "strict"
        self._limits = Limits(self._settings)
        self._recent = RecentValues(self._settings.window)
        self._directions = VersionedDirections() if buffered else RecentDirections()
        # Of the newest replies to TRAIN, and of the newest answers to polls: whether they hold a number that
        # cannot be true (1) or not (0); -1 = no reply yet.
        self._untrue = np.full((2, _FEW_REPLIES), -1, dtype=np.int8)
        # One bit for each of the last replies, 1 = offence; the lowest bit is the newest reply. The first
        # column is for replies to TRAIN, the second for polls.
        self._offences = np.zeros((num_clients, 2), dtype=np.uint8)
        # The first round in which each client is selectable again after its last quarantine.
        self._quarantined_until = np.zeros(num_clients, dtype=np.int64)
        self._pauses = np.zeros(num_clients, dtype=np.int64)  # how many times the next quarantine is doubled
        self._ever_quarantined: Ints = np.empty(0, dtype=np.int64)  # ascending
        # The round from which each client's draws are within its share again.
        self._rests_until = np.zeros(num_clients)
        # Ascending. A client whose rest has ended may stay in this array until the next draws.
        self._resting: Ints = np.empty(0, dtype=np.int64)

    def judge(
        self,
        round: int,
        clients: npt.ArrayLike,
        norms: npt.ArrayLike,
        losses: npt.ArrayLike,
        gradient_variances: npt.ArrayLike,
        failures: Mapping[int, str] | None = None,
        sketches: npt.NDArray[np.float64] | None = None,
        contradictions: Mapping[int, str] | None = None,
        versions: Ints | None = None,
    ) -> Judgement:
        """Judge the replies of a round, and remember their values. Call this once per round.

        The order of the distinct ``clients`` (S,) makes no difference, except for the order of the result.
        ``norms`` (S,) are those of the clients' updates, NaN = no usable update; ``losses`` and
        ``gradient_variances`` (S,) are as reported, NaN = not reported, and any other float is allowed. By
        position, ``failures`` says why a reply cannot be used (a client that sent nothing must not be listed,
        since a missing reply is not an offence), and ``contradictions`` which reported number differs from
        the server's measurement (an offence, but the update is used). Without ``sketches`` (S, D) of the
        updates, NaN = no usable update, directions are not judged, as at the level "sane". ``versions`` (S,)
        are, of buffered rounds, the rounds from whose models the updates were trained (default: this round).
        """
        indexes: Ints = np.asarray(clients, dtype=np.int64)
        sent = [np.array(values, dtype=np.float64) for values in (norms, losses, gradient_variances)]
        rejected, contradicted = dict(failures or {}), contradictions or {}
        for no_norm in np.flatnonzero((sent[0] == inf) | (sent[0] < 0)):
            rejected.setdefault(int(no_norm), f"update norm {sent[0][no_norm]:g}: must be finite and >= 0")
        unusable = np.zeros(indexes.size, dtype=np.bool_)
        unusable[list(rejected)] = True
        for values in sent:
            values[unusable] = np.nan  # the other values of an unusable reply are ignored

        remarks = Remarks()
        norm, loss, variance = (
            self._limits.place(self._recent, kind, indexes, values, remarks)
            for kind, values in zip(TRAINED, sent, strict=True)
        )
        replied = unusable | ~np.isnan(sent).all(axis=0)
        offence = unusable | (norm.excess > norm.largest)
        absurd = np.zeros_like(offence)
        if self.strict:
            absurd = norm.flagrant(np.minimum(loss.excess, norm.margin + log(_ABSURD)))
            untrue = norm.impossible | loss.impossible | variance.impossible
            untrue[list(contradicted)] = True
            offence |= absurd | self._opposed(round, indexes, unusable, sketches, versions, rejected)
            offence |= self._untrue_offences(indexes, untrue, replied, polled=False)
            for placed in (loss, variance):  # whether they are offences depends on the norm as it was sent
                offence |= ~np.isnan(norm.excess) & placed.flagrant(norm.excess)
        norms, losses, variances = (
            placed.clipped(remarks, norm.believed) for placed in (norm, loss, variance)
        )
        for i in np.flatnonzero(absurd):
            limit = np.exp(norm.centre + norm.margin)
            rejected[int(i)] = f"update norm {sent[0][i]:.3g}: far beyond the limit of {limit:.3g}"
        self._count(round, indexes[replied], offence[replied], polled=False)
        with np.errstate(invalid="ignore", divide="ignore", under="ignore"):
            scales = np.where(norms < sent[0], norms / sent[0], 1.0)
        lines = remarks.lines()
        clipped = {
            i: "; ".join(each[i] for each in (contradicted, lines) if i in each)
            for i in sorted(contradicted.keys() | lines.keys())
            if i not in rejected
        }
        return Judgement(np.maximum(scales, np.finfo(np.float64).tiny), losses, variances, rejected, clipped)

    def judge_reports(
        self, round: int, candidates: npt.ArrayLike, reports: Mapping[str, npt.ArrayLike]
    ) -> tuple[dict[str, Floats], dict[int, str]]:
        """Judge the candidates' reports before the selection, and remember them. Call this once per round.

        The guard counts offences in polls separately from offences in replies to TRAIN.

        ``reports`` (C,) are numbers of the distinct ``candidates`` (C,), by the name of the report, as for
        `Selector.select`; NaN = not reported. Return the reports after clipping (NaN = impossible value;
        reports that are not measurements, such as ``"group"``, are not changed), and position -> the values
        that were clipped or ignored, in one line.
        """
        indexes: Ints = np.asarray(candidates, dtype=np.int64)
        judged = {name: np.array(values, dtype=np.float64) for name, values in reports.items()}
        remarks = Remarks()
        answered, offence, untrue = np.zeros((3, indexes.size), dtype=np.bool_)
        norms = self._recent.excess_of(NORM, indexes)
        believed = np.minimum(norms, self._recent.norm_margin)
        for name in sorted(judged.keys() & POLLED.keys()):
            answered |= ~np.isnan(judged[name])
            placed = self._limits.place(self._recent, POLLED[name], indexes, judged[name], remarks)
            untrue |= placed.impossible
            offence |= ~np.isnan(norms) & placed.flagrant(norms)
            judged[name] = placed.clipped(remarks, believed)
        if self.strict:
            offence |= self._untrue_offences(indexes, untrue, answered, polled=True)
            self._count(round, indexes[answered], offence[answered], polled=True)
        return judged, remarks.lines()

    def quarantined(self, round: int) -> Ints:
        """Return the clients that are quarantined for offences in a round, ascending."""
        return self._ever_quarantined[self._quarantined_until[self._ever_quarantined] > round]

    def quarantined_until(self, client: int) -> int:
        """Return the first round after a client's last quarantine; 0 if there was none."""
        return int(self._quarantined_until[client])

    def count_draws(self, round: int, clients: Ints, expected: Floats) -> None:
        """Remember which clients a selection drew. Call this once for each selection.

        A selection in a round drew the distinct ``clients`` (S,). ``expected`` (S,) > 0 is how many draws
        each of them should get in this round; it need not be an integer.
        """
        pause = 1 / (self._settings.draws * expected)
        self._rests_until[clients] = np.maximum(self._rests_until[clients] + pause, round)
        still = self._resting[self._rests_until[self._resting] > round]
        self._resting = np.union1d(still, clients)

    def resting(self, round: int) -> Ints:
        """Return the clients that were drawn more than `draws` times their fair number, ascending.

        If resting clients are not selected, a client is drawn at most 1 + `draws` · e · T times in the first
        T rounds, where e is its fair number of draws in a round.
        """
        return self._resting[self._rests_until[self._resting] > round]

    def add_clients(self, num_clients: int) -> None:
        """Let clients join. They get the next indexes, and have no offences."""
        self._set_per_client(
            np.concatenate([array, np.zeros((num_clients, *array.shape[1:]), dtype=array.dtype)])
            for array in self._per_client().values()
        )

    def state_dict(self) -> dict[str, Array]:
        return {name: array.copy() for name, array in (self._per_client() | self._remembered()).items()}

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        state = dict(state)
        state.setdefault("replies/untrue", np.full_like(self._untrue, -1))  # older checkpoints lack it
        own, remembered = self._per_client(), self._remembered()
        axes: dict[str, tuple[str | int, ...]] = {n: ("clients", *a.shape[1:]) for n, a in own.items()}
        arrays = checks.state(state, own | remembered, axes)
        for name, array in remembered.items():
            array[...] = arrays[name]
        self._set_per_client(arrays[name] for name in own)
        self._resting = np.flatnonzero(self._rests_until)
        self._ever_quarantined = np.flatnonzero(self._quarantined_until)

    def _per_client(self) -> dict[str, Array]:
        return {
            "offences": self._offences,
            "quarantined_until": self._quarantined_until,
            "pauses": self._pauses,
            "rests_until": self._rests_until,
        }

    def _set_per_client(self, arrays: Iterable[Any]) -> None:
        self._offences, self._quarantined_until, self._pauses, self._rests_until = arrays

    def _remembered(self) -> dict[str, Array]:
        own = {f"recent/{name}": array for name, array in self._recent.arrays().items()}
        own |= {f"directions/{name}": array for name, array in self._directions.arrays().items()}
        return own | {"replies/untrue": self._untrue}

    def _opposed(
        self,
        round: int,
        clients: Ints,
        unusable: Bools,
        sketches: npt.NDArray[np.float64] | None,
        versions: Ints | None,
        rejected: dict[int, str],
    ) -> Bools:
        """Return (S,) whether each update opposes the others; add the reasons to ``rejected``."""
        if sketches is None:
            return np.zeros(clients.size, dtype=np.bool_)
        usable = np.where(unusable[:, None], np.nan, sketches)
        if isinstance(self._directions, VersionedDirections):
            versions = np.full(clients.size, round) if versions is None else versions
            agreements = self._directions.agreements(clients, usable, versions)
        else:
            agreements = self._directions.agreements(clients, usable)
        probation = _ones(self._offences[clients, 0]) >= max(1, self._settings.strikes - 1)
        least = self._limits.agreement(agreements, probation, sketches.shape[1])
        opposed: Bools = agreements.own < least
        for i in np.flatnonzero(opposed):
            rejected[int(i)] = (
                "the update points against the other clients' updates: "
                f"agreement {agreements.own[i]:.2f}, must be {least[i]:.2f} or more"
            )
        return opposed

    def _untrue_offences(self, clients: Ints, untrue: Bools, replied: Bools, *, polled: bool) -> Bools:
        """Return (S,) whether each untrue number is an offence.

        None is an offence if at least half of the newest replies hold an untrue number. ``untrue`` (S,) says
        which clients sent a number that cannot be true; ``replied`` (S,), which replied.
        """
        new = untrue[replied][np.argsort(clients[replied])].astype(np.int8)
        newest = np.concatenate([self._untrue[int(polled)], new])[-max(_FEW_REPLIES, new.size) :]
        self._untrue[int(polled)] = newest[-_FEW_REPLIES:]
        known = newest[newest >= 0]
        return np.zeros_like(untrue) if 2 * np.count_nonzero(known) >= known.size else untrue

    def _count(self, round: int, clients: Ints, offence: Bools, polled: bool) -> None:
        """Count the offences of clients that replied, and quarantine clients with too many offences.

        Replies of clients that are quarantined in this round are not counted: their quarantine ended early
        (`RoundLogic.open`), and no further offence must lengthen it.
        """
        free = self._quarantined_until[clients] <= round
        clients, offence = clients[free], offence[free]
        column, limit = int(polled), (1 << self._settings.memory) - 1
        recent = (self._offences[clients, column].astype(np.int64) << 1 | offence) & limit
        self._offences[clients, column] = recent
        pauses = self._pauses[clients]
        if not polled:
            pauses[recent == 0] = np.maximum(pauses[recent == 0] - 1, 0)
        struck = _ones(recent) >= self._settings.strikes
        struck &= offence
        out = clients[struck]
        length = np.minimum(
            self._settings.quarantine * 2.0 ** np.minimum(pauses[struck], 60),
            self._settings.longest_quarantine,
        )
        pauses[struck] += 1
        self._pauses[clients] = pauses
        self._quarantined_until[out] = round + 1 + length.astype(np.int64)
        self._offences[out] = (1 << (self._settings.strikes - 1)) - 1  # next time, one offence is enough
        self._ever_quarantined = np.union1d(self._ever_quarantined, out)


def _ones(offences: npt.NDArray[np.integer]) -> Ints:
    """Return (n,) how many bits of each number are 1, which is a client's number of recent offences."""
    found: Ints = np.unpackbits(offences.astype(np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.int64)
    return found
