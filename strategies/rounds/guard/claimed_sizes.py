"""Decides which of the clients' claims about themselves are believed: data sizes, costs and energies.

With the level "sane" of the guard, each client's share of the data is n_m / Σ n, exactly as claimed. A claim
is *ignored*, as if the client had claimed nothing, if it is more than `FAR` times the median of the other
clients' known values, or outside [1e-100, 1e100]. No rule tells an honest claim below that from a false one:
in honest federations, one client may hold 10,000 times the data of another. `FAR` is a hundred times as much.

With the level "strict", a claim above its limit is *clipped* to the limit, and ignored if it is far above.
The limit lies `size_deviations` standard deviations above the centre of the logarithms of all known values,
and at least at `factor` times the centre. So among clients that are alike, a client gains at most this factor
by a false claim. The price: an honest client with far more data than the others loses a part of its share.

What the operator declares is neither clipped nor ignored.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, log, nan
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Bools, Floats
from ...numerics.robust import bulk
from ...options import GuardSettings
from ...selectors import checks

FAR = 1e6
"""With the level "sane", a claim above this many times the median of the others' values is ignored."""
_PRIOR_SPREAD = 0.5
"""The spread of logarithms that is assumed while few values are known."""
_FLAGRANT = 2.0
"""With the level "strict", a claim above its limit by more than this factor is ignored."""


@dataclass(frozen=True, eq=False)
class ClientSizes:
    """The data sizes of the clients: what they claim, and what the server uses."""

    claimed: Floats  # (M,) samples, as clients claim; NaN = no claim
    used: Floats  # (M,) the sizes that the server uses, > 0
    # (M,) whether the used size is the client's own: declared by the operator, or claimed, even if clipped.
    # The used size of every other client is ``mean``.
    is_own: Bools
    is_declared: Bools  # (M,) whether the operator declared the size
    mean: float  # the mean of the own sizes; 1 if there are none
    # (M,) the numbers that take the place of ``used`` in all shares; None if the operator declared no shares
    targets: Floats | None = None

    @cached_property
    def remarks(self) -> dict[int, str]:
        """Client -> how its claim is clipped or ignored, in one line; only clients with such a claim."""
        with np.errstate(invalid="ignore"):
            altered = (
                ~np.isnan(self.claimed) & ~self.is_declared & (~self.is_own | (self.used < self.claimed))
            )
        return {
            int(i): f"data size {self.claimed[i]:g} "
            + (
                f"clipped to {self.used[i]:g}, its limit"
                if self.is_own[i]
                else f"ignored: {self.mean:g}, the mean of the others, is used"
            )
            for i in np.flatnonzero(altered)
        }


def judged_sizes(
    claimed: npt.ArrayLike, overrides: npt.ArrayLike | None = None, guard: GuardSettings | None = None
) -> ClientSizes:
    """Return the data sizes of the clients, as claimed and as used.

    The size of a client is its override if there is one, otherwise its claim, which may be clipped. A client
    with neither, or whose claim is ignored, gets the mean of all these sizes, or 1 if no size is known.

    ``claimed`` (M,) is in samples, NaN = no claim; values outside [1e-100, 1e100] are ignored. ``overrides``
    (M,) are the sizes that the operator declared, in the same range; NaN = none. Without a ``guard``, all
    claims are believed.
    """
    claims = checks.floats("claimed", claimed)
    sizes = claims.copy()
    sizes[~((sizes >= checks.SMALLEST_SIZE) & (sizes <= checks.LARGEST_SIZE))] = nan
    is_declared = np.zeros(sizes.size, dtype=np.bool_)
    if overrides is not None:
        declared = checks.floats("overrides", overrides, sizes.size)
        is_declared = ~np.isnan(declared)
        checks.in_range("overrides", declared[is_declared], checks.SMALLEST_SIZE, checks.LARGEST_SIZE)
        sizes[is_declared] = declared[is_declared]
    sizes = _limited(sizes, ~is_declared, guard)
    is_own = ~np.isnan(sizes)
    mean = float(sizes[is_own].mean()) if is_own.any() else 1.0
    return ClientSizes(claims, np.where(is_own, sizes, mean), is_own, is_declared, mean)


def believed_sizes(
    claimed: npt.ArrayLike, overrides: npt.ArrayLike | None = None, guard: GuardSettings | None = None
) -> Floats:
    """Return (M,) the data size that the server uses for each client, > 0; see `judged_sizes`."""
    return judged_sizes(claimed, overrides, guard).used


def believed_numbers(
    claimed: npt.ArrayLike, overrides: npt.ArrayLike | None = None, guard: GuardSettings | None = None
) -> Floats:
    """Return (M,) the costs or energies of the clients, limited in the same way as sizes; NaN = unknown.

    Numbers that clients reported (``claimed``) or the operator declared (``overrides``) are >= 0; NaN = none.
    """
    numbers = checks.floats("claimed", claimed)
    is_declared = np.zeros(numbers.size, dtype=np.bool_)
    if overrides is not None:
        declared = checks.floats("overrides", overrides, numbers.size)
        is_declared = ~np.isnan(declared)
        numbers[is_declared] = declared[is_declared]
    return _limited(numbers, ~is_declared, guard)


def _limited(values: Floats, is_claim: Bools, guard: GuardSettings | None) -> Floats:
    """Return the values (M,) with the claims among them clipped; NaN = not known, or ignored."""
    if guard is None:
        return values
    limit, absurd = _limits(values[values > 0], guard)
    found: Floats = np.where(is_claim, np.minimum(values, limit), values)  # NaN stays NaN
    found[is_claim & (values > absurd)] = nan
    return found


def _limits(values: Floats, guard: GuardSettings) -> tuple[float, float]:
    """Return the limit of a claim, and above what it is ignored, by all known values (n,); inf if unknown."""
    if guard.level == "sane":
        if values.size < 2:
            return inf, inf
        # A claim is above FAR times the median of the others if and only if it is above this number: the
        # median of the others is the same for each claim in the upper half.
        others = np.delete(values, np.argmax(values))
        absurd = FAR * float(np.median(others))
        return absurd, absurd
    if not values.size:
        return inf, inf
    usual = bulk(
        np.log(values), deviations=guard.size_deviations, least=log(guard.factor), prior=_PRIOR_SPREAD
    )
    limit = usual.centre + usual.margin
    with np.errstate(over="ignore"):
        return float(np.exp(limit)), float(np.exp(limit + max(log(_FLAGRANT), usual.spread)))


class _Logged(NamedTuple):
    """The last logged claim of a client, and how many of its claims were logged."""

    claim: float
    times: int


class ClaimLog:
    """Makes the lines for the log about claims that are clipped or ignored.

    A client gets a line for the first such claim, and a further line if its claim then changes by more than a
    factor of `MATERIAL`; at most `MOST` lines in all. At most `AT_ONCE` clients get a line of their own at a
    time; one line has the number of the others.
    """

    MATERIAL = 2.0
    MOST = 3
    AT_ONCE = 10

    def __init__(self) -> None:
        self._logged: dict[tuple[str, int], _Logged] = {}

    def of_sizes(self, sizes: ClientSizes, name_of: Callable[[int], str]) -> list[str]:
        """Return the new lines about data sizes. ``name_of`` returns the identity of a client, by index."""
        used = {client: float(sizes.used[client]) for client in sizes.remarks}
        return self._lines(
            "data size", sizes.claimed, used, name_of, 'Overrides(sizes={{"{0}": {1:.15g}}}), client-sizes'
        )

    def of_numbers(
        self, setting: str, claimed: Floats, used: Floats, declared: Floats, name_of: Callable[[int], str]
    ) -> list[str]:
        """Return the new lines about the costs or energies (M,) of clients.

        ``setting`` is "costs" or "energies". The arrays (M,) hold what clients reported, the result of
        `believed_numbers`, and what the operator declared; NaN = none. ``name_of`` returns the identity of a
        client, by index.
        """
        with np.errstate(invalid="ignore"):
            altered = ~np.isnan(claimed) & np.isnan(declared) & ~(used >= claimed)
        found = {int(client): float(used[client]) for client in np.flatnonzero(altered)}
        return self._lines(
            {"costs": "cost", "energies": "energy"}[setting],
            claimed,
            found,
            name_of,
            f'Overrides(settings={{{{"{setting}": {{{{"{{0}}": {{1:.15g}}}}}}}}}}), client-settings',
        )

    def _lines(
        self,
        what: str,
        claimed: Floats,
        used: Mapping[int, float],
        name_of: Callable[[int], str],
        declaration: str,
    ) -> list[str]:
        lines: list[str] = []
        more = 0
        for client, number in used.items():
            claim = float(claimed[client])
            before = self._logged.get((what, client), _Logged(nan, 0))
            low, high = sorted((abs(claim), abs(before.claim)))
            if before.times >= self.MOST or (before.times and high <= self.MATERIAL * low):
                continue
            self._logged[what, client] = _Logged(claim, before.times + 1)
            if len(lines) == self.AT_ONCE:
                more += 1
                continue
            name = name_of(client)
            used_as = "the claim is ignored" if np.isnan(number) else f"{number:g} is used"
            lines.append(
                f"{name} claims the {what} {claim:.15g}, and {used_as}. If the claim is true, declare it: "
                f"{declaration.format(name, claim)} in Cohort's app"
            )
        if more:
            clients = "1 more client claims" if more == 1 else f"{more} more clients claim"
            lines.append(f"{clients} a {what} that is not used as claimed")
        return lines
