"""Buffered rounds: asks clients to train, awaits replies, and keeps the models from which clients train."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from logging import INFO
from math import nan
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.common import log
from numpy.typing import NDArray

from ..clients.printable import listed
from ..clients.roster import Roster
from ..flower.arrays import ReceivedArrays, encode
from ..flower.buffered_messages import InFlight, buffered_group
from ..flower.exchanges import ExchangeGrid
from ..flower.messages import read_reply, read_usable
from ..rounds.aggregation import Arrays
from ..rounds.buffered.buffer import Buffer
from ..rounds.logic import RoundLogic
from ..rounds.replies import Reply
from ..rounds.stages import Chosen, Opened
from ..rounds.trained_clients import Rebased
from ..rounds.waiting.wait_time import LATE
from ..selectors import Selection
from .round_start import ServerRound
from .training import ClientTraining


class Gathered(NamedTuple):
    """The replies and times of a buffered round."""

    chosen: Chosen
    replies: list[Reply]  # (S,) of the clients whose training ended
    seconds: NDArray[np.float64]  # (S,) s until each of these clients replied; NaN = no reply
    asked: float  # when free places were first filled in this round, s on the grid's clock
    arrived: float  # when the wait for replies ended, s on the grid's clock


class BufferedRounds:
    """Keeps clients busy with training, across the ends of rounds. `Buffer` decides which clients to ask.

    ``models``: Round -> the model from which the clients that were asked in that round train.
    """

    def __init__(self, training: ClientTraining, roster: Roster, size_key: str) -> None:
        self._training, self._roster, self._size_key = training, roster, size_key
        self.models: dict[int, ArrayRecord] = {}
        self._in_flight = InFlight()
        self._restored: Mapping[str, NDArray[Any]] | None = None  # the saved state, until the next round

    def run(self, given: ServerRound, opened: Opened, logic: RoundLogic) -> Gathered:
        """Keep clients busy until the buffer is full, or nobody holds a place and the quorum is settled."""
        arrays, config, grid, limit = given.arrays, given.config, given.grid, given.limit
        number, buffer, clock, quorum = opened.number, logic.buffer, grid.clock, logic.faults.quorum
        assert buffer is not None

        def ask(clients: Sequence[int], version: int) -> None:
            if clients:
                messages = self._messages(clients, version, config, grid)
                wait = logic.wait("train", version, np.array(clients, dtype=np.int64), limit)
                self._in_flight.ask(grid, clients, messages, limit, wait)

        buffer.begin(number)
        self._in_flight.round = number
        again = self._to_ask_again(buffer, arrays)
        ended = _Ended(buffer, self.models, arrays, self._size_key)
        for version in sorted(again.keys() & self.models.keys()):
            ask(again.pop(version), version)
        for client in [client for clients in again.values() for client in clients]:
            ended.add(client, None, lost=True)
        self.models[number] = arrays
        asked = None
        while not buffer.is_full:
            ask(logic.fill(opened), number)
            asked = clock.monotonic() if asked is None else asked
            if not buffer.num_training and not ended.could_reach(quorum):
                break
            event = self._in_flight.next(grid)
            if event.client not in buffer.in_flight:
                continue  # the client has left the run
            if event.gives_up:
                ended.add(event.client, event.reply, event.seconds if event.reply else nan, why=event.why)
            else:
                buffer.free_place(event.client)
        arrived = clock.monotonic()
        chosen = logic.gather(opened, ended.num_stale)
        clients = chosen.selection.clients.tolist()
        kept = buffer.kept_versions(number + 1)
        self.models = {version: model for version, model in self.models.items() if version in kept}
        seconds = np.array([ended.seconds[client] for client in clients], dtype=np.float64)
        return Gathered(
            chosen,
            [ended.replies[client] for client in clients],
            np.where(np.isinf(seconds), nan, seconds),
            arrived if asked is None else asked,
            arrived,
        )

    def _messages(
        self, clients: Sequence[int], version: int, config: ConfigRecord, grid: ExchangeGrid
    ) -> list[Message]:
        ones = np.ones(len(clients))
        counts = np.ones(len(clients), dtype=np.int64)
        selection = Selection(np.array(clients, dtype=np.int64), counts, ones, ones, ones)
        messages = self._training.messages(version, selection, self.models[version], config, grid)
        for message in messages:
            message.metadata.group_id = buffered_group(version)
        names = listed([self._roster.id_of(client) for client in clients])
        log(INFO, "Asked to train from the model of round %d: %s", version, names)
        return messages

    def _to_ask_again(self, buffer: Buffer, arrays: ArrayRecord) -> dict[int, list[int]]:
        """Load the models of a checkpoint, once; return who was in flight, by the round of the question."""
        found: dict[int, list[int]] = {}
        if self._restored is not None:
            for number in sorted({int(key.partition("/")[0]) for key in self._restored}):
                model = {name: encode(self._restored[f"{number}/{name}"]) for name in arrays}
                self.models[number] = ArrayRecord(model)
            for client, version in buffer.in_flight.items():
                found.setdefault(version, []).append(client)
            self._restored = None
        return found

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {
            f"{number}/{name}": array.numpy()
            for number, model in self.models.items()
            for name, array in model.items()
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Keep the saved models. The next round asks again the clients that were in flight."""
        self._restored = state


@dataclass
class _Ended:
    """The clients whose training has ended in a round."""

    buffer: Buffer
    models: Mapping[int, ArrayRecord]
    arrays: ArrayRecord  # w_t
    size_key: str
    num_stale: int = 0
    replies: dict[int, Reply] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)  # s until the reply; infinite or NaN: none came

    def add(
        self,
        client: int,
        message: Message | None,
        waited: float = nan,
        *,
        why: str = LATE,
        lost: bool = False,
    ) -> None:
        """End a client's training.

        ``message`` is the client's reply, None if there is none, for the reason ``why``; ``waited`` is the
        time until the reply, in seconds. ``lost`` states that, after a resume, the client is not asked again,
        because the checkpoint lacks the model from which the client trained.
        """
        version = self.buffer.in_flight[client]
        reply = Reply(failure=why)
        too_stale = self.buffer.is_too_stale(client)
        if too_stale or version not in self.models:
            if message is not None:
                reply = read_reply(message, self.size_key)
            if lost or not reply.failure:
                self.num_stale += 1
                age = self.buffer.staleness(client)
                gone = f"staleness {age}: the model that it trained from is no longer kept"
                reply = Reply(failure=self.buffer.why_too_stale(client) if too_stale else gone)
        elif message is not None:
            reply = self._moved(read_usable(message, self.models[version], self.size_key), version)
        self.replies[client], self.seconds[client] = reply, waited
        self.buffer.end(client, not reply.failure)

    def could_reach(self, quorum: int) -> bool:
        """Return whether the clients in flight could reach the quorum. A quorum of 1: see `Wait.is_short`."""
        usable = sum(not reply.failure for reply in self.replies.values())
        if quorum == 1 and self.replies:
            return False
        return usable < quorum <= usable + len(self.buffer.in_flight)

    def _moved(self, reply: Reply, version: int) -> Reply:
        base = self.models[version]
        if reply.arrays is None or base is self.arrays:
            return reply
        return replace(reply, arrays=Rebased(reply.arrays, ReceivedArrays(base), self._now))

    @cached_property
    def _now(self) -> Arrays:
        return dict(ReceivedArrays(self.arrays))
