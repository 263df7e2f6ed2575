"""Counts the messages and bytes that the server exchanges with clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flwr.app import Message


@dataclass
class Traffic:
    """The number of messages since the last `take`, and the bytes of the arrays in these messages.

    Status questions, polls, training and evaluation are all counted. The network carries more bytes than are
    counted here, because configs, metrics and signatures are left out.
    """

    messages_sent: int = 0
    bytes_sent: int = 0
    messages_received: int = 0
    bytes_received: int = 0

    def sent(self, messages: Iterable[Message]) -> None:
        """Count messages to clients."""
        for message in messages:
            self.messages_sent += 1
            self.bytes_sent += _size(message)

    def received(self, replies: Iterable[Message]) -> None:
        """Count replies. An error reply counts as a message with 0 bytes."""
        for reply in replies:
            self.messages_received += 1
            self.bytes_received += 0 if reply.has_error() else _size(reply)

    def take(self) -> Traffic:
        """Return the counts since the last call, and set all counts to 0."""
        taken = replace(self)
        vars(self).update(vars(Traffic()))
        return taken


def _size(message: Message) -> int:
    # Flower's `count_bytes` is not used because it raises for some records that a client may send.
    records = message.content.array_records.values()
    data = [array.data for record in records for array in record.values()]
    return sum(len(each) for each in data if isinstance(each, bytes))
