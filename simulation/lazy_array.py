"""Copies messages for an in-process grid. The copied arrays are serialised only if their bytes are read."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, Message, RecordDict
from numpy.typing import NDArray

_T = TypeVar("_T")
_NUMPY = "numpy.ndarray"  # Flower's name of the format of `numpy.save`


class LazyArray(Array):
    """A Flower Array that is serialised only if its bytes are read, which an in-process grid never does.

    Put it into a record with ``record[name] = LazyArray(values)``: the constructor ``ArrayRecord({...})``
    converts its values to Flower's own arrays. If ``copy`` is False, it shares the memory of ``values``,
    which must then not change. If ``writable``, `numpy` returns a new copy each time, as Flower's own arrays
    do; otherwise it returns a read-only view.
    """

    def __init__(self, values: NDArray[Any], *, copy: bool = True, writable: bool = False) -> None:
        view = (values.copy() if copy else values).view()
        view.flags.writeable = False
        # Bypasses the __setattr__ of Array, which updates the bookkeeping of serialised objects each time.
        self.__dict__.update(
            dtype=str(view.dtype),
            shape=view.shape,
            stype=_NUMPY,
            _values=view,
            _bytes=None,
            _writable=writable,
        )

    @property
    def data(self) -> bytes:
        """The array as `numpy.save` writes it."""
        if self.__dict__["_bytes"] is None:
            self.__dict__["_bytes"] = Array.from_numpy_ndarray(self.__dict__["_values"]).data
        found: bytes = self.__dict__["_bytes"]
        return found

    @data.setter
    def data(self, data: bytes) -> None:
        self.__dict__.update(_bytes=data, _values=None)

    @property
    def num_bytes(self) -> int:
        """The length of `data`, computed without serialising the array."""
        values: NDArray[Any] | None = self.__dict__["_values"]
        if values is None or not values.flags.c_contiguous:
            return len(self.data)
        return _header_length(values.shape, values.dtype) + values.nbytes

    def numpy(self) -> NDArray[Any]:
        values: NDArray[Any] | None = self.__dict__["_values"]
        if values is None:
            return super().numpy()
        return values.copy() if self.__dict__["_writable"] else values


@lru_cache(maxsize=1024)
def _header_length(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return how many bytes `numpy.save` writes before the values of an array in C order."""
    file = BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(file, {"shape": shape, "fortran_order": False, "descr": descr})
    return file.tell()


LazyArray.__qualname__ = Array.__qualname__  # the name that Flower serialises


class Copies:
    """Copies messages for receivers, decoding the model once. ``frozen``: they share read-only arrays."""

    def __init__(self, frozen: bool) -> None:
        self._frozen = frozen
        self._decoded: dict[int, tuple[Array, LazyArray]] = {}  # id of a sent array -> (this array, decoded)

    def of(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Yield a copy of each message. Arrays that the previous call decoded are not decoded again."""
        before, self._decoded = self._decoded, {}
        for message in messages:
            own = _shallow_copy(message)
            own.__dict__.update(
                _metadata=_shallow_copy(message.metadata), _content=self._content(message.content, before)
            )
            yield own

    def _content(self, content: RecordDict, before: Mapping[int, tuple[Array, LazyArray]]) -> RecordDict:
        own = content.copy()
        records = own.__dict__["_data"]  # bypasses the type checks, which these records have passed
        for name, record in records.items():
            records[name] = mine = record.copy()
            entries = mine.__dict__["_data"]
            for key, value in entries.items():
                if isinstance(value, Array):
                    entries[key] = self._array(value, before)
                elif isinstance(value, list):
                    entries[key] = list(value)
        return own

    def _array(self, array: Array, before: Mapping[int, tuple[Array, LazyArray]]) -> Array:
        key = id(array)
        found = self._decoded.get(key) or before.get(key)
        if found is None:
            try:
                values = array.numpy()
            except Exception:  # not decodable: the client gets the array as it was sent
                return array
            found = array, LazyArray(values, copy=False, writable=not self._frozen)
        self._decoded[key] = found
        return found[1]


def _shallow_copy(original: _T) -> _T:
    """Return a shallow copy of a plain object; faster than Python's `copy`."""
    copy = object.__new__(type(original))
    copy.__dict__.update(original.__dict__)
    return copy
