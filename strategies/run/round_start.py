"""The beginning of a round: wait for clients, find those that may be selected, and poll the candidates."""

from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord

from ..flower.attendance import Attendance
from ..flower.exchanges import ExchangeGrid
from ..flower.polling import Asked, Poll, PollRound
from ..rounds.stages import Opened
from ..selectors.settings import Schedule
from .round_log import RoundLog
from .selector_clients import SelectorClients
from .training import ClientTraining


@dataclass(frozen=True)
class ServerRound:
    """What the server gives to a round."""

    number: int
    arrays: ArrayRecord  # w_t
    config: ConfigRecord  # the entries of TRAIN messages
    grid: ExchangeGrid
    limit: float  # s, the longest wait for what clients must train for
    evaluate_config: ConfigRecord = field(default_factory=ConfigRecord)


@dataclass(frozen=True)
class RoundOpening:
    """Opens the rounds of a run."""

    attendance: Attendance
    clients: SelectorClients
    poll: Poll
    rates: Schedule  # the clients' learning rate
    training: ClientTraining
    log: RoundLog

    def open(self, given: ServerRound, num_rounds: int | None) -> tuple[Opened, float]:
        """Wait for clients, and open a round; return it, and its beginning in seconds on the grid's clock.

        The first round creates the selector, for ``num_rounds`` planned rounds. Some selectors ask for norms
        before the first selection: then clients train for their answers.
        """
        number, grid, attendance = given.number, given.grid, self.attendance
        attendance.eligible.begin(number)
        is_first = not self.clients.are_known
        if is_first:
            attendance.wait_for_first(grid)
        available = attendance.wait_for_quorum(grid)
        began = grid.clock.monotonic()
        grid.listen()
        if is_first:
            if not self.clients.are_restored:
                attendance.warn_of_absent()
            self.clients.create(num_rounds or 1)
        self.clients.update()
        conditions, others = attendance.eligible.conditions, attendance.num_ineligible
        self.log.eligible(number, conditions, available.size, others)
        logic = self.clients.logic
        opened = logic.open(number, available, learning_rate=self.rates.at(number))
        self.log.released(number, opened.released, logic.end_of_quarantine)
        if logic.selector.asks_norms:
            clients = opened.selectable(logic.selector.registered)
            norms = self.poll.ask_norms(self._polled(given, opened, given.limit), clients)
            logic.learn_norms(opened, clients, norms)
        return opened, began

    def ask(self, given: ServerRound, opened: Opened, limit: float) -> Asked:
        """Ask the candidates for what the selector needs, for at most ``limit`` seconds; see `Poll.ask`."""
        return self.poll.ask(self._polled(given, opened, limit), opened.candidates)

    def _polled(self, given: ServerRound, opened: Opened, limit: float) -> PollRound:
        logic, number = self.clients.logic, given.number
        return PollRound(
            given.grid,
            logic.selector,
            number,
            given.arrays,
            evaluate_config=given.evaluate_config,
            train_config=ConfigRecord({**given.config, **self.training.rate_of(number)}),
            learning_rate=opened.learning_rate,
            budget=opened.budget,
            wait_for=lambda clients: logic.wait("poll", number, clients, limit),
            train_deadline=limit,
            probes=not self.attendance.answered,
        )
