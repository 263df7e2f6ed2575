"""The Fleet API on the wire: its methods, their messages, and the headers that sign a request.

The bytes are those of Flower 1.39's gRPC Fleet API, so devices that were set up with that version, and stock
SuperNodes of that version, work with this project's server. No generated stubs are needed: a method is a path
and two classes of messages, which Flower's HTTP API uses too.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

SERVICE = "flwr.proto.Fleet"
# The headers of a request: the node's public key, when the request was signed (ISO 8601), and the signature
# of this time.
PUBLIC_KEY, TIME_STAMP, SIGNATURE = "flwr-public-key-bin", "flwr-timestamp", "flwr-signature-bin"
# The first asks to hold a heartbeat; the second, to hold it, or a request for messages, for minutes
# (`held_requests.seconds`). Devices with Flower 1.39 send the first only, and a stock SuperLink ignores both.
HELD, LONG = ("cohort-held", "1"), ("cohort-held-long", "1")
# With this header of PullMessages, a device says that the answer may carry the message's objects (`carry`).
# If the answer does, the device lets the announcement of a small reply carry the reply's objects. Programs
# that do not know this ignore the header and what is carried.
WHOLE = ("cohort-whole", "1")
_CARRIED = 1000  # the number of the field that holds what is carried; no message of Flower has such a field
_TAG = b"\xc2\x3e"  # this number, and that bytes follow: 8 · 1000 + 2, as protobuf writes numbers
# s, the largest and the smallest age of a time stamp by the server's clock: Flower allows a clock to be 300 s
# behind, and a device uses a time stamp for ten seconds (`supernode.connection.SIGNED`).
OLDEST, NEWEST = 315.0, -5.0
_MESSAGES = {
    "RegisterNode": "fleet_pb2:RegisterNodeFleet",
    "ActivateNode": "fleet_pb2:ActivateNode",
    "DeactivateNode": "fleet_pb2:DeactivateNode",
    "UnregisterNode": "fleet_pb2:UnregisterNodeFleet",
    "SendNodeHeartbeat": "heartbeat_pb2:SendNodeHeartbeat",
    "PullMessages": "fleet_pb2:PullMessages",
    "PushMessages": "fleet_pb2:PushMessages",
    "GetRun": "run_pb2:GetRun",
    "GetFab": "fab_pb2:GetFab",
    "PushObject": "message_pb2:PushObject",
    "PullObject": "message_pb2:PullObject",
    "ConfirmMessageReceived": "message_pb2:ConfirmMessageReceived",
}


class Method(NamedTuple):
    """A method of the Fleet API."""

    name: str
    path: str
    request: Any
    """The class of the request's message."""
    response: Any
    """The class of the answer's message."""


def _method(name: str) -> Method:
    module, _, message = _MESSAGES[name].partition(":")
    classes = importlib.import_module(f"flwr.proto.{module}")
    request, response = getattr(classes, f"{message}Request"), getattr(classes, f"{message}Response")
    return Method(name, f"/{SERVICE}/{name}", request, response)


METHODS = {name: _method(name) for name in _MESSAGES}
"""The methods, by name."""


def carry(message: Any, content: bytes) -> None:
    """Add bytes to a message, in a field that programs of Flower ignore."""
    length, left = bytearray(), len(content)
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    message.MergeFromString(_TAG + bytes([*length, left]) + content)


def carried(message: Any) -> bytes:
    """Return the bytes that were added to a message, b"" if there are none."""
    fields = importlib.import_module("google.protobuf.unknown_fields").UnknownFieldSet(message)
    found = (each.data for each in fields if each.field_number == _CARRIED)
    content = next(found, b"")
    return content if isinstance(content, bytes) else b""  # a number is none of `carry`


def calls(channel: Any) -> dict[str, Callable[..., Any]]:
    """Return a function for each method, by name, that sends a request over a channel of gRPC.

    The functions' parameters are those of gRPC's ``UnaryUnaryMultiCallable``.
    """
    return {
        each.name: channel.unary_unary(
            each.path,
            request_serializer=each.request.SerializeToString,
            response_deserializer=each.response.FromString,
        )
        for each in METHODS.values()
    }
