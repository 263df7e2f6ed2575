"""The evaluation of the model by clients: which clients evaluate, and the averages of their metrics."""

from collections.abc import Iterable, Sequence
from logging import WARNING

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from ..clients.overrides import Groups
from ..clients.printable import counted
from ..clients.roster import Roster
from ..flower.exchanges import ExchangeGrid, NodesGrid
from ..flower.messages import CLOCKS_DIFFER, why_failed
from ..flower.metric_averages import averaged, has_size
from ..rounds.logic import RoundLogic
from ..rounds.seeds import evaluators
from ..server_steps.step import ServerStep

_ERRORS = "Evaluation of round %d: %s in %d of %s; the first is %s"
_NO_SIZE = "Evaluation of round %d: no usable %s in %d of %s"


class ClientEvaluation:
    """Lets a random share of the clients evaluate the model after each round.

    ``by_group``: For each group of which a client replied, the average metrics of the group in the last
    evaluation.
    """

    def __init__(self, step: ServerStep, roster: Roster, groups: Groups, seed: int, deadline: float) -> None:
        self._step, self._roster, self._groups = step, roster, groups
        self._seed, self._deadline = seed, deadline
        self.by_group: dict[str, MetricRecord] = {}

    def messages(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, here: NDArray[np.int64]
    ) -> list[Message]:
        drawn = evaluators(self._seed, number, here, self._step.fraction_evaluate)
        if not drawn.size:
            return []
        shown = NodesGrid(grid, [self._roster.node_of(int(client)) for client in drawn])
        prepared = self._step.base.configure_evaluate(number, arrays, ConfigRecord(dict(config)), shown)
        messages = sorted(prepared, key=lambda message: message.metadata.dst_node_id)
        for message in messages:
            message.metadata.ttl = self._deadline + CLOCKS_DIFFER
            message.metadata.group_id = str(number)
        return messages

    def replies(
        self, number: int, messages: Sequence[Message], grid: ExchangeGrid, logic: RoundLogic, limit: float
    ) -> list[Message]:
        """Send the EVALUATE messages, and return the replies that come within ``limit`` seconds."""
        if not messages:
            return []
        clients = [self._roster.client_at(message.metadata.dst_node_id) for message in messages]
        known = np.array([-1 if client is None else client for client in clients], dtype=np.int64)
        wait = logic.wait("evaluate", number, known, limit) if (known >= 0).all() else None
        return grid.send_and_receive(messages, timeout=limit, wait=wait)

    def average(self, number: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the average of the usable replies' metrics, and set `by_group`."""
        key = self._step.base.weighted_by_key
        # The order of the summands changes a sum's last digits, so it must not depend on when replies arrive.
        replies = sorted(replies, key=lambda reply: self._roster.client_at(reply.metadata.src_node_id) or 0)
        sized = [reply for reply in replies if has_size(reply, key)]
        received = counted(len(replies), "reply", "replies")
        errors = [why_failed(reply) for reply in replies if reply.has_error()]
        if errors:
            what = "an error" if len(errors) == 1 else "errors"
            log(WARNING, _ERRORS, number, what, len(errors), received, errors[0])
        if left := len(replies) - len(errors) - len(sized):
            log(WARNING, _NO_SIZE, number, key, left, received)
        self.by_group = {}
        for group, members in sorted(self._grouped(sized).items()):
            metrics = self._averaged(number, members, f"evaluations of group {group}, round {number}")
            if metrics is not None:
                self.by_group[group] = metrics
        return self._averaged(number, sized, f"evaluations of round {number}")

    def _grouped(self, replies: Iterable[Message]) -> dict[str, list[Message]]:
        found: dict[str, list[Message]] = {}
        for reply in replies:
            client = self._roster.client_at(reply.metadata.src_node_id)
            group = None if client is None else self._groups.of_client(self._roster, client)
            if group is not None:
                found.setdefault(group, []).append(reply)
        return found

    def _averaged(self, number: int, replies: Sequence[Message], what: str) -> MetricRecord | None:
        return averaged(
            lambda fit: self._step.base.aggregate_evaluate(number, fit),
            replies,
            [reply.content for reply in replies],
            what,
            [self._name_of(reply) for reply in replies],
        )

    def _name_of(self, reply: Message) -> str:
        node = reply.metadata.src_node_id
        client = self._roster.client_at(node)
        return f"node-{node}" if client is None else self._roster.id_of(client)
