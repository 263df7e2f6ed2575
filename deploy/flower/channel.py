"""A channel between two processes: it carries one request and its answer at a time over a socket pair.

The channel replaces Flower's HTTP stack, in which an empty request takes each process 5 to 10 ms of CPU time.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

# The head of a request: the length of the method's name and the length of the content, in bytes.
# The head of an answer: 1 if there is an answer and 0 if there is none, and the length of its content in
# bytes.
_HEAD = struct.Struct("!BQ")


class Channel:
    """The end of the channel that sends requests. Several threads may share it; they take turns."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._lock = threading.Lock()
        self._asking: int | None = None  # the thread whose request is under way
        self._afterwards: list[Callable[[], object]] = []  # called after the answer that is awaited now

    def ask(self, method: str, content: bytes) -> bytes | None:
        """Send a request and wait for its answer, without a time limit.

        `method`: the name of the method, at most 255 bytes in UTF-8.

        Returns the content of the answer. None if the other process has closed its socket, or has no answer.
        """
        name = method.encode()
        found = None
        with self._lock:
            self._asking = threading.get_ident()
            with contextlib.suppress(OSError, EOFError):
                self._end.sendall(_HEAD.pack(len(name), len(content)) + name + content)
                answered, length = _HEAD.unpack(_receive(self._end, _HEAD.size))
                answer = _receive(self._end, length)
                found = answer if answered else None
            self._asking = None
            calls, self._afterwards = self._afterwards, []
        for call in calls:
            call()
        return found

    def when_free(self, call: Callable[[], object]) -> None:
        """Call a function now; if this thread waits for an answer, call the function after the answer.

        For signal handlers. A handler that used the channel during the wait would block for ever. A handler
        that raised an error during the wait would leave the answer for the next request.
        """
        if self._asking == threading.get_ident():
            self._afterwards.append(call)
        else:
            call()


def serve(end: socket.socket, answer: Callable[[str, bytes], bytes | None]) -> None:
    """Answer the requests at `end` until the other process closes its socket. Then close `end`."""
    with end, contextlib.suppress(OSError, EOFError):
        while True:
            length_of_name, length = _HEAD.unpack(_receive(end, _HEAD.size))
            name = _receive(end, length_of_name).decode()
            answered = answer(name, _receive(end, length))
            end.sendall(_HEAD.pack(answered is not None, len(answered or b"")) + (answered or b""))


def _receive(end: socket.socket, length: int) -> bytes:
    received = bytearray(length)
    rest = memoryview(received)
    while rest:
        count = end.recv_into(rest)
        if not count:
            raise EOFError
        rest = rest[count:]
    return bytes(received)
