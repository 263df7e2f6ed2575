"""The two records of a round: the selection that a selector returns, and the feedback that it learns from."""

from dataclasses import dataclass

import numpy as np

from ..numerics.arrays import Array, Bools, Floats, Ints
from ..numerics.sampling import Draw
from . import checks

_ANY_INDEX = int(np.iinfo(np.int64).max)
_FINITE = float(np.finfo(np.float64).max)


@dataclass(frozen=True, eq=False)
class Selection:
    """The clients selected in a round; arrays are copied, checked and read-only.

    Attributes
    ----------
    clients : ndarray of int, shape (S,)
        Distinct dense indexes in draw order; S may be 0.
    counts : ndarray of int, shape (S,)
        How often each client was drawn, >= 1.
    probabilities : ndarray, shape (S,)
        The probability of drawing each client in this round, in [0, 1].
    importance : ndarray, shape (S,)
        W_m >= 0, with E[W_m] = 1 where the selector is unbiased.
    weights : ndarray, shape (S,)
        c_m >= 0, the coefficient of each update in the pseudo-gradient if all respond.

    Raises
    ------
    TypeError, ValueError
        If a field has the wrong dtype, length or range.
    """

    clients: Ints
    counts: Ints
    probabilities: Floats
    importance: Floats
    weights: Floats

    def __post_init__(self) -> None:
        clients = checks.indexes("clients", self.clients, _ANY_INDEX)
        counts = checks.ints("counts", self.counts, clients.size)
        checks.in_range("counts", counts, 1)
        arrays: dict[str, Array] = {"clients": clients, "counts": counts}
        for name, high in (("probabilities", 1 + 1e-9), ("importance", _FINITE), ("weights", _FINITE)):
            values = arrays[name] = checks.floats(name, getattr(self, name), clients.size)
            checks.in_range(name, values, 0, high)
        _set(self, arrays)

    @classmethod
    def nobody(cls) -> "Selection":
        """Return the selection of no client."""
        none = np.empty(0)
        return Selection(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), none, none, none)

    @classmethod
    def of_draw(cls, draw: Draw, weights: Floats) -> "Selection":
        """Return the selection of a draw just made, without copying its arrays.

        A draw is valid unless a weight has overflowed; then the constructor raises the error.
        """
        if np.count_nonzero(np.isfinite(weights)) < weights.size:
            return cls(*draw, weights)
        selection = object.__new__(cls)
        _set(selection, draw._asdict() | {"weights": weights})
        return selection


@dataclass(frozen=True, eq=False)
class Feedback:
    """What a round taught, aligned with ``Selection.clients``; arrays are copied, checked and read-only.

    A value that is not finite is missing.

    Attributes
    ----------
    update_norms : ndarray, shape (S,)
        ||g_m|| >= 0, L2 norm of g_m = (w_m - w_t) / local learning rate.
    losses : ndarray, shape (S,)
        Mean local training loss.
    gradient_variances : ndarray, shape (S,)
        Per-batch gradient variance >= 0.
    diversities : ndarray, shape (S,)
        ||g_m - mean_S g|| >= 0.
    responded : ndarray of bool, shape (S,)
        Which clients responded.

    Raises
    ------
    TypeError, ValueError
        If a field has the wrong dtype, length or sign.
    """

    update_norms: Floats
    losses: Floats
    gradient_variances: Floats
    diversities: Floats
    responded: Bools

    def __post_init__(self) -> None:
        responded = checks.bools("responded", self.responded)
        arrays: dict[str, Array] = {"responded": responded}
        for name in ("update_norms", "losses", "gradient_variances", "diversities"):
            values = arrays[name] = checks.floats(name, getattr(self, name), responded.size)
            if name != "losses":
                checks.not_negative(name, values)
        _set(self, arrays)


def _set(instance: object, arrays: dict[str, Array]) -> None:
    for array in arrays.values():
        array.setflags(write=False)
    vars(instance).update(arrays)  # the dataclass is frozen
