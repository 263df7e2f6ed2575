"""A Flower Grid in one process: any strategy, any ClientApp, simulated time; no Ray, no serialisation.

In this folder only this file and `lazy_array` use Flower's private API.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from logging import ERROR
from math import inf
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.clientapp.client_app import LoadClientAppError
from flwr.common import log
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from strategies.flower.arrays import of_kind
from strategies.flower.exchanges import Clock
from strategies.flower.traffic import num_array_bytes

from .availability import Availability
from .lazy_array import Copies, LazyArray
from .response_times import ResponseTimes

__all__ = ["SUPERLINK", "Handler", "InProcessGrid", "LazyArray", "SimulatedClock"]

SUPERLINK = 1
"""The node id of the SuperLink. Error replies for nodes that have left come from it."""

Handler = Callable[[Message], "Message | list[Message] | None"]
"""A client as a plain function.

It returns a reply, a list of replies, or None for no reply. Replies in a list may answer earlier messages.
"""

_TRAIN = "train"


class SimulatedClock:
    """Time that passes only in `sleep`; replaces Python's `time` (`strategies.flower.exchanges.clock_of`)."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        """Return the simulated time in seconds, from 0."""
        return self._now

    def sleep(self, seconds: float, /) -> None:
        """Advance the time."""
        self._now += max(0.0, seconds)


@dataclass
class _Node:
    call: Callable[[Message], Any]
    name: str
    context: Context | None  # None if the client is a plain function
    client: int  # how many nodes were added before this one


@dataclass(order=True)
class _InFlight:
    """A message whose reply is due later. Messages are sorted by `due`, then in the order of sending."""

    due: float  # s
    number: int
    message: Message = field(compare=False)  # the node's own copy
    error: Error | None = field(default=None, compare=False)  # the reply, if it is an error


class InProcessGrid(Grid):
    """Runs all clients in the process of the strategy.

    **Messages.** Each client receives copies of the records in its messages. An exception of a client becomes
    the error reply that Flower would send; the exception of a ClientApp is also logged. Messages are handled
    in the order in which their replies are due, then in the order of sending. A client's `Context`, including
    its state, lasts as long as the grid, even if the client comes back under another node id.

    **Time** is the time of ``clock``. A message is handled ``latency`` seconds after it was sent, and its
    reply is available at once. The reply is Flower's error 3 if the message is not handled within its ttl.
    If the ttl passes before the reply is pulled, the next push of messages replaces the reply by error 3.
    If the node of a message has left, the reply is the SuperLink's error 5.

    **Slow lines.** With a ``bandwidth``, the update in a reply to TRAIN has as many bytes as the model in the
    message, and takes further seconds after the ``latency``. Meanwhile, `received_bytes` says how many of
    these bytes have arrived.

    **Availability.** With an ``availability``, the time determines which nodes are online. Time is divided
    into periods of ``round_length`` seconds. The first period is round ``first_round`` of the availability,
    the second period is the round after it, and so on (`availability_round`). After TRAIN messages were sent,
    the next call of `get_nodes` or `get_node_ids` advances the clock to the next period, unless training has
    already taken longer. So as long as training takes at most ``round_length`` seconds, round t of a strategy
    sees the clients that are available in round t. A round without TRAIN messages does not advance the clock.

    The nodes that `get_nodes` or `get_node_ids` returned stay reachable until the next such call, and reply
    to all messages. To simulate a client that drops out, give its messages an infinite ``latency``. Flower's
    own strategies wait for clients in real time, while simulated time stands still. So configure such a
    strategy to wait for no more clients than the smallest number that is available in any round.

    Parameters
    ----------
    app : ClientApp or callable, optional
        The app of all nodes, called as ``app(message, context)``; `add_node` can give a node its own.
    node_configs : iterable of mapping
        One node is added for each config: ``({"partition-id": i, "num-partitions": 10} for i in range(10))``.
    run_config : mapping, optional
        ``context.run_config`` of all clients.
    latency : float, callable or ResponseTimes (default: 0)
        Seconds, >= 0, from sending a message to its reply, or a function that returns these seconds for a
        message; inf: no reply. `ResponseTimes` apply to TRAIN messages; all other messages are answered at
        once.
    bandwidth : float or callable (default: inf)
        Bytes per second, > 0, at which the update in a reply to TRAIN arrives, or a function that returns
        this number for a message.
    clock : Clock, optional
        Default: a `SimulatedClock`. Python's `time` runs the grid in real time.
    frozen : bool (default: False)
        Whether clients share read-only arrays instead of receiving copies. Leave this False for clients that
        use `torch.from_numpy`: that function ignores that an array is read-only.
    offline_after : float (default: 50)
        Seconds from a node's departure until its messages are answered with error 5.
    availability : Availability, optional
        Determines which clients are online (default: all nodes are always online). The node that
        was added first is client 0, the next is client 1, and so on. A client that comes back under another
        node id keeps its number.
    round_length : float (default: 60)
        Seconds, > 0, per round of the availability.
    first_round : int (default: 1)
        The round of the availability at the grid's start. For a resumed run: the first round after the
        checkpoint.

    Raises
    ------
    ValueError
        If ``latency``, ``bandwidth`` or ``round_length`` is out of range, nodes have no app, or there are
        more nodes than clients of the availability.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    >>> from flwr.clientapp import ClientApp
    >>> from flwr.serverapp.strategy import FedAvg
    >>> app = ClientApp()
    >>> @app.train()
    ... def train(message, context):
    ...     w = message.content["arrays"]["w"].numpy() + context.node_config["partition-id"]
    ...     size = MetricRecord({"num-examples": 1})
    ...     return Message(RecordDict({"a": ArrayRecord([w]), "m": size}), reply_to=message)
    >>> grid = InProcessGrid(app, ({"partition-id": i} for i in range(5)))
    >>> start = ArrayRecord({"w": Array(np.zeros(2))})
    >>> result = FedAvg(fraction_evaluate=0.0).start(grid, start, num_rounds=1)
    >>> result.arrays["0"].numpy()
    array([2., 2.])
    """

    def __init__(
        self,
        app: ClientApp | Callable[[Message, Context], Message] | None = None,
        node_configs: Iterable[Mapping[str, Any]] = (),
        *,
        run_config: Mapping[str, Any] | None = None,
        latency: float | Callable[[Message], float] | ResponseTimes = 0.0,
        bandwidth: float | Callable[[Message], float] = inf,
        clock: Clock | None = None,
        frozen: bool = False,
        offline_after: float = 50.0,
        availability: Availability | None = None,
        round_length: float = 60.0,
        first_round: int = 1,
    ) -> None:
        if not round_length > 0:
            raise ValueError(f"round_length = {round_length}: must be > 0")
        if TaskIdentity._run_id is None:  # otherwise this is a Flower process, which has an identity
            TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK
        self.clock: Clock = SimulatedClock() if clock is None else clock
        if isinstance(latency, int | float) and not latency >= 0:
            raise ValueError(f"latency = {latency}: must be >= 0")
        if isinstance(latency, ResponseTimes):
            latency = self._latency_of(latency)
        self.latency: Callable[[Message], float] = latency if callable(latency) else lambda _: latency
        if isinstance(bandwidth, int | float) and not bandwidth > 0:
            raise ValueError(f"bandwidth = {bandwidth}: must be > 0")
        self.bandwidth: Callable[[Message], float] = bandwidth if callable(bandwidth) else lambda _: bandwidth
        self.offline_after = offline_after
        self.availability = availability
        self.round_length = round_length
        self._first_round, self._began = first_round, self.clock.monotonic()
        self._trained_in = 0  # the round of the availability in which TRAIN messages were last sent
        self._online: set[int] | None = None  # the nodes that `get_node_ids` last returned; None: all nodes
        self._app = app
        self._run_config = dict(run_config or {})
        self._copies = Copies(frozen)
        self._run = Run.create_empty(TaskIdentity.run_id)
        self._nodes: dict[int, _Node] = {}
        self._node_of: dict[int, int] = {}  # client -> its latest node id
        self._gone: dict[int, float] = {}  # node id -> when the node left
        self._node_ids = count(SUPERLINK + 1)
        self._numbers = count(1)
        self._in_flight: list[_InFlight] = []  # a heap
        self._expires: dict[str, float] = {}  # message id -> end of its ttl
        self._expired: set[str] = set()  # ids of expired messages whose error reply was not pulled yet
        self._replies: dict[str, list[Message]] = {}  # message id -> replies ready to be pulled
        # Message id -> (when the update begins to arrive in s, its bytes, and the bytes per second). Only for
        # updates that take time.
        self._uploads: dict[str, tuple[float, int, float]] = {}
        for config in node_configs:
            self.add_node(config)

    # --- nodes -----------------------------------------------------------------------------------------

    def add_node(
        self,
        node_config: Mapping[str, Any] | None = None,
        *,
        app: ClientApp | Callable[[Message, Context], Message] | None = None,
        handler: Handler | None = None,
        node_id: int | None = None,
        name: str = "",
    ) -> int:
        """Add a node and return its id.

        Parameters
        ----------
        node_config : mapping, optional
            ``context.node_config`` of the node's client.
        app : callable, optional
            The node's app (default: the grid's).
        handler : callable, optional
            A plain function instead of an app.
        node_id : int, optional
            The node's id; no node of the grid may have it (default: a new id).
        name : str
            The name under which an operator registered the node.

        Raises
        ------
        ValueError
            If the node has no app, its id is taken, or the availability has no further client.
        """
        client = len(self._node_of)
        if self.availability is not None and client >= self.availability.num_clients:
            raise ValueError(
                f"availability of {client} clients: must have at least as many as the grid has nodes"
            )
        if handler is not None:
            return self._enter(_Node(handler, name, None, client), node_id)
        used = app or self._app
        if used is None:
            raise ValueError("app = None: must be given to add_node or to the grid")
        config: UserConfig = dict(node_config or {})
        context = Context(self._run.run_id, 0, config, RecordDict(), dict(self._run_config))
        return self._enter(_Node(lambda message: used(message, context), name, context, client), node_id)

    def remove_node(self, node_id: int) -> None:
        """Remove a node. It no longer replies, not even to earlier messages."""
        del self._nodes[node_id]
        self._gone[node_id] = self.clock.monotonic()

    def rename_node(self, node_id: int, new_id: int | None = None) -> int:
        """Reconnect a client, with its state, under another node id; return this id."""
        node = self._nodes[node_id]
        new_id = self._enter(node, new_id)
        self.remove_node(node_id)
        return new_id

    def _enter(self, node: _Node, node_id: int | None) -> int:
        if node_id is None:
            # A set of all taken ids would make adding M nodes take time in proportion to M².
            node_id = next(each for each in self._node_ids if not (each in self._nodes or each in self._gone))
        if node_id in self._nodes or node_id == SUPERLINK:
            raise ValueError(f"node_id = {node_id}: must not be taken")
        self._gone.pop(node_id, None)
        self._nodes[node_id] = node
        self._node_of[node.client] = node_id
        if node.context is not None:
            node.context.node_id = node_id
        return node_id

    def client_of(self, node_id: int) -> int:
        """Return the client of a node: its index in the availability and the response times."""
        return self._nodes[node_id].client

    def get_node_ids(self) -> list[int]:
        if self.availability is None:
            return list(self._nodes)
        if self.availability_round == self._trained_in:
            passed = self.clock.monotonic() - self._began
            self.clock.sleep((self._trained_in + 1 - self._first_round) * self.round_length - passed)
        available = self.availability.available(self.availability_round)
        clients = range(self.availability.num_clients) if available is None else available.tolist()
        nodes = (self._node_of.get(client) for client in clients)
        online = [node_id for node_id in nodes if node_id in self._nodes]
        self._online = set(online)
        return online

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node_id, name=self._nodes[node_id].name) for node_id in self.get_node_ids()]

    @property
    def availability_round(self) -> int:
        """The current round of the availability, at least ``first_round``."""
        passed = (self.clock.monotonic() - self._began) / self.round_length
        return self._first_round + int(passed + 1e-9)  # sums of seconds have rounding errors

    # --- the run ---------------------------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    # --- messages --------------------------------------------------------------------------------------

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        now = self.clock.monotonic()
        self._handle_due(now)
        for expired in [each for each, end in self._expires.items() if end < now]:
            self._replies.pop(expired, None)
            self._expired.add(expired)
            del self._expires[expired]
        message_ids, messages = [], list(messages)
        for message, own in zip(messages, self._copies.of(messages), strict=True):
            number = next(self._numbers)
            message_id = f"message-{number}"
            for each in (message, own):
                each.metadata.__dict__["_message_id"] = message_id
            sent_now = _InFlight(inf, number, own)
            node_id = message.metadata.dst_node_id
            if node_id in self._nodes and (self._online is None or node_id in self._online):
                sent_now.due = now + self.latency(message)
                if message.metadata.message_type == _TRAIN and (speed := self.bandwidth(message)) < inf:
                    size = num_array_bytes(message)
                    self._uploads[message_id] = (sent_now.due, size, speed)
                    sent_now.due += size / speed
            else:
                sent_now = self._undeliverable(sent_now)
            if message.metadata.message_type == _TRAIN:
                self._trained_in = self.availability_round
            self._expires[message_id] = now + message.metadata.ttl
            if sent_now.due < inf:
                heapq.heappush(self._in_flight, sent_now)
            message_ids.append(message_id)
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        now = self.clock.monotonic()
        self._handle_due(now)
        replies: list[Message] = []
        for message_id in message_ids:
            if message_id in self._replies:
                replies += self._replies.pop(message_id)
                self._expires.pop(message_id, None)
                self._uploads.pop(message_id, None)
            elif message_id in self._expired or self._expires.get(message_id, inf) < now:
                self._expired.discard(message_id)
                self._expires.pop(message_id, None)
                replies.append(_unavailable(message_id, self._run.run_id))
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and return the replies that arrive within ``timeout`` seconds of the grid's clock.

        Without a timeout, return as soon as no further reply can arrive.
        """
        end = inf
        waiting = set(self.push_messages(messages))
        if timeout is not None:
            end = self.clock.monotonic() + timeout
        replies: list[Message] = []
        while True:
            for reply in self.pull_messages(sorted(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
                replies.append(reply)
            now = self.clock.monotonic()
            wake = min(self._in_flight[0].due if self._in_flight else inf, end)
            if not waiting or now >= end or wake == inf:
                return replies
            self.clock.sleep(wake - now)

    def received_bytes(self, message_ids: Collection[str]) -> dict[str, int]:
        """Return how many bytes of each update have arrived, by message id, if there are any."""
        now, found = self.clock.monotonic(), {}
        for message_id in message_ids:
            began, size, speed = self._uploads.get(message_id, (inf, 0, 1.0))
            if now > began:
                found[message_id] = min(size, int((now - began) * speed))
        return found

    def _handle_due(self, now: float) -> None:
        """Handle all messages whose replies are due, even if the strategy never pulls these replies."""
        while self._in_flight and self._in_flight[0].due <= now:
            due = heapq.heappop(self._in_flight)
            message = due.message
            node = self._nodes.get(message.metadata.dst_node_id)
            if due.due > self._expires.get(message.metadata.message_id, -inf):
                continue
            if due.error is not None:
                reply = Message(due.error, reply_to=message)
                reply.metadata.__dict__["_src_node_id"] = SUPERLINK
                replies = [reply]
            elif node is None:
                heapq.heappush(self._in_flight, self._undeliverable(due))
                continue
            else:
                replies = _replies(node, message)
            if replies:
                self._replies[message.metadata.message_id] = replies

    def _undeliverable(self, sent: _InFlight) -> _InFlight:
        """Return a message in flight whose reply is the SuperLink's error for a node that has left."""
        node_id = sent.message.metadata.dst_node_id
        noticed = self._gone.get(node_id, -inf) + self.offline_after
        error = Error(ErrorCode.NODE_UNAVAILABLE, f"Node {node_id} is not online")
        due = max(noticed, self.clock.monotonic())
        return _InFlight(due, sent.number, sent.message, error)

    def _latency_of(self, times: ResponseTimes) -> Callable[[Message], float]:
        def latency(message: Message) -> float:
            if message.metadata.message_type != _TRAIN:
                return 0.0
            client = self.client_of(message.metadata.dst_node_id)
            return float(times.seconds(_server_round(message), [client])[0])

        return latency


def _server_round(message: Message) -> int:
    """Return the round of a message, which Flower's strategies write into the message's config."""
    for config in of_kind(message.content, ConfigRecord).values():
        number = config.get("server-round")
        if isinstance(number, int):
            return number
    raise ValueError(
        "server-round: must be in a config of the message, since response times are drawn by round"
    )


def _replies(node: _Node, message: Message) -> list[Message]:
    """Return a node's replies; an exception becomes the error reply that Flower would send."""
    is_app = node.context is not None
    try:
        answer = node.call(message)
        replies = answer if isinstance(answer, list) and not is_app else [answer]
        if answer is None and not is_app:
            return []
        for each in replies:
            if not isinstance(each, Message):
                raise TypeError(f"the client returned {type(each).__name__}: must be a Message")
    except SystemExit as stopped:
        crash = Error(ErrorCode.CLIENT_APP_CRASHED, f"The client exited: {stopped}")
        return [Message(crash, reply_to=message)]
    except Exception as error:
        if is_app:  # its author needs the traceback
            log(ERROR, "ClientApp raised an exception", exc_info=error)
        loading = isinstance(error, LoadClientAppError)
        code = ErrorCode.LOAD_CLIENT_APP_EXCEPTION if loading else ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        return [Message(Error(code, f"{type(error)}:<'{error}'>"), reply_to=message)]
    return list(replies)


def _unavailable(message_id: str, run_id: int) -> Message:
    """Return the SuperLink's reply for a message that has expired."""
    error = Error(ErrorCode.MESSAGE_UNAVAILABLE, "The message has expired")
    reply = Message(RecordDict(), SUPERLINK, "system")
    reply.metadata.__dict__.update(_reply_to_message_id=message_id, _run_id=run_id)
    reply.__dict__.update(_content=None, _error=error)
    return reply
