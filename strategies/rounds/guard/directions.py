"""The directions of the newest updates, with which the guard compares the direction of a new update."""

from math import nan
from typing import NamedTuple

import numpy as np

from ...numerics.arrays import Array, Bools, Floats, Ints
from ...numerics.sketches import WIDTH

_DIRECTIONS = 64
"""The number of clients whose last direction is remembered."""
_FEWEST = 8
"""If fewer directions than this are known, no agreement is computed."""
_NEWEST_SHARE = 0.3
"""The weight of a client's newest cosine in its agreement."""


class Agreements(NamedTuple):
    """The agreements of the n clients of a round, and of m other clients, see `guard.Guard`."""

    own: Floats
    """(n,) in [-1, 1]; NaN = the update cannot be used or is 0, or updates of too few clients are known."""
    of_others: Floats
    """(m,) of the other remembered clients, the newest at the end; NaN = unknown."""
    single: Bools
    """(n,) whether the agreement comes from a single update."""
    deviations: Floats
    """(n,) the largest standard deviation that the agreement can have if all directions are random, in
    multiples of the standard deviation of a single cosine; 0 to 1."""


class RecentDirections:
    """Remembers the last direction and the agreement of the 64 clients that sent updates most recently.

    A client's agreement is the cosine between its update and the mean direction of the other clients,
    averaged over the client's replies. The other clients are those of this round and those that are
    remembered. The average is exponential; the newest reply has the weight 0.3. The norms and weights of
    updates make no difference to the mean direction.

    The time of a round with n updates, whose sketches have D numbers each, is O((n + 64) D). It does not grow
    with the number of all clients.
    """

    def __init__(self) -> None:
        self._clients = np.full(_DIRECTIONS, -1, dtype=np.int64)  # filled from the end
        self._directions = np.zeros((_DIRECTIONS, WIDTH), dtype=np.float32)
        self._agreements = np.full(_DIRECTIONS, nan)  # NaN = too few directions were known

    def agreements(self, clients: Ints, sketches: Floats) -> Agreements:
        """Compute and remember the agreements of clients, and also return the agreements of other clients.

        `sketches` (n, D) of the updates of the distinct `clients` (n,) may hold any floats.
        """
        found, single = np.full(clients.size, nan), np.ones(clients.size, dtype=np.bool_)
        usable, directions = unit_vectors(clients, sketches)
        new, width = clients[usable], sketches.shape[1]
        others = np.flatnonzero((self._clients >= 0) & ~np.isin(self._clients, new))
        pool = np.concatenate([self._directions[others, :width], directions], dtype=np.float64)
        of_others = self._agreements[others]
        of_new = np.full(new.size, nan)
        if len(pool) >= _FEWEST:
            cosines = _cosines_with_the_others(pool)
            of_others = np.where(np.isnan(of_others), cosines[: others.size], of_others)
            before = self._agreements_of(new)
            now = cosines[others.size :]
            single[usable] = np.isnan(before)
            of_new = np.where(np.isnan(before), now, before + _NEWEST_SHARE * (now - before))
        found[usable] = of_new
        remembered = np.concatenate([self._clients[others], new])
        self._remember(remembered, pool, np.concatenate([of_others, of_new]))
        return Agreements(found, of_others, single, np.ones(clients.size))

    def _agreements_of(self, clients: Ints) -> Floats:
        same = self._clients == clients[:, None]
        found: Floats = np.where(same.any(axis=1), self._agreements[same.argmax(axis=1)], nan)
        return found

    def _remember(self, clients: Ints, directions: Floats, agreements: Floats) -> None:
        newest = slice(max(0, clients.size - _DIRECTIONS), None)
        place = slice(_DIRECTIONS - clients[newest].size, None)
        self._clients[: place.start] = -1
        self._clients[place] = clients[newest]
        self._directions[place, : directions.shape[1]] = directions[newest]
        self._agreements[place] = agreements[newest]

    def arrays(self) -> dict[str, Array]:
        """Return all arrays of the state by name. They are not copies."""
        return {"clients": self._clients, "directions": self._directions, "agreements": self._agreements}


def unit_vectors(clients: Ints, sketches: Floats) -> tuple[Ints, Floats]:
    """Return (u,) the positions of sketches with a direction, sorted by client, and (u, D) their directions.

    A sketch (a row of ``sketches``, (n, D)) has no direction if it is 0, or if its length is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.square(sketches).sum(axis=1))
    usable = np.flatnonzero(np.isfinite(lengths) & (lengths > 0))
    usable = usable[np.argsort(clients[usable])]
    return usable, sketches[usable] / lengths[usable, None]


def _cosines_with_the_others(units: Floats) -> Floats:
    """Return (n,) the cosine of each unit vector (n, D) with the sum of the other unit vectors."""
    total = units.sum(axis=0)
    along = (units * total).sum(axis=1)  # the last digits of a matrix product would depend on the machine
    length = np.sqrt(np.maximum((total * total).sum() - 2 * along + 1, 1e-12))
    cosines: Floats = np.clip((along - 1) / length, -1, 1)
    return cosines
