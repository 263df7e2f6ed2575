"""Weighted sums of clients' models that never hold a copy of a whole model.

Each pass takes one model at a time, as a mapping that may decode its arrays on access, and walks through it
in chunks that fit into the processor's cache. So an aggregation holds one buffer of the model's size, however
many clients there are. All sums run in the order of the model's arrays and of the updates, on one thread and
without BLAS: the same updates give the same bits.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""A model: its parameters by name."""
_CHUNK = 16384  # entries; a chunk and its float64 copy fit into a core's second-level cache


class UnusableError(ValueError):
    """A client's arrays cannot be used; the message is the reason."""


@dataclass(frozen=True)
class Update:
    """A client's update, s_m (w_m - w_t - y_m).

    Attributes
    ----------
    sent : mapping of str to array
        w_m; each pass accesses each array once.
    scale : float (default: 1.0)
        s_m, in (0, 1]; below 1 if the guard clipped the update.
    baseline : mapping of str to array, optional
        y_m, with the model's names and shapes (default: 0).
    """

    sent: Mapping[str, NDArray[Any]]
    scale: float = 1.0
    baseline: Mapping[str, NDArray[Any]] | None = None


class Model:
    """The model w_t that was sent to the clients, from which updates are differences; it never changes.

    Parameters
    ----------
    arrays : dict of str to array
        Real numbers, of any shapes. Differences are computed in float32, or in the array's own type if that
        is wider; in float64 for integers.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays
        self._flat = {name: array.reshape(-1) for name, array in arrays.items()}  # copies odd layouts once
        self._types = {name: np.result_type(array, np.float32) for name, array in arrays.items()}
        self._scratch = {dtype: np.empty(_CHUNK, dtype) for dtype in self._types.values()}
        self._wide = np.empty(_CHUNK)

    def nothing(self) -> Arrays:
        """Return a step of zeros, to which `examine` adds: flat arrays, in the type of the differences."""
        return {name: np.zeros(flat.size, self._types[name]) for name, flat in self._flat.items()}

    def examine(self, update: Update, step: Arrays | None = None, coefficient: float = 0.0) -> float:
        """Return ‖w_m - w_t - y_m‖, the L2 norm over all arrays, summed in float64.

        Also adds ``coefficient`` times the update to ``step``, as `fold` does. If the update is not usable,
        the step is not either.

        Raises
        ------
        UnusableError
            If names, shapes or types are not the model's, an array cannot be decoded or holds NaN or
            infinite values, or the norm overflows.
        """
        if update.sent.keys() != self._arrays.keys():
            raise UnusableError(
                f"arrays are named {sorted(update.sent)}, the model's are {sorted(self._arrays)}"
            )
        squares = 0.0
        for name in self._arrays:
            array, own = self._sent(update, name), 0.0
            with np.errstate(over="ignore", invalid="ignore"):  # the norm shows an overflow
                for begin, difference in self._differences(update, name, array):
                    own += self._sum_of_squares(difference)
                    if step is not None:
                        _add(step[name], begin, difference, coefficient * update.scale)
            if not isfinite(own) and not np.isfinite(array).all():
                raise UnusableError(f"array {name!r} holds NaN or infinite values")
            squares += own
        if not isfinite(squares):
            raise UnusableError("the norm of the update is not finite")
        return sqrt(squares)

    def fold(self, parts: Iterable[tuple[float, Update]]) -> Arrays:
        """Return Σ c s (w_m - w_t - y_m) over (c, update), summed in the order given.

        The arrays have the form of `nothing` and are the caller's own. An entry that overflows is not finite,
        which `moved` detects.
        """
        step = self.nothing()
        with np.errstate(over="ignore", invalid="ignore"):
            for coefficient, update in parts:
                for name in self._arrays:
                    for begin, difference in self._differences(update, name, self._sent(update, name)):
                        _add(step[name], begin, difference, coefficient * update.scale)
        return step

    def distance(self, update: Update, point: Arrays, factor: float = 1.0) -> float:
        """Return ‖s (w_m - w_t - y_m) - factor * point‖, NaN if it overflows; ``point``: from `fold`."""
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
        """Return w_t + step (+ mean), in the model's shapes and types; None if that is not finite.

        Integers are rounded, not truncated, and stay within the range of their type. ``step``, a result of
        `fold`, is consumed: where the types agree, its memory becomes the result's.
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
                return None  # beyond the range of float16
        return moved

    def clipped(self, update: Update) -> Arrays:
        """Return y_m + s_m (w_m - w_t - y_m), which is w_m - w_t if s_m = 1; the caller's own arrays."""
        step = self.fold([(1.0, update)])
        for name, flat in step.items():
            if update.baseline is not None:
                flat += np.reshape(update.baseline[name], -1)
            step[name] = flat.reshape(self._arrays[name].shape)
        return step

    def _sent(self, update: Update, name: str) -> NDArray[Any]:
        """Return an array that a client sent; refuse one without the model's shape or real numbers."""
        model = self._arrays[name]
        try:
            array = update.sent[name]
        except Exception as error:  # whatever a client sends
            raise UnusableError(f"unreadable array {name!r}: {error}") from error
        if array.shape != model.shape:
            raise UnusableError(f"array {name!r} has shape {array.shape}, the model's has {model.shape}")
        if array.dtype.kind not in "fiub":
            raise UnusableError(f"array {name!r} is of type {array.dtype}: must be of real numbers")
        return array

    def _differences(
        self, update: Update, name: str, array: NDArray[Any]
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield (begin, chunk of w_m - w_t - y_m); the next chunk overwrites the buffer."""
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


def _add(total: NDArray[Any], begin: int, difference: NDArray[Any], factor: float) -> None:
    """Add factor * difference to a part of the total; overwrites the difference."""
    np.multiply(difference, factor, out=difference)
    part = total[begin : begin + difference.size]
    np.add(part, difference, out=part)


def _subtract(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], dtype: DTypeLike) -> None:
    np.subtract(a, b, out=out, dtype=dtype, casting="same_kind")


def _rounded(total: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return sums of integers as whole numbers within the range of their type."""
    np.rint(total, out=total)
    if dtype.kind == "b":
        return np.clip(total, 0, 1, out=total)
    limits = np.iinfo(dtype)
    highest = np.nextafter(float(limits.max) + 1, 0)  # float(2^63 - 1) is 2^63, one too many
    return np.clip(total, float(limits.min), highest, out=total)
