"""Sends the TRAIN messages of buffered rounds, and awaits their replies over several rounds."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from flwr.app import Message

from ..rounds.waiting.wait_time import LATE, Wait
from .exchanges import NOT_SENT, ExchangeGrid

_AFTER_FAILURE = 1.0  # s, the pause if no message could be sent, since the caller tries again at once
# s, the shortest pause between two looks for replies; and the pause as a share of the time since `_last`.
_FIRST_PAUSE, _PAUSE_SHARE = 0.05, 0.05


def buffered_group(round: int) -> str:
    """Return the messages' group: no number, or the SuperLink deletes them as those of a past round."""
    return f"buffered {round}"


class Event(NamedTuple):
    """What happened to a client in flight: it replied, or the wait for it ended."""

    client: int
    message: Message  # the TRAIN message
    reply: Message | None = None  # its reply; None if there is none
    seconds: float = inf  # from the message to the client's reply; infinite if the client did not reply
    gives_up: bool = False  # whether no reply is expected any more
    why: str = LATE  # why there is no reply


@dataclass
class _Exchange:
    """Messages that were sent at the same time, and the wait for their replies."""

    asked: float  # when the first message was about to be sent, s on the clock; see `ExchangeGrid`
    began: float  # when all messages had been sent, s on the clock
    limit: float  # how long replies are accepted, s after ``began``
    wait: Wait | None
    open: int  # how many of its messages have no reply yet
    closed: bool = False  # whether the wait has ended, so that clients without a reply hold no places
    end: float = inf  # when its clients without a reply lose their places, s on the clock; see `update`

    def update(self) -> None:
        """Compute ``end`` again, since replies in other exchanges show how long clients take."""
        if self.wait is not None:
            self.wait.renew()
        if not self.closed:
            self.end = self.began + (self.limit if self.wait is None else min(self.limit, self.wait.end()))

    def close(self, now: float, round: int) -> None:
        if self.wait is not None and not self.closed:
            self.wait.close(now - self.began, round)
        self.closed = True


@dataclass
class _Sent:
    client: int
    message: Message
    exchange: _Exchange
    position: int  # of the client in the exchange
    overdue: bool = False


@dataclass
class InFlight:
    """Sends TRAIN messages, and returns one event after another: a reply, or a wait that has ended.

    The clients of one `ask` share a wait (`Wait`). When this wait ends, the clients without a reply are
    overdue: they lose their places (an event without a reply), but their replies are still accepted until
    ``limit`` seconds after the message. Then a last event (``gives_up``) follows, since no reply is expected
    any more.

    Replies that are found at the same time are returned in the order in which their messages were sent.
    Replies that a round does not take stay for the next round.

    ``round``: the current round. A client that turns out to be silent is quarantined from the next round on.
    """

    round: int = 0
    _sent: dict[str, _Sent] = field(default_factory=dict)  # by the message's id, in the order of sending
    _events: deque[Event] = field(default_factory=deque)
    _last: float = -inf  # when the last message was sent or the last reply came, s on the clock

    def ask(
        self,
        grid: ExchangeGrid,
        clients: Sequence[int],
        messages: Sequence[Message],
        limit: float,
        wait: Wait | None,
    ) -> None:
        """Send one message to each client, in the order of ``wait``; a lost one is an event without reply."""
        if not messages:
            return
        asked = grid.clock.monotonic()
        message_ids = (grid.send(list(messages)) + [""] * len(messages))[: len(messages)]
        if not any(message_ids):
            grid.clock.sleep(_AFTER_FAILURE)
        now = grid.clock.monotonic()
        exchange = _Exchange(asked, now, limit, wait, len(messages))
        for position, (client, message, message_id) in enumerate(
            zip(clients, messages, message_ids, strict=True)
        ):
            sent = _Sent(client, message, exchange, position)
            if message_id:
                self._sent[message_id] = sent
            else:
                self._settle(sent, now, own=False)
                self._events.append(Event(client, message, gives_up=True, why=NOT_SENT))
        self._last = now

    def next(self, grid: ExchangeGrid) -> Event:
        """Return the next event, and wait for it if there is none yet. There must be messages in flight."""
        clock = grid.clock
        while not self._events:
            looked = clock.monotonic()
            replies = {
                reply.metadata.reply_to_message_id: reply for reply in grid.pull_messages(list(self._sent))
            }
            now = clock.monotonic()
            for message_id in [each for each in self._sent if each in replies]:
                reply, sent = replies[message_id], self._sent.pop(message_id)
                # If a node is offline, the SuperLink sends an error reply in place of the node.
                own = reply.metadata.src_node_id == sent.message.metadata.dst_node_id
                self._settle(sent, now, own=own, failed=reply.has_error())
                seconds = now - sent.exchange.began if own else inf
                self._events.append(Event(sent.client, sent.message, reply, seconds, gives_up=True))
                self._last = now
            for exchange in {id(sent.exchange): sent.exchange for sent in self._sent.values()}.values():
                exchange.update()
            self._end_waits(now)
            if not self._events:
                exchanges = ((sent.exchange, sent.overdue) for sent in self._sent.values())
                ends = [each.began + each.limit if overdue else each.end for each, overdue in exchanges]
                pause = min(max(_FIRST_PAUSE, _PAUSE_SHARE * (now - self._last)), grid.interval)
                clock.sleep(max(0.0, min([looked + pause, *ends]) - now))
        return self._events.popleft()

    def _settle(self, sent: _Sent, now: float, *, own: bool, failed: bool = False) -> None:
        """Let the wait learn that the client replied (``own``), ``failed``, or that its message is lost."""
        exchange, seconds = sent.exchange, now - sent.exchange.asked
        exchange.open -= 1
        if exchange.wait is not None:
            wait = exchange.wait
            if not exchange.closed:
                (wait.lost if not own else wait.failed if failed else wait.answered)(sent.position, seconds)
            elif own and not failed and wait.expects_late:
                wait.late(sent.position, seconds)
        if not exchange.open:
            exchange.close(now, self.round)

    def _end_waits(self, now: float) -> None:
        for message_id, sent in list(self._sent.items()):
            exchange = sent.exchange
            gives_up = now >= exchange.began + exchange.limit
            if now >= exchange.end or exchange.closed:
                exchange.close(now, self.round)
                if gives_up:
                    del self._sent[message_id]
                if gives_up or not sent.overdue:
                    self._events.append(Event(sent.client, sent.message, gives_up=gives_up))
                sent.overdue = True
