"""Sends messages, waits for replies and hears late ones (`ExchangeGrid`); shows some nodes (`NodesGrid`)."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from logging import WARNING
from math import inf
from typing import Any, NamedTuple, Protocol

from flwr.app import Error, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from ..clients.printable import counted, printable
from ..rounds.waiting.wait_time import Wait
from .traffic import Traffic

MOST_RECORDS = 100
"""The most records in a reply. The server needs one array record and a few records with numbers and text."""
_UNREADABLE = 0  # flwr.common.constant.ErrorCode.UNKNOWN


def readable(replies: Iterable[Message]) -> Iterator[Message]:
    """Yield each reply that is a message, with empty content or an error for what cannot be read."""
    for reply in replies:
        try:
            wrong = _what_is_wrong(reply)
        except Exception as error:  # a reply may cause any error
            wrong = printable(error)
        if not wrong:
            yield reply
        elif isinstance(reply, Message):
            log(WARNING, "A reply of node %d is unreadable: %s", reply.metadata.src_node_id, wrong)
            if reply.has_content():
                reply.content = RecordDict()
            else:
                reply.error = Error(_UNREADABLE, wrong)
            yield reply


def _what_is_wrong(reply: Message) -> str:
    if reply.has_error():
        return ""
    content = reply.content
    if not isinstance(content, RecordDict):
        return f"{type(content).__name__} instead of records"
    return f"{len(content)} records: must be at most {MOST_RECORDS}" if len(content) > MOST_RECORDS else ""


class Clock(Protocol):
    """Returns the time in seconds, and sleeps. Python's `time` module is a `Clock`."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


def clock_of(grid: Grid) -> Clock:
    """Return the ``clock`` of a simulated grid; for any other grid, the `time` module."""
    clock: Clock = getattr(grid, "clock", time)
    return clock


class GridView(Grid):
    """Forwards all calls to another grid. Flower's types of a run and a node have no public names: `Any`."""

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

    def received_bytes(self, message_ids: Collection[str]) -> Mapping[str, int]:
        """Return how many bytes of each reply have arrived, by message id; empty if the grid cannot tell."""
        known = getattr(self._grid, "received_bytes", None)
        return {} if known is None else known(message_ids)


_FIRST_PAUSE = 0.05  # s, the shortest pause between two looks for replies
_PAUSE_SHARE = 0.05  # the pause between two looks, as a share of the time waited so far
_LONGEST_LOOK = 1.0  # s; what a look takes beyond this prolongs the wait, since the SuperLink is slow
# The time that clients get to return to a SuperLink that did not answer: at most `_RETURN` s, and at most
# `_RETURN_SHARE` times as long as it did not answer.
_RETURN = 15.0
_RETURN_SHARE = 3
_LOST_IN_A_ROW = 3  # how many times in a row sending, or looking for replies, may fail
_LATE_SHARE = 0.05  # the largest share of the time that looks for late replies take
_OFFLINE_EVERY = 1.0  # s between two looks for nodes that have gone offline
NOT_SENT = "the message could not be sent"
"""Why there is no reply to a message that could not be sent."""


class LateReplies:
    """Looks for replies that come after their exchange, but so rarely that the looks do not delay the rounds.

    If there is no reply, the SuperLink may take a second to answer a look. So one look in each round would
    delay each round by a second while a client does not reply. Therefore, a look that took t seconds is
    followed by 20 t seconds without a look.
    """

    def __init__(self) -> None:
        self._next = -inf  # s on the clock

    def look(self, grid: Grid, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived, or none if it is too early for another look."""
        message_ids, clock = list(message_ids), clock_of(grid)
        began = clock.monotonic()
        if not message_ids or began < self._next:
            return []
        found = list(grid.pull_messages(message_ids))
        now = clock.monotonic()
        self._next = now + (now - began) / _LATE_SHARE
        return found

    def hurry(self) -> None:
        """Allow the next look at once, for a caller that has to wait anyway."""
        self._next = -inf


class _ReadableGrid(GridView):
    """Returns at most one reply to each message, and only replies that later code can read without errors.

    If a reply cannot be decoded to a message, Flower raises an error, and all replies that Flower fetched in
    the same call are lost. After the first such error, each reply is fetched in a call of its own, so that
    only unreadable replies are lost.
    """

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._failed = 0  # how many calls to fetch replies have failed in a row
        self.one_by_one = False  # whether each reply is fetched in a call of its own

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies so far. The fourth error in a row is raised: no client is its cause."""
        asked = list(message_ids)
        open_, replies = set(asked), []
        for batch in [[each] for each in asked] if self.one_by_one else [asked]:
            try:
                found = list(self._grid.pull_messages(batch))
            except Exception as error:  # Flower's errors have no public base class
                self.one_by_one = True
                self._failed += 1
                if self._failed > _LOST_IN_A_ROW:
                    raise
                log(WARNING, "Replies could not be read: %s: %s", type(error).__name__, printable(error))
                break  # if the SuperLink is down, each further call would fail, too, and only after a wait
            self._failed = 0
            for reply in readable(found):
                if reply.metadata.reply_to_message_id in open_:
                    open_.discard(reply.metadata.reply_to_message_id)
                    replies.append(reply)
        return replies


class _Unanswered(NamedTuple):
    """A message whose reply did not come in time."""

    node: int
    sent: float  # s on the clock
    expires: float  # s on the clock
    wait: Wait
    position: int  # the client's position in ``wait``


class ExchangeGrid(GridView):
    """A grid that looks for replies often at first, then at growing intervals. Flower's grid looks every 3 s.

    The pause between two looks is a twentieth of the time waited so far, but at least 0.05 s and at most
    ``interval``. So a short round ends without delay, and a long round does not burden the SuperLink.

    A reply that arrives after its exchange has ended, but before its message has expired, is not used, but
    `Wait` learns the time of its arrival.

    ``grid``: the grid that Flower gives to the ServerApp. ``interval``: the longest pause between two looks,
    in seconds, > 0. ``traffic``: Counts the messages (default: a counter that nothing reads).

    ``arrivals``: Message id -> the seconds from sending the message until the server had the reply, in the
    last exchange. Errors that the SuperLink sends in place of an offline node do not count. ``missing``:
    Position of a message -> why there is no reply to it, in the last exchange. Only for messages that could
    not be sent, and for exchanges with a `Wait` that no sufficient number of replies has ended.
    """

    def __init__(self, grid: Grid, interval: float, traffic: Traffic | None = None) -> None:
        self._readable = _ReadableGrid(grid)
        super().__init__(self._readable)
        self.interval = interval
        self._traffic = traffic or Traffic()
        self.arrivals: dict[str, float] = {}
        self.missing: dict[int, str] = {}
        self._lost = 0  # how many times in a row sending has failed
        self._unanswered: dict[str, _Unanswered] = {}  # message id -> the message
        self._late = LateReplies()

    @classmethod
    def of(cls, grid: Grid, interval: float) -> "ExchangeGrid":
        """Return the grid if it is an `ExchangeGrid`; otherwise return a new `ExchangeGrid` around it."""
        return grid if isinstance(grid, ExchangeGrid) else cls(grid, interval)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages, and return their ids; the id of a message that could not be sent is ""."""
        messages = list(messages)
        message_ids = list(self._grid.push_messages(messages))
        self._traffic.sent(message for message, sent in zip(messages, message_ids, strict=False) if sent)
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = list(self._grid.pull_messages(message_ids))
        self._traffic.received(replies)
        return replies

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,
        enough: int | None = None,
        counts: Callable[[Message], bool] | None = None,
        wait: Wait | None = None,
        only_online: bool = False,
    ) -> list[Message]:
        """Send messages, wait for replies, and return the replies that arrived.

        The wait for a client goes on while its reply is arriving (`received_bytes`), and the exchange does
        not end before ``timeout`` while it lacks the quorum of ``wait``. If the SuperLink did not answer for
        some seconds, for example because it was restarted, its clients have lost it, too. Then the wait is
        longer by these seconds and by the time that clients get to return, at most 15 s.

        If sending fails, for example because the SuperLink is too busy, the result is empty. The fourth
        failure in a row raises its error.

        ``timeout`` is the longest wait for replies, in seconds. After ``enough`` replies that count, the wait
        ends; ``counts`` takes a reply, and returns whether it counts towards ``enough`` and the quorum
        (default: if it is no error). ``wait`` ends the wait when no further reply can be expected, and learns
        how long clients took; its clients are in the order of the messages. With ``only_online``, the wait
        for a node ends as soon as the grid no longer shows the node.
        """
        messages = list(messages)
        counts = counts or (lambda reply: not reply.has_error())
        # A client's time counts from here, since the first clients may answer while the last messages are
        # being sent, and ends when the look that finds the answer ends. Too long a time costs a longer wait,
        # too short a time costs the clients that take longer.
        asked = self.clock.monotonic()
        # A message that could not be sent has no id and gets no reply.
        waiting = {
            message_id: position for position, message_id in enumerate(self.send(messages)) if message_id
        }
        unsent = set(range(len(messages))) - set(waiting.values())
        self.missing = dict.fromkeys(unsent, NOT_SENT)
        if wait is not None:
            for position in unsent:
                wait.lost(position, 0.0)  # a client cannot answer a message that was not sent
        together = not self._readable.one_by_one
        began = self.clock.monotonic()
        stalled = waited = 0.0
        unheard = max(0.0, began - asked - _LONGEST_LOOK)  # s, how long the SuperLink did not answer
        limit = inf if timeout is None else timeout
        missing = inf if enough is None else enough
        replies: list[Message] = []
        received: dict[str, int] = {}  # message id -> how many bytes of its reply had arrived
        next_online = began + _OFFLINE_EVERY
        self.arrivals = {}
        while waiting:
            looked = self.clock.monotonic()
            late = [] if self._readable.one_by_one else self._unanswered  # together, they cost nothing
            found = self.pull_messages(sorted({*waiting, *late}))
            arrived = self.clock.monotonic()
            for reply in found:
                answered = reply.metadata.reply_to_message_id
                if answered not in waiting:
                    self._hear_late(reply, arrived)
                    continue
                if enough is not None:
                    missing -= counts(reply)
                position = waiting.pop(answered)
                # If a node is offline, the SuperLink sends an error reply in place of the node.
                own = reply.metadata.src_node_id == messages[position].metadata.dst_node_id
                if own:
                    self.arrivals[answered] = arrived - began
                if wait is not None:
                    learn = wait.lost if not own else wait.failed if reply.has_error() else wait.answered
                    learn(position, arrived - asked)
                replies.append(reply)
            now = self.clock.monotonic()
            stalled += max(0.0, now - looked - _LONGEST_LOOK)
            longer = stalled + min(_RETURN, _RETURN_SHARE * (unheard + stalled))
            if wait is not None and only_online and now >= next_online:
                next_online = now + _OFFLINE_EVERY
                online = set(self._grid.get_node_ids())
                for position in waiting.values():
                    if messages[position].metadata.dst_node_id not in online:
                        wait.lost(position, now - began)
            lasts = limit if wait is None else min(limit, wait.end() + longer)
            if wait is not None and waiting and began + lasts <= now < began + limit:
                usable = sum(1 for _ in islice(filter(counts, replies), wait.quorum))
                if wait.is_short(usable):
                    lasts = limit
                else:
                    for message_id, count in self._progress(waiting).items():
                        if count > received.get(message_id, 0) and message_id in waiting:
                            received[message_id] = count
                            wait.progress(waiting[message_id], now - began - stalled)
                    lasts = min(limit, wait.end() + longer)
            end, waited = began + lasts, now - began - stalled
            if not waiting or missing <= 0:
                break
            if now >= end:
                waited = max(waited, lasts - stalled)  # `waited` must not be less because of rounding
                break
            pause = min(max(_FIRST_PAUSE, _PAUSE_SHARE * (now - began)), self.interval)
            self.clock.sleep(max(0.0, min(looked + pause, end) - now))
        replies_were_lost = together and self._readable.one_by_one
        if wait is not None and missing > 0:
            by_deadline = self.clock.monotonic() >= began + limit
            for position in waiting.values():
                self.missing[position] = wait.why_missing(position, limit if by_deadline else waited)
        if wait is not None and messages and not replies_were_lost:
            wait.close(waited)
            for message_id, position in waiting.items() if wait.expects_late else ():
                message = messages[position].metadata
                self._unanswered[message_id] = _Unanswered(
                    message.dst_node_id, asked, began + message.ttl, wait, position
                )
        return replies

    def listen(self) -> None:
        """Learn from late replies that have arrived since their exchange ended. Does not wait."""
        now = self.clock.monotonic()
        self._unanswered = {each: late for each, late in self._unanswered.items() if now <= late.expires}
        for reply in self._late.look(self, sorted(self._unanswered)):
            self._hear_late(reply, self.clock.monotonic())

    def _hear_late(self, reply: Message, now: float) -> None:
        """Learn from a reply that came after its exchange, unless it is an error."""
        late = self._unanswered.pop(reply.metadata.reply_to_message_id, None)
        if late is not None and reply.metadata.src_node_id == late.node and not reply.has_error():
            late.wait.late(late.position, now - late.sent)

    def _progress(self, message_ids: Collection[str]) -> Mapping[str, int]:
        """Return `received_bytes` of the replies that are missing; empty if the call fails."""
        try:
            return self.received_bytes(sorted(message_ids))
        except Exception as error:  # Flower's errors have no public base class
            log(WARNING, "The progress of replies is unknown: %s: %s", type(error).__name__, printable(error))
            return {}

    def send(self, messages: list[Message]) -> list[str]:
        """Send messages, and return their ids; none if that fails. The fourth failure in a row is raised."""
        try:
            message_ids = self.push_messages(messages)
        except Exception as error:  # Flower's errors have no public base class
            self._lost += 1
            if self._lost > _LOST_IN_A_ROW:
                raise
            unsent = counted(len(messages), "message")
            log(WARNING, "%s could not be sent: %s: %s", unsent, type(error).__name__, error)
            return []
        self._lost = 0
        return message_ids


class NodesGrid(GridView):
    """Shows only the given nodes to Flower's strategies, which sample from all nodes that a grid shows."""

    def __init__(self, grid: Grid, node_ids: Iterable[int]) -> None:
        super().__init__(grid)
        self._node_ids = list(node_ids)

    def get_node_ids(self) -> list[int]:
        return list(self._node_ids)

    def get_nodes(self) -> list[Any]:
        return [node for node in self._grid.get_nodes() if node.node_id in self._node_ids]
