"""A Flower Grid in one process: any strategy, any client app, simulated time; no Ray, nothing serialised.

This and `lazy_array` are the only files of this room that touch Flower's private parts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from logging import ERROR
from math import inf
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp.client_app import LoadClientAppError
from flwr.common import log
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from .lazy_array import Copies, LazyArray
from .stragglers import TRAIN, ResponseTimes, latency_of

if TYPE_CHECKING:
    from flwr.app.user_config import UserConfig
    from flwr.clientapp import ClientApp

    from strategies.flower.grids import Clock

    from .availability import Availability

__all__ = ["SUPERLINK", "Handler", "InProcessGrid", "LazyArray", "SimulatedClock"]

SUPERLINK = 1
"""The node id of the SuperLink, which is where error replies for dead nodes come from."""

Handler = Callable[[Message], "Message | list[Message] | None"]
"""A client as a plain function. None is silence; a list is several replies, to whatever message."""


class SimulatedClock:
    """Time that passes only when somebody sleeps.

    Stands in for Python's `time` where a grid's ``clock`` is asked (`strategies.flower.grids.clock_of`).
    """

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        """Return the simulated time in seconds, from 0."""
        return self._now

    def sleep(self, seconds: float, /) -> None:
        """Let time pass."""
        self._now += max(0.0, seconds)


@dataclass
class _Node:
    call: Callable[[Message], Any]
    name: str
    context: Context | None  # None: a plain function
    client: int  # how many were added before it


@dataclass(order=True)
class _Letter:
    """A message under way, in the order in which its answer is due."""

    due: float  # s
    number: int
    message: Message = field(compare=False)  # the node's own copy
    error: Error | None = field(default=None, compare=False)  # what it will be answered with, where known


class InProcessGrid(Grid):
    """Runs clients in the process of the strategy.

    What a client is sent is its own: records are copied, the model's arrays are decoded once for all clients
    and handed out as copies (or read-only, see ``frozen``). An exception in a client is logged and becomes
    the error reply that Flower would send. Messages are handled in the order in which their replies are due,
    ties in the order of sending; a client's `Context`, with its state, lasts as long as the grid, also when
    it comes back under another node id.

    Time is the clock's. A message is handled, and answered, ``latency`` seconds after it was sent. One that
    is not handled within its ttl is answered with Flower's error 3; one whose node is gone by then with error
    5, whose source is the SuperLink.

    With an ``availability``, which of the nodes are online is a function of time too: `availability_round` is
    the number of ``round_length`` seconds that have begun. A round of training takes at least what is left of
    its own: who looks for nodes after it has sent TRAIN messages finds those of the next. (A round in which
    nobody is asked to train takes no time: the next finds the same.) So while training takes no longer, the
    rounds of a strategy are those of the process, and who waits for clients sees them come. Who is online at
    a look can be asked until the next one, and answers what it was asked; what drops out is the latency's
    affair. Flower's own strategies wait for clients in real time, in which simulated time stands still: let
    them wait for no more than are always here.

    Parameters
    ----------
    app : ClientApp or callable, optional
        Every node's app, called as ``app(message, context)``; nodes that are added may bring their own.
    node_configs : iterable of mapping
        A node for each, with this config: ``({"partition-id": i, "num-partitions": 10} for i in range(10))``.
    run_config : mapping, optional
        What clients find in ``context.run_config``.
    latency : float, callable or ResponseTimes (default: 0)
        Seconds, >= 0, from sending a message to its reply, or a function of the message; infinite: never.
        `ResponseTimes` are those of training; all else is answered at once.
    clock : Clock, optional
        Default: a `SimulatedClock`. Python's `time` lets real time pass.
    frozen : bool (default: False)
        Hand out the arrays that clients are sent without copying, as read-only: what writes into them gets
        an error. Not for clients that use `torch.from_numpy`, which ignores that.
    offline_after : float (default: 50)
        Seconds until a node that is gone is noticed and its messages are answered with error 5.
    availability : Availability, optional
        Who is online when; its client m is the m-th node that was added, from 0, also under another node id.
        Default: all nodes, always.
    round_length : float (default: 60)
        Seconds, > 0, of one round of the availability.
    first_round : int (default: 1)
        The round of the availability in which the grid begins; of a resumed run, its next one.

    Raises
    ------
    ValueError
        If ``latency`` or ``round_length`` is out of range, there are nodes but no app for them, or more than
        the availability knows.

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
        clock: Clock | None = None,
        frozen: bool = False,
        offline_after: float = 50.0,
        availability: Availability | None = None,
        round_length: float = 60.0,
        first_round: int = 1,
    ) -> None:
        if not round_length > 0:
            raise ValueError(f"round_length = {round_length}: must be > 0")
        if TaskIdentity._run_id is None:  # else this runs inside a Flower process, which has an identity
            TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK
        self.clock: Clock = SimulatedClock() if clock is None else clock
        if isinstance(latency, int | float) and not latency >= 0:
            raise ValueError(f"latency = {latency}: must be >= 0")
        if isinstance(latency, ResponseTimes):
            latency = latency_of(latency, self.client_of)
        self.latency: Callable[[Message], float] = latency if callable(latency) else lambda _: latency
        self.offline_after = offline_after
        self.availability = availability
        self.round_length = round_length
        self._first_round, self._began = first_round, self.clock.monotonic()
        self._trained_in = 0  # the round of the availability in which TRAIN messages were last sent
        self._here: set[int] | None = None  # nodes that were online at the last look; None: all
        self._app = app
        self._run_config = dict(run_config or {})
        self._copies = Copies(frozen)
        self._run = Run.create_empty(TaskIdentity.run_id)
        self._nodes: dict[int, _Node] = {}
        self._node_of: dict[int, int] = {}  # client -> the node that it is, or was
        self._gone: dict[int, float] = {}  # node id -> when it left
        self._node_ids = count(SUPERLINK + 1)
        self._numbers = count(1)
        self._letters: list[_Letter] = []  # a heap
        self._expires: dict[str, float] = {}  # message id -> when nobody answers it any more
        self._expired: set[str] = set()  # ids of messages that nobody came for
        self._mail: dict[str, list[Message]] = {}  # message id -> replies that can be pulled
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
        """Let a node join.

        Parameters
        ----------
        node_config : mapping, optional
            What its client finds in ``context.node_config``.
        app : callable, optional
            Its app, default: the grid's.
        handler : callable, optional
            A plain function in the place of an app.
        node_id : int, optional
            Not the id of a node that is here.
        name : str
            Under which an operator registered it.

        Returns
        -------
        int
            Its node id.

        Raises
        ------
        ValueError
            If there is no app for it, the node id is taken, or the availability knows no further client.
        """
        client = len(self._node_of)
        if self.availability is not None and client >= self.availability.num_clients:
            raise ValueError(f"availability of {client} clients: must be of as many as there are nodes")
        if handler is not None:
            return self._enter(_Node(handler, name, None, client), node_id)
        used = app or self._app
        if used is None:
            raise ValueError("app = None: must be given here or to the grid")
        config: UserConfig = dict(node_config or {})
        context = Context(self._run.run_id, 0, config, RecordDict(), dict(self._run_config))
        return self._enter(_Node(lambda message: used(message, context), name, context, client), node_id)

    def remove_node(self, node_id: int) -> None:
        """Let a node leave; what it has not answered yet it never will."""
        del self._nodes[node_id]
        self._gone[node_id] = self.clock.monotonic()

    def rename_node(self, node_id: int, new_id: int | None = None) -> int:
        """Let a client come back, with its state, as another node; return its new id."""
        node = self._nodes[node_id]
        new_id = self._enter(node, new_id)
        self.remove_node(node_id)
        return new_id

    def _enter(self, node: _Node, node_id: int | None) -> int:
        if node_id is None:
            node_id = next(each for each in self._node_ids if each not in self._nodes | self._gone)
        if node_id in self._nodes or node_id == SUPERLINK:
            raise ValueError(f"node_id = {node_id}: is taken")
        self._gone.pop(node_id, None)
        self._nodes[node_id] = node
        self._node_of[node.client] = node_id
        if node.context is not None:
            node.context.node_id = node_id
        return node_id

    def client_of(self, node_id: int) -> int:
        """Return how many clients were added before the one behind a node: its index for an availability."""
        return self._nodes[node_id].client

    def get_node_ids(self) -> list[int]:
        if self.availability is None:
            return list(self._nodes)
        if self.availability_round == self._trained_in:
            passed = self.clock.monotonic() - self._began
            self.clock.sleep((self._trained_in + 1 - self._first_round) * self.round_length - passed)
        here = self.availability.here(self.availability_round)
        clients = range(self.availability.num_clients) if here is None else here.tolist()
        nodes = (self._node_of.get(client) for client in clients)
        online = [node_id for node_id in nodes if node_id in self._nodes]
        self._here = set(online)
        return online

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node_id, name=self._nodes[node_id].name) for node_id in self.get_node_ids()]

    @property
    def availability_round(self) -> int:
        """The round of the availability that it is now, from ``first_round``."""
        passed = (self.clock.monotonic() - self._began) / self.round_length
        return self._first_round + int(passed + 1e-9)  # sums of seconds are not exact

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
            self._mail.pop(expired, None)
            self._expired.add(expired)
            del self._expires[expired]
        sent, messages = [], list(messages)
        for message, own in zip(messages, self._copies.of(messages), strict=True):
            number = next(self._numbers)
            message_id = f"message-{number}"
            for each in (message, own):
                each.metadata.__dict__["_message_id"] = message_id
            letter = _Letter(inf, number, own)
            if self._is_online(message.metadata.dst_node_id):
                letter.due = now + self.latency(message)
            else:
                letter = self._undeliverable(letter)
            if message.metadata.message_type == TRAIN:
                self._trained_in = self.availability_round
            self._expires[message_id] = now + message.metadata.ttl
            if letter.due < inf:
                heapq.heappush(self._letters, letter)
            sent.append(message_id)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        now = self.clock.monotonic()
        self._handle_due(now)
        replies: list[Message] = []
        for message_id in message_ids:
            if message_id in self._mail:
                replies += self._mail.pop(message_id)
                self._expires.pop(message_id, None)
            elif message_id in self._expired or self._expires.get(message_id, inf) < now:
                self._expired.discard(message_id)
                self._expires.pop(message_id, None)
                replies.append(_unavailable(message_id, self._run.run_id))
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and return the replies that came within ``timeout`` seconds of the grid's clock.

        Without a timeout it returns once no further reply can come.
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
            wake = min(self._letters[0].due if self._letters else inf, end)
            if not waiting or now >= end or wake == inf:
                return replies
            self.clock.sleep(wake - now)

    def _handle_due(self, now: float) -> None:
        """Handle the messages whose time has come, whether or not somebody waits for the reply."""
        while self._letters and self._letters[0].due <= now:
            letter = heapq.heappop(self._letters)
            message = letter.message
            node = self._nodes.get(message.metadata.dst_node_id)
            if letter.due > self._expires.get(message.metadata.message_id, -inf):
                continue
            if letter.error is not None:
                reply = Message(letter.error, reply_to=message)
                reply.metadata.__dict__["_src_node_id"] = SUPERLINK
                answers = [reply]
            elif node is None:
                heapq.heappush(self._letters, self._undeliverable(letter))
                continue
            else:
                answers = _answers(node, message)
            if answers:
                self._mail[message.metadata.message_id] = answers

    def _is_online(self, node_id: int) -> bool:
        return node_id in self._nodes and (self._here is None or node_id in self._here)

    def _undeliverable(self, letter: _Letter) -> _Letter:
        """Return the letter with the answer that the SuperLink will give for a node that is gone."""
        node_id = letter.message.metadata.dst_node_id
        noticed = self._gone.get(node_id, -inf) + self.offline_after
        error = Error(ErrorCode.NODE_UNAVAILABLE, f"Node {node_id} is not online")
        due = max(noticed, self.clock.monotonic())
        return _Letter(due, letter.number, letter.message, error)


def _answers(node: _Node, message: Message) -> list[Message]:
    """Let a node answer; what it raises becomes the error reply that Flower would send."""
    is_app = node.context is not None
    try:
        answer = node.call(message)
        answers = answer if isinstance(answer, list) and not is_app else [answer]
        if answer is None and not is_app:
            return []
        for each in answers:
            if not isinstance(each, Message):
                raise TypeError(f"the client returned {type(each).__name__}: must be a Message")
    except SystemExit as stopped:
        crash = Error(ErrorCode.CLIENT_APP_CRASHED, f"The client exited: {stopped}")
        return [Message(crash, reply_to=message)]
    except Exception as error:
        if is_app:  # whose author wants to know where
            log(ERROR, "ClientApp raised an exception", exc_info=error)
        loading = isinstance(error, LoadClientAppError)
        code = ErrorCode.LOAD_CLIENT_APP_EXCEPTION if loading else ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        return [Message(Error(code, f"{type(error)}:<'{error}'>"), reply_to=message)]
    return list(answers)


def _unavailable(message_id: str, run_id: int) -> Message:
    """Return the SuperLink's answer for a message that has expired."""
    error = Error(ErrorCode.MESSAGE_UNAVAILABLE, "The message has expired")
    reply = Message(RecordDict(), SUPERLINK, "system")
    reply.metadata.__dict__.update(_reply_to_message_id=message_id, _run_id=run_id)
    reply.__dict__.update(_content=None, _error=error)
    return reply
