"""Asks candidates for the reports that the selector must know before it selects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from logging import INFO, WARNING
from math import nan
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log

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
from ..options import AFTER_TRAINING, Polling
from ..rounds.seeds import client_seed
from .contents import of_kind
from .diversities import diversities
from .exchanges import ExchangeGrid
from .messages import (
    ENOUGH,
    lacks_handler,
    loss_name,
    question,
    read_loss,
    read_report,
    why_failed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flwr.app import ArrayRecord
    from flwr.serverapp import Grid
    from numpy.typing import NDArray

    from ..clients.roster import Roster
    from ..rounds.waiting.wait_time import Wait
    from ..selectors import Selector


WaitFor = Callable[["NDArray[np.int64]"], "Wait | None"]
"""A function that takes clients (n,), and returns how long to wait for their answers. If it returns None, the
wait lasts until the deadline."""


class MissingHandlerError(RuntimeError):
    """The clients' app has no handler that answers the selector's poll."""


class Asked(NamedTuple):
    """The answers to a poll.

    Attributes
    ----------
    reports : dict of str to ndarray, shape (n,), or None
        The candidates' numbers by the name of the report, as `RoundLogic.choose` takes them; NaN = no answer.
        None if the selector needs no poll.
    train_config : mapping of str to list of float or str
        Entries that the config of the round's TRAIN messages must hold in addition.
    """

    reports: dict[str, NDArray[np.float64]] | None = None
    train_config: Mapping[str, list[float] | list[str]] = {}


@dataclass
class Poll:
    """Asks candidates for losses, for measurements of updates, or for what `flics-private` needs.

    With `flics-private`, a candidate first answers with its group by randomised response, and then states
    whether it takes part.

    The report of a candidate is NaN if the candidate answers late, fails, reports itself unavailable, or
    sends anything but a finite number. The candidate then counts as unavailable in this round.

    Attributes
    ----------
    deadline : float (default: 60)
        The longest wait of each exchange of questions and answers, in seconds, > 0. A poll of
        `flics-private` has two exchanges. A poll for losses has a second exchange if clients have no
        ``query.loss`` handler.
    polling : Polling
        How the server asks for losses: with ``query.loss``, or with EVALUATE and the name of a metric. A
        client without a ``query.loss`` handler is asked with EVALUATE in the same round.
    seed : int (default: 0)
        The seed of the run. The mini-batch of `cpow-d` is a function of (seed, round, client).
    arrays_key, config_key : str (default: "arrays", "config")
        The names that the app expects for the array record and the config record of a message.
    probes : bool (default: False)
        Whether nothing is known about the clients' app yet. Then one client is asked first, and the others
        only if the app has a handler for the question: without a handler, each question logs an error in the
        client. If the run cannot go on without the answers, two more clients are asked before the run ends,
        since a single client may be wrong, or lie.
    """

    deadline: float = 60.0
    polling: Polling = field(default_factory=Polling)
    seed: int = 0
    arrays_key: str = "arrays"
    config_key: str = "config"
    probes: bool = False
    _evaluates: bool | None = field(default=None, init=False)  # whether to ask with EVALUATE; None: undecided
    _ever_answered: bool = field(default=False, init=False)
    _unable: set[int] = field(default_factory=set, init=False)  # clients without a handler for the poll
    _asked: set[str] = field(default_factory=set, init=False)  # the kinds of questions that were asked
    # name of a report -> clients that answered without it
    _answered_without: dict[str, set[int]] = field(default_factory=dict, init=False)
    _lacking: set[int] = field(default_factory=set, init=False)  # clients whose EVALUATE replies have no loss

    def ask(
        self,
        grid: Grid,
        selector: Selector,
        round: int,
        candidates: NDArray[np.int64] | None,
        roster: Roster,
        arrays: ArrayRecord,
        *,
        evaluate_config: ConfigRecord | None = None,
        train_config: ConfigRecord | None = None,
        learning_rate: float = 1.0,
        budget: float | None = None,
        wait_for: WaitFor = lambda clients: None,
        train_deadline: float | None = None,
    ) -> Asked:
        """Ask the candidates for the reports that the selector needs.

        Parameters
        ----------
        grid : Grid
            The grid that sends the messages.
        selector : Selector
            The selector; its `polls_for` lists the reports.
        round : int
            The round, >= 1.
        candidates : ndarray of int, shape (n,), or None
            The clients to ask, as `Selector.candidates` returns them; None if the selector needs no poll.
        roster : Roster
            The roster, which holds the clients' nodes. Clients that report themselves unavailable are noted
            there.
        arrays : ArrayRecord
            The round's model, w_t.
        evaluate_config : ConfigRecord, optional
            The config of EVALUATE messages, to which ``server-round`` is added (default: empty).
        train_config : ConfigRecord, optional
            The config of TRAIN messages, for polls in which candidates train (default: empty).
        learning_rate : float (default: 1.0)
            The number by which norms and diversities of updates are divided, > 0, as in `RoundLogic`.
        budget : float, optional
            The selection size of this round, as for `Selector.select` (default: the selector's
            `clients_per_round`).
        wait_for : callable, optional
            Takes clients, and returns how long to wait for their answers (default: until the deadline).
        train_deadline : float, optional
            The longest wait in seconds if candidates train for their answers (default: ``deadline``).

        Raises
        ------
        MissingHandlerError
            If no client has ever answered with a usable number, and three clients (or all clients, if there
            are fewer) have no handler, or answer without the number.
        """
        if candidates is None:
            return Asked()
        if "group" in selector.polls_for:
            return self._invite(grid, selector, round, candidates, roster, budget, wait_for)
        if selector.polls_for & AFTER_TRAINING:
            config = train_config or ConfigRecord()
            reports = self._updates(
                grid, selector, round, candidates, roster, arrays, config, wait_for, train_deadline
            )
            for name in ("update_norm", "diversity"):
                if name in reports:
                    reports[name] /= learning_rate
            return Asked(reports)
        losses = self._losses(grid, selector, round, candidates, roster, arrays, evaluate_config, wait_for)
        return Asked({"loss": losses})

    def ask_norms(
        self,
        grid: Grid,
        clients: NDArray[np.int64],
        roster: Roster,
        arrays: ArrayRecord,
        *,
        config: ConfigRecord,
        round: int,
        deadline: float,
    ) -> NDArray[np.float64]:
        """Ask clients for ||w_m - w_t||, the norm of an update that they compute and do not send.

        Parameters
        ----------
        grid, roster, arrays, round
            As for `ask`.
        clients : ndarray of int, shape (n,)
            The clients to ask.
        config : ConfigRecord
            The config of TRAIN messages. Unless it holds ``seed``, the seed of round 0 is added, so that no
            later round repeats these mini-batches.
        deadline : float
            The longest wait in seconds, > 0.

        Returns
        -------
        ndarray, shape (n,)
            The norms, not divided by a learning rate; NaN = no answer.

        Raises
        ------
        MissingHandlerError
            If no client answers with a norm, and three clients (or all, if fewer were asked) lack the
            handler.
        """
        configs = [
            ConfigRecord({"seed": client_seed(self.seed, 0, int(client)), "server-round": round, **config})
            for client in clients
        ]
        reports, unable = self._query(
            grid, NORM, round, clients, roster, configs, lambda clients: None, arrays, deadline=deadline
        )
        norms = np.full(clients.size, nan)
        for position, report in reports.items():
            norms[position] = nan if report.update_norm is None else report.update_norm
        if not np.isfinite(norms).any() and unable.size >= min(ENOUGH, max(1, clients.size)):
            raise MissingHandlerError(
                f"ask_norms = True needs the handler {NORM}, and the clients' app has none"
            )
        log(
            INFO,
            "Asked %s for norms: %d answered",
            counted(norms.size, "client"),
            np.isfinite(norms).sum(),
        )
        self._unable.clear()  # clients without this handler may have the handler of the selector's poll
        return norms

    def _updates(
        self,
        grid: Grid,
        selector: Selector,
        round: int,
        candidates: NDArray[np.int64],
        roster: Roster,
        arrays: ArrayRecord,
        config: ConfigRecord,
        wait_for: WaitFor,
        deadline: float | None,
    ) -> dict[str, NDArray[np.float64]]:
        """Let all candidates train, and return by name the numbers (n,) that the selector needs.

        A candidate that is then selected computes the same update again. Candidates send their trained models
        only if the selector needs diversities; otherwise they send only numbers.
        """
        wanted = selector.polls_for
        kind = UPDATE if "diversity" in wanted else NORM
        variance = {REPORT_VARIANCE: True} if "gradient_variance" in wanted else {}
        configs = [
            ConfigRecord(
                {
                    "seed": client_seed(self.seed, round, int(client)),
                    "server-round": round,
                    **variance,
                    **config,
                }
            )
            for client in candidates
        ]
        contents: dict[int, RecordDict] = {}
        reports, unable = self._query(
            grid, kind, round, candidates, roster, configs, wait_for, arrays, deadline=deadline, keep=contents
        )
        found = {name: np.full(candidates.size, nan) for name in wanted}
        for position, report in reports.items():
            for name in wanted - {"diversity"}:
                value = getattr(report, name)
                found[name][position] = nan if value is None else value
        if "diversity" in wanted:
            sizes = selector.client_sizes[candidates]
            found["diversity"] = diversities(
                arrays, contents, sizes, lambda position: roster.id_of(int(candidates[position]))
            )
        for name, values in found.items():
            if np.isfinite(values).any() or self._ever_answered:
                continue
            without = self._answered_without.setdefault(name, set())
            without.update(int(candidates[each]) for each in reports)
            lacks_number = self._is_enough(without, roster)
            if lacks_number or (unable.size and self._is_enough(self._unable, roster)):
                why = f"its replies to {kind} hold none" if lacks_number else f"it has no {kind} handler"
                raise MissingHandlerError(
                    f"{selector.name} needs the {name.replace('_', ' ')} of all clients before it selects, "
                    f"and the clients' app reports none: {why}"
                )
        self._note_answers(selector, "update", round, np.sum(list(found.values()), axis=0))
        return found

    def _losses(
        self,
        grid: Grid,
        selector: Selector,
        round: int,
        candidates: NDArray[np.int64],
        roster: Roster,
        arrays: ArrayRecord,
        evaluate_config: ConfigRecord | None,
        wait_for: WaitFor,
    ) -> NDArray[np.float64]:
        """Return (n,) the candidates' losses; NaN = no usable answer."""
        losses = np.full(candidates.size, nan)
        unable = np.arange(candidates.size)  # positions of candidates without a query.loss handler
        probes = self.probes and LOSS not in self._asked
        if self._evaluates is None:
            default = "evaluate" if self.probes and not selector.poll_settings else "query"
            self._evaluates = (self.polling.poll_with or default) == "evaluate"
        if not self._evaluates:
            configs = []
            for client in candidates:
                seed = client_seed(self.seed, round, int(client), "loss")
                own = {"server-round": round, "seed": seed, **selector.poll_settings}
                configs.append(ConfigRecord({**(evaluate_config or {}), **own}))
            reports, unable = self._query(grid, LOSS, round, candidates, roster, configs, wait_for, arrays)
            for position, report in reports.items():
                losses[position] = nan if report.loss is None else report.loss
            # If true, later polls send EVALUATE at once.
            self._evaluates = candidates.size == unable.size and (
                probes or self._is_enough(self._unable, roster)
            )
            if self._evaluates and probes:
                log(
                    WARNING,
                    "The clients' app has no %s handler, so the error in that client's log was to be "
                    "expected, "
                    "and no other client is asked: candidates evaluate the model instead, on all of "
                    "their test data. Polling(poll_with='evaluate') evaluates from the start; a client app "
                    "that is a flwr_cohort.ReportingClientApp has the handler",
                    LOSS,
                )
        if unable.size:
            config = ConfigRecord({**(evaluate_config or {}), "server-round": round})
            asked = candidates[unable]
            contents = [RecordDict({self.arrays_key: arrays, self.config_key: config}) for _ in asked]
            replies, _ = self._exchange(grid, MessageType.EVALUATE, round, asked, roster, contents, wait_for)
            losses[unable], reasons = self._read_losses(replies)
            self._lacking.update(int(client) for client, why in zip(asked, reasons, strict=True) if why)
            lacking = next(filter(None, reasons), "")
            is_missing = lacking and self._is_enough(self._lacking, roster)
            if is_missing and not np.isfinite(losses).any() and not self._ever_answered:
                raise MissingHandlerError(
                    f"{selector.name} needs the loss of its candidates, and the clients' app reports none: "
                    f"it has no {LOSS} handler, and {lacking}"
                    if LOSS in self._asked
                    else f"{selector.name} needs the loss of its candidates, and {lacking}"
                )
        self._note_answers(selector, "loss", round, losses)
        return losses

    def _is_enough(self, clients: set[int], roster: Roster) -> bool:
        """Return whether these are `ENOUGH` clients, or all clients, so that the server believes them."""
        return len(clients) >= min(ENOUGH, len(roster))

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

    def _invite(
        self,
        grid: Grid,
        selector: Selector,
        round: int,
        candidates: NDArray[np.int64],
        roster: Roster,
        budget: float | None,
        wait_for: WaitFor,
    ) -> Asked:
        """Ask for randomised groups, then send the selector's invitation, if any; see `flics_private`."""
        names = {GROUP_NAMES: list(selector.settings.group_names)}
        config = ConfigRecord({"server-round": round, **selector.poll_settings, **names})
        num_groups = int(selector.poll_settings["num-groups"])
        configs = [config] * candidates.size
        reports, unable = self._query(grid, GROUP, round, candidates, roster, configs, wait_for)
        groups = np.full(candidates.size, nan)
        for position, report in reports.items():
            if isinstance(report.group, int) and 0 <= report.group < num_groups:
                groups[position] = report.group
        is_missing = unable.size and self._is_enough(self._unable, roster)
        if is_missing and not np.isfinite(groups).any() and not self._ever_answered:
            raise MissingHandlerError(
                f"{selector.name} needs the handlers {GROUP} and {INVITATION}, and the clients' app has none"
            )
        self._note_answers(selector, "group", round, groups)
        invitation = selector.invitation(round, candidates, {"group": groups}, budget=budget)
        if invitation is None:  # the selector selects by the groups; the clients decide nothing
            return Asked({"group": groups})
        position_of = {int(client): position for position, client in enumerate(candidates)}
        configs = [
            ConfigRecord({"server-round": round, "num-groups": num_groups, "rates": rates.tolist(), **names})
            for rates in invitation.rates[invitation.versions]
        ]
        reports, _ = self._query(grid, INVITATION, round, invitation.clients, roster, configs, wait_for)
        accepts = np.full(candidates.size, nan)
        for i, report in reports.items():
            if report.accepts is not None:
                accepts[position_of[int(invitation.clients[i])]] = report.accepts
        scales = {UPDATE_SCALES: invitation.scales.tolist()}
        return Asked({"group": groups, "accepts": accepts}, {**scales, **names})

    def _query(
        self,
        grid: Grid,
        kind: str,
        round: int,
        clients: NDArray[np.int64],
        roster: Roster,
        configs: Sequence[ConfigRecord],
        wait_for: WaitFor,
        arrays: ArrayRecord | None = None,
        *,
        deadline: float | None = None,
        keep: dict[int, RecordDict] | None = None,
    ) -> tuple[dict[int, Report], NDArray[np.int64]]:
        """Return the report of each client that answered, by position, and the clients without a handler.

        Clients without a handler are returned as their positions (k,). If ``keep`` is given, the content of
        each answer is stored there by position.
        """
        records = {} if arrays is None else {self.arrays_key: arrays}
        contents = [RecordDict({**records, self.config_key: config}) for config in configs]
        replies, spared = self._exchange(
            grid, kind, round, clients, roster, contents, wait_for, deadline=deadline
        )
        reports, unable = {}, [*spared]
        for position, reply in enumerate(replies):
            if reply is None:
                continue
            client = int(clients[position])
            if lacks_handler(reply):
                unable.append(position)
                self._unable.add(client)
                continue
            if reply.has_error():
                log(WARNING, "%s did not answer %s: %s", roster.id_of(client), kind, why_failed(reply))
                continue
            try:
                report = read_report(reply.content)
            except Exception as error:  # a reply may cause any error, and must not end the round
                why = printable(error)
                log(WARNING, "%s sent an unusable answer to %s: %s", roster.id_of(client), kind, why)
                continue
            if report.available:
                reports[position] = report
                if keep is not None:
                    keep[position] = reply.content
            else:  # note only the availability: the roster must not remember a randomised group
                roster.note(client, Report(available=False))
        return reports, np.sort(np.array(unable, dtype=np.int64))

    def _exchange(
        self,
        grid: Grid,
        kind: str,
        round: int,
        clients: NDArray[np.int64],
        roster: Roster,
        contents: Sequence[RecordDict],
        wait_for: WaitFor,
        *,
        deadline: float | None = None,
    ) -> tuple[list[Message | None], list[int]]:
        """Send one question to each client, and return (n,) the replies; None = no reply in time.

        The result also holds the positions of the clients that were spared the question, because the app has
        no handler for it, see `probes`.
        """
        deadline = deadline or self.deadline
        grid = ExchangeGrid.of(grid, self.polling.interval)
        replies: list[Message | None] = [None] * len(clients)
        probes: tuple[int, ...] = ()  # how many clients are asked at first, and then in addition
        if self.probes and kind not in self._asked:
            probes = (1,) if kind == LOSS else (1, ENOUGH - 1)
        self._asked.add(kind)
        first = stage = 0
        lacking = True  # whether all clients that were asked lack the handler
        while first < len(clients):
            count = probes[stage] if lacking and stage < len(probes) else len(clients)
            last = min(first + count, len(clients))
            part = slice(first, last)
            questions = [
                question(kind, roster.node_of(int(client)), deadline, content, round)
                for client, content in zip(clients[part], contents[part], strict=True)
            ]
            wait = wait_for(clients[part])
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

    def _note_answers(self, selector: Selector, kind: str, round: int, values: NDArray[np.float64]) -> None:
        """Remember whether any candidate has ever answered, and log how many did not answer now."""
        answered = int(np.isfinite(values).sum())
        self._ever_answered |= answered > 0
        if answered < values.size:
            log(
                WARNING,
                "Round %d: %d of the %d candidates of %s reported their %s; the others count as unavailable",
                round,
                answered,
                values.size,
                selector.name,
                kind,
            )
