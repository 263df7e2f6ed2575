"""Asks candidates for the reports that the selector must know before it selects."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from math import nan
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from ..clients.printable import counted, printable
from ..clients.reports import (
    GROUP,
    GROUP_NAMES,
    INVITATION,
    LOSS,
    NORM,
    REPORT_VARIANCE,
    UPDATE,
    UPDATE_SCALES,
    Report,
)
from ..clients.roster import Roster
from ..options import AFTER_TRAINING, Polling
from ..rounds.seeds import client_seed
from ..rounds.waiting.wait_time import Wait
from ..selectors import Selector
from .arrays import of_kind
from .diversities import diversities
from .exchanges import ExchangeGrid
from .messages import ENOUGH, lacks_handler, loss_name, question, read_loss, read_report, why_failed

_EVALUATES = (
    "The clients' app has no %s handler, so the error in that client's log was to be expected, and no other "
    "client is asked: candidates evaluate the model instead, on all of their test data. "
    "Polling(poll_with='evaluate') evaluates from the start; a client app that is a "
    "flwr_cohort.ReportingClientApp has the handler"
)
WaitFor = Callable[["NDArray[np.int64]"], "Wait | None"]
"""A function that takes clients (n,), and returns how long to wait for their answers. If it returns None, the
wait lasts until the deadline."""


class MissingHandlerError(RuntimeError):
    """The clients' app has no handler that answers the selector's poll."""


class Asked(NamedTuple):
    """The answers to a poll.

    ``reports`` (n,): the candidates' numbers by the name of the report, as `RoundLogic.choose` takes them;
    NaN = no answer. None if the selector needs no poll. ``train_config``: Entries that the config of the
    round's TRAIN messages must hold in addition.
    """

    reports: dict[str, NDArray[np.float64]] | None = None
    train_config: Mapping[str, list[float] | list[str]] = {}


@dataclass(frozen=True)
class PollRound:
    """The round of a poll: what its questions hold, and how long their answers are awaited.

    If nothing is known about the clients' app yet (``probes``), one client is asked first, and the others
    only if the app has a handler for the question: without a handler, each question logs an error in the
    client. If the run cannot go on without the answers, two more clients are asked before the run ends, since
    a single client may be wrong, or lie.
    """

    grid: Grid
    selector: Selector
    number: int
    arrays: ArrayRecord  # w_t
    evaluate_config: Mapping[str, Any] = field(default_factory=dict)  # of EVALUATE messages
    train_config: Mapping[str, Any] = field(default_factory=dict)  # of questions for which clients train
    learning_rate: float = 1.0  # norms and diversities of updates are divided by it
    budget: float | None = None  # as for `Selector.select`
    wait_for: WaitFor = lambda clients: None
    train_deadline: float | None = None  # s, the longest wait if clients train; None: that of `Poll`
    probes: bool = False


@dataclass
class Poll:
    """Asks candidates for losses, for measurements of updates, or for what `flics-private` needs.

    With `flics-private`, a candidate first answers with its group by randomised response, and then states
    whether it takes part.

    The report of a candidate is NaN if the candidate answers late, fails, reports itself unavailable, or
    sends anything but a finite number. The candidate then counts as unavailable in this round.

    ``roster``: the clients' nodes. Clients that report themselves unavailable are noted there. ``polling``:
    how the server asks for losses: with ``query.loss``, or with EVALUATE and the name of a metric. A client
    without a ``query.loss`` handler is asked with EVALUATE in the same round. ``deadline`` (default: 60): the
    longest wait of each exchange of questions and answers, in seconds, > 0. A poll of `flics-private` has two
    exchanges, and so has a poll for losses if clients have no ``query.loss``. ``seed`` (default: 0): the seed
    of the run. The mini-batch of `cpow-d` is a function of (seed, round, client). ``arrays_key``,
    ``config_key`` (default: "arrays", "config"): the names that the app expects for the array record and the
    config record of a message.
    """

    roster: Roster
    polling: Polling = field(default_factory=Polling)
    deadline: float = 60.0
    seed: int = 0
    arrays_key: str = "arrays"
    config_key: str = "config"
    _evaluates: bool | None = field(default=None, init=False)  # whether to ask with EVALUATE; None: undecided
    _ever_answered: bool = field(default=False, init=False)
    _unable: set[int] = field(default_factory=set, init=False)  # clients without a handler for the poll
    _asked: set[str] = field(default_factory=set, init=False)  # the kinds of questions that were asked
    # name of a report -> clients that answered without it
    _answered_without: dict[str, set[int]] = field(default_factory=dict, init=False)
    _lacking: set[int] = field(default_factory=set, init=False)  # clients whose EVALUATE replies have no loss

    def ask(self, round: PollRound, candidates: NDArray[np.int64] | None) -> Asked:
        """Ask the candidates (n,) of `Selector.candidates` for the reports that the selector needs.

        Raises a MissingHandlerError if no client has ever answered with a usable number, and three clients
        (or all clients, if there are fewer) have no handler, or answer without the number.
        """
        if candidates is None:
            return Asked()
        if "group" in round.selector.polls_for:
            return self._invite(round, candidates)
        if round.selector.polls_for & AFTER_TRAINING:
            return Asked(self._updates(round, candidates))
        return Asked({"loss": self._losses(round, candidates)})

    def ask_norms(self, round: PollRound, clients: NDArray[np.int64]) -> NDArray[np.float64]:
        """Ask clients (n,) for ||w_m - w_t||, the norm of an update that they compute and do not send.

        Return (n,) the norms, not divided by a learning rate; NaN = no answer. Unless the config of the round
        holds ``seed``, it is that of round 0, so that no later round repeats these mini-batches.

        Raises a MissingHandlerError if no client answers with a norm, and three clients (or all, if fewer
        were asked) lack the handler.
        """
        patient = replace(round, wait_for=lambda clients: None)
        reports, unable = self._query(patient, NORM, clients, self._train_configs(round, clients, 0))
        norms = _values(reports, "update_norm", clients.size)
        if not np.isfinite(norms).any() and unable.size >= min(ENOUGH, max(1, clients.size)):
            raise MissingHandlerError(
                f"ask_norms = True needs the handler {NORM}, and the clients' app has none"
            )
        answered = np.isfinite(norms).sum()
        log(INFO, "Asked %s for norms: %d answered", counted(norms.size, "client"), answered)
        self._unable.clear()  # clients without this handler may have the handler of the selector's poll
        return norms

    def _train_configs(
        self, round: PollRound, clients: NDArray[np.int64], seed_round: int, **more: Any
    ) -> list[ConfigRecord]:
        """Return the configs of questions for which clients train, with the seeds of a round."""
        return [
            ConfigRecord(
                {
                    "seed": client_seed(self.seed, seed_round, int(client)),
                    "server-round": round.number,
                    **more,
                    **round.train_config,
                }
            )
            for client in clients
        ]

    def _updates(self, round: PollRound, candidates: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        """Let all candidates train, and return by name the numbers (n,) that the selector needs.

        A candidate that is then selected computes the same update again. Candidates send their trained models
        only if the selector needs diversities; otherwise they send only numbers.
        """
        selector, wanted = round.selector, round.selector.polls_for
        kind = UPDATE if "diversity" in wanted else NORM
        variance = {REPORT_VARIANCE: True} if "gradient_variance" in wanted else {}
        configs = self._train_configs(round, candidates, round.number, **variance)
        contents: dict[int, RecordDict] = {}
        reports, unable = self._query(round, kind, candidates, configs, keep=contents)
        found = {name: _values(reports, name, candidates.size) for name in wanted - {"diversity"}}
        if "diversity" in wanted:
            found["diversity"] = diversities(
                round.arrays,
                contents,
                selector.client_sizes[candidates],
                lambda position: self.roster.id_of(int(candidates[position])),
            )
        for name, values in found.items():
            if np.isfinite(values).any() or self._ever_answered:
                continue
            without = self._answered_without.setdefault(name, set())
            without.update(int(candidates[each]) for each in reports)
            lacks_number = self._is_enough(without)
            if lacks_number or (unable.size and self._is_enough(self._unable)):
                why = f"its replies to {kind} hold none" if lacks_number else f"it has no {kind} handler"
                raise MissingHandlerError(
                    f"{selector.name} needs the {name.replace('_', ' ')} of all clients before it selects, "
                    f"and the clients' app reports none: {why}"
                )
        self._note_answers(round, "update", np.sum(list(found.values()), axis=0))
        for name in found.keys() & {"update_norm", "diversity"}:
            found[name] /= round.learning_rate
        return found

    def _losses(self, round: PollRound, candidates: NDArray[np.int64]) -> NDArray[np.float64]:
        selector = round.selector
        losses = np.full(candidates.size, nan)
        unable = np.arange(candidates.size)  # positions of candidates without a query.loss handler
        probes = round.probes and LOSS not in self._asked
        if self._evaluates is None:
            default = "evaluate" if round.probes and not selector.poll_settings else "query"
            self._evaluates = (self.polling.poll_with or default) == "evaluate"
        if not self._evaluates:
            configs = []
            for client in candidates:
                seed = client_seed(self.seed, round.number, int(client), "loss")
                own = {"server-round": round.number, "seed": seed, **selector.poll_settings}
                configs.append(ConfigRecord({**round.evaluate_config, **own}))
            reports, unable = self._query(round, LOSS, candidates, configs, deadline=self.deadline)
            losses = _values(reports, "loss", candidates.size)
            # If true, later polls send EVALUATE at once.
            self._evaluates = candidates.size == unable.size and (probes or self._is_enough(self._unable))
            if self._evaluates and probes:
                log(WARNING, _EVALUATES, LOSS)
        if unable.size:
            config = ConfigRecord({**round.evaluate_config, "server-round": round.number})
            asked = candidates[unable]
            contents = [RecordDict({self.arrays_key: round.arrays, self.config_key: config}) for _ in asked]
            replies, _ = self._exchange(round, MessageType.EVALUATE, asked, contents, self.deadline)
            losses[unable], reasons = self._read_losses(replies)
            self._lacking.update(int(client) for client, why in zip(asked, reasons, strict=True) if why)
            lacking = next(filter(None, reasons), "")
            is_missing = lacking and self._is_enough(self._lacking)
            if is_missing and not np.isfinite(losses).any() and not self._ever_answered:
                none = f"the clients' app reports none: it has no {LOSS} handler, and "
                raise MissingHandlerError(
                    f"{selector.name} needs the loss of its candidates, and "
                    f"{none if LOSS in self._asked else ''}{lacking}"
                )
        self._note_answers(round, "loss", losses)
        return losses

    def _is_enough(self, clients: set[int]) -> bool:
        """Return whether these are `ENOUGH` clients, or all clients, so that the server believes them."""
        return len(clients) >= min(ENOUGH, len(self.roster))

    def _read_losses(self, replies: Sequence[Message | None]) -> tuple[list[float], list[str]]:
        """Return the losses (n,) in the replies, NaN = none, and what the app lacks (n,), "" = nothing."""
        losses, lacking = [], [""] * len(replies)
        for position, reply in enumerate(replies):
            losses.append(nan)
            if reply is None:
                continue
            if lacks_handler(reply):
                lacking[position] = "it has no evaluate handler"
            elif reply.has_error():
                log(WARNING, "A candidate could not be evaluated: %s", why_failed(reply))
            else:
                records = of_kind(reply.content, MetricRecord).values()
                metrics = sorted(name for each in records for name in each)
                losses[-1] = read_loss(reply.content, self.polling.loss_metric)
                if loss_name(metrics, self.polling.loss_metric) is None:
                    wanted = repr(self.polling.loss_metric or "loss")
                    lacking[position] = (
                        f"its evaluate handler returns {printable(', '.join(metrics)) or 'nothing'}, but not "
                        f"{wanted} (Polling(loss_metric=...) names the metric that is the loss)"
                    )
        return losses, lacking

    def _invite(self, round: PollRound, candidates: NDArray[np.int64]) -> Asked:
        """Ask for randomised groups, then send the selector's invitation, if any; see `flics_private`."""
        selector, number, size = round.selector, round.number, candidates.size
        names = {GROUP_NAMES: list(selector.settings.group_names)}
        config = ConfigRecord({"server-round": number, **selector.poll_settings, **names})
        num_groups = int(selector.poll_settings["num-groups"])
        reports, unable = self._query(
            round, GROUP, candidates, [config] * size, deadline=self.deadline, model=False
        )
        groups = np.full(size, nan)
        for position, report in reports.items():
            if isinstance(report.group, int) and 0 <= report.group < num_groups:
                groups[position] = report.group
        is_missing = unable.size and self._is_enough(self._unable)
        if is_missing and not np.isfinite(groups).any() and not self._ever_answered:
            raise MissingHandlerError(
                f"{selector.name} needs the handlers {GROUP} and {INVITATION}, and the clients' app has none"
            )
        self._note_answers(round, "group", groups)
        invitation = selector.invitation(number, candidates, {"group": groups}, budget=round.budget)
        if invitation is None:  # the selector selects by the groups; the clients decide nothing
            return Asked({"group": groups})
        position_of = {int(client): position for position, client in enumerate(candidates)}
        configs = [
            ConfigRecord({"server-round": number, "num-groups": num_groups, "rates": rates.tolist(), **names})
            for rates in invitation.rates[invitation.versions]
        ]
        invited = invitation.clients
        reports, _ = self._query(round, INVITATION, invited, configs, deadline=self.deadline, model=False)
        accepts = np.full(size, nan)
        for i, report in reports.items():
            if report.accepts is not None:
                accepts[position_of[int(invited[i])]] = report.accepts
        scales = {UPDATE_SCALES: invitation.scales.tolist()}
        return Asked({"group": groups, "accepts": accepts}, {**scales, **names})

    def _query(
        self,
        round: PollRound,
        kind: str,
        clients: NDArray[np.int64],
        configs: Sequence[ConfigRecord],
        *,
        deadline: float | None = None,
        model: bool = True,
        keep: dict[int, RecordDict] | None = None,
    ) -> tuple[dict[int, Report], NDArray[np.int64]]:
        """Return the report of each client that answered, and the clients without a handler, by position.

        The questions hold the ``configs`` (n,) and, if ``model``, the model w_t. Without a ``deadline``, the
        clients must train for their answers. The content of each answer is stored in ``keep``, if given.
        """
        records = {self.arrays_key: round.arrays} if model else {}
        contents = [RecordDict({**records, self.config_key: config}) for config in configs]
        deadline = deadline or round.train_deadline or self.deadline
        replies, spared = self._exchange(round, kind, clients, contents, deadline)
        reports, unable = {}, [*spared]
        for position, reply in enumerate(replies):
            if reply is None:
                continue
            client = int(clients[position])
            if lacks_handler(reply):
                unable.append(position)
                self._unable.add(client)
                continue
            name = self.roster.id_of(client)
            if reply.has_error():
                log(WARNING, "%s did not answer %s: %s", name, kind, why_failed(reply))
                continue
            try:
                report = read_report(reply.content)
            except Exception as error:  # a reply may cause any error, and must not end the round
                log(WARNING, "%s sent an unusable answer to %s: %s", name, kind, printable(error))
                continue
            if report.available:
                reports[position] = report
                if keep is not None:
                    keep[position] = reply.content
            else:  # note only the availability: the roster must not remember a randomised group
                self.roster.note(client, Report(available=False))
        return reports, np.sort(np.array(unable, dtype=np.int64))

    def _exchange(
        self,
        round: PollRound,
        kind: str,
        clients: NDArray[np.int64],
        contents: Sequence[RecordDict],
        deadline: float,
    ) -> tuple[list[Message | None], list[int]]:
        """Send one question to each client, and return (n,) the replies; None = no reply in time.

        The result also holds the positions of the clients that were spared the question, because the app has
        no handler for it, see `PollRound`.
        """
        grid = ExchangeGrid.of(round.grid, self.polling.interval)
        replies: list[Message | None] = [None] * len(clients)
        probes: tuple[int, ...] = ()  # how many clients are asked at first, and then in addition
        if round.probes and kind not in self._asked:
            probes = (1,) if kind == LOSS else (1, ENOUGH - 1)
        self._asked.add(kind)
        first = stage = 0
        lacking = True  # whether all clients that were asked lack the handler
        while first < len(clients):
            count = probes[stage] if lacking and stage < len(probes) else len(clients)
            last = min(first + count, len(clients))
            part = slice(first, last)
            questions = [
                question(kind, self.roster.node_of(int(client)), deadline, content, round.number)
                for client, content in zip(clients[part], contents[part], strict=True)
            ]
            wait = round.wait_for(clients[part])
            if wait is not None:  # the quorum is one of all answers
                wait.quorum = max(0, wait.quorum - sum(reply is not None for reply in replies[:first]))
            answers = grid.send_and_receive(questions, timeout=deadline, wait=wait)
            position_of = {message.metadata.message_id: first + i for i, message in enumerate(questions)}
            for answer in answers:
                position = position_of.pop(answer.metadata.reply_to_message_id, None)
                if position is not None:
                    replies[position] = answer
            first, stage = last, stage + 1
            lacking = lacking and all(reply and lacks_handler(reply) for reply in replies[part])
            if lacking and stage == len(probes):
                break
        return replies, list(range(first, len(clients)))

    def _note_answers(self, round: PollRound, kind: str, values: NDArray[np.float64]) -> None:
        """Remember whether any candidate has ever answered, and log how many did not answer now."""
        answered = int(np.isfinite(values).sum())
        self._ever_answered |= answered > 0
        if answered < values.size:
            log(
                WARNING,
                "Round %d: %d of the %d candidates of %s reported their %s; the others count as unavailable",
                round.number,
                answered,
                values.size,
                round.selector.name,
                kind,
            )


def _values(reports: Mapping[int, Report], name: str, size: int) -> NDArray[np.float64]:
    values = np.full(size, nan)
    for position, report in reports.items():
        value = getattr(report, name)
        values[position] = nan if value is None else value
    return values
