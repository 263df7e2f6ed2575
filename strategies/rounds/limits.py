"""Where a value stands among what many clients sent lately, and how far above that is plausible.

The rules of `guard.Guard`, whose docstring says them in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, log, nan
from typing import Any

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Bools, Floats, Ints
from ..numerics.robust import bulk

KINDS = ("update norm", "loss", "gradient variance")
"""What comes with a trained model."""
ASKED = {
    name: f"polled {name.replace('_', ' ')}"
    for name in ("loss", "update_norm", "gradient_variance", "diversity")
}
"""Numbers that candidates report before a round (`Selector.polls_for`), and the kind each is judged as."""

WINDOWS = (*KINDS, *ASKED.values())
COUNTED = ("answer", *WINDOWS, "put aside")
RECENT = 32
"""How many of the newest values say where values are now; it takes a majority of them to move that."""
_FEW = 8
"""When half of so many of the newest values are far beyond the limit, something has changed: no lies."""
_PRIOR_SPREAD = 0.5
"""Standard deviation of logarithms that is assumed while there are few values."""
_FLAGRANT = 2.0
"""How many times the limit is an offence."""
_HEAVY = 4.0
"""The spread at which margins are doubled: widely spread norms have heavier tails than a lognormal's."""
_POWERS = {"loss": 3.0, "polled loss": 3.0, "gradient variance": 2.0, "polled gradient variance": 2.0}
"""What a number may grow like as an update's norm grows; of least squares the loss grows like its square."""


@dataclass(frozen=True)
class Limits:
    """What is plausible.

    Attributes
    ----------
    deviations : float
        How many standard deviations of the logarithms above the centre are plausible.
    factor : float
        Up to so many times the centre always is.
    signed_losses : bool
        Whether a loss may be negative.
    """

    deviations: float
    factor: float
    signed_losses: bool

    def place(self, changes: Changes, kind: str, clients: Ints, values: Floats, lines: Lines) -> Place:
        """Say where each value stands among those of all clients, and remember them."""
        signed = self.signed_losses and "loss" in kind
        impossible = ~np.isnan(values) & ~(np.isfinite(values) & (signed | (values >= 0)))
        for position in np.flatnonzero(impossible):
            allowed = "finite" if signed else "finite and >= 0"
            lines.add(position, f"{kind} {values[position]:g} left out: must be {allowed}")
        changes.count(clients[impossible], kind)
        values = np.where(impossible, nan, values)
        with np.errstate(divide="ignore"):
            x = np.clip(values, -1e150, 1e150) if signed else np.log(values)
        place = Place(kind, clients, values, impossible, signed, 0.0, x, inf, inf)
        # Zeros say that there is nothing to bound, and nothing of the scale of what is not zero.
        told = np.flatnonzero(np.isfinite(x))
        if not told.size:
            return place
        x = x[told]
        remembered, old, residuals = changes.window(kind, clients[told])
        newest = np.concatenate([old[max(0, old.size + x.size - RECENT) :], x])
        centre = float(np.median(newest))
        unit = abs(centre) if signed else 1.0
        residuals = np.concatenate([residuals, x - centre])
        least = (self.factor - 1) * unit if signed else log(self.factor)
        usual = bulk(residuals, deviations=self.deviations, least=least, prior=_PRIOR_SPREAD * unit)
        changes.extend(kind, remembered, clients[told], old, x, residuals)
        spread = usual.spread / unit if unit else 0.0
        margin = max(least, self.deviations * usual.spread * (1 + spread / _HEAVY))
        gap = max(log(_FLAGRANT), usual.spread)
        groups = (newest[-max(_FEW, x.size) :], x if x.size > _FEW // 2 else x[:0])
        if signed or any(_most(group > centre + margin + gap) for group in groups):
            gap = inf  # something else than lies
        return replace(place, centre=centre, excess=place.excess - centre, margin=margin, gap=gap)

    def size(self, sizes: Floats) -> float:
        """Return the largest size that is believed of a claim, given all that are known; inf if none is."""
        logs = np.log(sizes[~np.isnan(sizes)])
        if not logs.size:
            return inf
        usual = bulk(logs, deviations=self.deviations, least=log(self.factor), prior=_PRIOR_SPREAD)
        with np.errstate(over="ignore"):
            return float(np.exp(usual.centre + usual.margin))


@dataclass(frozen=True)
class Place:
    """Where the values (S,) of one kind stand."""

    kind: str
    clients: Ints
    values: Floats  # NaN: not reported, or impossible
    impossible: Bools
    signed: bool
    centre: float
    excess: Floats  # logarithms (signed: values) above the centre
    margin: float  # how much of that is plausible
    gap: float  # how much beyond that is an offence

    def flagrant(self, norms: Floats) -> Bools:
        """Say which are an offence, given how far off the update norms are (NaN: not known)."""
        power = _POWERS.get(self.kind, 1.0)
        beyond: Bools = self.excess > np.fmax(self.margin, power * norms) + self.gap
        return beyond

    def clipped(self, changes: Changes, lines: Lines, norms: Floats) -> Floats:
        """Return the values within their limits, and write down who was bounded."""
        margins = np.full(norms.size, self.margin)
        if self.kind in _POWERS and not self.signed:
            margins = np.fmax(margins, _POWERS[self.kind] * norms)
        beyond = np.flatnonzero(self.excess > margins)
        within = self.values.copy()
        with np.errstate(over="ignore", under="ignore"):
            limits = self.centre + margins[beyond]
            within[beyond] = np.minimum(limits if self.signed else np.exp(limits), within[beyond])
        verb = "shortened to" if self.kind == "update norm" else "bounded at"
        for i in beyond:
            lines.add(i, f"{self.kind} {self.values[i]:.3g} {verb} {within[i]:.3g} (limit of recent rounds)")
        changes.count(self.clients[beyond], self.kind)
        return within


class Changes:
    """What a judgement changes: written into the state once all of it is known."""

    def __init__(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self._state = state
        self._writes: list[tuple[str, Any, Any]] = []
        self._counted: list[tuple[Ints, int]] = []

    def write(self, name: str, at: Any, values: Any) -> None:
        """Write to some places of an array of the state."""
        self._writes.append((name, at, values))

    def count(self, clients: Ints, what: str) -> None:
        """Count something of distinct clients."""
        self._counted.append((clients, COUNTED.index(what)))

    def commit(self) -> None:
        """Change the state, in the order of the calls."""
        for name, at, values in self._writes:
            self._state[name][at] = values
        for clients, column in self._counted:
            self._state["counts"][clients, column] += 1

    def window(self, kind: str, without: Ints) -> tuple[Ints, Floats, Floats]:
        """Return (clients, values, residuals) that are remembered, without those of these clients."""
        row = WINDOWS.index(kind)
        clients = self._state["window_clients"][row]
        kept = (clients >= 0) & ~np.isin(clients, without)
        return (
            clients[kept],
            self._state["window_values"][row][kept],
            self._state["window_residuals"][row][kept],
        )

    def excess_of(self, kind: str, clients: Ints) -> Floats:
        """Return how far above the centre each of these clients last was; NaN where it is not remembered."""
        row = WINDOWS.index(kind)
        known = self._state["window_clients"][row]
        order = np.argsort(known)
        found = order[np.minimum(np.searchsorted(known, clients, sorter=order), known.size - 1)]
        excess: Floats = np.where(known[found] == clients, self._state["window_residuals"][row][found], nan)
        return excess

    def extend(self, kind: str, old: Ints, new: Ints, values: Floats, x: Floats, residuals: Floats) -> None:
        """Remember new values after the old ones; ``residuals`` are of both."""
        row, size = WINDOWS.index(kind), self._state["window_clients"].shape[1]
        order = np.argsort(new)  # of the clients: the order of answers changes nothing
        if order.size > size:  # evenly spaced ones say best how they spread
            ranks = np.lexsort((new, x))
            order = np.sort(ranks[np.linspace(0, ranks.size - 1, size).astype(np.int64)])
            order = order[np.argsort(new[order])]
        order = np.concatenate([np.arange(old.size), old.size + order])[-size:]
        for name, array in (
            ("window_clients", np.concatenate([old, new])),
            ("window_values", np.concatenate([values, x])),
            ("window_residuals", residuals),
        ):
            none = -1 if name == "window_clients" else 0
            self.write(name, row, np.concatenate([np.full(size - order.size, none), array[order]]))


class Lines:
    """One line a position, made of one or more remarks."""

    def __init__(self) -> None:
        self._remarks: dict[int, list[str]] = {}

    def add(self, position: int | np.int64, remark: str) -> None:
        """Add a remark on a position."""
        self._remarks.setdefault(int(position), []).append(remark)

    def joined(self) -> dict[int, str]:
        """Return position -> its remarks, in one line."""
        return {position: "; ".join(remarks) for position, remarks in sorted(self._remarks.items())}


def _most(those: Bools) -> bool:
    """Say whether it is half of them at least."""
    return those.size > 0 and 2 * int(np.count_nonzero(those)) >= those.size
