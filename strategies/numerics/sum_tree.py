"""A tree of sums over weights: drawing in proportion to them and changing a few costs O(log n) each."""

import numpy as np

from .arrays import Floats, Ints

FAN_OUT = 16


class SumTree:
    """Weights >= 0 at the leaves, each inner node the sum of its 16 children.

    A node is always summed in the same way, so a tree rebuilt from its leaves equals, bit for bit, one that
    was changed step by step.

    Parameters
    ----------
    weights : ndarray, shape (n,)
        Finite and >= 0, n >= 1; copied.
    """

    def __init__(self, weights: Floats) -> None:
        self._levels = [_padded(weights)]
        while self._levels[-1].shape[0] > 1:
            self._levels.append(_padded(self._levels[-1].sum(axis=1)))

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self._levels[-1].sum(axis=1)[0])

    def assign(self, indexes: Ints, weights: Floats) -> None:
        """Set the weights at distinct indexes, both of shape (m,)."""
        self._levels[0].flat[indexes] = weights
        nodes = indexes
        for level, above in zip(self._levels, self._levels[1:], strict=False):
            nodes = np.unique(nodes // FAN_OUT)
            above.flat[nodes] = level[nodes].sum(axis=1)

    def before(self, indexes: Ints) -> Floats:
        """Return, for indexes (m,) in [0, n], the sums (m,) of the weights before each."""
        sums = np.zeros(indexes.size)
        for level in self._levels:
            nodes = np.minimum(indexes // FAN_OUT, len(level) - 1)
            place = indexes - nodes * FAN_OUT
            sums += np.where(np.arange(FAN_OUT) < place[:, None], level[nodes], 0.0).sum(axis=1)
            indexes = nodes
        return sums

    def find(self, targets: Floats) -> Ints:
        """Return, for targets (m,) in [0, total), the index where the running sum of the weights passes each.

        So a uniform target finds an index with a probability in proportion to its weight; an index of weight
        0 is never found as long as `total` is positive.
        """
        left = np.array(targets)
        nodes = np.zeros(left.size, dtype=np.int64)
        for level in reversed(self._levels):
            children = level[nodes]
            sums = children.cumsum(axis=1)
            # By rounding a target may lie beyond the last sum: it belongs to the last positive child.
            last = FAN_OUT - 1 - np.argmax(children[:, ::-1] > 0, axis=1)
            child = np.minimum((sums <= left[:, None]).sum(axis=1), last)
            # Subtract the sum before the child; (the sum with it) - (the child) could leave less than 0.
            left -= np.where(child > 0, sums[np.arange(left.size), child - 1], 0.0)
            nodes = nodes * FAN_OUT + child
        return nodes


def _padded(weights: Floats) -> Floats:
    """Return a copy as rows of 16 siblings, filled up with zeros."""
    rows = np.zeros((-(-weights.size // FAN_OUT), FAN_OUT))
    rows.flat[: weights.size] = weights
    return rows
