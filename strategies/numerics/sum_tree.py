"""A tree of sums of n weights. A weighted draw, or a change of a weight, costs O(log n)."""

import numpy as np

from .arrays import Floats, Ints

FAN_OUT = 16


class SumTree:
    """A tree with weights >= 0 at its leaves. Each inner node is the sum of its 16 children.

    The sum of a node depends only on its children. So after any changes the tree equals, bit for bit, a new
    tree with the same weights.

    `weights` (n,), n >= 1, are copied.
    """

    def __init__(self, weights: Floats) -> None:
        self._levels = [_padded(weights)]
        while self._levels[-1].shape[0] > 1:
            self._levels.append(_padded(self._levels[-1].sum(axis=1)))

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._levels[-1].sum(axis=1)[0])

    def assign(self, indexes: Ints, weights: Floats) -> None:
        """Set the weights at the distinct `indexes` (m,) to `weights` (m,)."""
        self._levels[0].flat[indexes] = weights
        nodes = indexes
        for level, above in zip(self._levels, self._levels[1:], strict=False):
            nodes = np.unique(nodes // FAN_OUT)
            above.flat[nodes] = level[nodes].sum(axis=1)

    def before(self, indexes: Ints) -> Floats:
        """Return (m,) the sum of all weights before each of the `indexes` (m,), which are in [0, n]."""
        sums = np.zeros(indexes.size)
        for level in self._levels:
            nodes = np.minimum(indexes // FAN_OUT, len(level) - 1)
            place = indexes - nodes * FAN_OUT
            sums += np.where(np.arange(FAN_OUT) < place[:, None], level[nodes], 0.0).sum(axis=1)
            indexes = nodes
        return sums

    def find(self, targets: Floats) -> Ints:
        """Return (m,) the indexes at which the running sum of weights passes the `targets` (m,).

        Targets are in [0, total). A uniform target gives each index a probability in proportion to the
        weight. If `total` is positive, an index with weight 0 is never returned.
        """
        left = np.array(targets)
        nodes = np.zeros(left.size, dtype=np.int64)
        for level in reversed(self._levels):
            children = level[nodes]
            sums = children.cumsum(axis=1)
            # By rounding, a target may lie beyond the last sum. It then belongs to the last positive child.
            last = FAN_OUT - 1 - np.argmax(children[:, ::-1] > 0, axis=1)
            child = np.minimum((sums <= left[:, None]).sum(axis=1), last)
            # Subtract the stored sum before the child. By rounding, (sum with the child) - child may exceed
            # `left`.
            left -= np.where(child > 0, sums[np.arange(left.size), child - 1], 0.0)
            nodes = nodes * FAN_OUT + child
        return nodes


def _padded(weights: Floats) -> Floats:
    """Return a copy of `weights` (n,) as rows of 16 siblings; the last row is filled up with zeros."""
    rows = np.zeros((-(-weights.size // FAN_OUT), FAN_OUT))
    rows.flat[: weights.size] = weights
    return rows
