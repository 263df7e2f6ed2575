"""Decodes and encodes the arrays in Flower's messages without needless copies.

A message holds each array as the bytes of a .npy file. Flower's `Array.numpy` copies these bytes once, and
``Array(values)`` copies them twice. With large models, such copies would take most of the server's memory.
"""

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.typing import NDArray

_NPY = "numpy.ndarray"  # Flower's name for the .npy format
# Version 1.0 of .npy files, and the longest header that is remembered, in bytes: NumPy pads headers to 128
# bytes if an array has few axes.
_VERSION_1, _SHORT = b"\x01\x00", 256
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def num_bytes(array: Array) -> int:
    """Return the number of bytes of an array in a message; 0 if a client sent something else instead."""
    if type(array) is not Array and hasattr(array, "num_bytes"):  # see `decode`
        size: int = array.num_bytes
        return size
    return len(array.data) if isinstance(array.data, bytes) else 0


def decode(array: Array) -> NDArray[Any]:
    """Return the values of an array in a message.

    The result is a read-only view of the message's bytes. It is a copy if the .npy header has an unusual
    version.

    Raises a TypeError or ValueError if the bytes are not one .npy file, or the array holds Python objects.
    """
    if type(array) is not Array:  # a subclass, as in a simulation without a network or in half precision
        return array.numpy()
    if array.stype != _NPY:
        raise TypeError(f"serialized as {array.stype!r}: must be {_NPY!r}")
    # In version 1.0 the header's length is in the two bytes before the header. The replies of all clients
    # have equal headers, and NumPy needs long to parse one (as Python code), so the results are remembered.
    header = array.data[: 10 + int.from_bytes(array.data[8:10], "little")]
    is_short = array.data[6:8] == _VERSION_1 and len(header) <= _SHORT
    shape, columns_first, dtype, begin = _parsed(header) if is_short else _header(array.data)
    if dtype is None or dtype.hasobject:
        values: NDArray[Any] = np.lib.format.read_array(BytesIO(array.data), allow_pickle=False)
        return values
    flat = np.frombuffer(array.data, dtype, math.prod(shape), begin)
    return flat.reshape(shape, order="F" if columns_first else "C")


def _header(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any] | None, int]:
    """Read a .npy file's header: shape, order, type (None in an unusual version) and length of the header."""
    file = BytesIO(data)  # does not copy the bytes
    read = _HEADERS.get(np.lib.format.read_magic(file))
    return (*read(file), file.tell()) if read is not None else ((), False, None, 0)


_parsed = lru_cache(maxsize=1024)(_header)


def encode(values: NDArray[Any]) -> Array:
    """Return an array for a message. Unlike ``Array(values)``, this copies the values only once."""
    flat = np.ascontiguousarray(values).reshape(-1)
    header = BytesIO()
    described = np.lib.format.header_data_from_array_1_0(flat)
    np.lib.format.write_array_header_1_0(header, described | {"shape": values.shape})
    data = b"".join((header.getvalue(), flat.view(np.uint8).data))
    return Array(str(values.dtype), tuple(values.shape), _NPY, data)


def to_record(arrays: dict[str, NDArray[Any]]) -> ArrayRecord:
    """Return a model as a record, and empty the dict, so that only one array at a time is in memory twice."""
    record = ArrayRecord()
    for name in list(arrays):
        record[name] = encode(arrays.pop(name))
    return record


class ReceivedArrays(Mapping[str, "NDArray[Any]"]):
    """The arrays of a message by name. Each access decodes an array, and raises the errors of `decode`.

    If `decode` returns a view, the view is kept for later accesses, since it needs no memory. If `decode`
    returns a copy, the copy is not kept, and the next access decodes the array again.
    """

    def __init__(self, record: ArrayRecord) -> None:
        self._record = record
        self._views: dict[str, NDArray[Any]] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name in self._views:
            return self._views[name]
        array = decode(self._record[name])
        if not array.flags.owndata:
            self._views[name] = array
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._record)

    def __len__(self) -> int:
        return len(self._record)


_Record = TypeVar("_Record", ArrayRecord, MetricRecord, ConfigRecord)


def of_kind(content: RecordDict, kind: type[_Record]) -> dict[str, _Record]:
    """Return the records of one kind, by name; Flower's ``array_records`` and its like are slow."""
    return {name: record for name, record in content.items() if isinstance(record, kind)}
