"""Polls: candidates are asked for what the selector must know before it selects."""

from __future__ import annotations

from dataclasses import dataclass, field
from logging import WARNING
from math import nan
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common import log

from ..clients.reports import GROUP, INVITATION, LOSS, UPDATE_SCALES, Report
from ..options import Polling
from ..rounds.seeds import client_seed
from .messages import lacks_handler, question, read_metric, read_report, why_failed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flwr.app import ArrayRecord
    from flwr.serverapp import Grid
    from numpy.typing import NDArray

    from ..clients.roster import Roster
    from ..selectors import Selector


class MissingHandlerError(RuntimeError):
    """The clients' app has no handler for what the selector must know."""


class Asked(NamedTuple):
    """The answers to a poll.

    Attributes
    ----------
    reports : dict of str to ndarray, shape (n,), or None
        What the candidates reported, NaN = no answer; None if the selector needs no poll. For
        `RoundLogic.choose`.
    train_config : dict of str to list of float
        Additional entries for the config of the round's TRAIN messages.
    """

    reports: dict[str, NDArray[np.float64]] | None = None
    train_config: Mapping[str, list[float]] = {}


@dataclass
class Poll:
    """Asks candidates for their loss, or for the two answers of `flics-private`.

    A client that is late, fails, reports itself unavailable, or sends something other than a finite number
    counts as not available in this round.

    Attributes
    ----------
    deadline : float
        Seconds that each exchange waits, > 0; `flics-private` needs two exchanges, all others one.
    polling : Polling
        How losses are asked: with a ``query.loss`` message, or with EVALUATE and a named metric. A client
        without a handler for ``query.loss`` is asked with EVALUATE in the same round.
    seed : int
        The mini-batch of `cpow-d` is a function of (seed, round, client).
    arrays_key, config_key : str
        The names of the records in a message that the app expects.
    """

    deadline: float = 60.0
    polling: Polling = field(default_factory=Polling)
    seed: int = 0
    arrays_key: str = "arrays"
    config_key: str = "config"
    _evaluates: bool = field(default=False, init=False)
    _ever_answered: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._evaluates = self.polling.poll_with == "evaluate"

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
        budget: float | None = None,
    ) -> Asked:
        """Ask the candidates for what the selector needs.

        Parameters
        ----------
        grid : Grid
            Reaches the nodes.
        selector : Selector
            Says what to ask for.
        round : int
            The round.
        candidates : ndarray of int, shape (n,), or None
            The clients to ask, of `Selector.candidates`; None if the selector needs no poll.
        roster : Roster
            Knows the nodes; notes which clients are unavailable.
        arrays : ArrayRecord
            The round's model, w_t.
        evaluate_config : ConfigRecord, optional
            The config of EVALUATE messages; ``server-round`` is added.
        budget : float, optional
            This round's K where it varies, as for `Selector.select`.

        Raises
        ------
        MissingHandlerError
            If no client has ever answered, and the replies show that a handler or the metric is missing.
        """
        if candidates is None:
            return Asked()
        if "group" in selector.polls_for:
            return self._invite(grid, selector, round, candidates, roster, budget)
        losses = self._losses(grid, selector, round, candidates, roster, arrays, evaluate_config)
        return Asked({"loss": losses})

    def _losses(
        self,
        grid: Grid,
        selector: Selector,
        round: int,
        candidates: NDArray[np.int64],
        roster: Roster,
        arrays: ArrayRecord,
        evaluate_config: ConfigRecord | None,
    ) -> NDArray[np.float64]:
        """Return (n,) the candidates' losses."""
        losses = np.full(candidates.size, nan)
        unable = np.arange(candidates.size)  # positions of candidates without a query.loss handler
        if not self._evaluates:
            configs = []
            for client in candidates:
                seed = client_seed(self.seed, round, int(client), "loss")
                configs.append(ConfigRecord({"server-round": round, "seed": seed, **selector.poll_settings}))
            reports, unable = self._query(grid, LOSS, round, candidates, roster, configs, arrays)
            for position, report in reports.items():
                losses[position] = nan if report.loss is None else report.loss
            self._evaluates = 0 < candidates.size == unable.size  # the next polls ask with EVALUATE at once
        if unable.size:
            config = ConfigRecord({**(evaluate_config or {}), "server-round": round})
            nodes = [roster.node_of(int(client)) for client in candidates[unable]]
            contents = [RecordDict({self.arrays_key: arrays, self.config_key: config}) for _ in nodes]
            replies = self._exchange(grid, MessageType.EVALUATE, round, nodes, contents)
            losses[unable], lacking = self._read_losses(replies)
            if lacking and not np.isfinite(losses).any() and not self._ever_answered:
                raise MissingHandlerError(
                    f"{selector.name} needs the loss of its candidates, and the clients' app reports none: "
                    f"it has no {LOSS} handler, and {lacking}"
                    if self.polling.poll_with == "query"
                    else f"{selector.name} needs the loss of its candidates, and {lacking}"
                )
        self._note_answers(selector, "loss", round, losses)
        return losses

    def _read_losses(self, replies: Sequence[Message | None]) -> tuple[list[float], str]:
        """Return the metric of each reply (NaN if none), and what the app lacks, if anything."""
        losses, lacking = [], ""
        for reply in replies:
            losses.append(nan)
            if reply is None:
                continue
            if lacks_handler(reply):
                lacking = "it has no evaluate handler"
            elif reply.has_error():
                log(WARNING, "A candidate could not be evaluated: %s", why_failed(reply))
            else:
                metrics = sorted(name for each in reply.content.metric_records.values() for name in each)
                losses[-1] = read_metric(reply, self.polling.loss_metric)
                if self.polling.loss_metric not in metrics:
                    lacking = f"its evaluate handler returns {', '.join(metrics) or 'nothing'}, but not "
                    lacking += f"{self.polling.loss_metric!r} (polling.loss_metric)"
        return losses, lacking

    def _invite(
        self,
        grid: Grid,
        selector: Selector,
        round: int,
        candidates: NDArray[np.int64],
        roster: Roster,
        budget: float | None,
    ) -> Asked:
        """Ask for randomised groups, then invite; see `flics_private`."""
        config = ConfigRecord({"server-round": round, **selector.poll_settings})
        num_groups = int(selector.poll_settings["num-groups"])
        reports, unable = self._query(grid, GROUP, round, candidates, roster, [config] * candidates.size)
        groups = np.full(candidates.size, nan)
        for position, report in reports.items():
            if isinstance(report.group, int) and 0 <= report.group < num_groups:
                groups[position] = report.group
        if unable.size and not np.isfinite(groups).any() and not self._ever_answered:
            raise MissingHandlerError(
                f"{selector.name} needs the handlers {GROUP} and {INVITATION}, and the clients' app has none"
            )
        self._note_answers(selector, "group", round, groups)
        invitation = selector.invitation(round, candidates, {"group": groups}, budget=budget)
        if invitation is None:  # the selector decides itself, given the groups
            return Asked({"group": groups})
        position_of = {int(client): position for position, client in enumerate(candidates)}
        configs = [
            ConfigRecord({"server-round": round, "num-groups": num_groups, "rates": rates.tolist()})
            for rates in invitation.rates[invitation.versions]
        ]
        reports, _ = self._query(grid, INVITATION, round, invitation.clients, roster, configs)
        accepts = np.full(candidates.size, nan)
        for i, report in reports.items():
            if report.accepts is not None:
                accepts[position_of[int(invitation.clients[i])]] = report.accepts
        scales = {UPDATE_SCALES: invitation.scales.tolist()}
        return Asked({"group": groups, "accepts": accepts}, scales)

    def _query(
        self,
        grid: Grid,
        kind: str,
        round: int,
        clients: NDArray[np.int64],
        roster: Roster,
        configs: Sequence[ConfigRecord],
        arrays: ArrayRecord | None = None,
    ) -> tuple[dict[int, Report], NDArray[np.int64]]:
        """Return position -> report of each answer, and the positions of clients without a handler."""
        records = {} if arrays is None else {self.arrays_key: arrays}
        contents = [RecordDict({**records, self.config_key: config}) for config in configs]
        nodes = [roster.node_of(int(client)) for client in clients]
        reports, unable = {}, []
        for position, reply in enumerate(self._exchange(grid, kind, round, nodes, contents)):
            if reply is None:
                continue
            if lacks_handler(reply):
                unable.append(position)
                continue
            client = int(clients[position])
            if reply.has_error():
                log(WARNING, "%s did not answer %s: %s", roster.id_of(client), kind, why_failed(reply))
                continue
            try:
                report = read_report(reply.content)
            except Exception as error:  # whatever a client sends, the round goes on
                log(WARNING, "%s sent an unusable answer to %s: %s", roster.id_of(client), kind, error)
                continue
            if report.available:
                reports[position] = report
            else:  # only that: a group from a randomised response must not be remembered
                roster.note(client, Report(available=False))
        return reports, np.array(unable, dtype=np.int64)

    def _exchange(
        self, grid: Grid, kind: str, round: int, nodes: Sequence[int], contents: Sequence[RecordDict]
    ) -> list[Message | None]:
        """Return (n,) the first reply to each question, None where there was none in time."""
        questions = [
            question(kind, node, self.deadline, content, round)
            for node, content in zip(nodes, contents, strict=True)
        ]
        replies: list[Message | None] = [None] * len(questions)
        if not questions:
            return replies
        answers = list(grid.send_and_receive(questions, timeout=self.deadline))
        position_of = {message.metadata.message_id: position for position, message in enumerate(questions)}
        for answer in answers:
            position = position_of.pop(answer.metadata.reply_to_message_id, None)
            if position is not None:
                replies[position] = answer
        return replies

    def _note_answers(self, selector: Selector, kind: str, round: int, values: NDArray[np.float64]) -> None:
        """Log how many candidates did not answer."""
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
