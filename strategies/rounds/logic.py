"""The steps of a round that `SelectionStrategy` and the simulator share: open, choose, finish.

::

    opened = logic.open(round, available)            find the selectable clients, and the candidates to poll
    chosen = logic.choose(opened, reports)           select clients; reports: the answers to the poll
    outcome = logic.finish(chosen, arrays, replies)  aggregate and learn; replies: the trained models
    record = outcome.closed(skipped, seconds)        skipped: why the server step changed nothing, or ""

In a buffered round, several calls of `fill`, which returns the clients to ask, and one call of `gather` take
the place of `choose`.

Between these calls, `SelectionStrategy` or the simulator polls the candidates, lets the selected clients
train, and takes the server step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, nan
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..clients.printable import counted, printable
from ..numerics.arrays import Array, Bools, Floats, Ints
from ..options import Budgets, Buffered, Faults, check_correction
from ..selectors import Feedback, Selection, Selector
from .aggregation import Arrays, Model
from .buffered.buffer import Buffer
from .control_variates import ClientVariates
from .guard.guard import Guard
from .guard.reported_norms import contradictions
from .record import RoundRecord
from .regular_clients import RegularClients, with_due
from .replies import ExaminedReplies, Received, Reply, examine
from .response_rates import ResponseRates
from .stages import Chosen, Opened, Outcome
from .trained_clients import TrainedClients
from .waiting.silent_clients import Patience
from .waiting.wait_time import Wait, enough_replies, over_selected

_NOBODY: Ints = np.empty(0, dtype=np.int64)
MOST_LISTED = 1000
"""The most clients in each of the lists `RoundRecord.absent` and ``in_flight``, which the history holds. A
longer ``in_flight`` is cut; a longer ``absent`` is replaced by None."""


class RoundLogic:
    """The rounds of one run, on arrays.

    ``selector`` selects the clients, computes the weights of their updates, and learns from the feedback.
    ``faults`` are the settings of the guard, the quorum, over-selection, the correction for missing replies,
    and the quarantine for silence. ``local_learning_rate`` > 0 is that of the clients: the norm of an update
    is divided by it, so that ‖g_m‖ is the norm of the sum of the local gradients; it makes no difference to
    selectors that only compare clients with each other. By ``variates``, each client's baseline y_m is
    subtracted from its update, and the mean ȳ of all baselines is added to the step (default: y_m = ȳ = 0).
    ``budgets`` is K(t) (default: the selector's `clients_per_round`). ``shortest_deadline`` is the shortest
    wait for an answer in seconds, > 0 (`Deadlines.shortest`); if it is infinite, the server learns no shorter
    waits. ``every``: clients that train at least once in m rounds, see `RegularClients` (default: none).
    With a ``mode``, rounds are buffered, and a client may train over several rounds; ``buffer`` then
    holds their state. ``updates`` says what the server sees of an update:

    - "open": the server sees each update.
    - "noised": the server sees each update, and the server step adds noise that hides the update. Nothing
      else may depend on the update, so the guard ignores norms and losses. The guard still counts unusable
      replies as offences.
    - "masked": each client multiplies its update by S c_m and adds a mask. The masks cancel in the sum over
      all S selected clients. So a round in which a reply is missing is skipped. The clients report the norms.
    """

    def __init__(
        self,
        selector: Selector,
        faults: Faults,
        *,
        local_learning_rate: float = 1.0,
        variates: ClientVariates | None = None,
        budgets: Budgets | None = None,
        shortest_deadline: float = inf,
        updates: Literal["open", "noised", "masked"] = "open",
        mode: Buffered | None = None,
        every: Mapping[int, int] | None = None,
    ) -> None:
        if selector.part_names and variates is not None:
            raise ValueError(
                f"variates = {variates.name!r} with selector = {selector.name!r}: must be left out, since "
                "this selector weights each part of an update, and variates remember whole updates"
            )
        self.selector = selector
        self.faults = faults
        self._budgets = budgets or Budgets(selector.clients_per_round)
        self.local_learning_rate = local_learning_rate
        self.guard: Guard | None = None
        if faults.guard_settings is not None:
            self.guard = Guard(selector.num_clients, faults.guard_settings, buffered=mode is not None)
        self._bounds_draws = (
            self.guard is not None
            and self.guard.strict
            and selector.unbiased == "none"
            and not selector.data_independent
        )
        self.responses: ResponseRates | None = None
        if faults.correction == "rates":
            check_correction(type(selector))
            self.responses = ResponseRates(selector.num_clients)
        self.patience: Patience | None = None
        if faults.silence or shortest_deadline < inf:
            self.patience = Patience(selector.num_clients, shortest_deadline, quarantines=faults.silence)
        self.variates = variates
        self.updates = updates
        self.regular = None if every is None else RegularClients(every)
        self.buffer: Buffer | None = None
        if mode is not None:
            size = mode.size or selector.clients_per_round
            self.buffer = Buffer(mode, size, credits_busy=mode.count_busy and selector.unbiased == "round")

    # --- clients that come and go ------------------------------------------------------------------------

    def add_clients(self, client_sizes: npt.ArrayLike, **per_client: npt.ArrayLike) -> None:
        """Let clients join the run. The arguments are the same as those of `Selector.add_clients`."""
        before = self.selector.num_clients
        self.selector.add_clients(client_sizes, **per_client)
        joined = self.selector.num_clients - before
        for part in (self.guard, self.responses, self.patience):
            if part is not None:
                part.add_clients(joined)

    def remove_clients(self, clients: npt.ArrayLike) -> None:
        """Remove clients from the run. Call this between two rounds only; see `Selector.remove_clients`."""
        self.selector.remove_clients(clients)
        if self.variates is not None:
            self.variates.forget(clients)
        if self.buffer is not None:
            self.buffer.forget(clients)

    def set_sizes(self, clients: npt.ArrayLike, client_sizes: npt.ArrayLike) -> None:
        """Correct the data sizes of clients, see `Selector.set_sizes`.

        Call this before `finish` with the sizes that the replies of the round report: the weights of a round
        use the sizes that are known when it ends, where `Selector.reweighted` allows it. In buffered rounds,
        the credits of drawn clients change in proportion to the clients' shares of the data.
        """
        before = self.selector.client_sizes
        self.selector.set_sizes(clients, client_sizes)
        if self.buffer is not None and self.selector.unbiased == "round":
            self.buffer.scale_weights(self._growth(before))

    def _growth(self, sizes: Floats) -> Floats:
        """Return (M,) by which factor the clients' shares of the data have grown since they had ``sizes``."""
        now, registered = self.selector.client_sizes[: sizes.size], self.selector.registered[: sizes.size]
        factors: Floats = now / sizes * (sizes[registered].sum() / (now[registered].sum() or 1.0))
        return factors

    # --- a round -----------------------------------------------------------------------------------------

    def open(
        self, round: int, available: Ints | None = None, *, learning_rate: float | None = None
    ) -> Opened:
        """Open a round: leave out quarantined and resting clients, and find the candidates to poll.

        If quarantines for offences would leave fewer clients than the quorum, those that end first end early:
        of so many clients as the quorum needs, and of the clients whose quarantines end in the same round. A
        quarantine protects the rounds of the other clients, and such a round would be skipped without them.
        Otherwise, if all clients are quarantined, a run would skip all rounds of the quarantine within a
        second. The guard judges the replies as before; the quarantine continues when others are back.

        In two cases, no client is left out for silence: if fewer clients than the quorum would be left, or if
        silence would leave out more than half of the available clients that are not quarantined for offences.
        In the second case, the silence probably has one common cause, such as the network.

        ``round``: the round, >= 1. ``available``: the distinct indexes of the available clients (default: all
        registered clients). The default saves a pass over all clients, unless the selector needs such a pass.
        ``learning_rate``: the clients' learning rate in this round, > 0 (default: `local_learning_rate`).
        """
        registered, unavailable = self.selector.registered, None
        quarantined = _NOBODY if self.guard is None else self.guard.quarantined(round)
        silent = self.silent(round)
        if available is not None and available.size == registered.size:
            available = None
        if available is None:
            quarantined, silent = (clients[registered[clients]] for clients in (quarantined, silent))
            num_available = int(np.count_nonzero(registered))
        else:
            if (available[1:] < available[:-1]).any():
                available = np.sort(available)
            quarantined, silent = (_among(available, clients) for clients in (quarantined, silent))
            num_available = available.size
        others = num_available - _without(quarantined, silent).size
        if 2 * silent.size > others or others - silent.size < self.faults.quorum:
            silent = _NOBODY
        released = self._released(quarantined, num_available - _union(quarantined, silent).size)
        quarantined = _union(_without(quarantined, released), silent)
        left_out = _union(quarantined, self._resting(round, available, num_available, quarantined))
        num_available -= left_out.size
        unavailable = None
        if left_out.size:
            if available is None:
                unavailable = left_out
            else:
                available = np.delete(available, np.searchsorted(available, left_out))
        k = self._budgets.of(round)
        budget = over_selected(k, self.faults.over_selection)
        if budget is None and k != self.selector.clients_per_round:
            budget = float(k)
        candidates = self.selector.candidates(round, available=available, unavailable=unavailable)
        return Opened(
            round,
            candidates,
            budget,
            available,
            unavailable,
            num_available,
            quarantined,
            silent,
            released,
            learning_rate=self.local_learning_rate if learning_rate is None else learning_rate,
        )

    def _released(self, quarantined: Ints, left: int) -> Ints:
        """Return the available clients whose quarantine for offences ends early, see `open`.

        ``quarantined`` holds the available clients that are quarantined for offences; ``left`` clients are
        available and not quarantined.
        """
        needed = min(max(1, self.faults.quorum) - left, quarantined.size)
        if self.guard is None or needed <= 0:
            return _NOBODY
        ends = np.array([self.guard.quarantined_until(int(client)) for client in quarantined])
        released: Ints = quarantined[ends <= np.sort(ends)[needed - 1]]
        return released

    def _resting(self, round: int, available: Ints | None, num_available: int, quarantined: Ints) -> Ints:
        """Return the available clients that must rest; none if too few clients would be left, see `Guard`."""
        if self.guard is None or not self._bounds_draws:
            return _NOBODY
        resting = _without(self.guard.resting(round), quarantined)
        if available is None:
            resting = resting[self.selector.registered[resting]]
        else:
            resting = _among(available, resting)
        others, least = num_available - quarantined.size, self._budgets.of(round)
        few = others - resting.size < max(least, self.faults.quorum, others / 2)
        return _NOBODY if few else resting

    def silent(self, round: int) -> Ints:
        """Return the clients that are quarantined for silence in a round, ascending."""
        return _NOBODY if self.patience is None else self.patience.quarantined(round)

    def end_of_quarantine(self, round: int, client: int) -> int:
        """Return the first round after ``round`` in which a client is not quarantined, as of now."""
        kinds = [each for each in (self.guard, self.patience) if each is not None]
        return max([round + 1, *(each.quarantined_until(client) for each in kinds)])

    def wait(self, kind: str, round: int, clients: Ints, limit: float) -> Wait | None:
        """Return how long to wait for the answers of clients, see `Patience.wait`.

        None stands for the longest wait, ``limit`` seconds. Polls and training last until the limit while
        they lack the quorum. Masked updates need the models of all clients.
        """
        if self.patience is None:
            return None
        quorum = 0 if kind == "evaluate" else self.faults.quorum
        if self.updates == "masked" and kind == "train":
            quorum = clients.size
        return self.patience.wait(kind, round, clients, limit, quorum)

    def learn_norms(self, opened: Opened, clients: Ints, update_norms: Floats) -> None:
        """Let the selector learn the norms that it needs before the first selection (`Selector.asks_norms`).

        ``clients`` (n,) are those that were asked: ``opened.selectable(selector.registered)``.
        ``update_norms`` (n,) are the norms ||w_m - w_t|| of an update of each; NaN = no answer. The guard
        clips them before.
        """
        norms = update_norms / opened.learning_rate
        if self.guard is not None:
            judged, _ = self.guard.judge_reports(opened.number, clients, {"update_norm": norms})
            norms = judged["update_norm"]
        self.selector.learn_norms(clients, np.where(norms >= 0, norms, nan))

    def choose(
        self, opened: Opened, reports: Mapping[str, Floats] | None = None, *, whole: Opened | None = None
    ) -> Chosen:
        """Select this round's clients.

        ``reports`` (C,) are the candidates' numbers by the name of the report, NaN = not reported, which the
        guard clips before the selection. In a buffered round, ``whole`` is the round with all its selectable
        clients, if ``opened`` has only the idle ones: the guard computes a client's share of the draws among
        all of them.
        """
        clipped: dict[int, str] = {}
        if self.guard is not None and opened.candidates is not None and reports is not None:
            reports, found = self.guard.judge_reports(opened.number, opened.candidates, reports)
            clipped = {int(opened.candidates[position]): line for position, line in found.items()}
        selection = self._selected(opened, reports)
        if self.guard is not None and self._bounds_draws:
            shares = selection.weights / selection.importance  # λ_m among the clients of ``opened``
            if whole is not None:
                shares = self.selector.shares_of(
                    selection.clients, available=whole.available, unavailable=whole.unavailable
                )
            shares = np.maximum(shares, 1 / max(1, (whole or opened).num_available))
            draws = selection.clients.size if self.buffer is None else self.buffer.size
            self.guard.count_draws(opened.number, selection.clients, shares * draws)
        if self.variates is not None:
            self.variates.begin(
                self.selector.target_shares(available=opened.available, unavailable=opened.unavailable)
            )
        enough = selection.clients.size
        if self.faults.over_selection > 1:
            enough = enough_replies(selection, self._budgets.of(opened.number), self.faults.quorum)
        return Chosen(opened, selection, enough, clipped, sizes=self.selector.client_sizes)

    def _selected(self, opened: Opened, reports: Mapping[str, Floats] | None) -> Selection:
        available, unavailable, budget = opened.available, opened.unavailable, opened.budget
        due = _NOBODY if self.regular is None else self.regular.due(opened, self.selector)
        if due.size:
            places = self.selector.clients_per_round if budget is None else budget
            budget, taken = places - due.size, np.sort(due)
            if available is None:
                unavailable = _union(taken, _NOBODY if unavailable is None else unavailable)
            else:
                available = _without(available, taken)
        selection = self.selector.select(
            opened.number,
            available=available,
            unavailable=unavailable,
            candidates=opened.candidates,
            reports=reports,
            budget=budget,
            draw=opened.draw,
        )
        return with_due(due, selection, self.selector, opened) if due.size else selection

    def fill(self, opened: Opened) -> list[int]:
        """Return the clients to ask now in a buffered round, in the order of asking. See `Buffer.fill`."""
        assert self.buffer is not None
        return self.buffer.fill(
            opened,
            lambda idle: self.choose(idle, whole=opened).selection,
            lambda busy: self.selector.shares_of(
                busy, available=opened.available, unavailable=opened.unavailable
            ),
        )

    def gather(self, opened: Opened, num_stale: int = 0) -> Chosen:
        """End a buffered round: return who answered or was given up; ``num_stale`` updates are too stale."""
        assert self.buffer is not None
        selection, staleness = self.buffer.take()
        return Chosen(
            opened,
            selection,
            selection.clients.size,
            sizes=self.selector.client_sizes,
            staleness=staleness,
            num_stale=num_stale,
        )

    def finish(
        self,
        chosen: Chosen,
        arrays: Arrays,
        replies: Sequence[Reply] | TrainedClients,
        seconds: Floats | None = None,
    ) -> Outcome:
        """Aggregate the replies, and let the selector learn from them.

        A reply that cannot be used counts as missing; `Selector.finalize` corrects the weights of the other
        clients. The step is

            Δ = Σ_m c_m s_m (w_m - w_t - y_m) + ȳ

        Here w_m is the trained model of client m, c_m its weight, and s_m the factor by which the guard
        reduces its update. Without a guard all factors s_m are 1. Without variates y_m and ȳ are 0.

        One pass decodes the replies in groups, examines each reply, and adds its update to the sum. If a
        reply cannot be used or an update is clipped, a second pass computes the sum again. Diversities need
        one or two further passes, and so do variates. Every sum is in selection order, so that a resumed run
        repeats it bit for bit.

        ``chosen``: the result of `choose`. ``arrays``: w_t, the model that was sent to the clients. It is not
        changed. ``replies``: the replies (S,) aligned with the selected clients, or the training of all
        clients as one batch. A batch needs a pass over its clients only for sketches (`numerics.sketches`),
        which the strict guard, some designs of draws and some selectors use, for variates or for diversities.
        ``seconds`` (S,): how long each client took to reply, by the server's clock; NaN = no reply (default:
        not measured).

        Returns the new arrays and the record. The round is skipped if fewer than ``quorum`` replies are
        usable, if the step is not finite, or if updates are masked and a reply is missing.
        """
        chosen = self._with_new_sizes(chosen)
        examined = self._examined(chosen, arrays, Received.of(replies, chosen.selection))
        examined = self._judged(chosen, examined)
        if self.responses is not None:
            self.responses.observe(chosen.selection.clients, examined.usable)
        moved, examined = self._moved(chosen, examined)
        record = self._learn(chosen, examined, seconds)
        return Outcome(moved, record, examined.model, examined.updates)

    def _with_new_sizes(self, chosen: Chosen) -> Chosen:
        """Return the round with weights of the current sizes. Masked updates keep theirs."""
        before = chosen.sizes
        if before is None or before is self.selector.client_sizes or self.updates == "masked":
            return chosen
        opened, selection = chosen.opened, chosen.selection
        if self.buffer is None:
            weights = self.selector.reweighted(
                selection, available=opened.available, unavailable=opened.unavailable
            )
            if self.variates is not None:
                self.variates.begin(
                    self.selector.target_shares(available=opened.available, unavailable=opened.unavailable)
                )
        elif self.selector.unbiased == "round":
            weights = selection.weights * self._growth(before)[selection.clients]
        else:
            weights = selection.weights
        if weights is selection.weights:
            return chosen
        return replace(chosen, selection=replace(selection, weights=weights))

    def _examined(self, chosen: Chosen, arrays: Arrays, received: Received) -> ExaminedReplies:
        baselines, weights = None, self._weights(chosen, received.sent)
        if self.variates is not None:
            clients = chosen.selection.clients.tolist()
            baselines = {i: self.variates.baseline(clients[i]) for i in received.models}
        examined = examine(
            Model(arrays, exact=self.variates is not None),
            received,
            self._coefficients(weights),
            chosen.opened.learning_rate,
            baselines,
            masked=self.updates == "masked",
            sketched=self.updates == "open"
            and (self.selector.uses_sketches or (self.guard is not None and self.guard.strict)),
        )
        return replace(examined, weights=weights)

    def _moved(self, chosen: Chosen, examined: ExaminedReplies) -> tuple[Arrays | None, ExaminedReplies]:
        """Return the model after the step, and the replies with diversities; None if the round is skipped."""
        if skipped := self._why_skipped(examined.usable):
            return None, replace(examined, updates={}, skipped=skipped)
        coefficients = self._coefficients(examined.weights)
        step = examined.sum(coefficients)
        if "diversity" in self.selector.feedback_used:
            diversities = np.full(coefficients.size, nan)
            plain = self.selector.diversity_mean == "plain"
            diversities[examined.usable] = examined.distances(coefficients, step, plain=plain)
            examined = replace(examined, diversities=diversities / chosen.opened.learning_rate)
        moved = examined.model.moved(step, mean=None if self.variates is None else self.variates.mean())
        if moved is None:  # the step is not finite although each update is finite
            failed = dict.fromkeys(examined.updates, "the step with this update is not finite")
            failures = {**examined.failures, **failed}
            examined = replace(examined, failures=failures, updates={}, skipped="the step is not finite")
        return moved, examined

    def _learn(self, chosen: Chosen, examined: ExaminedReplies, seconds: Floats | None) -> RoundRecord:
        """Let the selector and the variates learn from a round, and return its record."""
        opened, selection, received = chosen.opened, chosen.selection, examined.received
        responded, diversities = examined.usable, examined.diversities
        weights = np.where(responded, examined.weights, 0.0)
        part_norms = received.part_norms
        feedback = Feedback(
            update_norms=np.where(responded, examined.norms, nan),
            losses=np.where(responded, examined.losses, nan),
            gradient_variances=np.where(responded, examined.gradient_variances, nan),
            diversities=np.where(responded, nan if diversities is None else diversities, nan),
            responded=responded,
            seconds=None if seconds is None else np.where(responded, seconds, nan),
            part_norms=None if part_norms is None else part_norms / opened.learning_rate,
        )
        sketches = None
        if self.selector.uses_sketches and examined.sketches is not None:
            usable = np.where(responded[:, None], examined.sketches, nan)
            sketches = usable / opened.learning_rate
        self.selector.update(opened.number, selection, replace(feedback, sketches=sketches))
        if self.regular is not None and not examined.skipped:
            self.regular.observe(opened.number, selection.clients[responded])
        if self.variates is not None and examined.updates:
            self.variates.remember(
                (
                    (int(selection.clients[at]), examined.model.clipped(each))
                    for at, each in examined.updates.items()
                ),
                received.num_steps[responded],
                opened.learning_rate,
            )
        known, train_loss = np.isfinite(feedback.losses) & (weights > 0), nan
        if known.any():
            train_loss = float((feedback.losses[known] * weights[known]).sum() / weights[known].sum())
        return RoundRecord(
            round=opened.number,
            num_available=opened.num_available,
            selection=selection,
            weights=weights,
            feedback=feedback,
            failures=_by_client(selection, examined.failures),
            clipped={**chosen.clipped, **_by_client(selection, examined.clipped)},
            skipped=examined.skipped,
            quarantined=tuple(opened.quarantined.tolist()),
            silent=tuple(opened.silent.tolist()),
            reported_norms=received.reported_norms / opened.learning_rate,
            train_loss=train_loss,
            absent=opened.absent(self.selector.registered, MOST_LISTED),
            staleness=_NOBODY if chosen.staleness is None else chosen.staleness,
            num_stale=chosen.num_stale,
            in_flight=() if self.buffer is None else tuple(self.buffer.in_flight)[:MOST_LISTED],
        )

    def _judged(self, chosen: Chosen, examined: ExaminedReplies) -> ExaminedReplies:
        """Return the replies as the guard leaves them, with the weights of those that can be used."""
        judged = examined if self.guard is None else self._guarded(self.guard, chosen, examined)
        if np.array_equal(judged.usable, judged.received.sent):
            return judged
        return replace(judged, weights=self._weights(chosen, judged.usable))

    def _guarded(self, guard: Guard, chosen: Chosen, examined: ExaminedReplies) -> ExaminedReplies:
        """Let the guard clip numbers and updates, and reject replies."""
        number, clients = chosen.opened.number, chosen.selection.clients
        at_fault = {position: examined.failures[position] for position in examined.at_fault}
        if self.updates == "noised":
            unseen = np.full(clients.size, nan)
            guard.judge(number, clients, unseen, unseen, unseen, at_fault)
            return examined
        wrong: dict[int, str] = {}
        if np.isfinite(examined.measured_norms).any():
            reported = examined.received.reported_norms
            wrong = contradictions(examined.measured_norms, reported, examined.model.rounding())
        judged = guard.judge(
            number,
            clients,
            examined.norms,
            examined.losses,
            examined.gradient_variances,
            failures=at_fault,
            sketches=examined.sketches,
            contradictions=wrong,
            versions=None if chosen.staleness is None else number - chosen.staleness,
        )
        updates, failures, clipped = examined.updates, examined.failures, judged.clipped
        if self.updates == "masked":
            # The masks cancel only if all updates are used as they are. So the replies that the guard would
            # reject are only listed in `clipped`.
            clipped = {**clipped, **{i: judged.rejected[i] for i in judged.rejected.keys() - at_fault}}
        else:
            failures = {**failures, **judged.rejected}
            updates = {
                position: replace(update, scale=float(judged.scales[position]))
                for position, update in updates.items()
                if position not in judged.rejected
            }
        return replace(
            examined,
            updates=updates,
            norms=examined.norms * judged.scales,
            sketches=None if examined.sketches is None else examined.sketches * judged.scales[:, None],
            losses=judged.losses,
            gradient_variances=judged.gradient_variances,
            failures=failures,
            clipped=clipped,
        )

    def _weights(self, chosen: Chosen, usable: Bools) -> Floats:
        selection = chosen.selection
        if self.updates == "masked":  # clients apply their weights before they reply, and all must reply
            return selection.weights
        weights = self.selector.finalize(selection, usable)
        if self.buffer is not None and chosen.staleness is not None:
            weights = weights * self.buffer.factors(chosen.staleness)
        if self.responses is not None:
            weights = self.responses.correct(weights, selection.clients, usable)
        return weights if self.variates is None else self.variates.weights(selection.clients, weights)

    def _coefficients(self, weights: Floats) -> Floats:
        """Return (S,) the factors of the updates: c_m, or 1/S if clients multiply their updates by S c_m."""
        return np.full(weights.size, 1 / max(1, weights.size)) if self.updates == "masked" else weights

    def _why_skipped(self, usable: Bools) -> str:
        count, replies = int(usable.sum()), counted(usable.size, "reply", "replies")
        if self.updates == "masked" and 0 < count < usable.size:
            return f"{count} usable of {replies}: the masks cancel only if all replies are usable"
        if count >= self.faults.quorum:
            return ""
        if not usable.size:
            return "no client was selected"
        return f"{count} usable of {replies}: fewer than the quorum of {self.faults.quorum}"

    # --- the state ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        """Return copies of all arrays of the state, by "PART/NAME", to continue bit for bit."""
        return {
            f"{part}/{key}": array
            for part, owner in self._parts().items()
            for key, array in owner.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        parts = self._parts()
        own: dict[str, dict[str, npt.ArrayLike]] = {part: {} for part in parts}
        for name, array in state.items():
            part, _, key = name.partition("/")
            if part not in own:
                raise ValueError(
                    f"state has the entry {name!r}: must have entries of {', '.join(parts)} only, the "
                    "parts of this run"
                )
            own[part][key] = array
        for part, owner in parts.items():
            owner.load_state_dict(own[part])

    def _parts(self) -> dict[str, Any]:
        parts = {
            "selector": self.selector,
            "guard": self.guard,
            "responses": self.responses,
            "patience": self.patience,
            "regular": self.regular,
            "variates": self.variates,
            "buffer": self.buffer,
        }
        return {name: part for name, part in parts.items() if part is not None}


def _union(some: Ints, others: Ints) -> Ints:
    """Return the clients of two sorted arrays, each once. `np.union1d` alone is slow for empty arrays."""
    if not some.size or not others.size:
        return some if some.size else others
    return np.union1d(some, others)


def _without(some: Ints, others: Ints) -> Ints:
    """Return `some` clients except `others`; both are sorted. `np.setdiff1d` is slow for empty arrays."""
    return np.setdiff1d(some, others) if some.size and others.size else some


def _among(available: Ints, clients: Ints) -> Ints:
    """Return the available ones of ``clients`` (both ascend) in O(n log M); `intersect1d`: O(M log M)."""
    at = np.searchsorted(available, clients)
    inside = at < available.size
    found: Ints = clients[inside][available[at[inside]] == clients[inside]]
    return found


def _by_client(selection: Selection, reasons: Mapping[int, str]) -> dict[int, str]:
    return {int(selection.clients[i]): printable(reasons[i]) for i in sorted(reasons)}
