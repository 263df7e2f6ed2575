"""Limits how many frames of HTTP/2 a node may send in a second.

gRPC handles every frame at once, even frames that belong to no request. A node that sent 850,000 PINGs a
second occupied a core, and the requests of others waited for seconds. If a node sends more than `FRAMES`
frames in a second, the gate (`connection_gate`) reads no more from the node until the second is over
(`SlowDown`).

An honest node sends four small frames with each request (the request's headers and body, and two
WINDOW_UPDATEs), and few others. The data of a model is in large frames, which do not count.
"""

import asyncio
import time
from logging import getLogger
from math import inf

FRAMES = 2048  # the frames of 500 requests; a SuperLink answers some 1,000 requests a second in all
# Bytes. A DATA frame with at least this many bytes does not count. A frame of another kind counts once, and
# once more for each `LARGE` bytes in it.
LARGE = 1024
TOLD = 60.0  # s between two lines in the log
_PREFACE = 24  # bytes before the first frame
_HEAD = 9  # bytes before a frame's content: its length (3), its kind, its flags and its stream (4)
_DATA = 0  # the kind of the frames with bodies


class FrameBudget:
    """The frames that a sender may send in the current second.

    The sender is a node, with all its connections together, or a stranger, with one connection.
    """

    def __init__(self) -> None:
        self._began = self._spent = 0.0

    @property
    def left(self) -> float:
        """How many frames the sender may still send."""
        now = time.monotonic()
        if now - self._began >= 1.0:
            self._began, self._spent = now, 0
        return FRAMES - self._spent

    @property
    def wait(self) -> float:
        """The seconds until the next second begins."""
        return max(0.0, self._began + 1.0 - time.monotonic())

    def spend(self, frames: int) -> None:
        """Note that the sender has sent frames."""
        self._spent += frames


class FrameCounter:
    """Counts the frames that arrive over one connection."""

    def __init__(self) -> None:
        self.of_models = 0
        self._large = False  # whether the current frame is a large frame of data
        self._skip = _PREFACE  # bytes until the next frame begins
        self._head = b""  # the beginning of the next frame's head, if these bytes have already passed

    def passing(self, data: bytes, budget: FrameBudget) -> int:
        """Return how many of the next bytes, `data`, may pass now, and spend their frames from `budget`."""
        joined, before = self._head + data, len(self._head)
        at, end, left = self._skip, len(joined), budget.left
        count = 0
        large = self._large
        while at + _HEAD <= end and count < left:
            length = int.from_bytes(joined[at : at + 3])
            self._large = joined[at + 3] == _DATA and length >= LARGE
            if joined[at + 3] != _DATA:
                count += 1 + length // LARGE
            elif length < LARGE:
                count += 1
            large |= self._large
            at += _HEAD + length
        budget.spend(count)
        if at + _HEAD <= end:  # a frame must wait
            if at < before:  # a part of its head has already passed
                return 0
            self._skip, self._head = 0, b""
            self.of_models += large * (at - before)
            return at - before
        self.of_models += large * len(data)
        self._skip, self._head = max(0, at - end), joined[at:]
        return len(data)


class SlowDown:
    """Lets peers that send too many frames wait, and logs such a peer at most once in `TOLD` seconds."""

    def __init__(self) -> None:
        self._logged = -inf  # time.monotonic(), s

    async def pause(self, peer: str, budget: FrameBudget) -> None:
        """Wait until the peer may send frames again."""
        now = time.monotonic()
        if now - self._logged >= TOLD:
            self._logged = now
            getLogger("flwr").warning("%s sends more than %d frames in a second: slowed down", peer, FRAMES)
        await asyncio.sleep(budget.wait)
