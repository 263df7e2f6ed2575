"""SelectionStrategy, the one Flower Strategy; the presets are constructions of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from logging import INFO, WARNING
from math import inf
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from . import selectors
from .checkpoint import CheckpointError, CheckpointFolder
from .clients.overrides import Removals, per_client, sizes_of
from .clients.reports import REPORT_NORM, REPORT_VARIANCE, UPDATE_WEIGHT
from .flower.arrays import ReceivedArrays, to_record
from .flower.attendance import Attendance
from .flower.grids import NodesGrid, PollingGrid, clock_of
from .flower.messages import CLOCKS_DIFFER, TrainingRound
from .flower.metrics import averaged, has_size
from .flower.polling import Poll
from .numerics.streams import generator
from .options import Checkpoints, Deadlines, Faults, Overrides, Polling, check_selector
from .progress import Progress, state_of
from .rounds.aggregation import Arrays
from .rounds.limits import believed_sizes
from .rounds.logic import RoundLogic
from .rounds.record import RoundRecord
from .rounds.replies import Reply
from .rounds.seeds import client_seed
from .rounds.stages import Chosen, Outcome
from .rounds.variates import CONTROL, create_variates
from .selectors import checks
from .server_steps.compatibility import View, view_of
from .server_steps.replies import contributions_of
from .server_steps.step import ServerStep, Step

if TYPE_CHECKING:
    from flwr.serverapp import Grid
    from numpy.typing import NDArray


class SelectionStrategy(Strategy):
    """Lets a selector choose the clients that train, and aggregates their updates without its bias.

    Parameters
    ----------
    selector : str
        A name of `strategies.selectors.available()`.
    clients_per_round : int
        K, the number of clients (or draws) a round; at least 1.
    selector_settings : mapping, optional
        The selector's own settings, for example ``{"alpha": 0.4}``.
    server_strategy : Strategy, optional
        Takes the step from the aggregate: FedAvg (the default), FedAvgM, FedAdam, FedYogi, FedAdagrad or
        FedProx with every selector; others where the mathematics allows it, see
        `server_steps.compatibility`. Of its sampling settings only ``fraction_evaluate`` is used.
    seed : int (default: 0)
        Every draw is a function of (seed, round).
    num_rounds : int, optional
        The horizon that some selectors tune themselves to (default: the ``num_rounds`` of `start`). A resumed
        run keeps its first horizon.
    min_available_clients : int, optional
        Round 1 waits for this many clients; at least (and by default) ``clients_per_round``.
    local_learning_rate : float, optional
        The clients' learning rate; required by SCAFFOLD. It divides the norms of the updates, see
        `RoundLogic` (default: 1, which is enough for selectors that only compare clients with each other).
    deadlines : Deadlines, optional
        How long the run waits for clients and for their replies.
    polling : Polling, optional
        How clients are asked, and how often the run looks for replies.
    faults : Faults, optional
        Quorum, over-selection, correction for missing replies, and the guard.
    overrides : Overrides, optional
        What the operator declares about clients; takes precedence over client reports.
    checkpoints : Checkpoints, optional
        Where the run is saved after each round, and whether it continues from there.
    variates : {"fedvarp", "scaffold"}, optional
        What the server remembers of each client to reduce variance or drift; see `rounds.variates`.
    masked_updates : bool (default: False)
        The server sees only the sum of the updates. Each client receives its weight (``update-weight``),
        multiplies its update by it before it adds its mask, and reports the norm (``report-update-norm``).
        The sum needs every client: a round in which a reply is missing is skipped.
    stop : callable, optional
        Called after each round with its number and the server's evaluation; True ends the run.
    on_round : callable, optional
        Called with the `RoundRecord` of each round, before the model is evaluated.

    Raises
    ------
    ValueError
        If a parameter is out of range; the message names it, its value and what is allowed.
    TypeError
        If a parameter has a wrong type, or ``server_strategy`` cannot take the step.
    """

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
        local_learning_rate: float | None = None,
        deadlines: Deadlines | None = None,
        polling: Polling | None = None,
        faults: Faults | None = None,
        overrides: Overrides | None = None,
        checkpoints: Checkpoints | None = None,
        variates: Literal["fedvarp", "scaffold"] | None = None,
        masked_updates: bool = False,
        stop: Callable[[int, MetricRecord | None], bool] | None = None,
        on_round: Callable[[RoundRecord], None] | None = None,
    ) -> None:
        # Refuse wrong parameters now, not once the clients are known.
        check_selector(
            selector, clients_per_round, selector_settings or {}, 1 if num_rounds is None else num_rounds
        )
        self._kind = selectors.selector_type(selector)
        self.deadlines, self.polling = deadlines or Deadlines(), polling or Polling()
        self.faults, self.overrides = faults or Faults(), overrides or Overrides()
        self.faults.check(self._kind, clients_per_round)
        self.overrides.check(self._kind)
        checks.integer("seed", seed, low=0)
        if min_available_clients is not None:
            low, why = clients_per_round, "clients_per_round"
            checks.integer("min_available_clients", min_available_clients, low=low, why=why)
        if local_learning_rate is not None and not 0 < local_learning_rate < inf:
            raise ValueError(
                f"local_learning_rate = {local_learning_rate}: must be finite and greater than 0"
            )
        if variates == "scaffold" and local_learning_rate is None:
            raise ValueError(
                "local_learning_rate = None: must be the clients' learning rate with variates = 'scaffold'"
            )
        if masked_updates:
            _check_masked(self._kind, server_strategy, variates, self.faults)
        self.selector_name = selector
        self.selector_settings = dict(selector_settings or {})
        self.clients_per_round = clients_per_round
        self.seed = seed
        self.num_rounds = num_rounds
        self.local_learning_rate = local_learning_rate or 1.0
        self.masked_updates = masked_updates
        self.stop = stop
        self.on_round = on_round
        self._variates = create_variates(variates) if variates else None
        self._step = ServerStep(
            server_strategy or _fedavg(),
            selector,
            self.selector_settings,
            clients_per_round=clients_per_round,
            variates=variates,
        )
        self._poll = Poll(
            self.deadlines.poll,
            self.polling,
            seed,
            self._step.base.arrayrecord_key,
            self._step.base.configrecord_key,
        )
        self._attendance = Attendance(
            min_available_clients=min_available_clients or clients_per_round,
            clients_per_round=clients_per_round,
            quorum=self.faults.quorum,
            deadlines=self.deadlines,
            polling=self.polling,
            removals=Removals(self.overrides.removed, report=_warn),
        )
        self.roster = self._attendance.roster
        self._checkpoints = CheckpointFolder(checkpoints.folder, report=_warn) if checkpoints else None
        self._resume = checkpoints is not None and checkpoints.resume
        self._logic: RoundLogic | None = None
        self._restored: Mapping[str, NDArray[Any]] | None = None  # the logic's, until the clients are here
        self._seen_changes = -1  # how many of the roster's changes the selector knows
        self._training: TrainingRound | None = None
        self._wait = self.deadlines.round  # s; `start` may be told less
        self._evaluate_config = ConfigRecord()

    @property
    def selector(self) -> selectors.Selector:
        """The selector; it exists once the clients are known, which is in the first round of this process."""
        return self._known.selector

    @property
    def server_strategy(self) -> Strategy:
        """What takes the step from the aggregate: a copy of what was given, or FedAvg."""
        server_strategy: Strategy = self._step.strategy
        return server_strategy

    @property
    def _known(self) -> RoundLogic:
        if self._logic is None:
            raise RuntimeError("no client is known before the first round")
        return self._logic

    def summary(self) -> None:
        """Log the strategy's settings."""
        log(INFO, "\t├──> Selector: %s %s", self.selector_name, self.selector_settings or "")
        log(INFO, "\t├──> Clients per round: %d", self.clients_per_round)
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
        """Run rounds 1 to ``num_rounds``, as Flower's own strategies do.

        A strategy is for one run: in a second `start` the selector would still know the first one.

        With ``checkpoints.resume`` the run continues after its last checkpoint. Then only the names, shapes
        and types of ``initial_arrays`` matter, and the result covers all rounds of the run.

        Raises
        ------
        NotEnoughClientsError
            If too few clients are available for too long. ``checkpoints`` holds the rounds so far.
        CheckpointError
            If the folder of ``checkpoints`` belongs to another run, holds a run that is not to be resumed, or
            cannot be written to.
        """
        self.num_rounds = self.num_rounds or num_rounds
        polling = PollingGrid(grid, self.polling.interval)
        self._wait = self.deadlines.round if timeout is None else min(timeout, self.deadlines.round)
        self._evaluate_config = evaluate_config or ConfigRecord()
        train_config = train_config or ConfigRecord()
        log(INFO, "Starting %s:", type(self).__name__)
        self.summary()
        progress = self._resumed(initial_arrays)
        if progress.round == 0 and evaluate_fn:
            progress.note("evaluate_metrics_serverapp", 0, evaluate_fn(0, progress.arrays))
        while progress.round < num_rounds and not self._is_stopped(progress):
            number = progress.round + 1
            log(INFO, "")
            log(INFO, "[ROUND %d/%d]", number, num_rounds)
            messages = list(self.configure_train(number, progress.arrays, train_config, polling))
            enough = None if self._training is None else self._training.chosen.enough
            replies = polling.send_and_receive(messages, timeout=self._wait, enough=enough)
            del messages  # each holds the model
            arrays, metrics = self.aggregate_train(number, replies)
            del replies
            progress.move(arrays)
            progress.note("train_metrics_clientapp", number, metrics)
            messages = list(self.configure_evaluate(number, progress.arrays, self._evaluate_config, polling))
            replies = polling.send_and_receive(messages, timeout=self._wait) if messages else []
            progress.note("evaluate_metrics_clientapp", number, self.aggregate_evaluate(number, replies))
            if evaluate_fn:
                progress.note("evaluate_metrics_serverapp", number, evaluate_fn(number, progress.arrays))
            progress.round = number
            self._save(progress)
        log(INFO, "")
        log(INFO, "Finished after round %d: %s", progress.round, progress.result)
        return progress.result

    def _is_stopped(self, progress: Progress) -> bool:
        if self.stop is None or progress.round == 0:
            return False
        metrics = progress.result.evaluate_metrics_serverapp.get(progress.round)
        stopped = self.stop(progress.round, metrics)
        if stopped:
            log(INFO, "Stopped after round %d: %s", progress.round, metrics)
        return stopped

    # --- on disk ---------------------------------------------------------------------------------------

    def _fingerprint(self, arrays: ArrayRecord) -> dict[str, Any]:
        """Return the settings that a resumed run must share."""
        guard = self.faults.guard_settings
        return {
            "selector": self.selector_name,
            "selector_settings": {
                name: repr(value) for name, value in sorted(self.selector_settings.items())
            },
            "clients_per_round": self.clients_per_round,
            "seed": self.seed,
            "local_learning_rate": self.local_learning_rate,
            "server_strategy": type(self.server_strategy).__name__,
            "server_settings": self._step.settings,
            "guard": None if guard is None else asdict(guard),
            "correction": self.faults.correction,
            "variates": None if self._variates is None else self._variates.name,
            "masked_updates": self.masked_updates,
            "arrays": {name: [list(array.shape), array.dtype] for name, array in arrays.items()},
        }

    def _save(self, progress: Progress) -> None:
        if self._checkpoints is not None:
            parts = {"logic": self._known.state_dict(), "step": self._step.state_dict()}
            notes = {"num_rounds": self.num_rounds, "attendance": self._attendance.state()}
            self._checkpoints.save(progress.checkpoint(parts, notes, self._fingerprint(progress.arrays)))

    def _resumed(self, initial_arrays: ArrayRecord) -> Progress:
        """Return the progress so far: none, or that of the newest checkpoint."""
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
                "another folder begins a new one"
            )
        found = self._checkpoints.newest(self._fingerprint(initial_arrays)) if self._resume else None
        if found is None:
            return Progress(0, initial_arrays)
        self.num_rounds = found.meta["num_rounds"]
        self._restored = state_of("logic", found)
        self._step.load_state_dict(state_of("step", found))
        self._attendance.load(found.meta["attendance"])
        log(INFO, "Resumed after round %d from %s", found.round, self._checkpoints.path)
        return Progress.of(found, initial_arrays)

    # --- a round ---------------------------------------------------------------------------------------

    def _update_selector(self) -> None:
        """Bring the selector up to date with the roster; create it once the first clients are known."""
        if self._seen_changes == self.roster.changes:
            return
        self._seen_changes = self.roster.changes
        sizes = self._sizes()
        if self._logic is None:
            self._logic = self._create_logic(sizes)
        known = self.selector.num_clients
        if len(sizes) > known:
            each = per_client(self.overrides, self._kind, self.roster, known)
            self._logic.add_clients(sizes[known:], **each)
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
            **per_client(self.overrides, self._kind, self.roster),
            **self.selector_settings,
        )
        logic = RoundLogic(
            selector,
            self.faults,
            local_learning_rate=self.local_learning_rate,
            variates=self._variates,
            updates="masked" if self.masked_updates else "noised" if self._step.is_private else "open",
        )
        if self._restored is not None:
            logic.load_state_dict(self._restored)
            self._restored = None
        return logic

    def _sizes(self) -> NDArray[np.float64]:
        """Return (M,) the data size that counts for each client."""
        overrides = sizes_of(self.roster, self.overrides.sizes)
        return believed_sizes(self.roster.sizes(), overrides, self.faults.guard_settings)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Select this round's clients and return one TRAIN message for each of them.

        Each message's config holds ``server-round`` and, unless the caller's config has one, ``seed``: a
        function of (seed, round, client).

        Raises
        ------
        NotEnoughClientsError
            If too few clients joined within ``deadlines.join`` (first round), or are available.
        """
        clock = clock_of(grid)
        if self._logic is None:
            self._attendance.wait_for_first(grid)
        available = self._attendance.wait_for_quorum(grid)
        began = clock.monotonic()
        self._update_selector()
        opened = self._known.open(server_round, available)
        polled = self._poll.ask(
            grid,
            self.selector,
            server_round,
            opened.candidates,
            self.roster,
            arrays,
            evaluate_config=self._evaluate_config,
            budget=opened.budget,
        )
        chosen = self._known.choose(opened, polled.reports)
        messages = self._messages(chosen, arrays, config, grid, polled.train_config)
        self._training = TrainingRound(chosen, arrays, messages, began, clock)
        log(INFO, "configure_train: selected %s", self._describe(chosen.selection))
        return messages

    def _messages(
        self,
        chosen: Chosen,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        extra: Mapping[str, Any],
    ) -> list[Message]:
        """Return the TRAIN messages to the selected clients, in their order."""
        number, selection = chosen.opened.number, chosen.selection
        clients = [int(client) for client in selection.clients]
        nodes = [self.roster.node_of(client) for client in clients]
        prepared = self._step.configure(number, arrays, config, NodesGrid(grid, nodes))
        content_for = {message.metadata.dst_node_id: message.content for message in prepared}
        if "gradient_variance" in self._kind.feedback_used:
            extra = {**extra, REPORT_VARIANCE: True}
        if self.masked_updates:
            extra = {**extra, REPORT_NORM: True}
        messages = []
        for client, node, weight in zip(clients, nodes, selection.weights, strict=True):
            content = RecordDict(dict(content_for[node]))
            key = self._step.base.configrecord_key
            seed = client_seed(self.seed, number, client)
            mine = {UPDATE_WEIGHT: float(weight * len(clients))} if self.masked_updates else {}
            content[key] = ConfigRecord({"seed": seed, **extra, **mine, **content.config_records[key]})
            control = None if self._variates is None else self._variates.outgoing(client)
            if control is not None:
                content[CONTROL] = to_record(control)
            ttl = self.deadlines.round + CLOCKS_DIFFER
            messages.append(Message(content, node, MessageType.TRAIN, ttl=ttl, group_id=str(number)))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the replies into the new model and let the selector learn.

        A client that failed, was late, or sent an unusable reply has no part in it. A skipped round returns
        (None, None): the model stays as it is.
        """
        training = self._training
        if training is None or training.chosen.opened.number != server_round:
            raise RuntimeError(f"round {server_round} was not configured")
        self._training = None
        answers = training.match(replies, self._step.base.weighted_by_key)
        for client, answer in zip(training.chosen.selection.clients, answers, strict=True):
            if not answer.failure or not answer.report.available:
                self.roster.note(int(client), answer.report)
        self._update_selector()
        received = ReceivedArrays(training.arrays)
        before: Arrays = {name: received[name] for name in received}
        outcome = self._known.finish(training.chosen, before, answers)
        stepped = self._server_step(outcome, before, training.messages)
        record = outcome.closed(stepped.skipped, training.clock.monotonic() - training.began)
        self._log(record)
        if self.on_round is not None:
            self.on_round(record)
        if stepped.arrays is None:
            return None, None
        metrics = self._average_metrics(answers, record)
        metrics["num-clients"] = int(record.feedback.responded.sum())
        if np.isfinite(record.train_loss):
            metrics["train-loss"] = record.train_loss
        return to_record(stepped.arrays), metrics

    def _server_step(self, outcome: Outcome, arrays: Arrays, messages: Sequence[Message]) -> Step:
        """Let the server strategy take its step from the aggregate, or from the models of single clients."""
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
            quarantined = ", ".join(map(name, record.quarantined))
            log(WARNING, "Quarantined in round %d: %s", record.round, quarantined)
        if record.skipped:
            log(WARNING, "Round %d is skipped: %s", record.round, record.skipped)

    def _average_metrics(self, answers: list[Reply], record: RoundRecord) -> MetricRecord:
        """Average the clients' metrics with the server strategy's own function, as FedAvg does."""
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
        return (
            ", ".join(
                f"{self.roster.id_of(client)}{f' x{count}' if count > 1 else ''} (p={probability:.3g})"
                for client, count, probability in drawn
            )
            or "no client"
        )

    # --- federated evaluation, as the server strategy does it ------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the server strategy's EVALUATE messages, to a share ``fraction_evaluate`` of the nodes."""
        here = self.roster.available(grid.get_node_ids())
        count = round(len(here) * self._step.fraction_evaluate)
        if count == 0:
            return []
        drawn = generator(self.seed, server_round, "evaluate").choice(here, count, replace=False)
        shown = NodesGrid(grid, [self.roster.node_of(int(client)) for client in drawn])
        prepared = self._step.base.configure_evaluate(server_round, arrays, ConfigRecord(dict(config)), shown)
        messages = sorted(prepared, key=lambda message: message.metadata.dst_node_id)
        for message in messages:
            message.metadata.ttl = self.deadlines.round + CLOCKS_DIFFER
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the metrics of the usable replies as the server strategy does."""
        key = self._step.base.weighted_by_key
        # Sums of floats depend on the order, which must not be that of arrival.
        replies = sorted(replies, key=lambda reply: self.roster.client_at(reply.metadata.src_node_id) or 0)
        sized = [reply for reply in replies if has_size(reply, key)]
        if len(sized) < len(replies):
            left = len(replies) - len(sized)
            log(WARNING, "Evaluation of round %d: %d replies without a usable size", server_round, left)
        return averaged(
            lambda fit: self._step.base.aggregate_evaluate(server_round, fit),
            sized,
            [reply.content for reply in sized],
            f"evaluations of round {server_round}",
        )


def _fedavg() -> FedAvg:
    """Return FedAvg without evaluation on clients; as an argument of FedAvg, 0.0 would log a warning."""
    strategy = FedAvg()
    strategy.fraction_evaluate = 0.0
    return strategy


def _check_masked(
    kind: type[selectors.Selector], server_strategy: Strategy | None, variates: str | None, faults: Faults
) -> None:
    """Refuse what needs single updates, or leaves some out, where the server sees only their sum."""
    if variates or faults.over_selection > 1 or faults.correction != "equal":
        raise ValueError(
            "masked_updates = True: must be without variates, which need single updates, and without "
            "faults.over_selection and faults.correction = 'rates', since the sum needs every client"
        )
    if "diversity" in kind.feedback_used:
        raise ValueError(
            f"selector = {kind.name!r} with masked_updates = True: learns how far single updates are from "
            "their mean, and they are hidden"
        )
    if server_strategy is not None and view_of(server_strategy) is not View.AGGREGATE:
        raise ValueError(
            f"server_strategy = {type(server_strategy).__name__}() with masked_updates = True: must step "
            "from the average, since single updates are hidden"
        )


def _warn(line: str) -> None:
    log(WARNING, line)
