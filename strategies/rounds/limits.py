"""How large a value may plausibly be, given the recent values of many clients.

The docstring of `guard.Guard` states the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf, log, nan

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Bools, Floats, Ints
from ..numerics.robust import bulk
from ..options import GuardSettings
from ..selectors import checks
from .recent_values import RecentValues, Window

RECENT = 32
"""The centre is the median of this many of the newest values."""
_FEW = 8
"""When half of this many of the newest values are far beyond the limit, the federation has changed."""
_PRIOR_SPREAD = 0.5
"""The standard deviation of logarithms that is assumed while there are few values."""
_FLAGRANT = 2.0
"""A value beyond this many times its limit is an offence."""
_HEAVY = 4.0
"""The spread at which margins are doubled: widely spread norms have heavier tails than a lognormal's."""
_POWERS = {"loss": 3.0, "polled loss": 3.0, "gradient variance": 2.0, "polled gradient variance": 2.0}
"""With which power of the update norm a value may grow; the loss of least squares grows with its square."""


@dataclass(frozen=True)
class Limits:
    """The rules by which a value is plausible."""

    settings: GuardSettings

    def place(
        self, recent: RecentValues, kind: str, clients: Ints, values: Floats, remarks: Remarks
    ) -> Placed:
        """Place values (S,) of one kind among those of all clients, and remember them as recent values."""
        signed = self.settings.signed_losses and "loss" in kind
        impossible = ~np.isnan(values) & ~(np.isfinite(values) & (signed | (values >= 0)))
        for position in np.flatnonzero(impossible):
            allowed = "finite" if signed else "finite and >= 0"
            remarks.add(position, f"{kind} {values[position]:g} ignored: must be {allowed}")
        values = np.where(impossible, nan, values)
        with np.errstate(divide="ignore"):
            x = np.clip(values, -1e150, 1e150) if signed else np.log(values)
        placed = Placed(kind, values, impossible, signed, 0.0, x, inf, inf)
        # A zero needs no limit, and says nothing of the scale of the other values.
        scaled = np.flatnonzero(np.isfinite(x))
        if not scaled.size:
            return placed
        x, clients = x[scaled], clients[scaled]
        others = recent.of_others(kind, clients)
        newest = np.concatenate([others.values[max(0, others.values.size + x.size - RECENT) :], x])
        centre = float(np.median(newest))
        unit = abs(centre) if signed else 1.0
        new = Window(clients, x, x - centre)
        least = (self.settings.factor - 1) * unit if signed else log(self.settings.factor)
        usual = bulk(
            np.concatenate([others.residuals, new.residuals]),
            deviations=self.settings.deviations,
            least=least,
            prior=_PRIOR_SPREAD * unit,
        )
        spread = usual.spread / unit if unit else 0.0
        margin = max(least, self.settings.deviations * usual.spread * (1 + spread / _HEAVY))
        recent.remember(kind, others, new, margin)
        gap = max(log(_FLAGRANT), usual.spread)
        groups = (newest[-max(_FEW, x.size) :], x if x.size > _FEW // 2 else x[:0])
        if signed or any(_is_half(group > centre + margin + gap) for group in groups):
            gap = inf  # values far beyond the limit have another cause than lies
        return replace(placed, centre=centre, excess=placed.excess - centre, margin=margin, gap=gap)

    def size(self, sizes: Floats) -> float:
        """Return the largest data size that a client may claim, given all known sizes; inf without any."""
        logs = np.log(sizes)
        if not logs.size:
            return inf
        usual = bulk(
            logs, deviations=self.settings.deviations, least=log(self.settings.factor), prior=_PRIOR_SPREAD
        )
        with np.errstate(over="ignore"):
            return float(np.exp(usual.centre + usual.margin))


@dataclass(frozen=True)
class Placed:
    """The values (S,) of one kind and how plausible they are."""

    kind: str
    values: Floats  # NaN: not reported, or impossible
    impossible: Bools
    signed: bool
    centre: float
    excess: Floats  # logarithms (signed: values) above the centre
    margin: float  # the excess that is plausible
    gap: float  # how much more than that is an offence

    def flagrant(self, norms: Floats) -> Bools:
        """Return (S,) which values are offences, given the excess of the update norms (NaN: unknown)."""
        power = _POWERS.get(self.kind, 1.0)
        beyond: Bools = self.excess > np.fmax(self.margin, power * norms) + self.gap
        return beyond

    def clipped(self, remarks: Remarks, norms: Floats) -> Floats:
        """Return the values (S,), reduced to their limits, given the excess of the update norms."""
        margins = np.full(norms.size, self.margin)
        if self.kind in _POWERS and not self.signed:
            margins = np.fmax(margins, _POWERS[self.kind] * norms)
        beyond = np.flatnonzero(self.excess > margins)
        within = self.values.copy()
        with np.errstate(over="ignore", under="ignore"):
            limits = self.centre + margins[beyond]
            within[beyond] = np.minimum(limits if self.signed else np.exp(limits), within[beyond])
        for i in beyond:
            remarks.add(i, f"{self.kind} {self.values[i]:.3g} clipped to {within[i]:.3g}, its limit")
        return within


@dataclass
class Remarks:
    """What was clipped or ignored at each position, as text."""

    _remarks: dict[int, list[str]] = field(default_factory=dict)

    def add(self, position: int | np.int64, remark: str) -> None:
        """Add a remark about a position."""
        self._remarks.setdefault(int(position), []).append(remark)

    def lines(self) -> dict[int, str]:
        """Return position -> its remarks, in one line."""
        return {position: "; ".join(remarks) for position, remarks in sorted(self._remarks.items())}


def believed_sizes(
    claimed: npt.ArrayLike, overrides: npt.ArrayLike | None = None, guard: GuardSettings | None = None
) -> Floats:
    """Return the data size that counts for each client.

    Parameters
    ----------
    claimed : array_like, shape (M,)
        Sizes that the clients reported; NaN = none. A value that is no size counts as none.
    overrides : array_like, shape (M,), optional
        Sizes that the operator declared, in [1e-100, 1e100], taken as they are; NaN = none.
    guard : GuardSettings, optional
        Claims are clipped to `Limits.size` (default: they are believed).

    Returns
    -------
    ndarray, shape (M,)
        Positive: the override, else the claim, clipped, else the mean of all these sizes (1 if there are
        none).

    Raises
    ------
    TypeError, ValueError
        If the lengths differ, or an override is out of range.
    """
    sizes = checks.floats("claimed", claimed)
    sizes[~((sizes >= checks.SMALLEST_SIZE) & (sizes <= checks.LARGEST_SIZE))] = nan
    is_claim = ~np.isnan(sizes)
    if overrides is not None:
        declared = checks.floats("overrides", overrides, sizes.size)
        is_declared = ~np.isnan(declared)
        checks.in_range("overrides", declared[is_declared], checks.SMALLEST_SIZE, checks.LARGEST_SIZE)
        sizes[is_declared] = declared[is_declared]
        is_claim &= ~is_declared
    unknown = np.isnan(sizes)
    if guard is not None:
        sizes[is_claim] = np.minimum(sizes[is_claim], Limits(guard).size(sizes[~unknown]))
    sizes[unknown] = 1.0 if unknown.all() else sizes[~unknown].mean()
    return sizes


def _is_half(those: Bools) -> bool:
    """Return whether at least half of them are true; False where there are none."""
    return those.size > 0 and 2 * int(np.count_nonzero(those)) >= those.size
