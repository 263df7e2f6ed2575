"""Counts the messages and bytes that the server exchanges with clients."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace

from flwr.app import ArrayRecord, Message

from .arrays import num_bytes, of_kind


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

    def __post_init__(self) -> None:
        self._taken: tuple[int, ...] = (0, 0, 0, 0)  # the sum of all counts that `take` has returned

    def sent(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.messages_sent += 1
            self.bytes_sent += num_array_bytes(message)

    def received(self, replies: Iterable[Message]) -> None:
        """Count replies. An error reply counts as a message with 0 bytes."""
        for reply in replies:
            self.messages_received += 1
            self.bytes_received += 0 if reply.has_error() else num_array_bytes(reply)

    def take(self) -> "Traffic":
        """Return the counts since the last call, and set all counts to 0."""
        taken = replace(self)
        before = self._taken
        vars(self).update(vars(Traffic()))
        self._taken = tuple(a + b for a, b in zip(before, astuple(taken), strict=True))
        return taken

    @property
    def total(self) -> "Traffic":
        """The counts since the beginning; `take` does not reset them."""
        return Traffic(*(a + b for a, b in zip(self._taken, astuple(self), strict=True)))

    def since(self, earlier: "Traffic") -> "Traffic":
        """Return the counts since an earlier `total`."""
        return Traffic(*(a - b for a, b in zip(astuple(self.total), astuple(earlier), strict=True)))


def num_array_bytes(message: Message) -> int:
    """Return the bytes of all arrays in a message."""
    # Flower's `count_bytes` is not used because it raises for some records that a client may send.
    arrays = [array for record in of_kind(message.content, ArrayRecord).values() for array in record.values()]
    return sum(map(num_bytes, arrays))
