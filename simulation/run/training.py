"""The training of the clients in a round that waits for their replies, and the replies that come too late."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strategies.numerics.arrays import Floats
from strategies.rounds.logic import RoundLogic
from strategies.rounds.replies import Reply
from strategies.rounds.stages import Chosen
from strategies.rounds.trained_clients import TrainedClients, WeightedUpdates
from strategies.rounds.waiting.wait_time import ENOUGH_REPLIED, LATE
from tasks.base import Arrays
from tasks.federated_data import FederatedData

from ..kernels import Kernel, Plan
from ..response_times import ResponseTimes, arrivals


class Replies(NamedTuple):
    """The replies of the S clients of a round's selection, in the order of the selection."""

    trained: TrainedClients | list[Reply]  # a list if nobody replied in time
    waited: float  # for how many simulated seconds the round waited for replies
    seconds: Floats | None  # (S,) seconds until each reply, NaN = no reply; None without response times


class Training:
    """Trains the selected clients that reply in time: within ``deadline`` s, if there are response times."""

    def __init__(
        self,
        data: FederatedData,
        kernel: Kernel,
        logic: RoundLogic,
        response_times: ResponseTimes | None,
        deadline: float,
    ) -> None:
        self._data, self._kernel, self._logic = data, kernel, logic
        self._response_times, self._deadline = response_times, deadline
        # (n, 4) the replies that arrive after the end of their round. Columns: simulated time of arrival in
        # seconds, round, client, response time in seconds.
        self._late = np.empty((0, 4))

    def hear_late_replies(self, now: float) -> None:
        """Learn response times from the late replies that came by ``now``, in order of arrival."""
        if not self._late.size:
            return
        due = self._late[:, 0] <= now
        come = self._late[due]
        for _, number, client, seconds in come[np.argsort(come[:, 0], kind="stable")]:
            wait = self._logic.wait("train", int(number), np.array([int(client)]), self._deadline)
            if wait is not None:
                wait.late(0, float(seconds))
        self._late = self._late[~due]

    def run(self, plan: Plan, chosen: Chosen, arrays: Arrays, now: float) -> Replies:
        """Train the clients that reply in time, from ``arrays``, from the simulated time ``now`` (s) on."""
        clients, waited, measured = chosen.selection.clients, 0.0, None
        answered = np.ones(clients.size, dtype=np.bool_)
        failures: dict[int, str] = {}
        if self._response_times is not None:
            seconds = self._response_times.seconds(plan.round, clients)
            enough = chosen.enough if clients.size else None
            wait = self._logic.wait("train", plan.round, clients, self._deadline)
            answered, waited = arrivals(seconds, self._deadline, enough, wait)
            measured = np.where(answered, seconds, np.nan)
            cut = chosen.enough < clients.size and np.count_nonzero(answered) >= chosen.enough
            for position in np.flatnonzero(~answered).tolist():
                failures[position] = LATE if wait is None else wait.why_missing(position, waited)
                if cut:
                    failures[position] = ENOUGH_REPLIED
            late = ~answered & np.isfinite(seconds)
            if wait is not None and late.any():
                rounds = np.full(clients.size, float(plan.round))
                coming = np.column_stack([now + seconds, rounds, clients, seconds])[late]
                self._late = np.concatenate([self._late, coming])
        positions = np.flatnonzero(answered)
        training = clients[positions]
        if not training.size:
            return Replies([Reply(failure=failures[i]) for i in range(clients.size)], waited, measured)
        controls = None
        if self._logic.variates is not None:
            sent = {m: self._logic.variates.outgoing(m) for m in training.tolist()}
            controls = {m: control for m, control in sent.items() if control is not None} or None
        trained = self._kernel.train(arrays, self._data, training, plan, controls)
        updates = trained.updates
        if self._logic.updates == "masked":  # each client multiplies its own update by S c_m
            updates = WeightedUpdates(updates, chosen.selection.weights[positions] * clients.size, arrays)
        replies = TrainedClients(
            positions,
            updates,
            trained.losses,
            plan.num_steps(self._data.offsets[training + 1] - self._data.offsets[training]),
            trained.gradient_variances,
            failures,
        )
        return Replies(replies, waited, measured)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {"late": self._late.copy()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._late = np.array(state["late"])
