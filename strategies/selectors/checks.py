"""Checks of arguments; each error message names the argument, its value and the allowed range.

A wrong type raises a TypeError (a bool is no number), and a wrong value, shape or length a ValueError.
"""

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..numerics.arrays import Array, Bools, Floats, Ints

# Sizes may have any unit. Within these limits, sums of sizes and the product of a size and a norm stay
# finite.
SMALLEST_SIZE, LARGEST_SIZE = 1e-100, 1e100


def interval(low: float, high: float, why: str = "") -> str:
    """Return a description of the range [low, high] for an error message, with `why` in brackets."""
    note = f" ({why})" if why else ""
    if math.isinf(high):
        return f"finite{note}" if math.isinf(low) else f">= {low:g}{note}"
    return f"<= {high:g}{note}" if math.isinf(low) else f"between {low:g} and {high:g}{note}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for an error message that names the most similar known name, or "" if none is similar."""
    similar = get_close_matches(name, list(known), n=1)
    return f" (did you mean {similar[0]}?)" if similar else ""


def integer(name: str, value: Any, *, low: float = -math.inf, high: float = math.inf, why: str = "") -> int:
    """Return `value` as an int."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} = {value!r}: must be an integer {interval(low, high, why)}")
    number = int(value)
    if not low <= number <= high:
        raise ValueError(f"{name} = {number}: must be {interval(low, high, why)}")
    return number


def real(name: str, value: Any, *, low: float = -math.inf, high: float = math.inf) -> float:
    """Return `value` as a float."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} = {value!r}: must be a number {interval(low, high)}")
    number = float(value)
    if not (math.isfinite(number) and low <= number <= high):
        raise ValueError(f"{name} = {number}: must be finite and {interval(low, high)}")
    return number


def seconds(name: str, value: Any) -> None:
    """Refuse a value that is not a number of seconds > 0; infinity is allowed."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} = {value!r}: must be a number of seconds greater than 0")
    if not 0 < float(value) <= math.inf:
        raise ValueError(f"{name} = {value}: must be greater than 0")


def boolean(name: str, value: Any) -> None:
    """Refuse a value that is not True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} = {value!r}: must be True or False")


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Refuse a value that is not in ``allowed``."""
    if value not in allowed:
        raise ValueError(f"{name} = {value!r}: must be {' or '.join(map(repr, allowed))}")


def floats(name: str, values: Any, length: int | None = None) -> Floats:
    """Return a copy of `values` as a float array of shape (length,), or of any length if `length` is None."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} = {values!r}: must be a 1-D array of numbers") from error
    _check_shape(name, array, length)
    return array


def ints(name: str, values: Any, length: int | None = None) -> Ints:
    """Return a copy of `values` as an int array of shape (length,), or of any length if `length` is None."""
    array = np.array(values)
    if array.size == 0:
        array = array.astype(np.int64)  # NumPy makes an array of floats from []
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {array.dtype}: must be a 1-D array of integers")
    _check_shape(name, array, length)
    return array.astype(np.int64, copy=False)


def bools(name: str, values: Any, length: int | None = None) -> Bools:
    """Return a copy of `values` as a bool array of shape (length,), or of any length if `length` is None."""
    array = np.array(values)
    if array.size == 0:
        array = array.astype(np.bool_)
    if array.dtype.kind != "b":
        raise TypeError(f"{name} has dtype {array.dtype}: must be a 1-D array of bools")
    _check_shape(name, array, length)
    return array


def in_range(name: str, array: Floats | Ints, low: float, high: float = math.inf) -> None:
    """Raise a ValueError if an entry is NaN or outside [low, high]."""
    inside = (array >= low) & (array <= high)
    if np.count_nonzero(inside) < array.size:
        raise ValueError(f"{name} holds {array[~inside][0]}: must be {interval(low, high)}")


def not_negative(name: str, array: Floats) -> None:
    """Raise a ValueError if a finite entry is below 0."""
    if np.count_nonzero(np.signbit(array)):
        in_range(name, array[np.isfinite(array)], 0)


def sizes(name: str, values: Any, length: int | None = None) -> Floats:
    """Return client sizes as floats, of shape (length,) if `length` is given."""
    array = floats(name, values, length)
    in_range(name, array, SMALLEST_SIZE, LARGEST_SIZE)
    return array


def indexes(name: str, values: Any, num_clients: int) -> Ints:
    """Return client indexes as int64, in the given order."""
    array = ints(name, values)
    known(name, array, num_clients)
    if not ascending(array):
        ordered = np.sort(array)
        again = ordered[1:] == ordered[:-1]
        if np.count_nonzero(again):
            raise ValueError(f"{name} holds {ordered[1:][again][0]} more than once: must be distinct")
    return array


def known(name: str, clients: Ints, num_clients: int) -> None:
    """Raise a ValueError if a client index is outside 0..num_clients-1."""
    inside = (clients >= 0) & (clients < num_clients)
    if np.count_nonzero(inside) < clients.size:
        wrong = clients[~inside][0]
        raise ValueError(f"{name} holds {wrong}: must be between 0 and {num_clients - 1} (client indexes)")


def ascending(array: Ints) -> bool:
    """Return whether each entry is larger than the entry before it."""
    return not np.count_nonzero(array[1:] <= array[:-1])


def state(
    given: Mapping[str, Any], own: Mapping[str, Array], axes: Mapping[str, tuple[str | int, ...]]
) -> dict[str, Any]:
    """Return copies of the arrays of a saved state; a ValueError if they do not have the form of `own`.

    Keys and dtypes are those of `own`. `axes` names the axes of arrays whose lengths may differ from those in
    `own`; axes with the same name have the same length.
    """
    arrays: dict[str, Array] = {key: np.array(value) for key, value in given.items()}
    if arrays.keys() != own.keys():
        raise ValueError(f"state has keys {sorted(arrays)}: must be {sorted(own)}")
    lengths: dict[str | int, int] = {}
    for key, expected in own.items():
        array, names = arrays[key], axes.get(key, expected.shape)
        if array.dtype != expected.dtype:
            raise ValueError(f"state[{key!r}] has dtype {array.dtype}: must be {expected.dtype}")
        if array.ndim != len(names) or any(
            (axis if isinstance(axis, int) else lengths.setdefault(axis, length)) != length
            for axis, length in zip(names, array.shape, strict=True)
        ):
            shape = ", ".join(map(str, names))
            raise ValueError(f"state[{key!r}] has shape {array.shape}: must be ({shape}), {lengths}")
    return {key: arrays[key] for key in own}


def _check_shape(name: str, array: Array, length: int | None) -> None:
    if array.ndim != 1 or (length is not None and array.size != length):
        expected = "(n,)" if length is None else f"({length},)"
        raise ValueError(f"{name} has shape {array.shape}: must be {expected}")
