"""SelectionStrategy: the one Flower Strategy; the named ones are constructions of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from logging import INFO, WARNING
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from . import selectors
from .checkpoint import CheckpointError, CheckpointFolder
from .clients.overrides import Overrides
from .flower.arrays import ReceivedArrays, to_record
from .flower.attendance import Attendance
from .flower.grids import NodesGrid, PollingGrid, clock_of
from .flower.messages import CLOCKS_DIFFER, OpenRound
from .flower.metrics import averaged, has_size
from .flower.polling import Poll
from .numerics.streams import generator
from .options import check_options, check_selector
from .progress import Progress, state_of
from .rounds.aggregation import Arrays
from .rounds.answers import Reply
from .rounds.guard import Guard
from .rounds.logic import Outcome, RoundLogic, RoundRecord, client_seed, enough_answers
from .rounds.response_rates import ResponseRates
from .rounds.variates import CONTROL, create_variates
from .server_steps.step import ServerStep, Step, contributions_of

if TYPE_CHECKING:
    from flwr.serverapp import Grid
    from numpy.typing import NDArray


class SelectionStrategy(Strategy):
    """Lets a selector decide who trains, and aggregates without the bias of that choice.

    Parameters
    ----------
    selector : str
        A name of `strategies.selectors.available()`.
    clients_per_round : int
        K, the size of a cohort; at least 1.
    selector_settings : mapping, optional
        The selector's own settings, for example ``{"alpha": 0.4}``.
    server_strategy : Strategy, optional
        Takes the step from the aggregate: FedAvg (the default), FedAvgM, FedAdam, FedYogi, FedAdagrad or
        FedProx with every selector; others where the mathematics allows it, see `composition`. Of its
        sampling settings only ``fraction_evaluate`` is used.
    seed : int (default: 0)
        Every draw is a function of (seed, round).
    num_rounds : int, optional
        The horizon that some selectors tune themselves to; default: the ``num_rounds`` of `start`. A resumed
        run keeps the one that it began with.
    min_available_clients : int, optional
        Round 1 waits until so many clients are here; at least (and by default) ``clients_per_round``.
    quorum : int (default: 1)
        A round with fewer usable answers changes nothing; it does not begin while fewer are available. Where
        draws are with replacement fewer distinct clients than ``clients_per_round`` train: leave room for it.
    over_selection : float (default: 1)
        Ask so many times ``clients_per_round`` and go on once a cohort's worth (and the quorum) has answered.
        Early answers are not a random sample: see `correction`.
    correction : {"equal", "rates"} (default: "equal")
        How weights make up for who did not answer: all alike (right where everybody fails equally often), or
        by each client's estimated response rate. See `responses`.
    join_deadline : float (default: 600)
        Seconds that round 1 waits for clients; then it goes on with ``clients_per_round`` or more.
    absence_deadline : float (default: 600)
        Seconds that a round waits until ``quorum`` clients are available; then the run ends.
    round_deadline : float (default: 3600)
        Seconds that a round waits for replies; it goes on with whoever answered.
    status_deadline : float (default: 60)
        Seconds that newcomers have to answer; who is silent is asked again later, ever more rarely.
    poll_deadline : float (default: 60)
        Seconds that candidates have to answer what the selector must know before it chooses.
    poll_interval : float (default: 0.1)
        Seconds between two looks for replies.
    poll_with : {"query", "evaluate"} (default: "query")
        How candidates are asked for their loss: by a ``query.loss`` message, or by EVALUATE where the app has
        no handler for that.
    loss_metric : str (default: "loss")
        The metric of EVALUATE replies that is the loss.
    local_learning_rate : float, optional
        Of the clients' SGD. It divides the norms of the updates, see `RoundLogic` (default: 1, which changes
        nothing for selectors that compare clients with each other); SCAFFOLD must be told.
    ask_status : bool (default: True)
        Ask newcomers for their identity, data size and availability with a ``query.status`` message. An app
        without such a handler is served too: its clients are then known by their registered name or node
        id, and their sizes are learned from the ``num-examples`` of their replies.
    client_sizes : mapping of str to float, optional
        Samples that clients hold, by identity; goes before what they say.
    client_settings : mapping, optional
        A selector's settings per client, by name and identity: ``{"groups": {"client-01": "north"}}``.
    guard : bool or mapping (default: True)
        Bounds and rejects bad reports; a mapping holds settings of `Guard`, False believes everything.
    variates : {"fedvarp", "scaffold"}, optional
        What the server remembers of each client to reduce variance or drift; see `variates`.
    masked_updates : bool (default: False)
        The server sees only the sum of the updates. Each client is told its weight (``update-weight``) and
        multiplies its update by it before it adds its mask, and it reports the norm (``report-update-norm``).
        The sum needs everybody: a round in which one is missing is void.
    checkpoint_dir : path, optional
        Save the run there after each round.
    resume : bool (default: False)
        Go on from the last checkpoint in ``checkpoint_dir``; begin if there is none.
    stop : callable, optional
        Called after each round with its number and the server's evaluation; True ends the run.
    on_round : callable, optional
        Called with the `RoundRecord` of each round, before the model is evaluated.

    Raises
    ------
    ValueError
        If a setting is wrong; the message names it, its value and what is allowed.
    TypeError
        If it is of a wrong type, or ``server_strategy`` one that cannot step from an unbiased aggregate.
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
        quorum: int = 1,
        over_selection: float = 1.0,
        correction: Literal["equal", "rates"] = "equal",
        join_deadline: float = 600.0,
        absence_deadline: float = 600.0,
        round_deadline: float = 3600.0,
        status_deadline: float = 60.0,
        poll_deadline: float = 60.0,
        poll_interval: float = 0.1,
        poll_with: Literal["query", "evaluate"] = "query",
        loss_metric: str = "loss",
        local_learning_rate: float | None = None,
        ask_status: bool = True,
        client_sizes: Mapping[str, float] | None = None,
        client_settings: Mapping[str, Mapping[str, Any]] | None = None,
        guard: bool | Mapping[str, Any] = True,
        variates: Literal["fedvarp", "scaffold"] | None = None,
        masked_updates: bool = False,
        checkpoint_dir: str | Path | None = None,
        resume: bool = False,
        stop: Callable[[int, MetricRecord | None], bool] | None = None,
        on_round: Callable[[RoundRecord], None] | None = None,
    ) -> None:
        # Settings are refused here, not when the clients have come.
        horizon = 1 if num_rounds is None else num_rounds
        check_selector(selector, clients_per_round, selector_settings or {}, horizon)
        check_options(
            selector,
            clients_per_round,
            server_strategy=server_strategy,
            seed=seed,
            min_available_clients=min_available_clients,
            quorum=quorum,
            over_selection=over_selection,
            correction=correction,
            seconds={
                "join_deadline": join_deadline,
                "absence_deadline": absence_deadline,
                "round_deadline": round_deadline,
                "status_deadline": status_deadline,
                "poll_deadline": poll_deadline,
                "poll_interval": poll_interval,
            },
            local_learning_rate=local_learning_rate,
            client_settings=client_settings or {},
            guard=guard,
            variates=variates,
            masked_updates=masked_updates,
            checkpoint_dir=checkpoint_dir,
            resume=resume,
        )
        self.selector_name = selector
        self.selector_settings = dict(selector_settings or {})
        self.clients_per_round = clients_per_round
        self.seed = seed
        self.num_rounds = num_rounds
        self.over_selection = over_selection
        self.round_deadline = round_deadline
        self.poll_interval = poll_interval
        self.local_learning_rate = local_learning_rate or 1.0
        self.quorum = quorum
        self.masked_updates = masked_updates
        self.stop = stop
        self.on_round = on_round
        self._kind = selectors.selector_type(selector)
        self._overrides = Overrides(client_sizes or {}, client_settings or {})
        self._guard_settings = {} if guard is True else guard
        if self._guard_settings is not False:
            Guard(0, **self._guard_settings)
        self._corrects_rates = correction == "rates"
        self._variates = create_variates(variates) if variates else None
        self._step = ServerStep(
            server_strategy or _fedavg(),
            selector,
            self.selector_settings,
            clients_per_round=clients_per_round,
            variates=variates,
        )
        self._poll = Poll(
            poll_deadline,
            poll_with,
            loss_metric,
            seed,
            self._step.base.arrayrecord_key,
            self._step.base.configrecord_key,
        )
        self._attendance = Attendance(
            min_available_clients=min_available_clients or clients_per_round,
            clients_per_round=clients_per_round,
            quorum=quorum,
            join_deadline=join_deadline,
            absence_deadline=absence_deadline,
            status_deadline=status_deadline,
            poll_interval=poll_interval,
            ask_status=ask_status,
        )
        self.roster = self._attendance.roster
        self._checkpoints = CheckpointFolder(checkpoint_dir, report=_warn) if checkpoint_dir else None
        self._resume = resume
        self._logic: RoundLogic | None = None
        self._restored: Mapping[str, NDArray[Any]] | None = None  # the logic's, until the clients are here
        self._guard: Guard | None = None
        self._told = -1  # how many of the roster's changes the selector knows
        self._round: OpenRound | None = None
        self._wait = round_deadline  # s; `start` may be told less
        self._evaluate_config = ConfigRecord()

    @property
    def selector(self) -> selectors.Selector:
        """The selector; it exists once the clients are known, which is in the first round of this process."""
        return self._opened.selector

    @property
    def server_strategy(self) -> Strategy:
        """What takes the step from the aggregate: a copy of what was given, or FedAvg."""
        server_strategy: Strategy = self._step.strategy
        return server_strategy

    @property
    def _opened(self) -> RoundLogic:
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
        """Run the rounds up to number ``num_rounds``, as Flower's own strategies do.

        A strategy is for one run: a second `start` would begin with what its selector has learned.

        With ``resume`` the run goes on after the last round in ``checkpoint_dir``; of ``initial_arrays`` only
        names, shapes and types matter then. The results are those of all its rounds.

        Raises
        ------
        NotEnoughClientsError
            If clients stay away for too long. What was reached is in ``checkpoint_dir``.
        CheckpointError
            If ``checkpoint_dir`` belongs to another run, holds one and ``resume`` is False, or cannot be
            written to.
        """
        self.num_rounds = self.num_rounds or num_rounds
        polling = PollingGrid(grid, self.poll_interval)
        self._wait = self.round_deadline if timeout is None else min(timeout, self.round_deadline)
        self._evaluate_config = evaluate_config or ConfigRecord()
        train_config = train_config or ConfigRecord()
        log(INFO, "Starting %s:", type(self).__name__)
        self.summary()
        progress = self._resumed(initial_arrays)
        if progress.round == 0 and evaluate_fn:
            progress.note("evaluate_metrics_serverapp", 0, evaluate_fn(0, progress.arrays))
        while progress.round < num_rounds and not self._is_enough(progress):
            number = progress.round + 1
            log(INFO, "")
            log(INFO, "[ROUND %d/%d]", number, num_rounds)
            questions = list(self.configure_train(number, progress.arrays, train_config, polling))
            enough = None if self._round is None else self._round.enough
            replies = polling.send_and_receive(questions, timeout=self._wait, enough=enough)
            del questions  # each holds the model
            arrays, metrics = self.aggregate_train(number, replies)
            del replies
            progress.move(arrays)
            progress.note("train_metrics_clientapp", number, metrics)
            questions = list(self.configure_evaluate(number, progress.arrays, self._evaluate_config, polling))
            replies = polling.send_and_receive(questions, timeout=self._wait) if questions else []
            progress.note("evaluate_metrics_clientapp", number, self.aggregate_evaluate(number, replies))
            if evaluate_fn:
                progress.note("evaluate_metrics_serverapp", number, evaluate_fn(number, progress.arrays))
            progress.round = number
            self._save(progress)
        log(INFO, "")
        log(INFO, "Over after round %d: %s", progress.round, progress.result)
        return progress.result

    def _is_enough(self, progress: Progress) -> bool:
        if self.stop is None or progress.round == 0:
            return False
        found = progress.result.evaluate_metrics_serverapp.get(progress.round)
        enough = self.stop(progress.round, found)
        if enough:
            log(INFO, "Stopped after round %d: %s", progress.round, found)
        return enough

    # --- on disk ---------------------------------------------------------------------------------------

    def _fingerprint(self, arrays: ArrayRecord) -> dict[str, Any]:
        """Return what must not change over a resume."""
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
            "guard": repr(self._guard_settings),
            "correction": "rates" if self._corrects_rates else "equal",
            "variates": None if self._variates is None else self._variates.name,
            "masked_updates": self.masked_updates,
            "arrays": {name: [list(array.shape), array.dtype] for name, array in arrays.items()},
        }

    def _save(self, progress: Progress) -> None:
        if self._checkpoints is not None:
            parts = {"logic": self._opened.state_dict(), "step": self._step.state_dict()}
            notes = {"num_rounds": self.num_rounds, "attendance": self._attendance.state()}
            self._checkpoints.save(progress.checkpoint(parts, notes, self._fingerprint(progress.arrays)))

    def _resumed(self, initial_arrays: ArrayRecord) -> Progress:
        """Return where the run stands: at the beginning, or after the last round on disk."""
        if self._checkpoints is None:
            return Progress(0, initial_arrays)
        folder = self._checkpoints.path
        try:
            self._checkpoints.claim()
        except OSError as error:
            raise CheckpointError(
                f"checkpoint_dir = {folder}: cannot be made or written to: {error.strerror}"
            ) from None
        if not self._resume and self._checkpoints.rounds():
            raise CheckpointError(
                f"checkpoint_dir = {folder}: holds a run; resume=True goes on with it, "
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

    def _tell_selector(self) -> None:
        """Tell the selector who joined and which sizes are news; make it when the first clients are known."""
        if self._told == self.roster.changes:
            return
        self._told = self.roster.changes
        if self._logic is None and self._guard_settings is not False:
            self._guard = Guard(len(self.roster), **self._guard_settings)
        sizes = self._sizes()
        if self._logic is None:
            self._logic = self._create_logic(sizes)
        known = self.selector.num_clients
        if len(sizes) > known:
            each = self._overrides.per_client(self._kind, self.roster, known)
            self._logic.add_clients(sizes[known:], **each)
        changed = np.flatnonzero(sizes != self.selector.client_sizes)
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
            **self._overrides.per_client(self._kind, self.roster),
            **self.selector_settings,
        )
        logic = RoundLogic(
            selector,
            self.local_learning_rate,
            guard=self._guard,
            quorum=self.quorum,
            responses=ResponseRates(len(sizes)) if self._corrects_rates else None,
            variates=self._variates,
            updates="masked" if self.masked_updates else "noised" if self._step.is_private else "open",
        )
        if self._restored is not None:
            logic.load_state_dict(self._restored)
            self._restored = None
        return logic

    def _sizes(self) -> NDArray[np.float64]:
        """Return (M,) sizes: declared, else said and bounded, else the average of those known."""
        said, overrides = self.roster.sizes(), self._overrides.sizes_of(self.roster.ids())
        if self._guard is not None:
            return self._guard.sizes(said, overrides)
        sizes = np.where(np.isnan(overrides), said, overrides)
        known = np.isfinite(sizes)
        return np.where(known, sizes, sizes[known].mean() if known.any() else 1.0)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose this round's cohort and return one TRAIN message for each of its clients.

        Each message's config holds ``server-round`` and, unless the caller's config has one, ``seed``: a
        function of (seed, round, client).

        Raises
        ------
        NotEnoughClientsError
            If too few clients joined within ``join_deadline`` (first round), or are available.
        """
        clock = clock_of(grid)
        if self._logic is None:
            self._attendance.wait_for_first(grid)
        here = self._attendance.wait_for_quorum(grid)
        began = clock.monotonic()
        self._tell_selector()
        quarantined = np.intersect1d(
            here, [] if self._guard is None else self._guard.quarantined(server_round)
        )
        here = np.setdiff1d(here, quarantined)
        among = None if len(here) == self.selector.num_clients else here
        budget = None if self.over_selection == 1 else ceil(self.clients_per_round * self.over_selection)
        asked = self._poll.ask(
            grid,
            self.selector,
            server_round,
            among,
            self.roster,
            arrays,
            evaluate_config=self._evaluate_config,
            budget=budget,
        )
        reports, clipped = asked.reports, {}
        if self._guard is not None and asked.candidates is not None and reports is not None:
            reports, found = self._guard.judge_reports(server_round, asked.candidates, reports)
            clipped = {int(asked.candidates[position]): what for position, what in found.items()}
        selection = self._opened.choose(
            server_round, among, candidates=asked.candidates, reports=reports, budget=budget
        )
        enough = selection.clients.size
        if budget is not None:
            enough = enough_answers(selection, self.clients_per_round, self.quorum)
        self._round = OpenRound(
            number=server_round,
            began=began,
            arrays=arrays,
            selection=selection,
            messages=self._questions(server_round, arrays, config, grid, selection, asked.train_config),
            num_available=len(here),
            clock=clock,
            enough=enough,
            quarantined=tuple(int(client) for client in quarantined),
            clipped=clipped,
        )
        log(INFO, "configure_train: chose %s", self._describe(selection))
        return self._round.messages

    def _questions(
        self,
        number: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        selection: selectors.Selection,
        extra: Mapping[str, Any],
    ) -> list[Message]:
        """Return the TRAIN messages to the chosen clients, in their order."""
        clients = [int(client) for client in selection.clients]
        nodes = [self.roster.node_of(client) for client in clients]
        prepared = self._step.configure(number, arrays, config, NodesGrid(grid, nodes))
        content_for = {message.metadata.dst_node_id: message.content for message in prepared}
        if "gradient_variance" in self._kind.feedback_used:
            extra = {**extra, "report-gradient-variance": True}
        if self.masked_updates:
            extra = {**extra, "report-update-norm": True}
        messages = []
        for client, node, weight in zip(clients, nodes, selection.weights, strict=True):
            content = RecordDict(dict(content_for[node]))
            key = self._step.base.configrecord_key
            seed = client_seed(self.seed, number, client)
            mine = {"update-weight": float(weight * len(clients))} if self.masked_updates else {}
            content[key] = ConfigRecord({"seed": seed, **extra, **mine, **content.config_records[key]})
            control = None if self._variates is None else self._variates.outgoing(client)
            if control is not None:
                content[CONTROL] = to_record(control)
            ttl = self.round_deadline + CLOCKS_DIFFER
            messages.append(Message(content, node, MessageType.TRAIN, ttl=ttl, group_id=str(number)))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold the replies into the new model and let the selector learn.

        Whoever failed, was late or sent garbage is left out; a void round leaves the model as it is
        (None, None).
        """
        opened = self._round
        if opened is None or opened.number != server_round:
            raise RuntimeError(f"round {server_round} was not configured")
        self._round = None
        answers = opened.match(replies, self._step.base.weighted_by_key)
        for client, answer in zip(opened.selection.clients, answers, strict=True):
            if not answer.failure or not answer.report.available:
                self.roster.note(int(client), answer.report)
        self._tell_selector()
        received = ReceivedArrays(opened.arrays)
        arrays: Arrays = {name: received[name] for name in received}
        outcome = self._opened.finish(server_round, opened.selection, arrays, answers, opened.num_available)
        stepped = self._server_step(opened, arrays, outcome)
        record = replace(
            outcome.record,
            skipped=stepped.skipped,
            quarantined=opened.quarantined,
            clipped={**opened.clipped, **outcome.record.clipped},
            seconds=opened.clock.monotonic() - opened.began,
        )
        self._tell(record)
        if self.on_round is not None:
            self.on_round(record)
        if stepped.arrays is None:
            return None, None
        metrics = self._average_metrics(answers, record)
        metrics["num-clients"] = int(record.feedback.responded.sum())
        if np.isfinite(record.train_loss):
            metrics["train-loss"] = record.train_loss
        return to_record(stepped.arrays), metrics

    def _server_step(self, opened: OpenRound, arrays: Arrays, outcome: Outcome) -> Step:
        """Let the server strategy step from the aggregate, or from what single clients sent."""
        if outcome.arrays is None:
            return Step(None, outcome.record.skipped)
        each = contributions_of(outcome)
        return self._step.step(outcome.record.round, arrays, outcome.arrays, each, opened.messages)

    def _tell(self, record: RoundRecord) -> None:
        """Log what went wrong in a round."""
        name = self.roster.id_of
        for client, reason in record.failures.items():
            log(WARNING, "%s left out of round %d: %s", name(client), record.round, reason)
        for client, what in record.clipped.items():
            log(WARNING, "%s in round %d: %s", name(client), record.round, what)
        if record.quarantined:
            log(WARNING, "Put aside for bad reports: %s", ", ".join(map(name, record.quarantined)))
        if record.skipped:
            log(WARNING, "Round %d changed nothing: %s", record.round, record.skipped)

    def _average_metrics(self, answers: list[Reply], record: RoundRecord) -> MetricRecord:
        """Average what the clients measured, with the server strategy's own function, as FedAvg does."""
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
            or "nobody"
        )

    # --- federated evaluation, as the server strategy does it ------------------------------------------

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the server strategy's EVALUATE messages, to a share ``fraction_evaluate`` of the nodes."""
        here = self.roster.here(grid.get_node_ids())
        count = round(len(here) * self._step.fraction_evaluate)
        if count == 0:
            return []
        drawn = generator(self.seed, server_round, "evaluate").choice(here, count, replace=False)
        shown = NodesGrid(grid, [self.roster.node_of(int(client)) for client in drawn])
        prepared = self._step.base.configure_evaluate(server_round, arrays, ConfigRecord(dict(config)), shown)
        messages = sorted(prepared, key=lambda message: message.metadata.dst_node_id)
        for message in messages:
            message.metadata.ttl = self.round_deadline + CLOCKS_DIFFER
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the clients' metrics as the server strategy does, over the replies that can be used."""
        key = self._step.base.weighted_by_key
        # In an order that is not that of arrival: sums of floats depend on it.
        replies = sorted(replies, key=lambda reply: self.roster.client_at(reply.metadata.src_node_id) or 0)
        sized = [reply for reply in replies if has_size(reply, key)]
        if len(sized) < len(replies):
            left = len(replies) - len(sized)
            log(WARNING, "%d answers without a usable size in the evaluation of round %d", left, server_round)
        return averaged(
            lambda fit: self._step.base.aggregate_evaluate(server_round, fit),
            sized,
            [reply.content for reply in sized],
            f"evaluations of round {server_round}",
        )


def _fedavg() -> FedAvg:
    """Return FedAvg without evaluation on clients; said to its constructor, it warns of that each time."""
    strategy = FedAvg()
    strategy.fraction_evaluate = 0.0
    return strategy


def _warn(line: str) -> None:
    log(WARNING, line)
