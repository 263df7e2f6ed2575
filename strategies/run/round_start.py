"""The beginning of a round: wait for clients, find those that may be selected, and poll the candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr.app import ConfigRecord

if TYPE_CHECKING:
    from flwr.app import ArrayRecord

    from ..clients.eligible_clients import EligibleClients
    from ..flower.attendance import Attendance
    from ..flower.exchanges import ExchangeGrid
    from ..flower.polling import Asked, Poll
    from ..rounds.stages import Opened
    from ..selectors.settings import Schedule
    from .round_log import RoundLog
    from .selector_clients import SelectorClients
    from .training import ClientTraining


class RoundOpening:
    """Opens the rounds of a run.

    Parameters
    ----------
    attendance : Attendance
        Waits for clients.
    eligible : EligibleClients
        The clients that meet the conditions of the round.
    clients : SelectorClients
        Creates the selector in the first round, and tells it which clients join, leave or change.
    poll : Poll
        Asks candidates.
    rates : Schedule
        The clients' learning rate.
    training : ClientTraining
        Its `rate_of` gives the learning rate in each poll's config.
    log : RoundLog
        Logs which clients are eligible, and whose quarantine ends early.
    """

    def __init__(
        self,
        attendance: Attendance,
        eligible: EligibleClients,
        clients: SelectorClients,
        poll: Poll,
        rates: Schedule,
        training: ClientTraining,
        log: RoundLog,
    ) -> None:
        self._attendance, self._eligible, self._clients = attendance, eligible, clients
        self._poll, self._rates, self._training, self._log = poll, rates, training, log

    def open(
        self,
        number: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: ExchangeGrid,
        limit: float,
        num_rounds: int | None,
    ) -> tuple[Opened, float]:
        """Wait for clients, and open a round; return it, and its beginning in seconds on the grid's clock.

        Parameters
        ----------
        number : int
            The round.
        arrays : ArrayRecord
            The model w_t. Before the first selection, some selectors ask clients to train from w_t and to
            report the norm of the update.
        config : ConfigRecord
            The config of the messages that ask for these norms.
        grid : ExchangeGrid
            The grid with the clients' nodes.
        limit : float
            The longest wait for these norms, in seconds.
        num_rounds : int or None
            The planned number of rounds, with which the first round creates the selector.
        """
        self._eligible.begin(number)
        is_first = not self._clients.are_known
        if is_first:
            self._attendance.wait_for_first(grid)
        available = self._attendance.wait_for_quorum(grid)
        began = grid.clock.monotonic()
        grid.listen()
        if is_first:
            if not self._clients.are_restored:
                self._attendance.warn_of_absent()
            self._clients.create(num_rounds or 1)
        self._clients.update()
        num_ineligible = self._attendance.num_ineligible
        self._log.eligible(number, self._eligible.conditions, available.size, num_ineligible)
        logic = self._clients.logic
        logic.local_learning_rate = self._rates.at(number)
        opened = logic.open(number, available)
        self._log.released(number, opened.released, logic.end_of_quarantine)
        self._poll.probes = not self._attendance.answered
        if logic.selector.asks_norms:
            clients = opened.selectable(logic.selector.registered)
            norms = self._poll.ask_norms(
                grid,
                clients,
                self._attendance.roster,
                arrays,
                config=ConfigRecord({**config, **self._training.rate_of(number)}),
                round=number,
                deadline=limit,
            )
            logic.learn_norms(opened, clients, norms)
        return opened, began

    def poll(
        self,
        opened: Opened,
        arrays: ArrayRecord,
        config: ConfigRecord,
        evaluate_config: ConfigRecord,
        grid: ExchangeGrid,
        limit: float,
    ) -> Asked:
        """Ask the candidates of a round for the numbers that the selector needs, see `Poll.ask`."""
        logic, number = self._clients.logic, opened.number
        return self._poll.ask(
            grid,
            logic.selector,
            number,
            opened.candidates,
            self._attendance.roster,
            arrays,
            evaluate_config=evaluate_config,
            train_config=ConfigRecord({**config, **self._training.rate_of(number)}),
            learning_rate=logic.local_learning_rate,
            budget=opened.budget,
            wait_for=lambda clients: logic.wait("poll", number, clients, limit),
            train_deadline=limit,
        )
