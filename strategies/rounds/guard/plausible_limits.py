"""Limits implausibly large values by the values of many clients.

The docstring of `guard.Guard` states the rules.
"""

from dataclasses import dataclass, field, replace
from math import inf, log, nan, sqrt

import numpy as np

from ...numerics.arrays import Bools, Floats, Ints
from ...numerics.robust import bulk, largest_supported
from ...options import GuardSettings
from .directions import Agreements
from .recent_values import RecentValues, Window

RECENT = 32
"""The centre is the median of this many of the newest values."""
_FEW = 8
"""The federation has changed if at least half of the newest values are far beyond the limit. The newest
values are this many, or all values of the round if there are more."""
_ENOUGH = 16
"""If fewer values than this are known, the limit is too uncertain for an offence."""
_ROUNDING = 1e-6
"""A value that is less than this below 0 counts as 0: rounding makes the loss -log(1 + 1e-12) negative."""
_PRIOR_SPREAD = 0.5
"""The spread of logarithms that is assumed while few values are known."""
_FLAGRANT = 2.0
"""A value must exceed its limit by at least this factor to be an offence."""
_AGREEMENT = 0.2
"""An agreement (a cosine, see `Guard`) is plausible if it is at most this far below the centre. This number
is also the spread of agreements that is assumed while few are known."""
_WIDEST = 0.23
"""The largest standard deviation of agreements that is used, unless too many clients would be implausible."""
_SINGLE = 5 / 3
"""The factor of the allowed distance below the centre for a client that has sent a single reply."""
_PROBATION = 1 / 2
"""The factor of the allowed distance below the centre for a client whose next offence quarantines it."""
_CHANCE = 4.0
"""How many standard deviations below 0 a cosine must be to oppose the others. The standard deviation is that
of the cosine of random vectors."""
_HEAVY = 4.0
"""The spread at which the margin is doubled, since widely spread norms have heavier tails than a lognormal
distribution."""
_POWERS = {"loss": 3.0, "polled loss": 3.0, "gradient variance": 2.0, "polled gradient variance": 2.0}
"""The power of the update norm with which the limit of a value rises. The loss of least squares grows with
the square of the norm; the limit of losses rises with the cube."""


@dataclass(frozen=True)
class Limits:
    """Decides whether values are plausible, by the settings of the guard."""

    settings: GuardSettings

    def place(
        self, recent: RecentValues, kind: str, clients: Ints, values: Floats, remarks: "Remarks"
    ) -> "Placed":
        """Compare values (S,) of one kind with recent values of all clients, and then remember them.

        ``kind`` is one of `recent_values.KINDS`. The distinct ``clients`` (S,) sent the ``values`` (S,), NaN
        = not sent, which are added to ``recent``. ``remarks`` gets a remark about each impossible value.
        """
        # A loss may be negative, such as the negative logarithm of a density. Strictly, an operator says so.
        signed = "loss" in kind and (self.settings.signed_losses or self.settings.level == "sane")
        if not signed:
            values = np.where((values < 0) & (values >= -_ROUNDING), 0.0, values)
        impossible = ~np.isnan(values) & ~(np.isfinite(values) & (signed | (values >= 0)))
        allowed = "finite" if signed else "finite and >= 0"
        hint = " (see signed_losses)" if "loss" in kind and not signed else ""
        for position in np.flatnonzero(impossible):
            remarks.add(position, f"{kind} {values[position]:g} ignored: must be {allowed}{hint}")
        values = np.where(impossible, nan, values)
        with np.errstate(divide="ignore"):
            x = np.clip(values, -1e150, 1e150) if signed else np.log(values)
        placed = Placed(kind, values, impossible, signed, 0.0, x, inf, 0.0, inf, inf)
        # A zero is always plausible, and does not show how large other values are. Its logarithm is -inf.
        scaled = np.flatnonzero(np.isfinite(x))
        if not scaled.size:
            return placed
        x, clients = x[scaled], clients[scaled]
        others = recent.of_others(kind, clients)
        newest = np.concatenate([others.values[max(0, others.values.size + x.size - RECENT) :], x])
        centre = float(np.median(newest))
        new = Window(clients, x, x - centre)
        # Losses of honest clients may differ by any factor: some clients fit their data perfectly.
        largest = inf if "loss" in kind else largest_supported(newest, _POWERS.get(kind, 1.0))
        typical = float(np.sort(newest)[(newest.size - 1) // 2])  # not the mean of garbage and another value
        placed = replace(
            placed,
            centre=centre,
            excess=placed.excess - centre,
            largest=largest - centre,
            typical=typical - centre,
        )
        if self.settings.level == "strict":
            placed = self._by_spread(placed, others, new, newest)
        recent.remember(kind, others, new, placed.margin)
        return placed

    def _by_spread(self, placed: "Placed", others: Window, new: Window, newest: Floats) -> "Placed":
        """Return ``placed`` with the margin and the gap that the spread of the values explains."""
        signed, x, centre = placed.signed, new.values, placed.centre
        unit = abs(centre) if signed else 1.0
        least = (self.settings.factor - 1) * unit if signed else log(self.settings.factor)
        usual = bulk(
            np.concatenate([others.residuals, new.residuals]),
            deviations=self.settings.deviations,
            least=least,
            prior=_PRIOR_SPREAD * unit,
        )
        spread = usual.spread / unit if unit else 0.0
        margin = max(least, self.settings.deviations * usual.spread * (1 + spread / _HEAVY))
        gap = max(log(_FLAGRANT), usual.spread)
        groups = (newest[-max(_FEW, x.size) :], x if x.size > _FEW // 2 else x[:0])
        few = others.values.size + x.size < _ENOUGH
        if signed or few or any(_is_half(group > centre + margin + gap) for group in groups):
            gap = inf  # values far beyond the limit are not offences
        return replace(placed, margin=margin, gap=gap)

    def agreement(self, agreements: Agreements, probation: Bools, width: int) -> Floats:
        """Return (S,) the smallest allowed agreement of each client; -inf: any agreement is allowed.

        ``probation`` (S,) says whether the client's next offence quarantines it. ``width`` is D, the number
        of entries of a sketch: the cosines of random vectors have a standard deviation of 1/sqrt(D).
        """
        new = agreements.own
        known = np.concatenate([agreements.of_others, new])
        known = known[~np.isnan(known)]
        if not known.size:
            return np.full(new.size, -inf)
        usual = bulk(
            -known, deviations=self.settings.direction_deviations, least=_AGREEMENT, prior=_AGREEMENT
        )
        # Liars may be a large part of the first known clients, and increase the spread.
        narrow = max(_AGREEMENT, self.settings.direction_deviations * min(usual.spread, _WIDEST))
        few = np.count_nonzero(known < -usual.centre - narrow) <= known.size / 4 + 1
        margin = narrow if few else usual.margin
        least, chance = -usual.centre - margin, -_CHANCE / sqrt(width)
        # If at least half of the newest updates oppose the others, the direction of descent has changed.
        if _is_half(known[-max(_FEW, new.size) :] < min(least, chance)):
            return np.full(new.size, -inf)
        factors = np.where(probation, _PROBATION, np.where(agreements.single, _SINGLE, 1.0))
        return np.minimum(-usual.centre - margin * factors, chance * agreements.deviations)


@dataclass(frozen=True)
class Placed:
    """The values (S,) of one kind, and how plausible each value is."""

    kind: str
    values: Floats  # NaN = not reported, or impossible
    impossible: Bools  # whether the value cannot be true, such as a negative loss
    signed: bool  # whether values may be negative; then values are used instead of their logarithms
    centre: float  # the median of the logarithms (or signed values) of the newest values
    excess: Floats  # the logarithm (or signed value) minus the centre
    largest: float  # the largest excess that the values of other clients support
    typical: float  # the excess to which a larger excess than `largest` is clipped
    margin: float  # the largest plausible excess by the spread
    gap: float  # an excess above margin + gap is far beyond the limit

    @property
    def believed(self) -> Floats:
        """The excess (S,) of the values after clipping, if the values are update norms."""
        return np.where(self.excess > self.largest, self.typical, np.minimum(self.excess, self.margin))

    def flagrant(self, norms: Floats) -> Bools:
        """Return (S,) whether each value is far beyond its limit and not explained by ``norms``.

        ``norms`` (S,) is the excess of the update norms; NaN = unknown.
        """
        power = _POWERS.get(self.kind, 1.0)
        beyond: Bools = self.excess > np.fmax(self.margin, power * norms) + self.gap
        return beyond

    def clipped(self, remarks: "Remarks", norms: Floats) -> Floats:
        """Return the values (S,), reduced to their limits.

        ``norms`` (S,) is the excess of the update norms, by which some limits rise; NaN = unknown.
        """
        margins = np.full(norms.size, self.margin)
        if self.kind in _POWERS and not self.signed:
            margins = np.fmax(margins, _POWERS[self.kind] * norms)
        unsupported = self.excess > self.largest
        margins[unsupported] = np.minimum(margins[unsupported], self.typical)
        beyond = np.flatnonzero(self.excess > margins)
        within = self.values.copy()
        with np.errstate(over="ignore", under="ignore"):
            limits = self.centre + margins[beyond]
            within[beyond] = np.minimum(limits if self.signed else np.exp(limits), within[beyond])
        for i in beyond:
            why = "the median: far beyond all others" if unsupported[i] else "its limit"
            remarks.add(i, f"{self.kind} {self.values[i]:.3g} clipped to {within[i]:.3g}, {why}")
        return within


@dataclass
class Remarks:
    """The values that were clipped or ignored, as text for each position of a client."""

    _remarks: dict[int, list[str]] = field(default_factory=dict)

    def add(self, position: int | np.int64, remark: str) -> None:
        """Add a remark about a position."""
        self._remarks.setdefault(int(position), []).append(remark)

    def lines(self) -> dict[int, str]:
        """Return position -> all remarks about it, in one line."""
        return {position: "; ".join(remarks) for position, remarks in sorted(self._remarks.items())}


def _is_half(those: Bools) -> bool:
    return those.size > 0 and 2 * int(np.count_nonzero(those)) >= those.size
