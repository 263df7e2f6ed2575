"""A Grid without a network, for tests of the Flower layer: each node is a function from message to reply.

Plainer than `simulation.grid`, which is tested against it. Time passes only when somebody sleeps.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from simulation.grid import SimulatedClock

Node = Callable[[Message], "Message | list[Message] | None"]
"""Answers a message; None is silence, a list is one answer after another."""


class InProcessGrid(Grid):
    """Delivers each message to its node when replies are pulled."""

    def __init__(self, nodes: Mapping[int, Node], names: Mapping[int, str] | None = None) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.nodes = dict(nodes)
        self.names = dict(names or {})
        self.clock = SimulatedClock()
        self.sent: list[Message] = []
        self._ids = count(1)
        self._waiting: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=node, name=self.names.get(node, "")) for node in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message_id = f"m{next(self._ids)}"
            self.sent.append(message)
            self._waiting[message_id] = message
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies: list[Message] = []
        for message_id in message_ids:
            message = self._waiting.pop(message_id, None)
            if message is None:
                continue
            try:
                answer = self.nodes[message.metadata.dst_node_id](message)
            except Exception as error:
                answer = Message(Error(code=2, reason=repr(error)), reply_to=message)
            if answer is not None:
                replies.extend(answer if isinstance(answer, list) else [answer])
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


def node_of(
    app: Callable[[Message, Context], Message], node_config: dict[str, Any], run_config: dict[str, Any]
) -> Node:
    """Return a node that runs a ClientApp."""
    context = Context(1, 1, node_config, RecordDict(), run_config)
    return lambda message: app(message, context)
