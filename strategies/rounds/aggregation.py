"""Checks clients' updates and computes their weighted sums, without a copy of any client's model.

A model is a mapping that may decode its arrays on access. Arrays are read in chunks that fit into the
processor's cache. The first pass reads up to 64 clients' models together, so that a chunk of the global
model and a chunk of the sum serve 64 clients each time they are loaded into the cache. All other passes
read one client's model at a time. So the memory for an aggregation does not grow with the number of clients:
an aggregation needs one buffer of the model's size.

All sums are computed in the order of the model's arrays and of the updates, on one thread and without BLAS.
So the same updates give the same result bit for bit.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import inf, isfinite, nan, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..numerics import sketches
from ..numerics.arrays import Floats

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""A model: its parameters by name."""
_CHUNK = sketches.LONGEST  # entries; a chunk and its float64 copy fit into a core's second-level cache
TOGETHER = 64
"""The number of updates that `Model.examine_together` should get.

For each chunk, NumPy's calls cost as much time as the arithmetic of about two updates. More updates would
save hardly any more time, and take more memory.
"""
_COLUMNS = sketches.WIDTH  # a chunk's squares are summed as a matrix with this many columns
_TINY = 1e-26  # a smaller sum of squares in float32 may have lost squares below the range of float32
_NAMED = 10  # how many arrays an error names


class UnusableError(ValueError):
    """A client's arrays cannot be used. The message states the reason."""


@dataclass(frozen=True)
class Update:
    """A client's term in the aggregate without its weight: s_m (w_m - w_t - y_m), by default w_m - w_t."""

    sent: Mapping[str, NDArray[Any]]  # w_m; each pass accesses each array once
    scale: float = 1.0  # s_m, in (0, 1]; below 1 if the guard clipped the update
    baseline: Mapping[str, NDArray[Any]] | None = None  # y_m; None: 0


class Model:
    """The global model w_t that was sent to the clients, with the sums and norms of updates of this model.

    ``arrays``: the parameters w_t: arrays of real numbers, of any shapes. They are not changed. Differences
    are computed in float32, or in the array's type if it is wider. For integers of 32 bits or more they are
    computed in float64. ``exact`` (default: False): whether the squares of a norm are summed in float64
    throughout, which takes longer. Rounds with control variates use it, so that the papers' experiments with
    such rounds repeat bit for bit.
    """

    def __init__(self, arrays: Arrays, *, exact: bool = False) -> None:
        self._arrays, self._exact = arrays, exact
        self._flat = {name: array.reshape(-1) for name, array in arrays.items()}  # a view if possible
        self._types = {name: np.result_type(array, np.float32) for name, array in arrays.items()}
        self._buffers: dict[np.dtype[Any], NDArray[Any]] = {}  # see `_differences`

    @cached_property
    def _wide(self) -> NDArray[np.float64]:
        return np.empty(_CHUNK)

    def nothing(self) -> Arrays:
        """Return a sum to which `examine` can add: flat arrays of zeros, in the type of the differences."""
        return {name: np.zeros(flat.size, self._types[name]) for name, flat in self._flat.items()}

    @property
    def sketch_width(self) -> int:
        """D, the number of entries of a sketch: one per parameter, but at most `sketches.WIDTH`."""
        return min(sketches.WIDTH, sum(flat.size for flat in self._flat.values()))

    def rounding(self) -> float:
        """Return the largest error of a norm that comes from rounding the arrays to the model's types.

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
        """Return the norm of one update, see `examine_together`.

        The update is added to ``step``, a sum as `nothing` returns it, and its sketch to ``sketch``
        (`sketches.WIDTH`,), if given. If it cannot be used, an `UnusableError` is raised, and both cannot be
        used either.
        """
        each = None if sketch is None else sketch[None]
        (norm,) = self.examine_together([update], step, [coefficient], each)
        if isinstance(norm, UnusableError):
            raise norm
        return norm

    def examine_together(
        self,
        updates: Sequence[Update],
        step: Arrays | None = None,
        coefficients: Sequence[float] = (),
        sketched: Floats | None = None,
    ) -> list[float | UnusableError]:
        """Return ‖w_m - w_t - y_m‖ of each update, the L2 norm over all arrays, or the error of the update.

        The squares of up to 64 numbers are summed in float32, and these sums in float64. If float32 is too
        narrow, or not the type of the differences, all squares are summed in float64.

        In place of the norm of an update that cannot be used, an error gives the reason: names or shapes
        differ from the model's, the norm overflows, or an array cannot be decoded, has no real numbers, or
        holds NaN or infinite values.

        R updates, at most `TOGETHER`, are added to ``step``, a sum as `nothing` returns it, as c s_m (w_m -
        w_t - y_m) in their order, where ``coefficients`` (R,) holds c. The sketch of each w_m - w_t - y_m is
        added to its row of ``sketched`` (R, `sketches.WIDTH`). After an error, ``step`` cannot be used, nor
        can the update's row of ``sketched``.
        """
        failed: dict[int, UnusableError] = {}
        for i, update in enumerate(updates):
            if update.sent.keys() != self._arrays.keys():
                names = f"{_some(update.sent)}, the model's are {_some(self._arrays)}"
                failed[i] = UnusableError(f"arrays are named {names}")
        squares, chunks = np.zeros(len(updates)), 0
        for name, flat in self._flat.items():
            sent: dict[int, NDArray[Any]] = {}  # position in ``updates`` -> array
            for i, update in enumerate(updates):
                if i not in failed:
                    try:
                        sent[i] = self._sent(update, name)
                    except UnusableError as error:
                        failed[i] = error
            own, mine = np.zeros(len(sent)), [updates[i] for i in sent]
            # A slice is faster than positions, and all updates are usable in most rounds.
            positions = slice(None) if len(sent) == len(updates) else list(sent)
            factors = np.empty(0)
            if step is not None:
                factors = np.array([coefficients[i] * updates[i].scale for i in sent])
            with np.errstate(over="ignore", invalid="ignore"):  # the norm shows an overflow
                for begin, rows in self._differences(mine, name, list(sent.values())):
                    own += self._sums_of_squares(rows)
                    if sketched is not None:
                        sketched[positions] += sketches.of_chunk(rows, chunks + begin // _CHUNK)
                    if step is not None:
                        _add(step[name], begin, rows, factors)
            for (i, array), of_array in zip(sent.items(), own.tolist(), strict=True):
                squares[i] += of_array
                if not isfinite(of_array) and not np.isfinite(array).all():
                    failed[i] = UnusableError(f"array {name!r} holds NaN or infinite values")
            chunks += -(-flat.size // _CHUNK)
        for i in np.flatnonzero(~np.isfinite(squares)).tolist():
            failed.setdefault(i, UnusableError("the norm of the update is not finite"))
        return [failed.get(i, sqrt(total)) for i, total in enumerate(squares.tolist())]

    def fold(self, parts: Iterable[tuple[float, Update]]) -> Arrays:
        """Return Σ c s_m (w_m - w_t - y_m) over pairs (c, update), in their order, as `nothing` does."""
        step = self.nothing()
        with np.errstate(over="ignore", invalid="ignore"):
            for coefficient, update in parts:
                for name in self._arrays:
                    for begin, rows in self._differences([update], name, [self._sent(update, name)]):
                        _add(step[name], begin, rows, np.array([coefficient * update.scale]))
        return step

    def distance(self, update: Update, point: Arrays, factor: float = 1.0) -> float:
        """Return ‖s_m (w_m - w_t - y_m) - factor * point‖, ``point`` as from `fold`; NaN if it overflows."""
        squares = 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for name in self._arrays:
                for begin, rows in self._differences([update], name, [self._sent(update, name)]):
                    difference = rows[0]
                    np.multiply(difference, update.scale, out=difference)
                    np.subtract(
                        difference, point[name][begin : begin + difference.size] * factor, out=difference
                    )
                    squares += self._sum_of_squares(difference)
        return sqrt(squares) if isfinite(squares) else nan

    def moved(self, step: Arrays, *, mean: Mapping[str, NDArray[Any]] | None = None) -> Arrays | None:
        """Return w_t + step + mean in the model's shapes and types; None if a number is not finite.

        Integers are rounded to the nearest integer, and clipped to the range of their type.

        ``step`` is the result of `fold`. It is empty after the call, and its memory may become part of the
        result. ``mean`` is the mean of the baselines, in the model's shapes (default: 0).
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
        self, updates: Sequence[Update], name: str, sent: Sequence[NDArray[Any]]
    ) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield (first index, (R, n) differences w_m - w_t - y_m) of an array in chunks, each overwritten."""
        model, dtype = self._flat[name], self._types[name]
        flat = [array.reshape(-1) for array in sent]
        baselines = [
            (row, np.reshape(update.baseline[name], -1))
            for row, update in enumerate(updates)
            if update.baseline is not None
        ]
        buffer = self._buffers.get(dtype)
        if buffer is None or len(buffer) < len(flat):
            buffer = self._buffers[dtype] = np.empty((len(flat), _CHUNK), dtype)
        for begin in range(0, model.size if flat else 0, _CHUNK):
            end = min(begin + _CHUNK, model.size)
            rows, part = buffer[: len(flat), : end - begin], model[begin:end]
            for array, row in zip(flat, rows, strict=True):
                np.subtract(array[begin:end], part, out=row, dtype=dtype, casting="same_kind")
            for at, baseline in baselines:
                np.subtract(rows[at], baseline[begin:end], out=rows[at], dtype=dtype, casting="same_kind")
            yield begin, rows

    def _sums_of_squares(self, rows: NDArray[Any]) -> Floats:
        """Return (R,) the sum of squares of each row (R, n)."""
        if self._exact or rows.dtype != np.float32:
            return np.array([self._sum_of_squares(row) for row in rows])
        whole = rows.shape[1] // _COLUMNS * _COLUMNS
        columns = rows[:, :whole].reshape(len(rows), -1, _COLUMNS)  # a view
        # The argument dtype=np.float64 of `sum` would give the same sums, and take longer.
        squares: Floats = np.einsum("rij,rij->rj", columns, columns).astype(np.float64).sum(axis=1)
        rest = rows[:, whole:]
        if rest.shape[1]:
            squares += (rest * rest).sum(axis=1, dtype=np.float64)
        for row in np.flatnonzero(~((squares > _TINY) & (squares < inf))).tolist():
            squares[row] = self._sum_of_squares(rows[row])
        return squares

    def _sum_of_squares(self, chunk: NDArray[Any]) -> float:
        wide = self._wide[: chunk.size]
        wide[:] = chunk
        np.multiply(wide, wide, out=wide)
        return float(np.add.reduce(wide))


def _some(names: Collection[str]) -> str:
    """Return up to ten names as text, and the number of names left out: a client may send a million names."""
    first = sorted(islice(names, _NAMED))
    return f"{first} and {len(names) - _NAMED} others" if len(names) > _NAMED else f"{first}"


def _add(total: NDArray[Any], begin: int, rows: NDArray[Any], factors: Floats) -> None:
    """Add factors (R,) times rows (R, n), which are overwritten, from ``begin`` on; one row after another."""
    part = total[begin : begin + rows.shape[1]]
    for row, factor in zip(rows, factors.astype(rows.dtype), strict=True):
        np.multiply(row, factor, out=row)  # one row at a time, which stays in the cache for the addition
        np.add(part, row, out=part)


def _rounded(total: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Round sums of integers, or of booleans, to whole numbers, clipped to the range of their type."""
    np.rint(total, out=total)
    if dtype.kind == "b":
        return np.clip(total, 0, 1, out=total)
    limits = np.iinfo(dtype)
    highest = np.nextafter(float(limits.max) + 1, 0)  # float(limits.max) may exceed limits.max: 2^63 - 1
    return np.clip(total, float(limits.min), highest, out=total)
