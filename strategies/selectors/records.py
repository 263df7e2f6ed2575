"""The two records of a round: the selection that a selector returns, and the feedback that it learns from."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

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
        Distinct client indexes, in the order in which the clients were drawn; S may be 0.
    counts : ndarray of int, shape (S,)
        How often each client was drawn, >= 1.
    probabilities : ndarray, shape (S,)
        The probability p_m of each client in this round, in [0, 1]. For draws with replacement, it is the
        probability of one draw; without replacement, that of the first draw. If the number of selected
        clients varies, it is the probability of being selected.
    importance : ndarray, shape (S,)
        W_m >= 0, with E[W_m] = 1 if the selector is unbiased.
    weights : ndarray, shape (S,)
        c_m >= 0, the coefficient of each update in the aggregate if all selected clients respond.
    parts : ndarray, shape (S, P), or None
        None if an update has no parts, see `Selector.part_names`. Otherwise the scales in [0, 1] by which a
        client multiplies its P parts before it sums them. The largest scale of each client is 1.
    """

    clients: Ints
    counts: Ints
    probabilities: Floats
    importance: Floats
    weights: Floats
    parts: Floats | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        clients = checks.indexes("clients", self.clients, _ANY_INDEX)
        counts = checks.ints("counts", self.counts, clients.size)
        checks.in_range("counts", counts, 1)
        arrays: dict[str, Array] = {"clients": clients, "counts": counts}
        for name, high in (("probabilities", 1 + 1e-9), ("importance", _FINITE), ("weights", _FINITE)):
            values = arrays[name] = checks.floats(name, getattr(self, name), clients.size)
            checks.in_range(name, values, 0, high)
        if self.parts is not None:
            parts = arrays["parts"] = _table("parts", self.parts, clients.size)
            checks.in_range("parts", parts, 0, 1)
        _set(self, arrays)

    @classmethod
    def nobody(cls) -> "Selection":
        none = np.empty(0)
        return Selection(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), none, none, none)

    @classmethod
    def of_draw(cls, draw: Draw, weights: Floats) -> "Selection":
        """Return the selection for a new draw, without copying or checking the arrays of the draw.

        The draw is valid, but a weight may have overflowed.
        """
        if np.count_nonzero(np.isfinite(weights)) < weights.size:
            return cls(*draw, weights)
        selection = object.__new__(cls)
        _set(selection, draw._asdict() | {"weights": weights})
        vars(selection)["parts"] = None
        return selection


@dataclass(frozen=True, eq=False)
class Feedback:
    """The measurements of a round from which a selector learns, in the order of ``Selection.clients``.

    The arrays are read-only copies. A value that is not finite is missing.

    Attributes
    ----------
    update_norms : ndarray, shape (S,)
        ||g_m|| >= 0, the L2 norm of g_m = (w_m - w_t) / local learning rate.
    losses : ndarray, shape (S,)
        Mean local training loss.
    gradient_variances : ndarray, shape (S,)
        The variance >= 0 of the gradient between the client's mini-batches.
    diversities : ndarray, shape (S,)
        ||g_m - mean_S g|| >= 0, the distance from the mean over the selected clients. The mean is weighted or
        plain, see `Selector.diversity_mean`.
    responded : ndarray of bool, shape (S,)
        Whether each client responded.
    seconds : ndarray, shape (S,), or None
        Seconds >= 0 from the message until the server had the client's reply, by the server's clock. None if
        they were not measured, as in a simulation without response times.
    part_norms : ndarray, shape (S, P), or None
        None if an update has no parts. Otherwise the reported norms >= 0 of the client's P parts, before
        their multiplication by the scales in ``Selection.parts``.
    sketches : ndarray, shape (S, d), or None
        Short vectors whose inner products are about those of the updates g_m, such as random projections; NaN
        = no usable update. None if they were not computed, see `Selector.uses_sketches`.
    """

    update_norms: Floats
    losses: Floats
    gradient_variances: Floats
    diversities: Floats
    responded: Bools
    seconds: Floats | None = field(default=None, kw_only=True)
    part_norms: Floats | None = field(default=None, kw_only=True)
    sketches: Floats | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        responded = checks.bools("responded", self.responded)
        arrays: dict[str, Array] = {"responded": responded}
        for name in ("update_norms", "losses", "gradient_variances", "diversities"):
            values = arrays[name] = checks.floats(name, getattr(self, name), responded.size)
            if name != "losses":
                checks.not_negative(name, values)
        if self.seconds is not None:
            seconds = arrays["seconds"] = checks.floats("seconds", self.seconds, responded.size)
            checks.not_negative("seconds", seconds)
        if self.part_norms is not None:
            norms = arrays["part_norms"] = _table("part_norms", self.part_norms, responded.size)
            checks.not_negative("part_norms", norms)
        if self.sketches is not None:
            arrays["sketches"] = _table("sketches", self.sketches, responded.size)
        _set(self, arrays)


def _table(name: str, values: npt.ArrayLike, rows: int) -> Floats:
    """Return a copy of `values` as floats; a ValueError unless its shape is (rows, n) for some n."""
    array = np.array(values, dtype=np.float64)
    if array.ndim != 2 or len(array) != rows:
        raise ValueError(f"{name} has shape {array.shape}: must be ({rows}, n)")
    return array


def _set(instance: object, arrays: dict[str, Array]) -> None:
    for array in arrays.values():
        array.setflags(write=False)
    vars(instance).update(arrays)  # the dataclass is frozen
