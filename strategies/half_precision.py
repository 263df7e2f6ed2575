"""Half precision on the wire: models and updates travel as float16; both sides compute in the model's types.

`HalfPrecisionGrid` rounds the model w_t in each message to float16. `half_precision_mod` gives the client's
app this rounded model r_t in the types of w_t. The app returns its trained model w_m, and the mod sends the
update w_m - r_t, rounded to float16. The grid gives the strategy the model w_t + (w_m - r_t). So the server's
model keeps its precision, and the strategy measures the client's update relative to r_t, the model from which
the client trained. Rounding the update loses less than rounding w_m would, since an update is much smaller
than the model.

Each array is multiplied by a power of two, so that its largest number uses the upper end of float16's range,
and none overflows. A number loses at most 2^-11 of itself (.05 %), or 2^-39 of the array's largest number if
that is more. NaN and infinite values stay what they are, so the strategy rejects the update as usual. Arrays
of other types than float32 and float64 are sent as they are.
"""

from collections.abc import Callable, Iterable
from typing import Any, cast
from weakref import WeakValueDictionary

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from .clients.reports import NORM, REPORT_NORM
from .flower.arrays import decode, encode, num_bytes, of_kind
from .flower.exchanges import ExchangeGrid, GridView, readable

HALF = "half-precision"
"""Name of the ConfigRecord in a message with rounded arrays. It holds their ``names`` and ``exponents`` e;
the message has the numbers times 2^-e. In messages to clients it also holds ``record``, the name of the
record with the arrays, and ``types``, the types that the arrays had."""
_TOP = 15  # the numbers in a message are below 2^15; the largest float16 is 65504
_LEAST = -100  # the smallest exponent e; the factor 2^-e = 2^100 fits into float32
_LARGEST = 1023  # the largest exponent e; 2^1023 fits into float64
_TYPES = ("float32", "float64")
_FULL = "_full_precision"  # attribute of a sent message: the record with w_t
_NO_MOD = 0  # flwr.common.constant.ErrorCode.UNKNOWN
_INTERVAL = 3.0  # s between two looks for replies, as in Flower's own grid


class HalfPrecisionGrid(GridView):
    """Sends models and receives updates as float16, if the clients' app has `half_precision_mod`.

    Give it to `SelectionStrategy.start` in place of Flower's grid. The model is rounded in all messages
    except questions about norms: `ReportingClientApp` reads the model of such a message before the mod runs.
    If an app lacks the mod, its replies with a model become errors. Messages to clients that mask their
    updates are not rounded, since rounded masks would not cancel; `SelectionStrategy.start` refuses this
    grid if updates are masked.

    Parameters
    ----------
    grid : Grid
        The grid that Flower gives to the ServerApp.
    record : str (default: "arrays")
        The name of the record with the model in each message; other records are sent as they are.

    Examples
    --------
    ``strategy.start(HalfPrecisionGrid(grid), arrays, num_rounds=10)``
    """

    def __init__(self, grid: Grid, record: str = "arrays") -> None:
        super().__init__(grid)
        self._record = record
        # Message id -> sent message. An entry lasts as long as its message, which the caller keeps while it
        # waits for the reply.
        self._sent: WeakValueDictionary[str, Message] = WeakValueDictionary()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Round the models in the messages, and send the messages."""
        messages = list(messages)
        rounded: dict[int, tuple[ArrayRecord, ConfigRecord]] = {}  # id of a record -> the record rounded
        for message in messages:
            model, kind = message.content.get(self._record), message.metadata.message_type
            if not isinstance(model, ArrayRecord) or kind == NORM or _stays(message.content):
                continue
            if id(model) not in rounded:
                rounded[id(model)] = self._rounded(model)
            halves, note = rounded[id(model)]
            message.content = RecordDict({**message.content, self._record: halves, HALF: note})
            message.__dict__[_FULL] = model
        message_ids = list(self._grid.push_messages(messages))
        for message, message_id in zip(messages, message_ids, strict=False):
            if message_id and _FULL in message.__dict__:
                self._sent[message_id] = message
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived, with models in the types of w_t."""
        return [self._restored(reply) for reply in readable(self._grid.pull_messages(message_ids))]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and return the replies that arrive within ``timeout`` seconds."""
        return ExchangeGrid(self, _INTERVAL).send_and_receive(messages, timeout=timeout)

    def _rounded(self, model: ArrayRecord) -> tuple[ArrayRecord, ConfigRecord]:
        types = {name: array.dtype for name, array in model.items() if array.dtype in _TYPES}
        halves, exponents = ArrayRecord(), {}
        for name, array in model.items():
            halves[name] = array
            if name in types:
                halves[name], exponents[name] = _halved(decode(array))
        note = _note(exponents)
        note["record"], note["types"] = self._record, list(types.values())
        return halves, note

    def _restored(self, reply: Message) -> Message:
        sent = self._sent.get(reply.metadata.reply_to_message_id)
        if sent is None or reply.has_error():
            return reply
        note = of_kind(reply.content, ConfigRecord).get(HALF)
        reply.content.pop(HALF, None)
        records = of_kind(reply.content, ArrayRecord)
        if records and note is None:
            return Message(Error(_NO_MOD, "its app lacks half_precision_mod"), reply_to=sent)
        model: ArrayRecord = sent.__dict__[_FULL]
        for key, record in records.items():
            restored, exponents = ArrayRecord(), _exponents(note)
            for name, array in record.items():
                is_update = name in model and name in exponents
                restored[name] = _Restored(model[name], array, exponents[name]) if is_update else array
            reply.content[key] = restored
        return reply


def half_precision_mod(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Give the app a message's rounded model in the server's types, and round the update in the reply.

    Messages that are not rounded pass unchanged, so any app may have this mod. It must be the first of the
    app's mods.

    Examples
    --------
    ``app = ClientApp(mods=[half_precision_mod])``
    """
    note = message.content.pop(HALF, None) if message.has_content() else None
    if not isinstance(note, ConfigRecord):
        return call_next(message, context)
    key, exponents = str(note["record"]), _exponents(note)
    types = dict(zip(exponents, cast("list[str]", note["types"]), strict=True))
    sent = message.content.array_records[key]

    def received(name: str) -> NDArray[Any]:
        return _widened(sent[name], types[name], exponents[name])

    model = ArrayRecord()
    for name, array in sent.items():
        model[name] = encode(received(name)) if name in types else array
    message.content[key] = model
    del model
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    scales: dict[str, int] = {}
    for record in of_kind(reply.content, ArrayRecord).values():
        for name, array in record.items():
            if name in types and array.shape == sent[name].shape and array.dtype in _TYPES:
                record[name], scales[name] = _halved(decode(array) - received(name))
    reply.content[HALF] = _note(scales)
    return reply


class _Restored(Array):
    """w_t plus a rounded update. Each read computes the sum anew, so replies stay small in memory."""

    def __init__(self, model: Array, update: Array, exponent: int) -> None:
        # Bypasses the __setattr__ of Array, which updates the bookkeeping of serialised objects each time.
        self.__dict__.update(
            dtype=model.dtype,
            shape=update.shape,
            stype=model.stype,
            num_bytes=num_bytes(update),  # on the wire
            _parts=(model, update, exponent),
        )

    def numpy(self) -> NDArray[Any]:
        model, update, exponent = self.__dict__["_parts"]
        base = decode(model)
        if decode(update).shape != base.shape:
            return decode(update)  # the strategy rejects it
        with np.errstate(over="ignore", invalid="ignore"):
            moved = _widened(update, base.dtype, exponent)
            moved += base
        return moved

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """The array as a .npy file."""
        return encode(self.numpy()).data


_Restored.__qualname__ = Array.__qualname__  # the name that Flower serialises


def _halved(values: NDArray[Any]) -> tuple[Array, int]:
    """Return an array as float16, and the exponent e; the array holds the numbers times 2^-e."""
    largest = float(max(values.max(initial=0.0), -values.min(initial=0.0)))
    exponent = max(int(np.frexp(largest)[1]) - _TOP, _LEAST) if np.isfinite(largest) else 0
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return encode((values * values.dtype.type(2.0**-exponent)).astype(np.float16)), exponent


def _widened(array: Array, dtype: np.dtype[Any] | str, exponent: int) -> NDArray[Any]:
    values = decode(array).astype(dtype)
    values *= values.dtype.type(2.0**exponent)
    return values


def _note(exponents: dict[str, int]) -> ConfigRecord:
    return ConfigRecord({"names": list(exponents), "exponents": list(exponents.values())})


def _exponents(note: ConfigRecord | None) -> dict[str, int]:
    """Return the exponent of each array; empty if a client sent something else."""
    names, exponents = (None, None) if note is None else (note.get("names"), note.get("exponents"))
    if not isinstance(names, list) or not isinstance(exponents, list):
        return {}
    return {
        str(name): each
        for name, each in zip(names, exponents, strict=False)
        if type(each) is int and _LEAST <= each <= _LARGEST
    }


def _stays(content: RecordDict) -> bool:
    """Return whether a message must not be rounded: it is rounded already, or its client masks the update."""
    configs = of_kind(content, ConfigRecord)
    return HALF in configs or any(REPORT_NORM in config for config in configs.values())
