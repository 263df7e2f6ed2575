"""The training of the selected clients: their messages, the wait for their replies, and their metrics."""

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from ..clients.reports import LEARNING_RATE, PART_SCALES, REPORT_NORM, REPORT_VARIANCE, UPDATE_WEIGHT
from ..clients.roster import Roster
from ..flower.arrays import of_kind, to_record
from ..flower.exchanges import ExchangeGrid, NodesGrid
from ..flower.messages import CLOCKS_DIFFER, TrainingRound
from ..flower.metric_averages import averaged
from ..rounds.control_variates import CONTROL, ClientVariates
from ..rounds.logic import RoundLogic
from ..rounds.record import RoundRecord
from ..rounds.replies import Reply
from ..rounds.seeds import client_seed
from ..selectors import Selection
from ..server_steps.step import ServerStep
from .settings import RunSettings


class ClientTraining:
    """Lets the selected clients of each round train, with the messages of the server strategy.

    With a schedule of learning rates, each message holds the rate of its round. With SCAFFOLD, messages also
    hold the record `CONTROL`. If updates are masked, each message holds the client's weight times the number
    of selected clients, and the client reports the norm of its update.
    """

    def __init__(
        self, settings: RunSettings, step: ServerStep, roster: Roster, variates: ClientVariates | None
    ) -> None:
        self._step, self._roster, self._variates = step, roster, variates
        self._seed, self._ttl = settings.seed, settings.deadlines.round + CLOCKS_DIFFER
        self._rates = settings.rates if isinstance(settings.rate, str) else None
        self._masked, kind = settings.masked_updates, settings.kind
        self._reports = {
            **({REPORT_VARIANCE: True} if "gradient_variance" in kind.feedback_used else {}),
            **({REPORT_NORM: True} if self._masked else {}),
        }

    def rate_of(self, round: int) -> dict[str, float]:
        """Return the config entry with the learning rate of a round; empty if messages hold no rate."""
        return {} if self._rates is None else {LEARNING_RATE: float(self._rates.at(round))}

    def messages(
        self,
        number: int,
        selection: Selection,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        extra: Mapping[str, Any] | None = None,
    ) -> list[Message]:
        """Return the TRAIN messages to the selected clients, who train from ``arrays``, in selection order.

        ``config`` holds the entries that the server strategy puts into each config, and ``extra`` further
        ones. An entry of the server strategy's message takes precedence over an entry of this class.
        """
        clients = [int(client) for client in selection.clients]
        nodes = [self._roster.node_of(client) for client in clients]
        prepared = self._step.configure(number, arrays, config, NodesGrid(grid, nodes))
        entries = {**(extra or {}), **self._reports, **self.rate_of(number)}
        content_for = {message.metadata.dst_node_id: message.content for message in prepared}
        messages = []
        parts = [()] * len(clients) if selection.parts is None else selection.parts.tolist()
        for client, node, weight, scales in zip(clients, nodes, selection.weights, parts, strict=True):
            content = RecordDict(dict(content_for[node]))
            key = self._step.base.configrecord_key
            seed = client_seed(self._seed, number, client)
            only_here = {UPDATE_WEIGHT: float(weight * len(clients))} if self._masked else {}
            if scales:
                only_here[PART_SCALES] = scales
            given = of_kind(content, ConfigRecord)[key]
            content[key] = ConfigRecord({"seed": seed, **entries, **only_here, **given})
            control = None if self._variates is None else self._variates.outgoing(client)
            if control is not None:
                content[CONTROL] = to_record(control)
            sent = Message(content, node, MessageType.TRAIN, ttl=self._ttl, group_id=str(number))
            messages.append(sent)
        return messages

    def replies(
        self,
        training: TrainingRound,
        messages: list[Message],
        grid: ExchangeGrid,
        logic: RoundLogic,
        limit: float,
    ) -> list[Message]:
        """Send the TRAIN messages of a round, and return the replies that come within ``limit`` seconds."""
        if not messages:
            return []
        chosen = training.chosen
        wait = logic.wait("train", chosen.opened.number, chosen.selection.clients, limit)
        # Usable replies are counted only if needed, since counting takes a pass over each model.
        enough = chosen.enough if chosen.enough < len(messages) else None
        replies = grid.send_and_receive(
            messages, timeout=limit, enough=enough, counts=training.is_usable, wait=wait
        )
        training.arrivals.update(grid.arrivals)
        training.missing.update(grid.missing)
        return replies

    def average(
        self, replies: Sequence[Reply], record: RoundRecord, sizes: NDArray[np.float64]
    ) -> MetricRecord:
        """Return the clients' metrics, averaged by the server strategy's function.

        The metrics of a client are weighted by its data size in ``sizes`` (M,). ``num-clients`` is added, and
        ``train-loss`` if clients reported losses and there is no metric ``train_loss``.
        """
        key, responded = self._step.base.weighted_by_key, record.feedback.responded
        clients = record.selection.clients[responded].tolist()
        contents = [
            RecordDict({"metrics": MetricRecord({**reply.metrics, key: float(sizes[client])})})
            for client, reply in zip(clients, compress(replies, responded), strict=True)
        ]
        found = averaged(
            lambda fit: self._step.train_metrics_aggr_fn(fit, key),
            contents,
            contents,
            f"metrics of round {record.round}",
            [self._roster.id_of(client) for client in clients],
        )
        metrics = found or MetricRecord()
        metrics["num-clients"] = int(responded.sum())
        if np.isfinite(record.train_loss) and "train_loss" not in metrics:  # as Flower's quickstarts name it
            metrics["train-loss"] = record.train_loss
        return metrics
