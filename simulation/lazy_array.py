"""What an in-process grid hands out: arrays that stay arrays, in records that are the receiver's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from flwr.app import Array, Message, RecordDict

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Thing = TypeVar("_Thing")
_NUMPY = "numpy.ndarray"  # Flower's name of what `numpy.save` writes


class LazyArray(Array):
    """An array that stays an array: it is serialised when somebody asks for its bytes, which is never here.

    Use it as Flower's own, but put it into a record by ``record[name] = LazyArray(values)``: the constructor
    ``ArrayRecord({...})`` makes Flower's own arrays of whatever it is given.

    Parameters
    ----------
    values : ndarray
        Of any shape and dtype.
    copy : bool (default: True)
        Keep a copy, as serialising would; False shares the memory, which must then not be written to.
    writable : bool (default: False)
        `numpy` returns a copy each time, as Flower's own does; otherwise one read-only view for all.
    """

    def __init__(self, values: NDArray[Any], *, copy: bool = True, writable: bool = False) -> None:
        view = (values.copy() if copy else values).view()
        view.flags.writeable = False
        # Past Array's own __setattr__, which does the bookkeeping of serialised objects each time.
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

    def numpy(self) -> NDArray[Any]:
        values: NDArray[Any] | None = self.__dict__["_values"]
        if values is None:
            return super().numpy()
        return values.copy() if self.__dict__["_writable"] else values


LazyArray.__qualname__ = Array.__qualname__  # the name that Flower writes into what it serialises


class Copies:
    """Copies messages, one for each receiver, and decodes the model once for all of them.

    Parameters
    ----------
    frozen : bool
        Whether receivers share the arrays, read-only; else each gets copies.
    """

    def __init__(self, frozen: bool) -> None:
        self._frozen = frozen
        self._decoded: dict[int, tuple[Array, LazyArray]] = {}  # id of what was last sent -> it, decoded

    def of(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Yield messages that their receivers may do anything with; what was sent last is still known."""
        before, self._decoded = self._decoded, {}
        for message in messages:
            own = _twin(message)
            own.__dict__.update(
                _metadata=_twin(message.metadata), _content=self._content(message.content, before)
            )
            yield own

    def _content(self, content: RecordDict, before: Mapping[int, tuple[Array, LazyArray]]) -> RecordDict:
        own = content.copy()
        records = own.__dict__["_data"]  # past the checks of the entries' types: they were made before
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
            except Exception:  # what is sent may be anything; the client finds out
                return array
            found = array, LazyArray(values, copy=False, writable=not self._frozen)
        self._decoded[key] = found
        return found[1]


def _twin(thing: _Thing) -> _Thing:
    """Return a shallow copy of a plain object; Python's `copy` is for more, and slower."""
    twin = object.__new__(type(thing))
    twin.__dict__.update(thing.__dict__)
    return twin
