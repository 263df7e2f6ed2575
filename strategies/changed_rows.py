"""Which rows of a run's large arrays have changed since a full checkpoint, so that only these are written.

Among many clients, a round changes the state of a few: an array with a row for each client is compared with
a copy, bit by bit, which is much faster than writing it.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MANY_ROWS = 10_000
"""Arrays with fewer rows are written whole: a run of fewer clients has full checkpoints only."""
# Bytes. The copies of wider rows, such as each client's control variate, could fill the memory.
_WIDEST_ROW = 64
_KINDS = "biufcmM"  # of the types whose values are plain bytes: numbers and times


class CopiedRows:
    """Copies of the arrays with many short rows, to which later arrays of the same names are compared."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._copies = {name: array.copy() for name, array in arrays.items() if _has_many_short_rows(array)}

    @property
    def names(self) -> Collection[str]:
        return self._copies.keys()

    def changed(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.int64]]:
        """Return the changed and the added rows of each array, ascending.

        Arrays that must be written whole are left out: those without a copy, those that have another shape of
        rows, another type or fewer rows than the copy, and those of which more than half of the rows have
        changed.
        """
        found = {}
        for name, copy in self._copies.items():
            array = arrays.get(name)
            if array is None or not _has_many_short_rows(array):
                continue
            if array.dtype != copy.dtype or array.shape[1:] != copy.shape[1:] or len(array) < len(copy):
                continue
            rows = _changed_rows(array, copy)
            if rows is not None:
                found[name] = rows
        return found


def with_changes(
    base: NDArray[Any], length: int, rows: NDArray[np.int64], values: NDArray[Any]
) -> NDArray[Any]:
    """Return an array of ``length`` rows: ``base``, with the ``values`` (n, ...) at the ``rows`` (n,)."""
    array = np.empty((length, *base.shape[1:]), base.dtype)
    array[: len(base)] = base
    array[rows] = values
    return array


def _has_many_short_rows(array: NDArray[Any]) -> bool:
    return (
        array.ndim > 0
        and len(array) >= MANY_ROWS
        and 0 < array.nbytes <= _WIDEST_ROW * len(array)
        and array.dtype.kind in _KINDS
        and array.flags.c_contiguous
    )


def _changed_rows(array: NDArray[Any], copy: NDArray[Any]) -> NDArray[np.int64] | None:
    """Return the rows of ``array`` that differ from ``copy`` in any bit, or are added; None if most are."""
    size = array.nbytes // len(array)  # bytes of a row
    width = next(width for width in (8, 4, 2, 1) if size % width == 0)
    # As unsigned integers, since NaN would differ from itself, and 0.0 would equal -0.0.
    new = array[: len(copy)].reshape(-1).view(f"u{width}") != copy.reshape(-1).view(f"u{width}")
    added = len(array) - len(copy)
    if added + np.count_nonzero(new) * width // size > len(array) // 2:
        return None
    rows = np.flatnonzero(new) // (size // width)
    if width < size:
        rows = np.unique(rows)
    return np.concatenate([rows, np.arange(len(copy), len(array))]).astype(np.int64)
