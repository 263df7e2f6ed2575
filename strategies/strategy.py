"""SelectionStrategy, a Flower Strategy: its arguments, its loop over rounds, and the methods Flower calls."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, Literal, Never

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from . import selectors
from .clients.reports import LEARNING_RATE
from .flower.arrays import to_record
from .flower.exchanges import ExchangeGrid, NodesGrid
from .flower.messages import TrainingRound
from .flower.traffic import Traffic
from .half_precision import HalfPrecisionGrid
from .options import (
    AFTER_TRAINING,
    Budget,
    Buffered,
    Checkpoints,
    Deadlines,
    Eligible,
    Faults,
    Overrides,
    Polling,
    arguments_of,
    names_replacements,
    refuse_unknown,
)
from .reporters import Reporter, Reporters, RunInfo
from .rounds.guard.claimed_sizes import ClientSizes
from .rounds.record import RoundRecord
from .rounds.replies import Reply
from .run.log_lines import counts_not_logged
from .run.parts import RunParts
from .run.round_start import ServerRound
from .run.saved_progress import Progress
from .run.settings import RunSettings


class SelectionStrategy(Strategy):
    """Selects the clients that train in each round, and aggregates their updates with the selector's weights.

    Parameters
    ----------
    selector : str
        One of the names in `strategies.selectors.available()`.
    clients_per_round : int
        K, the number of clients (or of draws) in a round, >= 1.
    selector_settings : mapping of str to value, optional
        The settings of the selector by name, for example ``{"alpha": 0.4}`` (default: the selector's
        defaults).
    server_strategy : Strategy, optional
        The Flower strategy that takes the server step from the aggregate. FedAvg (the default), FedAvgM,
        FedAdam, FedYogi, FedAdagrad and FedProx work with every selector. Other strategies work with some
        selectors, see `server_steps.compatibility`. The sampling settings of the server strategy are ignored,
        except ``fraction_evaluate``.
    seed : int (default: 0)
        The seed of the run, >= 0. Every random draw is a function of (seed, round, purpose), except the noise
        of differential privacy and, with ``flics-private``, the draws by which clients decide whether they
        take part.
    num_rounds : int, optional
        The planned number of rounds, >= 1. Some selectors derive settings from it (default: the
        ``num_rounds`` of `start`). A resumed run keeps the number of its first start.
    min_available_clients : int, optional
        Round 1 waits for this many clients, >= ``clients_per_round`` (default: ``clients_per_round``).
    local_learning_rate : float or str, optional
        The clients' learning rate, > 0 (default: 1, which is enough for selectors that only compare clients
        with each other). The norms of updates are divided by it, see `RoundLogic`. SCAFFOLD requires it. With
        a schedule such as "0.5@1/0.25@150" (0.5, then 0.25 from round 150 on), each TRAIN message holds the
        round's rate as ``learning-rate``.
    budget : number, str or callable, optional
        K(t), the number of clients in round t: a number, a schedule such as "20@1/5@50" (20, then 5 from
        round 50 on), or a function of the round. K(t) is rounded down; if it is 0, the round is skipped.
        Default: K is ``clients_per_round`` in every round.
    deadlines : Deadlines, optional
        How long the run waits for clients and for their replies (default: ``Deadlines()``).
    polling : Polling, optional
        How the server asks clients, and how often it looks for replies (default: ``Polling()``).
    faults : Faults, optional
        Quorum, over-selection, correction for missing replies, guard, and quarantine for silence (default:
        ``Faults()``).
    overrides : Overrides, optional
        What the operator declares about clients. A declared value takes precedence over client reports
        (default: nothing is declared).
    eligible : Eligibility, str or callable, optional
        Which clients may be selected, by name, tag or property: `Eligibility`, text such as
        ``"site-*,charging=true"``, or a function of the round that returns one of them. The aggregate then
        estimates the mean over the available eligible clients (default: every client is eligible).
    checkpoints : Checkpoints, optional
        Where each round is saved, and whether the run continues from there (default: nothing is saved).
    variates : {"fedvarp", "fedvarp-mean", "scaffold"}, optional
        The control variates: arrays that the server remembers for each client, to reduce variance (FedVARP)
        or client drift (SCAFFOLD), see `rounds.control_variates` (default: none).
    mode : Buffered, optional
        Rounds do not wait for slow clients: the model moves whenever K updates have arrived, while a fixed
        number of clients trains at any time, see `Buffered` (default: each round waits for its clients).
    masked_updates : bool (default: False)
        Whether clients mask their updates, so that the server sees only the sum of the updates. Each client
        receives S times its weight (``update-weight``), where S is the number of selected clients. The client
        multiplies its update by this number, and then adds its mask. The server divides the sum by S. The
        client also reports the norm of its update (``report-update-norm``). A round in which a reply is
        missing is skipped, since the masks cancel only in the sum over all selected clients.
    stop : callable, optional
        A function that is called after each round but the last, with the number of the round and the metrics
        of ``evaluate_fn`` (None if there are none). If it returns True, the run finishes.
    on_round : callable, optional
        A function that is called with the `RoundRecord` of each round, before the model is evaluated.
    reporters : sequence of Reporter, optional
        Objects that get the record of each round after its evaluation, and are called when the run begins,
        resumes, ends or fails: `TensorBoard`, `MLflow`, `WandB`, `Prometheus`, `JSONLines`, or your own. If a
        reporter fails, the run goes on (default: none).

    Attributes
    ----------
    roster : Roster
        The known clients.
    traffic : Traffic
        The messages and bytes that `start` has exchanged with clients since the last `Traffic.take`.
    group_metrics : dict of str to MetricRecord
        For each group, the average of the metrics of the group's clients in the last federated evaluation.
        Clients evaluate only if the server strategy's ``fraction_evaluate`` is above 0.
    unchanged : str
        Why no round of the run has changed the model, in one line; "" if a round has. `start` sets it at its
        end, also after a resume. A ServerApp should then fail, since the run has trained nothing.

    Raises
    ------
    ValueError
        If a parameter is out of range. The message names the parameter, its value and what is allowed.
    TypeError
        If a parameter has a wrong type, or ``server_strategy`` cannot take the step.
    """

    @names_replacements
    def __init__(
        self,
        selector: str,
        *,
        clients_per_round: int,
        selector_settings: Mapping[str, Any] | None = None,
        server_strategy: Strategy | None = None,
        seed: int = 0,
        num_rounds: int | None = None,
        min_available_clients: int | None = None,
        local_learning_rate: float | str | None = None,
        budget: Budget | None = None,
        deadlines: Deadlines | None = None,
        polling: Polling | None = None,
        faults: Faults | None = None,
        overrides: Overrides | None = None,
        eligible: Eligible | None = None,
        checkpoints: Checkpoints | None = None,
        variates: Literal["fedvarp", "fedvarp-mean", "scaffold"] | None = None,
        mode: Buffered | None = None,
        masked_updates: bool = False,
        stop: Callable[[int, MetricRecord | None], bool] | None = None,
        on_round: Callable[[RoundRecord], None] | None = None,
        reporters: Sequence[Reporter] = (),
        **unknown: Never,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "unknown")}
        if unknown:
            own = selectors.selector_type(selector).allowed_settings() if isinstance(selector, str) else ()
            refuse_unknown(type(self).__name__, unknown, arguments_of(type(self)), own)
        self.settings = settings = RunSettings.of(type(self).__name__, given)
        self.selector_name, self.selector_settings = selector, settings.selector_settings
        self.overrides, self.local_learning_rate = settings.overrides, settings.rate
        self.num_rounds, self.stop, self.on_round = num_rounds, stop, on_round
        self._reporters = Reporters(reporters)
        self._parts = RunParts.of(settings, self._reporters)
        self.roster = self._parts.attendance.roster
        self.traffic = Traffic()
        self.unchanged = ""
        self._record: RoundRecord | None = None  # the record of the last round
        self._configured: TrainingRound | None = None  # the round of the last `configure_train`
        self._wait = settings.deadlines.round  # s; less if `start` gets a smaller timeout
        self._evaluate_config = ConfigRecord()

    @property
    def selector(self) -> selectors.Selector:
        """The selector. It is created in the first round of this process, when the clients are known."""
        return self._parts.clients.logic.selector

    @property
    def data_sizes(self) -> ClientSizes:
        """The data sizes of the known clients: what they claim, and what the server uses."""
        return self._parts.clients.sizes

    @property
    def server_strategy(self) -> Strategy:
        """The Flower strategy that takes the server step: a copy of the given strategy, or of FedAvg."""
        server_strategy: Strategy = self._parts.step.strategy
        return server_strategy

    @property
    def asks_everybody(self) -> bool:
        """Whether all available clients train in each round, before the selection."""
        return bool(self.settings.kind.polls_for & AFTER_TRAINING)

    def summary(self) -> None:
        log(INFO, "\t├──> Selector: %s %s", self.selector_name, self.selector_settings or "")
        if self.asks_everybody:
            _warn(
                f"{self.selector_name} lets all available clients train before each selection: a round costs "
                "more than with the selector 'full', which uses the updates of all clients"
            )
        log(INFO, "\t├──> Clients per round: %d", self.settings.clients_per_round)
        if conditions := self._parts.attendance.eligible.conditions:
            log(INFO, "\t├──> Eligible clients: %s", conditions)
        log(INFO, "\t└──> Server strategy: %s", type(self.server_strategy).__name__)

    # --- a run -----------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run rounds 1 to ``num_rounds``, and return the final model and the metrics of all rounds.

        If all rounds are skipped, this is the initial model, an error is logged, and `unchanged` holds the
        reason. A strategy object runs once, because its selector keeps what it has learned. With
        ``checkpoints.resume``, the run continues after its last checkpoint.

        Parameters
        ----------
        grid : Grid
            The grid that Flower gives to the ServerApp.
        initial_arrays : ArrayRecord
            The initial model. If the run continues from a checkpoint, only the names, shapes and types of the
            arrays are used.
        num_rounds : int (default: 3)
            The number of the last round.
        timeout : float, optional
            The longest wait for the replies of a round, in seconds. It has an effect only if it is less than
            ``deadlines.round`` (default: only ``deadlines.round`` applies).
        train_config, evaluate_config : ConfigRecord, optional
            Entries for the config of TRAIN and EVALUATE messages (default: none).
        evaluate_fn : callable, optional
            A function that evaluates the model on the server. It is called with the round and the model,
            after each round and for the initial model (round 0). Default: the server does not evaluate.

        Raises
        ------
        ValueError
            If ``train_config`` sets ``learning-rate`` although ``local_learning_rate`` is a schedule. Also if
            ``grid`` is a `HalfPrecisionGrid` and updates are masked.
        NotEnoughClientsError
            If too few clients are available for too long. If ``checkpoints`` is given, the completed rounds
            are saved.
        CheckpointError
            If the folder of ``checkpoints`` holds another run, holds a run although ``resume`` is False, or
            cannot be written to.
        MissingHandlerError
            If the clients' app cannot answer the polls of the selector.
        RuntimeError
            If this strategy object has already run a round.
        """
        if self._parts.clients.are_known:
            raise RuntimeError(
                "start() was called again: make a new strategy object for each run, since this one keeps "
                "what its selector has learned"
            )
        if self.settings.masked_updates and isinstance(grid, HalfPrecisionGrid):
            raise ValueError(
                "masked_updates = True with a HalfPrecisionGrid: must be False, or the grid that of the "
                "ServerApp, since rounded masks do not cancel"
            )
        self.num_rounds = self.num_rounds or num_rounds
        polling = ExchangeGrid(grid, self.settings.polling.interval, self.traffic)
        longest = self.settings.deadlines.round
        self._wait = longest if timeout is None else min(timeout, longest)
        self._evaluate_config = evaluate_config or ConfigRecord()
        train_config = train_config or ConfigRecord()
        if isinstance(self.local_learning_rate, str) and LEARNING_RATE in train_config:
            raise ValueError(
                f"train_config[{LEARNING_RATE!r}] = {train_config[LEARNING_RATE]!r}: must be left out, since "
                f"local_learning_rate = {self.local_learning_rate!r} sets it in each round"
            )
        log(INFO, "Starting %s:", type(self).__name__)
        self.summary()
        progress, self.num_rounds = self._parts.saved.resume(initial_arrays, self.num_rounds)
        info = RunInfo(num_rounds, self.settings.shown(self._parts.step))
        reporters = self._reporters
        if progress.round:
            reporters.resume(info, progress.round)
        else:
            reporters.begin(info)
        with reporters.failing(lambda: progress.round), counts_not_logged():
            self._run_rounds(progress, polling, num_rounds, train_config, evaluate_fn)
        self.unchanged = progress.skipped.reason
        if self.unchanged:
            reporters.failed(progress.round, RuntimeError(self.unchanged))
        else:
            reporters.end(progress.round, "finished early" if progress.round < num_rounds else "")
        log(INFO, "")
        if progress.round > num_rounds:
            _warn(f"No round was run: the checkpoint, of round {progress.round}, is past round {num_rounds}")
        else:
            log(INFO, "Finished after round %d of %d", progress.round, num_rounds)
        self._parts.log.finished(self.unchanged)
        progress.log_newest()
        return progress.result

    def _run_rounds(
        self,
        progress: Progress,
        polling: ExchangeGrid,
        num_rounds: int,
        train_config: ConfigRecord,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    ) -> None:
        parts, result = self._parts, progress.result
        if progress.round == 0 and evaluate_fn:
            progress.note("evaluate_metrics_serverapp", 0, evaluate_fn(0, progress.arrays))
            self._reporters.round(0, metrics=result.evaluate_metrics_serverapp.get(0))
        while progress.round < num_rounds and not self._finishes_early(progress):
            exchanged = self.traffic.total
            number = progress.round + 1
            log(INFO, "")
            log(INFO, "[ROUND %d/%d]", number, num_rounds)
            if self.settings.mode is not None:
                arrays, metrics = self._buffered_round(number, progress.arrays, train_config, polling)
            else:
                messages = list(self.configure_train(number, progress.arrays, train_config, polling))
                assert self._configured is not None
                logic = parts.clients.logic
                replies = parts.training.replies(self._configured, messages, polling, logic, self._wait)
                del messages  # frees memory: each message holds the model
                arrays, metrics = self.aggregate_train(number, replies)
                del replies
            progress.move(arrays)
            progress.note("train_metrics_clientapp", number, metrics)
            messages = list(self.configure_evaluate(number, progress.arrays, self._evaluate_config, polling))
            replies = parts.evaluation.replies(number, messages, polling, parts.clients.logic, self._wait)
            progress.note("evaluate_metrics_clientapp", number, self.aggregate_evaluate(number, replies))
            if evaluate_fn:
                progress.note("evaluate_metrics_serverapp", number, evaluate_fn(number, progress.arrays))
            progress.round = number
            record, self._record = self._record, None
            if record is not None:
                progress.skipped.count(record)
                self._reporters.count(record, len(self.roster))
            parts.saved.save(progress, self.num_rounds)
            # Reporters are called after the checkpoint is saved, so no resume repeats a round that they know.
            self._reporters.round(
                number,
                record=record,
                name_of=self.roster.id_of,
                metrics=result.evaluate_metrics_serverapp.get(number),
                train_metrics=result.train_metrics_clientapp.get(number),
                client_metrics=result.evaluate_metrics_clientapp.get(number),
                group_metrics=self.group_metrics,
                traffic=self.traffic.since(exchanged),
            )

    def _finishes_early(self, progress: Progress) -> bool:
        if self.stop is None or progress.round == 0:
            return False
        metrics = progress.result.evaluate_metrics_serverapp.get(progress.round)
        finishes = self.stop(progress.round, metrics)
        if finishes:
            log(INFO, "The run finishes after round %d, since `stop` returned True", progress.round)
        return finishes

    # --- a round ---------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Select the clients of a round, and return one TRAIN message for each selected client.

        The config of each message holds ``server-round`` and ``seed``. This seed is a function of the run's
        seed, the round and the client. If ``config`` already has a ``seed``, that value is kept.

        Raises
        ------
        NotEnoughClientsError
            If too few clients joined within ``deadlines.join`` (in the first round), or if fewer clients than
            the quorum were available for ``deadlines.absence`` seconds.
        MissingHandlerError
            If the clients' app cannot answer the poll of the selector.
        """
        if self.settings.mode is not None:
            raise RuntimeError("mode = Buffered(...): its rounds are run by start() only")
        parts, grid = self._parts, ExchangeGrid.of(grid, self.settings.polling.interval)
        given = ServerRound(server_round, arrays, config, grid, self._wait, self._evaluate_config)
        opened, began = parts.opening.open(given, self.num_rounds)
        wait = self._wait if self.asks_everybody else self.settings.deadlines.poll
        polled = parts.opening.ask(given, opened, wait)
        chosen = parts.clients.logic.choose(opened, polled.reports)
        messages = parts.training.messages(
            server_round, chosen.selection, arrays, config, grid, polled.train_config
        )
        key, now = parts.step.base.weighted_by_key, grid.clock.monotonic()
        self._configured = TrainingRound(chosen, arrays, messages, began, now, grid.clock, key)
        parts.log.selected(chosen.selection)
        return messages

    def _buffered_round(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: ExchangeGrid
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Keep clients busy until the buffer is full; return what `aggregate_train` returns."""
        parts, given = self._parts, ServerRound(number, arrays, config, grid, self._wait)
        opened, began = parts.opening.open(given, self.num_rounds)
        ended = parts.buffered.run(given, opened, parts.clients.logic)
        # The server strategy steps from this round's model, although replies may answer messages of earlier
        # rounds.
        first = ended.chosen.selection.clients[:1].tolist()
        shown = NodesGrid(grid, [self.roster.node_of(client) for client in first])
        messages = parts.step.configure(number, arrays, config, shown)
        training = TrainingRound(ended.chosen, arrays, messages, began, ended.asked, grid.clock)
        return self._end(training, ended.replies, ended.seconds, ended.arrived)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the replies into the new model, let the selector learn, and return the model and metrics.

        Clients that failed, were late, or sent an unusable reply are left out. If the round is skipped, the
        result is (None, None), and the model does not change.
        """
        training = self._configured
        if training is None or training.chosen.opened.number != server_round:
            raise RuntimeError(f"round {server_round} was not configured: call configure_train first")
        self._configured = None
        arrived = training.clock.monotonic()
        return self._end(training, training.match(replies), training.reply_seconds(), arrived)

    def _end(
        self, training: TrainingRound, replies: Sequence[Reply], seconds: NDArray[np.float64], arrived: float
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """End a round, see `RoundEnding.end`. The result is that of `aggregate_train`."""
        stepped, self._record = self._parts.ending.end(training, replies, seconds, arrived)
        if self.on_round is not None:
            self.on_round(self._record)
        if stepped.arrays is None:
            return None, None
        metrics = self._parts.training.average(replies, self._record, self.selector.client_sizes)
        return to_record(stepped.arrays), metrics

    # --- federated evaluation, as the server strategy does it ------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the server strategy's EVALUATE messages to a random share of the available clients.

        The share is the server strategy's ``fraction_evaluate``. Clients that are quarantined for silence are
        left out.
        """
        parts = self._parts
        if not parts.step.fraction_evaluate:
            return []  # before the nodes are listed, which takes long with a million nodes
        here = parts.attendance.eligible_among(self.roster.available(grid.get_node_ids()))
        if self._parts.clients.are_known:
            here = np.setdiff1d(here, self._parts.clients.logic.silent(server_round + 1))
        return parts.evaluation.messages(server_round, arrays, config, grid, here)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the metrics of the usable replies with the server strategy, over all clients and by group.

        The averages of the groups are stored in ``group_metrics``.
        """
        return self._parts.evaluation.average(server_round, replies)

    @property
    def group_metrics(self) -> dict[str, MetricRecord]:
        """The average metrics of each group in the last evaluation by clients, if a client of it replied."""
        return self._parts.evaluation.by_group

    def groups(self) -> list[str | None]:
        """Return (M,) the name of each client's group; None if the client has no group."""
        return self._parts.attendance.groups.of_all(self.roster)


def _warn(line: str) -> None:
    log(WARNING, line)
