"""Two views of a Flower Grid: one looks for replies at its own interval, one shows selected nodes only."""

from __future__ import annotations

import time
from logging import WARNING
from typing import TYPE_CHECKING, Any, Protocol

from flwr.common import log
from flwr.serverapp import Grid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flwr.app import Message, RecordDict


class Clock(Protocol):
    """Tells the time in seconds and sleeps; Python's `time` module is a clock."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


def clock_of(grid: Grid) -> Clock:
    """Return the ``clock`` of a simulated grid, else the real one."""
    clock: Clock = getattr(grid, "clock", time)
    return clock


class _GridView(Grid):
    """Forwards everything to another grid.

    Flower has no public names for the types of a run and of a node: both are `Any` here.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.clock = clock_of(grid)

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self._grid.send_and_receive(messages, timeout=timeout)


def has_arrays(reply: Message) -> bool:
    """Return whether a reply holds a model: it is neither an error nor a refusal to train."""
    return not reply.has_error() and bool(reply.content.array_records)


_FIRST_PAUSE = 0.05  # s between two looks for replies ...
_PAUSE_SHARE = 0.05  # ... as a share of the time waited so far
_LOST_IN_A_ROW = 3  # exchanges that may fail in a row


class PollingGrid(_GridView):
    """Looks for replies often at first, then ever more rarely; Flower's own grid always sleeps 3 s.

    The pause between two looks is a twentieth of the time waited so far: a long round ends a little later,
    and costs the SuperLink no more looks than a short one.

    Parameters
    ----------
    grid : Grid
        The grid that Flower hands to the ServerApp.
    interval : float
        The longest pause between two looks, in seconds, > 0.
    """

    def __init__(self, grid: Grid, interval: float) -> None:
        super().__init__(grid)
        self.interval = interval
        self._lost = 0  # exchanges in a row that could not be sent

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None, enough: int | None = None
    ) -> list[Message]:
        """Send messages and return the replies that arrive.

        If sending fails, for example because the SuperLink is too busy, there are no replies. The error is
        raised when sending fails more than three times in a row.

        Parameters
        ----------
        messages : iterable of Message
            The messages.
        timeout : float, optional
            Seconds to wait for replies (None: no limit).
        enough : int, optional
            Stop waiting once this many replies with a model have arrived (None: wait for all).
        """
        # A message that could not be sent has no id and gets no reply.
        waiting = {message_id for message_id in self._push(list(messages)) if message_id}
        began = self.clock.monotonic()
        end = float("inf") if timeout is None else began + timeout
        missing = float("inf") if enough is None else enough
        replies: list[Message] = []
        while waiting:
            looked = self.clock.monotonic()
            for reply in self._grid.pull_messages(sorted(waiting)):
                answered = reply.metadata.reply_to_message_id
                missing -= answered in waiting and has_arrays(reply)
                waiting.discard(answered)
                replies.append(reply)
            now = self.clock.monotonic()
            if not waiting or missing <= 0 or now >= end:
                break
            pause = min(max(_FIRST_PAUSE, _PAUSE_SHARE * (now - began)), self.interval)
            self.clock.sleep(max(0.0, min(looked + pause, end) - now))
        return replies

    def _push(self, messages: list[Message]) -> Iterable[str]:
        try:
            message_ids = self._grid.push_messages(messages)
        except Exception as error:  # Flower's errors have no public base class
            self._lost += 1
            if self._lost > _LOST_IN_A_ROW:
                raise
            log(WARNING, "%d messages could not be sent: %s: %s", len(messages), type(error).__name__, error)
            return []
        self._lost = 0
        return message_ids


class NodesGrid(_GridView):
    """Shows some nodes only: Flower's strategies, which sample from all visible nodes, take just these."""

    def __init__(self, grid: Grid, node_ids: Iterable[int]) -> None:
        super().__init__(grid)
        self._node_ids = list(node_ids)

    def get_node_ids(self) -> list[int]:
        return list(self._node_ids)

    def get_nodes(self) -> list[Any]:
        return [node for node in self._grid.get_nodes() if node.node_id in self._node_ids]
