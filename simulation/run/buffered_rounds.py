"""Rounds that do not wait for slow clients: the clients in flight, and the model from which each trains."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.numerics.arrays import Floats, Ints
from strategies.rounds.buffered.buffer import Buffer
from strategies.rounds.logic import RoundLogic
from strategies.rounds.replies import Reply
from strategies.rounds.stages import Chosen, Opened
from strategies.rounds.trained_clients import JoinedUpdates, TrainedClients
from strategies.rounds.waiting.wait_time import LATE
from tasks.base import Arrays
from tasks.federated_data import FederatedData

from ..kernels import Kernel, Plan, Trained
from ..response_times import ResponseTimes
from .training import Replies


class BufferedRounds:
    """Keeps clients busy with training, across the ends of rounds.

    A client that did not reply within ``deadline`` seconds is given up. ``plan_of`` returns the training plan
    of the clients that are asked in a round.
    """

    def __init__(
        self,
        data: FederatedData,
        kernel: Kernel,
        logic: RoundLogic,
        buffer: Buffer,
        response_times: ResponseTimes,
        deadline: float,
        plan_of: Callable[[int], Plan],
    ) -> None:
        self._data, self._kernel, self._logic, self._buffer = data, kernel, logic, buffer
        self._response_times, self._deadline, self._plan_of = response_times, deadline, plan_of
        # Client in flight -> (end, took). end: the simulated time in seconds at which the client replies or
        # is given up. took: the seconds from the request to the reply, infinite if they exceed the deadline.
        # Clients are in the order in which they were asked.
        self._in_flight: dict[int, tuple[float, float]] = {}
        # Round -> the model from which the clients that were asked in this round train.
        self._models: dict[int, Arrays] = {}

    def run(self, opened: Opened, arrays: Arrays, began: float) -> tuple[Chosen, Replies]:
        """Let clients train until the buffer is full or no client is in flight.

        The clients that are asked in this round train from ``arrays``. The round begins at the simulated time
        ``began``, in seconds. Return the clients that answered or were given up, and their replies.
        """
        number, buffer, now = opened.number, self._buffer, began
        failures: dict[int, str] = {}
        took: dict[int, float] = {}
        num_stale = 0
        buffer.begin(number)
        self._models[number] = arrays
        versions: dict[int, int] = {}
        while not buffer.is_full:
            asked = self._logic.fill(opened)
            for client, seconds in zip(
                asked, self._response_times.seconds(number, asked).tolist(), strict=True
            ):
                waits = min(seconds, self._deadline)
                self._in_flight[client] = (now + waits, seconds if seconds <= self._deadline else inf)
            if not self._in_flight:
                break
            client = min(self._in_flight, key=lambda each: self._in_flight[each][0])
            now, took[client] = self._in_flight.pop(client)
            versions[client] = buffer.in_flight[client]
            if took[client] == inf:
                failures[client] = LATE
            elif buffer.is_too_stale(client):
                num_stale += 1
                failures[client] = buffer.why_too_stale(client)
            buffer.end(client, client not in failures)
        waited = now - began if now < inf else inf
        chosen = self._logic.gather(opened, num_stale)
        clients = chosen.selection.clients
        measured = np.array([took[client] for client in clients.tolist()])
        measured[np.isinf(measured)] = np.nan
        failed = {i: failures[m] for i, m in enumerate(clients.tolist()) if m in failures}
        positions = np.array([i for i in range(clients.size) if i not in failed], int)
        training = clients[positions]
        sets = self._trained_from(np.array([versions[m] for m in training.tolist()]), training)
        kept = buffer.kept_versions(number + 1)
        models = self._models
        self._models = {version: model for version, model in models.items() if version in kept}
        if not positions.size:
            return chosen, Replies([Reply(failure=reason) for reason in failed.values()], waited, measured)

        def joined(values: Callable[[Trained], Floats]) -> Floats:
            each = np.empty(positions.size)
            for _, rows, trained in sets:
                each[rows] = values(trained)
            return each

        replies = TrainedClients(
            positions,
            JoinedUpdates(
                [rows for _, rows, _ in sets],
                [trained.updates for _, _, trained in sets],
                [models[version] for version, _, _ in sets],
                arrays,
            ),
            joined(lambda trained: trained.losses),
            self._plan_of(number).num_steps(self._data.offsets[training + 1] - self._data.offsets[training]),
            joined(lambda trained: trained.gradient_variances),
            failed,
        )
        return chosen, Replies(replies, waited, measured)

    def _trained_from(self, versions: Ints, clients: Ints) -> list[tuple[int, Ints, Trained]]:
        """Train each of the clients (n,) from the model of the round in which it was asked.

        ``versions`` (n,) holds these rounds. Return for each of these rounds: the round, the positions of the
        clients that were asked in it, and their training.
        """
        sets = []
        for version in np.unique(versions).tolist():
            rows = np.flatnonzero(versions == version)
            plan = self._plan_of(version)
            trained = self._kernel.train(self._models[version], self._data, clients[rows], plan)
            sets.append((version, rows, trained))
        return sets

    def state_dict(self) -> dict[str, NDArray[Any]]:
        state: dict[str, NDArray[Any]] = {
            f"models/{number}/{name}": array.copy()
            for number, model in self._models.items()
            for name, array in model.items()
        }
        flying = [(client, *times) for client, times in self._in_flight.items()]
        return state | {"in_flight": np.array(flying, dtype=np.float64).reshape(-1, 3)}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._in_flight = {int(client): (end, took) for client, end, took in state["in_flight"].tolist()}
        self._models = {}
        for key, array in state.items():
            part, _, rest = key.partition("/")
            if part == "models":
                number, _, name = rest.partition("/")
                self._models.setdefault(int(number), {})[name] = array.copy()
