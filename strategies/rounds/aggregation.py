"""Weighted sums of clients' updates, computed without a copy of any client's model.

Each pass over the replies reads one client's model at a time. A model is a mapping that may decode its arrays
on access. Arrays are read in chunks that fit into the processor's cache. So the memory for an aggregation
does not grow with the number of clients: an aggregation needs one buffer of the model's size.

All sums are computed in the order of the model's arrays and of the updates, on one thread and without BLAS.
So the same updates give the same result bit for bit.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import isfinite, nan, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..numerics import sketches
from ..numerics.arrays import Floats

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""A model: its parameters by name."""
_CHUNK = sketches.LONGEST  # entries; a chunk and its float64 copy fit into a core's second-level cache
_NAMED = 10  # how many arrays an error names


class UnusableError(ValueError):
    """A client's arrays cannot be used. The message states the reason."""


@dataclass(frozen=True)
class Update:
    """A client's term in the aggregate, without its weight: s_m (w_m - w_t - y_m).

    Without a baseline and without clipping, this is the client's update w_m - w_t.

    Attributes
    ----------
    sent : mapping of str to array
        The trained model w_m. Each pass accesses each array once.
    scale : float (default: 1.0)
        The factor s_m, in (0, 1]. It is below 1 if the guard clipped the update.
    baseline : mapping of str to array, optional
        The baseline y_m, with the names and shapes of the model's arrays (default: y_m = 0).
    """

    sent: Mapping[str, NDArray[Any]]
    scale: float = 1.0
    baseline: Mapping[str, NDArray[Any]] | None = None


class Model:
    """The global model w_t that was sent to the clients, with the sums and norms of updates of this model.

    Parameters
    ----------
    arrays : dict of str to array
        The parameters w_t: arrays of real numbers, of any shapes. They are not changed. Differences are
        computed in float32, or in the array's type if it is wider. For integers of 32 bits or more they are
        computed in float64.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self._flat = {name: array.reshape(-1) for name, array in arrays.items()}  # a view if possible
        self._types = {name: np.result_type(array, np.float32) for name, array in arrays.items()}
        self._scratch = {dtype: np.empty(_CHUNK, dtype) for dtype in self._types.values()}
        self._wide = np.empty(_CHUNK)

    def nothing(self) -> Arrays:
        """Return a sum to which `examine` can add: flat arrays of zeros, in the type of the differences."""
        return {name: np.zeros(flat.size, self._types[name]) for name, flat in self._flat.items()}

    @property
    def sketch_width(self) -> int:
        """D, the number of entries of a sketch: one per parameter, but at most `sketches.WIDTH`."""
        return min(sketches.WIDTH, sum(flat.size for flat in self._flat.values()))

    def rounding(self) -> float:
        """Return the largest error of a norm that the rounding of arrays to the model's types explains.

        A client may compute the norm of its update before it rounds the arrays that it sends.
        """
        squares = 0.0
        for flat in self._flat.values():
            if flat.dtype.kind in "iub":
                squares += flat.size / 4  # rounding an integer causes an error of at most 1/2
            else:
                parts = (flat[begin : begin + _CHUNK] for begin in range(0, flat.size, _CHUNK))
                squares += float(np.finfo(flat.dtype).eps) ** 2 * sum(map(self._sum_of_squares, parts))
        return 4 * sqrt(squares)

    def examine(
        self,
        update: Update,
        step: Arrays | None = None,
        coefficient: float = 0.0,
        sketch: Floats | None = None,
    ) -> float:
        """Return ‖w_m - w_t - y_m‖, the L2 norm over all arrays, summed in float64.

        Parameters
        ----------
        update : Update
            The update to examine.
        step : dict of str to array, optional
            A sum as `nothing` returns it, to which c s_m (w_m - w_t - y_m) is added (default: no sum).
        coefficient : float (default: 0.0)
            The coefficient c of the update in ``step``.
        sketch : ndarray, shape (`sketches.WIDTH`,), optional
            Zeros, to which the sketch of w_m - w_t - y_m is added (default: no sketch).

        Raises
        ------
        UnusableError
            If names or shapes differ from the model's, or the norm overflows. Also if an array cannot be
            decoded, has no real numbers, or holds NaN or infinite values. After an error, ``step`` and
            ``sketch`` cannot be used either.
        """
        if update.sent.keys() != self._arrays.keys():
            raise UnusableError(
                f"arrays are named {_some(update.sent)}, the model's are {_some(self._arrays)}"
            )
        squares, chunk = 0.0, 0
        for name in self._arrays:
            array, own = self._sent(update, name), 0.0
            with np.errstate(over="ignore", invalid="ignore"):  # the norm shows an overflow
                for begin, difference in self._differences(update, name, array):
                    own += self._sum_of_squares(difference)
                    if sketch is not None:
                        sketches.add(sketch, difference, chunk)
                        chunk += 1
                    if step is not None:
                        _add(step[name], begin, difference, coefficient * update.scale)
            if not isfinite(own) and not np.isfinite(array).all():
                raise UnusableError(f"array {name!r} holds NaN or infinite values")
            squares += own
        if not isfinite(squares):
            raise UnusableError("the norm of the update is not finite")
        return sqrt(squares)

    def fold(self, parts: Iterable[tuple[float, Update]]) -> Arrays:
        """Return Σ c s_m (w_m - w_t - y_m) over pairs (c, update), summed in the given order.

        The result is a new dict of flat arrays, as `nothing` returns it. Entries that overflow are not
        finite; `moved` detects them.
        """
        step = self.nothing()
        with np.errstate(over="ignore", invalid="ignore"):
            for coefficient, update in parts:
                for name in self._arrays:
                    for begin, difference in self._differences(update, name, self._sent(update, name)):
                        _add(step[name], begin, difference, coefficient * update.scale)
        return step

    def distance(self, update: Update, point: Arrays, factor: float = 1.0) -> float:
        """Return the distance ‖s_m (w_m - w_t - y_m) - factor * point‖; NaN if it overflows.

        ``point`` has the form of a result of `fold`.
        """
        squares = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for name in self._arrays:
                for begin, difference in self._differences(update, name, self._sent(update, name)):
                    np.multiply(difference, update.scale, out=difference)
                    np.subtract(
                        difference, point[name][begin : begin + difference.size] * factor, out=difference
                    )
                    squares += self._sum_of_squares(difference)
        return sqrt(squares) if isfinite(squares) else nan

    def moved(self, step: Arrays, *, mean: Mapping[str, NDArray[Any]] | None = None) -> Arrays | None:
        """Return w_t + step + mean in the model's shapes and types; None if a number is not finite.

        Integers are rounded to the nearest integer, and clipped to the range of their type.

        Parameters
        ----------
        step : dict of str to array
            The result of `fold`. It is empty after the call, and its memory may become part of the result.
        mean : mapping of str to array, optional
            The mean of the baselines, in the model's shapes (default: 0).
        """
        moved: Arrays = {}
        for name, array in self._arrays.items():
            total = step.pop(name)
            flat, added = self._flat[name], None if mean is None else np.reshape(mean[name], -1)
            for begin in range(0, total.size, _CHUNK):
                part = total[begin : begin + _CHUNK]
                with np.errstate(over="ignore", invalid="ignore"):
                    if added is not None:
                        np.add(part, added[begin : begin + _CHUNK], out=part, casting="same_kind")
                    np.add(part, flat[begin : begin + _CHUNK], out=part, casting="same_kind")
                if not np.isfinite(part).all():
                    return None
            with np.errstate(over="ignore"):
                landed = _rounded(total, array.dtype) if array.dtype.kind in "iub" else total
                moved[name] = landed.astype(array.dtype, copy=False).reshape(array.shape)
            if array.dtype.itemsize < total.dtype.itemsize and not np.isfinite(moved[name]).all():
                return None  # a number exceeds the range of the model's type, such as float16
        return moved

    def clipped(self, update: Update) -> Arrays:
        """Return y_m + s_m (w_m - w_t - y_m) in new arrays; if s_m = 1, this is w_m - w_t."""
        step = self.fold([(1.0, update)])
        for name, flat in step.items():
            if update.baseline is not None:
                flat += np.reshape(update.baseline[name], -1)
            step[name] = flat.reshape(self._arrays[name].shape)
        return step

    def _sent(self, update: Update, name: str) -> NDArray[Any]:
        """Return one array of a client. Raise `UnusableError` if it has a wrong shape or no real numbers."""
        model = self._arrays[name]
        try:
            array = update.sent[name]
        except Exception as error:  # bytes of a client may raise any error
            raise UnusableError(f"unreadable array {name!r}: {error}") from error
        if array.shape != model.shape:
            raise UnusableError(f"array {name!r} has shape {array.shape}, the model's has {model.shape}")
        if array.dtype.kind not in "fiub":
            raise UnusableError(f"array {name!r} is of type {array.dtype}: must be of real numbers")
        return array

    def _differences(
        self, update: Update, name: str, array: NDArray[Any]
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield (index of the first entry, chunk of w_m - w_t - y_m). A chunk overwrites the chunk before."""
        sent, model, dtype = array.reshape(-1), self._flat[name], self._types[name]
        baseline = None if update.baseline is None else np.reshape(update.baseline[name], -1)
        buffer = self._scratch[dtype]
        for begin in range(0, sent.size, _CHUNK):
            end = min(begin + _CHUNK, sent.size)
            difference = buffer[: end - begin]
            _subtract(sent[begin:end], model[begin:end], difference, dtype)
            if baseline is not None:
                _subtract(difference, baseline[begin:end], difference, dtype)
            yield begin, difference

    def _sum_of_squares(self, chunk: NDArray[Any]) -> float:
        wide = self._wide[: chunk.size]
        wide[:] = chunk
        np.multiply(wide, wide, out=wide)
        return float(np.add.reduce(wide))


def _some(names: Collection[str]) -> str:
    """Return up to ten names as text, and the number of names left out: a client may send a million names."""
    first = sorted(islice(names, _NAMED))
    return f"{first} and {len(names) - _NAMED} others" if len(names) > _NAMED else f"{first}"


def _add(total: NDArray[Any], begin: int, difference: NDArray[Any], factor: float) -> None:
    """Add factor * difference to the total's entries from ``begin`` on. This overwrites the difference."""
    np.multiply(difference, factor, out=difference)
    part = total[begin : begin + difference.size]
    np.add(part, difference, out=part)


def _subtract(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], dtype: DTypeLike) -> None:
    np.subtract(a, b, out=out, dtype=dtype, casting="same_kind")


def _rounded(total: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Round sums of integers, or of booleans, to whole numbers, clipped to the range of their type."""
    np.rint(total, out=total)
    if dtype.kind == "b":
        return np.clip(total, 0, 1, out=total)
    limits = np.iinfo(dtype)
    highest = np.nextafter(float(limits.max) + 1, 0)  # float(limits.max) may exceed limits.max: 2^63 - 1
    return np.clip(total, float(limits.min), highest, out=total)
