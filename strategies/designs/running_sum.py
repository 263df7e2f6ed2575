"""The running sum of an array, of which only the parts that a draw hits are computed."""

import numpy as np

from ..numerics.arrays import Floats, Ints
from ..numerics.sampling import Draw, first_seen

WHOLE = 1 << 14
"""Up to this length the running sum is computed as a whole."""

BLOCK = 256
"""The length of the parts of a longer array."""


class RunningSum:
    """The running sum of weights (M,) >= 0, M >= 1, where weights above `limit` count as 0.

    If M is above `WHOLE`, the weights are summed in blocks: one pass over them, and no array of their size is
    written. The running sum in a block is computed when it is needed.
    """

    def __init__(self, weights: Floats, limit: float = np.inf) -> None:
        self._weights, self._limit = weights, limit
        block = weights.size if weights.size <= WHOLE else BLOCK
        whole = weights.size // block * block
        self._rows = weights[:whole].reshape(-1, block)
        self._tail = np.zeros(block)  # the rest of the weights, and zeros
        self._tail[: weights.size - whole] = weights[whole:]
        self._maxima: Floats = np.maximum.reduceat(weights, np.arange(0, weights.size, block))
        self._sums = np.append(self._rows.sum(axis=1), self._tail.sum())[: self._maxima.size]
        some = np.flatnonzero(self._maxima > limit)
        if some.size:
            self._sums[some] = self._of(some).sum(axis=1)
        self.total = float(self._sums.sum())
        self._ends = self._sums.cumsum() if self._rows.shape[0] > 1 else self._of(np.array([0]))[0].cumsum()

    @property
    def end(self) -> float:
        """The last number of the running sum. It may differ from `total` by rounding."""
        return float(self._ends[-1])

    @property
    def largest(self) -> float:
        """The largest of all weights, also of those above the limit."""
        return float(self._maxima.max())

    def above(self, limit: float) -> Ints:
        """Return the positions of the weights above `limit`, ascending."""
        some = np.flatnonzero(self._maxima > limit)
        if 2 * some.size > self._maxima.size:
            return np.flatnonzero(self._weights > limit)
        block = self._tail.size
        rows = self._rows[np.minimum(some, len(self._rows) - 1)]
        rows[some == len(self._rows)] = self._tail
        row, column = np.nonzero(rows > limit)
        large: Ints = some[row] * block + column
        return large

    def below(self, limit: float) -> "RunningSum":
        """Return the running sum in which weights above `limit` count as 0."""
        return self if limit >= self.largest else RunningSum(self._weights, limit)

    def find(self, shares: Floats) -> Ints:
        """Return (k,) where the running sum, whose total is > 0, passes the `shares` (k,) in [0, 1) of it."""
        # A share is less than 1, and even the largest share times the last end is rounded to less than this
        # end. So with side="right" each position is in range and has a positive weight.
        targets = shares * self._ends[-1]
        found: Ints = self._ends.searchsorted(targets, side="right")
        if self._rows.shape[0] == 1:
            return found
        sums = self._of(found).cumsum(axis=1)
        inside = targets - np.where(found > 0, self._ends[found - 1], 0.0)
        inside = np.minimum(inside, np.nextafter(sums[:, -1], 0))  # the sum of a block has another rounding
        found *= BLOCK
        found += np.count_nonzero(sums <= inside[:, None], axis=1)
        return found

    def _of(self, blocks: Ints) -> Floats:
        """Return (b, block length) the weights of blocks."""
        rows = self._rows[np.minimum(blocks, len(self._rows) - 1)]
        rows[blocks == len(self._rows)] = self._tail
        if self._limit < np.inf:
            rows[rows > self._limit] = 0
        return rows


def draw_at(scores: Floats, shares: Floats) -> Draw:
    """Draw the clients at which the running sum of `scores` (n,) passes the `shares` (k,) in [0, 1).

    Client m is drawn N_m times and has p_m = its score / the sum of the scores, and W_m = N_m / (k p_m).
    """
    sums = RunningSum(scores)
    if not 0 < sums.total < np.inf:
        raise ValueError(f"scores have sum {sums.total}: must be finite, >= 0 and not all 0")
    clients, counts = first_seen(sums.find(shares))
    p = scores[clients] / sums.end
    return Draw(clients, counts, p, counts / (shares.size * p))
