"""SelectionStrategy, the only Flower Strategy here. Each preset is a subclass that fixes the selector."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from logging import INFO, WARNING
from math import nan
from typing import TYPE_CHECKING, Any, Literal, Never

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from . import selectors
from .checkpoint import CheckpointError, CheckpointFolder
from .clients.eligible_clients import EligibleClients
from .clients.overrides import Groups, Removals, per_client, sizes_of
from .clients.printable import listed
from .clients.reports import LEARNING_RATE, PART_SCALES, REPORT_NORM, REPORT_VARIANCE, UPDATE_WEIGHT
from .evaluation import ClientEvaluation
from .flower.arrays import ReceivedArrays, encode, to_record
from .flower.attendance import Attendance
from .flower.contents import of_kind
from .flower.exchanges import ExchangeGrid, NodesGrid
from .flower.in_flight import InFlight, buffered_group
from .flower.log_lines import counts_not_logged
from .flower.messages import CLOCKS_DIFFER, TrainingRound, read_reply, read_usable, timed
from .flower.metrics import averaged
from .flower.polling import Poll
from .flower.traffic import Traffic
from .options import (
    AFTER_TRAINING,
    GROUPS,
    Budget,
    Budgets,
    Buffered,
    Checkpoints,
    Deadlines,
    Eligible,
    Faults,
    Overrides,
    Polling,
    arguments_of,
    check_kind,
    check_selector,
    names_replacements,
    read_rates,
    refuse_unknown,
)
from .options.types import boolean
from .progress import Progress, state_of
from .reporters import Reporter, Reporters, RunInfo
from .rounds.aggregation import Arrays
from .rounds.buffered.rebased import Rebased
from .rounds.limits import believed_numbers, believed_sizes
from .rounds.logic import RoundLogic
from .rounds.record import RoundRecord, no_report
from .rounds.replies import Reply
from .rounds.seeds import client_seed
from .rounds.stages import Opened, Outcome
from .rounds.variates import CONTROL, create_variates
from .selectors import Selection, checks
from .server_steps.compatibility import check_buffered, check_masked
from .server_steps.replies import contributions_of
from .server_steps.step import ServerStep, Step

if TYPE_CHECKING:
    from flwr.serverapp import Grid
    from numpy.typing import NDArray

_EXAMPLES = {
    Deadlines: "round=60",
    Polling: "ask_status=True",
    Faults: "quorum=2",
    Overrides: 'sizes={"client-1": 120}',
    Checkpoints: '"runs/1"',
    Buffered: "concurrency=30",
}


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
        of differential privacy.
    num_rounds : int, optional
        The planned number of rounds, by which some selectors choose their settings, >= 1 (default: the
        ``num_rounds`` of `start`). A resumed run keeps the number of its first start.
    min_available_clients : int, optional
        Round 1 waits for this many clients, >= ``clients_per_round`` (default: ``clients_per_round``).
    local_learning_rate : float or str, optional
        The clients' learning rate, > 0, by which the norms of updates are divided, see `RoundLogic`. SCAFFOLD
        requires it. The default of 1 is enough for selectors that only compare clients with each other. Text
        is a schedule: "0.5@1/0.25@150" is 0.5 from round 1 on and 0.25 from round 150 on. With a schedule,
        each TRAIN message holds the round's rate as ``learning-rate``.
    budget : number, str or callable, optional
        K(t), the number of clients in round t: a number, a schedule such as "20@1/5@50" (20, then 5 from
        round 50 on), or a function of the round. K(t) is rounded down. If the result is 0, the
        round is skipped. Default: K is ``clients_per_round`` in every round.
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
    variates : {"fedvarp", "scaffold"}, optional
        The control variates: arrays of each client, which the server remembers in order to reduce variance
        (FedVARP) or client drift (SCAFFOLD), see `rounds.variates` (default: none).
    mode : Buffered, optional
        Rounds do not wait for slow clients: the model moves after every K arrivals, while C clients are kept
        busy, see `Buffered` (default: a round ends before the next begins).
    masked_updates : bool (default: False)
        Whether clients mask their updates, so that the server sees only the sum of the updates. Each client
        receives its weight (``update-weight``), multiplies its update by the weight, and then adds its mask.
        The client also reports the norm of its update (``report-update-norm``). A round in which a reply is
        missing is skipped, since the masks cancel only in the sum over all selected clients.
    stop : callable, optional
        A function that is called after each round with the number of the round and the metrics of
        ``evaluate_fn`` (None if there are none). If it returns True, the run ends.
    on_round : callable, optional
        A function that is called with the `RoundRecord` of each round, before the model is evaluated.
    reporters : sequence of Reporter, optional
        Objects that are told about each round after its evaluation, and when the run begins, resumes, ends or
        fails: `TensorBoard`, `MLflow`, `WandB`, `Prometheus`, `JSONLines`, or your own. If a reporter fails,
        the run goes on (default: none).

    Attributes
    ----------
    roster : Roster
        The registered clients.
    traffic : Traffic
        The messages and bytes that `start` has exchanged with clients since the last `Traffic.take`.
    group_metrics : dict of str to MetricRecord
        For each group, the average of the metrics of the group's clients in the last federated evaluation.
        Clients evaluate only if the server strategy's ``fraction_evaluate`` is above 0.

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
        variates: Literal["fedvarp", "scaffold"] | None = None,
        mode: Buffered | None = None,
        masked_updates: bool = False,
        stop: Callable[[int, MetricRecord | None], bool] | None = None,
        on_round: Callable[[RoundRecord], None] | None = None,
        reporters: Sequence[Reporter] = (),
        **unknown: Never,
    ) -> None:
        if unknown:
            refuse_unknown(type(self).__name__, unknown, arguments_of(type(self)))
        check_kind("selector", selector, str, "the name of a selector, such as 'forecast'")
        expected = 'settings by name, such as {"alpha": 0.4}'
        check_kind("selector_settings", selector_settings, Mapping, expected)
        for each in selector_settings or ():
            check_kind("selector_settings", each, str, expected)
        check_kind("variates", variates, str, "'fedvarp' or 'scaffold'")
        check_kind("server_strategy", server_strategy, Strategy, "a strategy of Flower, such as FedAdam()")
        for name, value, kind in (
            ("deadlines", deadlines, Deadlines),
            ("polling", polling, Polling),
            ("faults", faults, Faults),
            ("overrides", overrides, Overrides),
            ("checkpoints", checkpoints, Checkpoints),
            ("mode", mode, Buffered),
        ):
            check_kind(name, value, kind, f"a {kind.__name__}, such as {kind.__name__}({_EXAMPLES[kind]})")
        check_kind("stop", stop, abc.Callable, "a function of the round and the metrics")
        check_kind("on_round", on_round, abc.Callable, "a function of a RoundRecord")
        check_kind("reporters", reporters, Sequence, "a list of reporters, such as [JSONLines(path)]")
        boolean("masked_updates", masked_updates)
        # Refuse wrong parameters now, and not only in the first round, when the clients are known.
        check_selector(
            selector, clients_per_round, selector_settings or {}, 1 if num_rounds is None else num_rounds
        )
        self._kind = selectors.selector_type(selector)
        self.deadlines, self.polling = deadlines or Deadlines(), polling or Polling()
        self.faults, self.overrides = faults or Faults(), overrides or Overrides()
        self.faults.check(self._kind, clients_per_round)
        self.overrides.check(self._kind)
        self._budgets = Budgets(clients_per_round, budget)
        self._budgets.check(self.faults.quorum)
        checks.integer("seed", seed, low=0)
        if min_available_clients is not None:
            low, why = clients_per_round, "clients_per_round"
            checks.integer("min_available_clients", min_available_clients, low=low, why=why)
        rate = 1.0 if local_learning_rate is None else local_learning_rate
        self._rates = read_rates("local_learning_rate", rate)
        if variates == "scaffold" and local_learning_rate is None:
            raise ValueError(
                "local_learning_rate = None: must be the clients' learning rate with variates = 'scaffold'"
            )
        if masked_updates:
            check_masked(self._kind, server_strategy, variates, self.faults)
        self.mode = mode
        if mode is not None:
            check_buffered(
                mode,
                self._kind,
                selector_settings or {},
                server_strategy,
                self.faults,
                size=mode.size or clients_per_round,
                variates=variates,
                masked_updates=masked_updates,
                budget=budget,
            )
        self.selector_name = selector
        self.selector_settings = dict(selector_settings or {})
        self.clients_per_round = clients_per_round
        self.seed = seed
        self.num_rounds = num_rounds
        self.local_learning_rate = rate
        self.masked_updates = masked_updates
        self.stop = stop
        self.on_round = on_round
        self._reporters = Reporters(reporters)
        self._record: RoundRecord | None = None  # the record of the last round
        self._told_of_report = False  # whether a warning said that no client reports what the selector needs
        self._variates = create_variates(variates) if variates else None
        self._step = ServerStep(
            server_strategy or _fedavg(),
            selector,
            self.selector_settings,
            clients_per_round=min(clients_per_round, self._budgets.smallest),
            variates=variates,
        )
        self._poll = Poll(
            self.deadlines.poll,
            self.polling,
            seed,
            self._step.base.arrayrecord_key,
            self._step.base.configrecord_key,
        )
        self._groups = Groups()
        if GROUPS in self._kind.per_client:
            self._groups = Groups.of(self.overrides, self._kind.settings_type.of(self.selector_settings))
        self._eligible = EligibleClients(eligible, self.overrides, self._groups)
        self._eligible.begin(1)  # refuse wrong conditions now
        self._attendance = Attendance(
            min_available_clients=min_available_clients or clients_per_round,
            clients_per_round=clients_per_round,
            quorum=self.faults.quorum,
            deadlines=self.deadlines,
            polling=self.polling,
            removals=Removals(self.overrides.removed, report=_warn),
            groups=self._groups,
            needs_status=self._needs_status(),
            declared=self.overrides.identities,
            eligible=self._eligible,
        )
        self.roster = self._attendance.roster
        self._evaluation = ClientEvaluation(self._step, self.roster, self._groups, seed, self.deadlines.round)
        self.traffic = Traffic()
        self._checkpoints = CheckpointFolder(checkpoints.folder, report=_warn) if checkpoints else None
        self._resume = checkpoints is not None and checkpoints.resume
        self._logic: RoundLogic | None = None
        # The saved state of the logic, until the clients are known and the logic is created.
        self._restored: Mapping[str, NDArray[Any]] | None = None
        self._logged_eligible: tuple[str, int, int] | None = None
        self._seen_changes = -1  # the value of `Roster.changes` when the selector was last updated
        self._training: TrainingRound | None = None
        self._in_flight = InFlight()  # the messages of buffered rounds
        # Of buffered rounds: round -> w_t, the model from which the clients asked in this round train.
        self._models: dict[int, ArrayRecord] = {}
        self._resumes = False  # whether the clients that were in flight at the checkpoint must be asked again
        self._wait = self.deadlines.round  # s; less if `start` gets a smaller timeout
        self._evaluate_config = ConfigRecord()

    @property
    def selector(self) -> selectors.Selector:
        """The selector. It is created in the first round of this process, when the clients are known.

        Raises
        ------
        RuntimeError
            If it is accessed earlier.
        """
        return self._known.selector

    @property
    def server_strategy(self) -> Strategy:
        """The Flower strategy that takes the server step: a copy of the given strategy, or of FedAvg."""
        server_strategy: Strategy = self._step.strategy
        return server_strategy

    @property
    def _known(self) -> RoundLogic:
        if self._logic is None:
            raise RuntimeError("no client is known before the first round")
        return self._logic

    @property
    def asks_everybody(self) -> bool:
        """Whether all available clients train in each round, before the selection."""
        return bool(self._kind.polls_for & AFTER_TRAINING)

    def summary(self) -> None:
        """Log the strategy's settings."""
        log(INFO, "\t├──> Selector: %s %s", self.selector_name, self.selector_settings or "")
        if self.asks_everybody:
            _warn(
                f"{self.selector_name} lets all available clients train before each selection: a round costs "
                "more than with the selector 'full', which uses the updates of all clients"
            )
        log(INFO, "\t├──> Clients per round: %d", self.clients_per_round)
        if self._eligible.conditions:
            log(INFO, "\t├──> Eligible clients: %s", self._eligible.conditions)
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

        Call this once for each strategy object. In a second call, the selector would still have the state of
        the first run. With ``checkpoints.resume``, the run continues after its last checkpoint.

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
            The longest time that a round waits for replies, in seconds, if it is less than
            ``deadlines.round`` (default: ``deadlines.round``).
        train_config, evaluate_config : ConfigRecord, optional
            Entries for the config of TRAIN and EVALUATE messages (default: none).
        evaluate_fn : callable, optional
            A function that evaluates the model on the server. It is called with the round and the model,
            after each round and for the initial model (round 0). Default: the server does not evaluate.

        Raises
        ------
        ValueError
            If ``train_config`` sets ``learning-rate`` although ``local_learning_rate`` is a schedule.
        NotEnoughClientsError
            If too few clients are available for too long. The completed rounds are in ``checkpoints``.
        CheckpointError
            If the folder of ``checkpoints`` holds another run, holds a run although ``resume`` is False, or
            cannot be written to.
        MissingHandlerError
            If the clients' app cannot answer the polls of the selector.
        """
        self.num_rounds = self.num_rounds or num_rounds
        polling = ExchangeGrid(grid, self.polling.interval, self.traffic)
        self._wait = self.deadlines.round if timeout is None else min(timeout, self.deadlines.round)
        self._evaluate_config = evaluate_config or ConfigRecord()
        train_config = train_config or ConfigRecord()
        if isinstance(self.local_learning_rate, str) and LEARNING_RATE in train_config:
            raise ValueError(
                f"train_config[{LEARNING_RATE!r}] = {train_config[LEARNING_RATE]!r}: must be left out, since "
                f"local_learning_rate = {self.local_learning_rate!r} sets it in each round"
            )
        log(INFO, "Starting %s:", type(self).__name__)
        self.summary()
        progress = self._resumed(initial_arrays)
        if progress.round:
            self._reporters.resume(self._info(num_rounds), progress.round)
        else:
            self._reporters.begin(self._info(num_rounds))
        with self._reporters.failing(lambda: progress.round), counts_not_logged():
            self._run_rounds(progress, polling, num_rounds, train_config, evaluate_fn)
        self._reporters.end(progress.round, "stopped early" if progress.round < num_rounds else "")
        log(INFO, "")
        log(INFO, "Finished after round %d of %d", progress.round, num_rounds)
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
        """Run the rounds after ``progress.round``, up to ``num_rounds``."""
        if progress.round == 0 and evaluate_fn:
            progress.note("evaluate_metrics_serverapp", 0, evaluate_fn(0, progress.arrays))
            self._reporters.round(0, metrics=progress.result.evaluate_metrics_serverapp.get(0))
        while progress.round < num_rounds and not self._is_stopped(progress):
            exchanged = self.traffic.total
            number = progress.round + 1
            log(INFO, "")
            log(INFO, "[ROUND %d/%d]", number, num_rounds)
            if self.mode is not None:
                arrays, metrics = self._buffered_round(number, progress.arrays, train_config, polling)
            else:
                messages = list(self.configure_train(number, progress.arrays, train_config, polling))
                replies = self._trained(polling, messages)
                del messages  # frees memory: each message holds the model
                arrays, metrics = self.aggregate_train(number, replies)
                del replies
            progress.move(arrays)
            progress.note("train_metrics_clientapp", number, metrics)
            messages = list(self.configure_evaluate(number, progress.arrays, self._evaluate_config, polling))
            replies = self._evaluated(polling, number, messages)
            progress.note("evaluate_metrics_clientapp", number, self.aggregate_evaluate(number, replies))
            if evaluate_fn:
                progress.note("evaluate_metrics_serverapp", number, evaluate_fn(number, progress.arrays))
            progress.round = number
            record, self._record = self._record, None
            if record is not None:
                self._reporters.count(record, len(self.roster))
            self._save(progress)
            # After the checkpoint, so that no resume repeats a round that reporters have heard about.
            self._reporters.round(
                number,
                record=record,
                name_of=self.roster.id_of,
                metrics=progress.result.evaluate_metrics_serverapp.get(number),
                train_metrics=progress.result.train_metrics_clientapp.get(number),
                client_metrics=progress.result.evaluate_metrics_clientapp.get(number),
                group_metrics=self.group_metrics,
                traffic=self.traffic.since(exchanged),
            )

    def _info(self, num_rounds: int) -> RunInfo:
        """Return what reporters are told about the run."""
        return RunInfo(
            num_rounds,
            {
                "strategy": type(self).__name__,
                "selector": self.selector_name,
                "selector_settings": self.selector_settings,
                "clients_per_round": repr(self._budgets),
                "seed": self.seed,
                "local_learning_rate": self.local_learning_rate,
                "server_strategy": type(self.server_strategy).__name__,
                "variates": None if self._variates is None else self._variates.name,
                "masked_updates": self.masked_updates,
                "mode": None if self.mode is None else repr(self.mode),
            },
        )

    def _trained(self, grid: ExchangeGrid, messages: list[Message]) -> list[Message]:
        """Send the TRAIN messages of a round, and return the replies."""
        if self._training is None or not messages:
            return []
        training, chosen = self._training, self._training.chosen
        wait = self._known.wait("train", chosen.opened.number, chosen.selection.clients, self._wait)
        # Usable replies are counted only if needed, since counting takes a pass over each model.
        enough = chosen.enough if chosen.enough < len(messages) else None
        replies = grid.send_and_receive(
            messages, timeout=self._wait, enough=enough, counts=training.is_usable, wait=wait
        )
        training.arrivals.update(grid.arrivals)
        return replies

    def _evaluated(self, grid: ExchangeGrid, number: int, messages: list[Message]) -> list[Message]:
        """Send the EVALUATE messages of a round, and return the replies."""
        if not messages:
            return []
        clients = [self.roster.client_at(message.metadata.dst_node_id) for message in messages]
        known = np.array([-1 if client is None else client for client in clients], dtype=np.int64)
        wait = self._known.wait("evaluate", number, known, self._wait) if (known >= 0).all() else None
        return grid.send_and_receive(messages, timeout=self._wait, wait=wait)

    def _is_stopped(self, progress: Progress) -> bool:
        if self.stop is None or progress.round == 0:
            return False
        metrics = progress.result.evaluate_metrics_serverapp.get(progress.round)
        stopped = self.stop(progress.round, metrics)
        if stopped:
            log(INFO, "Stopped after round %d, since `stop` returned True", progress.round)
        return stopped

    # --- on disk ---------------------------------------------------------------------------------------

    def _fingerprint(self, arrays: ArrayRecord) -> dict[str, Any]:
        """Return the settings that a resume must not change."""
        guard = self.faults.guard_settings
        return {
            "selector": self.selector_name,
            "selector_settings": {
                name: repr(value) for name, value in sorted(self.selector_settings.items())
            },
            "clients_per_round": repr(self._budgets),
            "seed": self.seed,
            "local_learning_rate": self.local_learning_rate,
            "server_strategy": type(self.server_strategy).__name__,
            "server_settings": self._step.settings,
            "guard": None if guard is None else asdict(guard),
            "correction": self.faults.correction,
            "silence": self.faults.silence,
            "variates": None if self._variates is None else self._variates.name,
            "masked_updates": self.masked_updates,
            **({} if self.mode is None else {"mode": asdict(self.mode)}),
            "arrays": {name: [list(array.shape), array.dtype] for name, array in arrays.items()},
        }

    def _save(self, progress: Progress) -> None:
        if self._checkpoints is not None:
            parts = {
                "logic": self._known.state_dict(),
                "step": self._step.state_dict(),
                "reporters": self._reporters.state_dict(),
                "in_flight": {
                    f"{number}/{name}": array.numpy()
                    for number, model in self._models.items()
                    for name, array in model.items()
                },
            }
            notes = {"num_rounds": self.num_rounds, "attendance": self._attendance.state()}
            self._checkpoints.save(progress.checkpoint(parts, notes, self._fingerprint(progress.arrays)))

    def _resumed(self, initial_arrays: ArrayRecord) -> Progress:
        """Return the progress in the newest checkpoint if the run resumes; otherwise that of a new run."""
        if self._checkpoints is None:
            return Progress(0, initial_arrays)
        folder = self._checkpoints.path
        try:
            self._checkpoints.claim()
        except OSError as error:
            raise CheckpointError(
                f"checkpoints.folder = {folder}: cannot be made or written to: {error.strerror}"
            ) from None
        if not self._resume and self._checkpoints.rounds():
            raise CheckpointError(
                f"checkpoints.folder = {folder}: holds a run; resume=True goes on with it, "
                "another folder begins a new run"
            )
        found = self._checkpoints.newest(self._fingerprint(initial_arrays)) if self._resume else None
        if found is None:
            return Progress(0, initial_arrays)
        try:
            self.num_rounds = found.meta["num_rounds"]
            self._restored = state_of("logic", found)
            self._step.load_state_dict(state_of("step", found))
            self._reporters.load_state_dict(state_of("reporters", found))
            self._attendance.load(found.meta["attendance"])
            self._models = _models_of(state_of("in_flight", found), initial_arrays)
            self._resumes = True
        except KeyError as error:
            raise CheckpointError(
                f"{folder}: its checkpoints have no {error}, so another version of Cohort wrote them: resume "
                "with that version, or start a new run"
            ) from error
        log(INFO, "Resumed after round %d from %s", found.round, self._checkpoints.path)
        return Progress.of(found, initial_arrays)

    # --- a round ---------------------------------------------------------------------------------------

    def _update_selector(self) -> None:
        """Update the selector with the changes of the roster. The first call creates the selector."""
        if self._seen_changes == self.roster.changes:
            return
        self._seen_changes = self.roster.changes
        sizes = self._sizes()
        if self._logic is None and self._restored is None:
            self._attendance.warn_of_absent()
        if self._logic is None:
            self._logic = self._create_logic(sizes)
        known = self.selector.num_clients
        if len(sizes) > known:
            self._logic.add_clients(sizes[known:], **self._per_client(known))
        registered = self.selector.registered
        removed = [client for client in self.roster.removed() if registered[client]]
        if removed:
            self._logic.remove_clients(removed)
        changed = np.flatnonzero((sizes != self.selector.client_sizes) & self.selector.registered)
        if changed.size:
            self.selector.set_sizes(changed, sizes[changed])

    def _create_logic(self, sizes: NDArray[np.float64]) -> RoundLogic:
        selector = selectors.create(
            self.selector_name,
            len(sizes),
            client_sizes=sizes,
            clients_per_round=self.clients_per_round,
            num_rounds=self.num_rounds or 1,
            seed=self.seed,
            **self._per_client(),
            **self.selector_settings,
        )
        logic = RoundLogic(
            selector,
            self.faults,
            variates=self._variates,
            budgets=self._budgets,
            shortest_deadline=self.deadlines.shortest,
            updates="masked" if self.masked_updates else "noised" if self._step.is_private else "open",
            mode=self.mode,
        )
        if self._restored is not None:
            logic.load_state_dict(self._restored)
            self._restored = None
        return logic

    def _per_client(self, first: int = 0) -> dict[str, NDArray[Any]]:
        """Return the selector's settings per client, as arrays (M - first,) from index ``first`` on."""
        guard = self.faults.guard_settings
        reported = {
            "costs": believed_numbers(self.roster.costs(), guard),
            "energies": believed_numbers(self.roster.energies(), guard),
        }
        each = per_client(
            self.overrides, self._kind, self.roster, first, groups=self._groups, reported=reported
        )
        settings = self._kind.settings_type.of(self.selector_settings)
        for name in sorted(settings.needs_per_client - each.keys()) if first == 0 else ():
            log(WARNING, "No client reports %s, and none are declared: each client has the value 1", name)
        if GROUPS in each and first == 0 and not any(self._groups.of_all(self.roster)):
            log(WARNING, "No client reports a group, and none is declared: each client is a group of its own")
        return each

    def _needs_status(self) -> bool:
        """Return whether the run needs values of a status report, which other apps may not send."""
        settings = self._kind.settings_type.of(self.selector_settings)
        groups = {GROUPS}.intersection(self._kind.per_client)
        reported = groups | settings.needs_per_client
        conditions = self._eligible.conditions
        by_property = conditions.needs_properties and not self.overrides.properties
        return bool(
            reported - self.overrides.settings.keys() or self._kind.polls_for - {"loss"} or by_property
        )

    def _sizes(self) -> NDArray[np.float64]:
        """Return (M,) the data size that the server uses for each client, see `believed_sizes`."""
        overrides = sizes_of(self.roster, self.overrides.sizes)
        return believed_sizes(self.roster.sizes(), overrides, self.faults.guard_settings)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Select the clients of a round, and return one TRAIN message for each selected client.

        The config of each message holds ``server-round`` and ``seed``, which is a function of (seed, round,
        client). If ``config`` already has a ``seed``, that value is kept.

        Raises
        ------
        NotEnoughClientsError
            If too few clients joined within ``deadlines.join`` (in the first round), or if fewer clients than
            the quorum were available for ``deadlines.absence`` seconds.
        MissingHandlerError
            If the clients' app cannot answer the poll of the selector.
        """
        if self.mode is not None:
            raise RuntimeError("mode = Buffered(...): its rounds are run by start() only")
        grid = ExchangeGrid.of(grid, self.polling.interval)
        clock = grid.clock
        opened, began = self._open(server_round, arrays, config, grid)
        wait = self._wait if self.asks_everybody else self.deadlines.poll
        polled = self._poll.ask(
            grid,
            self.selector,
            server_round,
            opened.candidates,
            self.roster,
            arrays,
            evaluate_config=self._evaluate_config,
            train_config=ConfigRecord({**config, **self._rate_of(server_round)}),
            learning_rate=self._known.local_learning_rate,
            budget=opened.budget,
            wait_for=lambda clients: self._known.wait("poll", server_round, clients, wait),
            train_deadline=wait,
        )
        chosen = self._known.choose(opened, polled.reports)
        messages = self._messages(server_round, chosen.selection, arrays, config, grid, polled.train_config)
        self._training = TrainingRound(
            chosen, arrays, messages, began, clock.monotonic(), clock, self._step.base.weighted_by_key
        )
        log(INFO, "Selected %s", self._describe(chosen.selection))
        return messages

    def _open(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: ExchangeGrid
    ) -> tuple[Opened, float]:
        """Wait for clients and open a round; return it, and when it began in s on the clock."""
        self._eligible.begin(number)
        if self._logic is None:
            self._attendance.wait_for_first(grid)
        available = self._attendance.wait_for_quorum(grid)
        began = grid.clock.monotonic()
        grid.listen()
        self._update_selector()
        self._log_eligible(number, available.size)
        self._known.local_learning_rate = self._rates.at(number)
        opened = self._known.open(number, available)
        self._poll.probes = not self._attendance.answered
        if self.selector.asks_norms:
            self._ask_norms(opened, arrays, config, grid)
        return opened, began

    def _buffered_round(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: ExchangeGrid
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Keep clients busy until the buffer is full, and take the step of a buffered round.

        The result is that of `aggregate_train`.
        """
        opened, began = self._open(number, arrays, config, grid)
        logic, clock = self._known, grid.clock
        buffer = logic.buffer
        assert buffer is not None
        received = ReceivedArrays(arrays)
        now: Arrays = {name: received[name] for name in received}
        answers: dict[int, Reply] = {}
        seconds: dict[int, float] = {}
        num_stale = 0

        def settle(client: int, message: Message | None, waited: float = nan, *, lost: bool = False) -> None:
            """End a client's training; ``lost``: it is too stale to be asked again after a resume."""
            nonlocal num_stale
            key, version = self._step.base.weighted_by_key, buffer.in_flight[client]
            answer = Reply(failure="no answer by the deadline")
            too_stale = buffer.is_too_stale(client)
            if too_stale or version not in self._models:
                if message is not None:
                    answer = read_reply(message, key)
                if lost or not answer.failure:
                    num_stale += 1
                    most = f"must be at most {buffer.mode.max_staleness} (max_staleness)"
                    why = most if too_stale else "the model that it trained from is no longer kept"
                    answer = Reply(failure=f"staleness {buffer.staleness(client)}: {why}")
            elif message is not None:
                base = self._models[version]
                answer = read_usable(message, base, key)
                if answer.arrays is not None and base is not arrays:
                    answer = replace(answer, arrays=Rebased(answer.arrays, ReceivedArrays(base), now))
            answers[client], seconds[client] = answer, waited
            buffer.end(client, not answer.failure)

        buffer.begin(number)
        self._in_flight.round = number
        for client in self._ask_again(config, grid):
            settle(client, None, lost=True)
        self._models[number] = arrays
        asked_at = None
        while not buffer.is_full:
            self._ask(number, logic.fill(opened), arrays, config, grid)
            asked_at = clock.monotonic() if asked_at is None else asked_at
            if not buffer.num_training and (answers or not buffer.in_flight):
                break
            event = self._in_flight.next(grid)
            if event.client not in buffer.in_flight:
                continue  # the client has left the run
            if event.gives_up:
                settle(event.client, event.reply, event.seconds if event.reply else nan)
            else:
                buffer.free_place(event.client)
        arrived = clock.monotonic()
        chosen = logic.gather(opened, num_stale)
        clients = chosen.selection.clients.tolist()
        kept = set(buffer.kept_versions(number + 1))
        self._models = {version: model for version, model in self._models.items() if version in kept}
        # The server strategy steps from this round's model, although its replies may answer older messages.
        shown = NodesGrid(grid, [self.roster.node_of(client) for client in clients[:1]])
        messages = self._step.configure(number, arrays, config, shown)
        training = TrainingRound(chosen, arrays, messages, began, asked_at or arrived, clock)
        waits = np.array([seconds[client] for client in clients], dtype=np.float64)
        return self._aggregate(
            training, [answers[client] for client in clients], np.where(np.isinf(waits), nan, waits), arrived
        )

    def _ask(
        self,
        number: int,
        clients: Sequence[int],
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: ExchangeGrid,
    ) -> None:
        """Ask clients in a buffered round to train from the model of round ``number``."""
        if not clients:
            return
        ones = np.ones(len(clients))
        indexes = np.array(clients, dtype=np.int64)
        selection = Selection(indexes, np.ones(len(clients), dtype=np.int64), ones, ones, ones)
        messages = self._messages(number, selection, arrays, config, grid, {})
        for message in messages:
            message.metadata.group_id = buffered_group(number)
        names = listed([self.roster.id_of(client) for client in clients])
        log(INFO, "Asked in round %d to train from its model: %s", number, names)
        wait = self._known.wait("train", number, indexes, self._wait)
        self._in_flight.ask(grid, clients, messages, self._wait, wait)

    def _ask_again(self, config: ConfigRecord, grid: ExchangeGrid) -> list[int]:
        """Ask the clients again that were in flight at the checkpoint of a resumed run, with the same models.

        Return the clients whose models are too old. Without a resume, nobody is asked.
        """
        again, self._resumes = self._resumes, False
        by_version: dict[int, list[int]] = {}
        if again and self._known.buffer is not None:
            for client, version in self._known.buffer.in_flight.items():
                by_version.setdefault(version, []).append(client)
        too_old = [
            each for version in by_version if version not in self._models for each in by_version[version]
        ]
        for version in sorted(by_version.keys() & self._models.keys()):
            self._ask(version, by_version[version], self._models[version], config, grid)
        return too_old

    def _log_eligible(self, round: int, count: int) -> None:
        """Log which clients the aggregate of a round describes, whenever this set changes."""
        conditions, others = self._eligible.conditions, self._attendance.num_ineligible
        now = (str(conditions), count, others)
        if not conditions or now == self._logged_eligible:
            return
        self._logged_eligible = now
        target = {
            "round": "the aggregate is an unbiased estimate of the mean update of the eligible clients",
            "long-run": "over the rounds, the aggregate is an unbiased estimate of the mean update of the "
            "eligible clients",
            "none": f"{self.selector_name} selects among the eligible clients, and is biased on purpose",
        }[self._kind.unbiased]
        log(
            INFO,
            "From round %d on, %d of %d available clients are eligible (%s): %s",
            round,
            count,
            count + others,
            conditions,
            target,
        )

    def _ask_norms(self, opened: Opened, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> None:
        """Ask all selectable clients for the norm of an update, and let the selector learn these norms."""
        clients = opened.selectable(self.selector.registered)
        norms = self._poll.ask_norms(
            grid,
            clients,
            self.roster,
            arrays,
            config=ConfigRecord({**config, **self._rate_of(opened.number)}),
            round=opened.number,
            deadline=self._wait,
        )
        self._known.learn_norms(opened, clients, norms)

    def _messages(
        self,
        number: int,
        selection: Selection,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        extra: Mapping[str, Any],
    ) -> list[Message]:
        """Return the TRAIN messages of a round to the selected clients, in selection order."""
        clients = [int(client) for client in selection.clients]
        nodes = [self.roster.node_of(client) for client in clients]
        prepared = self._step.configure(number, arrays, config, NodesGrid(grid, nodes))
        content_for = {message.metadata.dst_node_id: message.content for message in prepared}
        if "gradient_variance" in self._kind.feedback_used:
            extra = {**extra, REPORT_VARIANCE: True}
        if self.masked_updates:
            extra = {**extra, REPORT_NORM: True}
        extra = {**extra, **self._rate_of(number)}
        messages = []
        parts = [()] * len(clients) if selection.parts is None else selection.parts.tolist()
        for client, node, weight, scales in zip(clients, nodes, selection.weights, parts, strict=True):
            content = RecordDict(dict(content_for[node]))
            key = self._step.base.configrecord_key
            seed = client_seed(self.seed, number, client)
            only_here = {UPDATE_WEIGHT: float(weight * len(clients))} if self.masked_updates else {}
            if scales:
                only_here[PART_SCALES] = scales
            content[key] = ConfigRecord(
                {"seed": seed, **extra, **only_here, **of_kind(content, ConfigRecord)[key]}
            )
            control = None if self._variates is None else self._variates.outgoing(client)
            if control is not None:
                content[CONTROL] = to_record(control)
            ttl = self.deadlines.round + CLOCKS_DIFFER
            messages.append(Message(content, node, MessageType.TRAIN, ttl=ttl, group_id=str(number)))
        return messages

    def _rate_of(self, round: int) -> dict[str, float]:
        """Return the config entry with the learning rate of a round; no entry if there is no schedule."""
        is_schedule = isinstance(self.local_learning_rate, str)
        return {LEARNING_RATE: float(self._rates.at(round))} if is_schedule else {}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the replies into the new model, let the selector learn, and return the model and metrics.

        Clients that failed, were late, or sent an unusable reply are left out. If the round is skipped, the
        result is (None, None), and the model does not change.

        Raises
        ------
        RuntimeError
            If `configure_train` was not called for this round.
        """
        training = self._training
        if training is None or training.chosen.opened.number != server_round:
            raise RuntimeError(f"round {server_round} was not configured")
        self._training = None
        arrived = training.clock.monotonic()
        return self._aggregate(training, training.match(replies), training.reply_seconds(), arrived)

    def _aggregate(
        self, training: TrainingRound, answers: list[Reply], seconds: NDArray[np.float64], arrived: float
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the answers (S,), which came after ``seconds`` (S,) each, NaN for none, or empty.

        ``arrived`` is when the last one came, s on the clock. The result is that of `aggregate_train`.
        """
        for client, answer in zip(training.chosen.selection.clients, answers, strict=True):
            if not answer.failure or not answer.report.available:
                self._attendance.hear(int(client), answer.report)
        self._update_selector()
        received = ReceivedArrays(training.arrays)
        before: Arrays = {name: received[name] for name in received}
        outcome = self._known.finish(training.chosen, before, answers, seconds if seconds.size else None)
        stepped = self._server_step(outcome, before, training.messages)
        now = training.clock.monotonic()
        phases = {
            "poll": training.asked - training.began,
            "train": arrived - training.asked,
            "aggregate": now - arrived,
        }
        record = outcome.closed(
            stepped.skipped,
            now - training.began,
            phases,
            eligible=str(self._eligible.conditions),
            num_ineligible=self._attendance.num_ineligible,
        )
        record = timed(record, answers, seconds)
        self._record = record
        self._log(record)
        if self.on_round is not None:
            self.on_round(record)
        if stepped.arrays is None:
            return None, None
        metrics = self._average_metrics(answers, record)
        metrics["num-clients"] = int(record.feedback.responded.sum())
        if np.isfinite(record.train_loss) and "train_loss" not in metrics:  # the name in Flower's quickstarts
            metrics["train-loss"] = record.train_loss
        return to_record(stepped.arrays), metrics

    def _server_step(self, outcome: Outcome, arrays: Arrays, messages: Sequence[Message]) -> Step:
        """Let the server strategy take its step, from the aggregate or from the models of single clients."""
        if outcome.arrays is None:
            return Step(None, outcome.record.skipped)
        each = contributions_of(outcome)
        return self._step.step(outcome.record.round, arrays, outcome.arrays, each, messages)

    def _log(self, record: RoundRecord) -> None:
        """Log the failures, the clipped values and the quarantined clients of a round."""
        name = self.roster.id_of
        for client, reason in record.failures.items():
            log(WARNING, "Round %d without %s: %s", record.round, name(client), reason)
        for client, line in record.clipped.items():
            log(WARNING, "Round %d, %s: %s", record.round, name(client), line)
        if record.quarantined:
            quarantined = [
                f"{name(client)} (silent)" if client in record.silent else name(client)
                for client in record.quarantined
            ]
            log(WARNING, "Quarantined in round %d: %s", record.round, listed(quarantined))
        if record.skipped:
            log(WARNING, "Round %d is skipped: %s", record.round, record.skipped)
        if not self._told_of_report and record.lacks(self._kind.report_used):
            self._told_of_report = True
            log(WARNING, no_report(self._kind))

    def _average_metrics(self, answers: list[Reply], record: RoundRecord) -> MetricRecord:
        """Average the clients' metrics with the server strategy's function, weighted by data size."""
        key, sizes = self._step.base.weighted_by_key, self.selector.client_sizes
        contents = [
            RecordDict({"metrics": MetricRecord({**answer.metrics, key: float(sizes[client])})})
            for client, answer, responded in zip(
                record.selection.clients, answers, record.feedback.responded, strict=True
            )
            if responded
        ]
        found = averaged(
            lambda fit: self._step.train_metrics_aggr_fn(fit, key),
            contents,
            contents,
            f"metrics of round {record.round}",
        )
        return found or MetricRecord()

    def _describe(self, selection: selectors.Selection) -> str:
        drawn = zip(selection.clients, selection.counts, selection.probabilities, strict=True)
        selected = [
            f"{self.roster.id_of(client)}{f' x{count}' if count > 1 else ''} (p={probability:.3g})"
            for client, count, probability in drawn
        ]
        return listed(selected) or "no client"

    # --- federated evaluation, as the server strategy does it ------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the server strategy's EVALUATE messages to a random share of the available clients.

        The share is the server strategy's ``fraction_evaluate``. Clients that are quarantined for silence are
        left out.
        """
        if not self._step.fraction_evaluate:
            return []  # before nodes are listed, which takes long with a million nodes
        here = self._attendance.eligible_among(self.roster.available(grid.get_node_ids()))
        if self._logic is not None:
            here = np.setdiff1d(here, self._logic.silent(server_round + 1))
        return self._evaluation.messages(server_round, arrays, config, grid, here)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the metrics of the usable replies with the server strategy, over all clients and by group.

        The averages of the groups are stored in ``group_metrics``.
        """
        return self._evaluation.average(server_round, replies)

    @property
    def group_metrics(self) -> dict[str, MetricRecord]:
        """The averages of the last evaluation by clients, in each group that replied."""
        return self._evaluation.by_group

    def groups(self) -> list[str | None]:
        """Return (M,) the name of each client's group; None if the client has no group."""
        return self._groups.of_all(self.roster)


def _models_of(state: Mapping[str, NDArray[Any]], initial: ArrayRecord) -> dict[int, ArrayRecord]:
    """Return the models of buffered rounds in a checkpoint, by round; ``initial`` has the arrays' order."""
    rounds = sorted({int(key.partition("/")[0]) for key in state})
    return {
        number: ArrayRecord({name: encode(state[f"{number}/{name}"]) for name in initial})
        for number in rounds
    }


def _fedavg() -> FedAvg:
    """Return FedAvg without evaluation on clients.

    ``FedAvg(fraction_evaluate=0.0)`` would log a warning.
    """
    strategy = FedAvg()
    strategy.fraction_evaluate = 0.0
    return strategy


def _warn(line: str) -> None:
    log(WARNING, line)
