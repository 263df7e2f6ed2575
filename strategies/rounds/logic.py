"""The round pipeline: open, choose, finish. The Flower strategy and the simulator supply the rest.

::

    opened = logic.open(round, available)            the selectable clients, and those to poll
    chosen = logic.choose(opened, reports)           reports: the candidates' answers to the poll
    outcome = logic.finish(chosen, arrays, replies)  replies: what the selected clients trained
    record = outcome.closed(skipped, seconds)        skipped: why the server step changed nothing, or ""
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Array, Bools, Floats, Ints
from ..options import Faults, check_correction
from ..selectors import Feedback, Selection, Selector
from .aggregation import Arrays, Model
from .guard import Guard
from .over_selection import enough_replies, over_selected
from .record import RoundRecord
from .replies import ExaminedReplies, Reply, examine, sent_arrays
from .response_rates import ResponseRates
from .stages import Chosen, Opened, Outcome
from .trained_clients import TrainedClients
from .variates import ClientVariates

_NOBODY: Ints = np.empty(0, dtype=np.int64)
_LONGEST_REASON = 300  # characters kept of a failure's reason; part of it is text from the client


class RoundLogic:
    """The rounds of one run, on arrays.

    Parameters
    ----------
    selector : Selector
        Selects the clients and weights their updates; learns from the feedback.
    faults : Faults
        The guard, the quorum, over-selection, and the correction for missing replies.
    local_learning_rate : float (default: 1.0)
        Divides the norm of an update, so that ‖g_m‖ is the norm of the summed local gradients. It makes no
        difference to selectors that only compare clients with each other.
    variates : ClientVariates, optional
        Each client's baseline y_m is subtracted from its update, and the mean ȳ of all baselines is added to
        the step.
    updates : {"open", "noised", "masked"} (default: "open")
        What the server sees of an update. "noised": everything, but noise that is added later shall hide it;
        so the guard ignores norms and losses, and rejects only unusable replies. "masked": each client
        multiplied its update by S c_m and added a mask; the masks cancel in the sum over all S. Then norms
        are those that clients report, and a round in which a reply is missing is skipped.

    Raises
    ------
    ValueError
        If the selector makes up for missing replies itself and ``faults.correction`` is "rates".
    """

    def __init__(
        self,
        selector: Selector,
        faults: Faults,
        *,
        local_learning_rate: float = 1.0,
        variates: ClientVariates | None = None,
        updates: Literal["open", "noised", "masked"] = "open",
    ) -> None:
        self.selector = selector
        self.faults = faults
        self.local_learning_rate = local_learning_rate
        self.guard: Guard | None = None
        if faults.guard_settings is not None:
            self.guard = Guard(selector.num_clients, faults.guard_settings)
        self.responses: ResponseRates | None = None
        if faults.correction == "rates":
            check_correction(type(selector))
            self.responses = ResponseRates(selector.num_clients)
        self.variates = variates
        self.updates = updates

    # --- clients that come and go ------------------------------------------------------------------------

    def add_clients(self, client_sizes: npt.ArrayLike, **per_client: npt.ArrayLike) -> None:
        """Let clients join, as `Selector.add_clients` does; all parts of the round learn of them."""
        before = self.selector.num_clients
        self.selector.add_clients(client_sizes, **per_client)
        joined = self.selector.num_clients - before
        for part in (self.guard, self.responses):
            if part is not None:
                part.add_clients(joined)

    def remove_clients(self, clients: npt.ArrayLike) -> None:
        """Remove clients for good between two rounds, as `Selector.remove_clients` does."""
        self.selector.remove_clients(clients)
        if self.variates is not None:
            self.variates.forget(clients)

    # --- a round -----------------------------------------------------------------------------------------

    def open(self, round: int, available: Ints | None = None) -> Opened:
        """Open a round: leave out quarantined clients, and name the clients to poll.

        Parameters
        ----------
        round : int
            The round, >= 1.
        available : ndarray of int, optional
            Distinct indexes of the available clients (default: all registered clients; this avoids a pass
            over all clients unless the selector needs one).
        """
        registered, unavailable = self.selector.registered, None
        quarantined = _NOBODY if self.guard is None else self.guard.quarantined(round)
        if available is not None and available.size == registered.size:
            available = None
        if available is None:
            quarantined = quarantined[registered[quarantined]]
            unavailable = quarantined if quarantined.size else None
            num_available = int(np.count_nonzero(registered)) - quarantined.size
        else:
            quarantined = np.intersect1d(available, quarantined)
            if quarantined.size:
                available = np.setdiff1d(available, quarantined)
            num_available = available.size
        budget = over_selected(self.selector.clients_per_round, self.faults.over_selection)
        candidates = self.selector.candidates(round, available=available, unavailable=unavailable)
        return Opened(round, candidates, budget, available, unavailable, num_available, quarantined)

    def choose(self, opened: Opened, reports: Mapping[str, Floats] | None = None) -> Chosen:
        """Select this round's clients.

        Parameters
        ----------
        opened : Opened
            What `open` returned.
        reports : mapping of str to ndarray, shape (C,), optional
            The candidates' reports, NaN = not reported; the guard judges them first.
        """
        clipped: dict[int, str] = {}
        if self.guard is not None and opened.candidates is not None and reports is not None:
            reports, found = self.guard.judge_reports(opened.number, opened.candidates, reports)
            clipped = {int(opened.candidates[position]): line for position, line in found.items()}
        selection = self.selector.select(
            opened.number,
            available=opened.available,
            unavailable=opened.unavailable,
            candidates=opened.candidates,
            reports=reports,
            budget=opened.budget,
        )
        if self.variates is not None:
            self.variates.begin(
                self.selector.target_shares(available=opened.available, unavailable=opened.unavailable)
            )
        enough = selection.clients.size
        if opened.budget is not None:
            enough = enough_replies(selection, self.selector.clients_per_round, self.faults.quorum)
        return Chosen(opened, selection, enough, clipped)

    def finish(self, chosen: Chosen, arrays: Arrays, replies: Sequence[Reply] | TrainedClients) -> Outcome:
        """Aggregate the replies and let the selector learn from them.

        A reply that cannot be used counts as missing: the round goes on, and `finalize` corrects the weights
        of the others. One pass over the replies, which decodes them one after another, examines and sums

            Δ = Σ_m c_m s_m (w_m - w_t - y_m) + ȳ

        in selection order, since the addition of floats is not associative and a resumed run must repeat it.
        A second pass sums again if some replies could not be used or were clipped. Without a guard all
        factors s_m are 1; without variates y_m and ȳ are 0. Diversities need one more pass, variates
        another.

        Parameters
        ----------
        chosen : Chosen
            What `choose` returned.
        arrays : dict of arrays
            w_t, the model that the clients were sent; it stays as it is.
        replies : sequence of Reply, or TrainedClients
            (S,) aligned with the selected clients; or one batch. A batch needs no pass over clients,
            except with variates or diversities, or if an update is clipped.

        Returns
        -------
        Outcome
            The new arrays and the record. The round is skipped if fewer than ``quorum`` replies are usable,
            or the step is not finite.
        """
        selection, model = chosen.selection, Model(arrays)
        examined = examine(
            model,
            selection,
            replies,
            self._coefficients(self._weights(selection, sent_arrays(replies, selection.clients.size))),
            self.local_learning_rate,
            variates=self.variates,
            masked=self.updates == "masked",
        )
        if self.guard is not None:
            self._judge(chosen, examined, self.guard)
        usable = examined.usable()
        weights = self._weights(selection, usable)
        diversities = np.full(usable.size, nan)
        moved, skipped = None, self._why_skipped(usable)
        if not skipped:
            coefficients = self._coefficients(weights)
            step = examined.sum(coefficients)
            if "diversity" in self.selector.feedback_used:
                plain = self.selector.diversity_mean == "plain"
                distances = examined.distances(coefficients, step, plain=plain)
                diversities[usable] = np.array(distances) / self.local_learning_rate
            moved = model.moved(step, mean=None if self.variates is None else self.variates.mean())
            if moved is None:  # no single update is to blame for a sum that is not finite
                skipped = "the step is not finite"
                reason = "the step with this update is not finite"
                examined.failures |= dict.fromkeys(examined.updates, reason)
        if self.responses is not None:
            self.responses.observe(selection.clients, usable)
        if skipped:
            examined.updates = {}
        record = self._learn(chosen, examined, weights, diversities, skipped)
        if self.variates is not None and examined.updates:
            responded = record.feedback.responded
            self.variates.remember(
                selection.clients[responded],
                (
                    (int(selection.clients[position]), model.clipped(update))
                    for position, update in examined.updates.items()
                ),
                examined.num_steps[responded],
                self.local_learning_rate,
            )
        return Outcome(moved, record, model, examined.updates)

    def _learn(
        self, chosen: Chosen, examined: ExaminedReplies, weights: Floats, diversities: Floats, skipped: str
    ) -> RoundRecord:
        """Let the selector learn from a round, and return its record."""
        opened, selection, responded = chosen.opened, chosen.selection, examined.usable()
        weights = np.where(responded, weights, 0.0)
        feedback = Feedback(
            update_norms=np.where(responded, examined.norms, nan),
            losses=np.where(responded, examined.losses, nan),
            gradient_variances=np.where(responded, examined.gradient_variances, nan),
            diversities=np.where(responded, diversities, nan),
            responded=responded,
        )
        self.selector.update(opened.number, selection, feedback)
        known, train_loss = np.isfinite(feedback.losses) & (weights > 0), nan
        if known.any():
            train_loss = float(np.average(feedback.losses[known], weights=weights[known]))
        return RoundRecord(
            round=opened.number,
            num_available=opened.num_available,
            selection=selection,
            weights=weights,
            feedback=feedback,
            failures=_by_client(selection, examined.failures),
            clipped={**chosen.clipped, **_by_client(selection, examined.clipped)},
            skipped=skipped,
            quarantined=tuple(opened.quarantined.tolist()),
            train_loss=train_loss,
        )

    def _judge(self, chosen: Chosen, examined: ExaminedReplies, guard: Guard) -> None:
        """Let the guard clip what clients report and how far they move the model, and reject replies."""
        number, clients = chosen.opened.number, chosen.selection.clients
        at_fault = {position: examined.failures[position] for position in examined.at_fault}
        if self.updates == "noised":
            unseen = np.full(clients.size, nan)
            guard.judge(number, clients, unseen, unseen, unseen, at_fault)
            return
        judged = guard.judge(
            number, clients, examined.norms, examined.losses, examined.gradient_variances, at_fault
        )
        examined.norms = examined.norms * judged.scales
        examined.losses, examined.gradient_variances = judged.losses, judged.gradient_variances
        examined.clipped = judged.clipped
        if self.updates == "masked":  # the sum needs every update as it is
            numbers = {position: judged.rejected[position] for position in judged.rejected.keys() - at_fault}
            examined.clipped = {**judged.clipped, **numbers}
            return
        examined.failures |= judged.rejected
        examined.updates = {
            position: replace(update, scale=float(judged.scales[position]))
            for position, update in examined.updates.items()
            if position not in judged.rejected
        }

    def _weights(self, selection: Selection, usable: Bools) -> Floats:
        if self.updates == "masked":  # clients were sent their weights, and all must reply
            return selection.weights
        weights = self.selector.finalize(selection, usable)
        if self.responses is None:
            return weights
        return self.responses.correct(weights, selection.clients, usable)

    def _coefficients(self, weights: Floats) -> Floats:
        """Return (S,) the factors of the updates: c_m, or 1/S each if clients multiplied by S c_m."""
        return np.full(weights.size, 1 / max(1, weights.size)) if self.updates == "masked" else weights

    def _why_skipped(self, usable: Bools) -> str:
        count = int(usable.sum())
        if self.updates == "masked" and 0 < count < usable.size:
            return f"{count} usable of {usable.size} replies: without the others' masks there is no sum"
        if count >= self.faults.quorum:
            return ""
        if not usable.size:
            return "no client was selected"
        return f"{count} usable of {usable.size} replies: fewer than the quorum of {self.faults.quorum}"

    # --- the state ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Array]:
        """Return copies of all arrays needed to go on, bit for bit, by part and name: "selector/levels"."""
        return {
            f"{part}/{key}": array
            for part, owner in self._parts().items()
            for key, array in owner.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Go on from what `state_dict` returned.

        Raises
        ------
        ValueError
            If the state has a part that this run lacks, or a part refuses its own state.
        """
        parts = self._parts()
        own: dict[str, dict[str, npt.ArrayLike]] = {part: {} for part in parts}
        for name, array in state.items():
            part, _, key = name.partition("/")
            if part not in own:
                raise ValueError(f"state has {name!r}: this run has {', '.join(parts)} only")
            own[part][key] = array
        for part, owner in parts.items():
            owner.load_state_dict(own[part])

    def _parts(self) -> dict[str, Any]:
        parts = {
            "selector": self.selector,
            "guard": self.guard,
            "responses": self.responses,
            "variates": self.variates,
        }
        return {name: part for name, part in parts.items() if part is not None}


def _by_client(selection: Selection, reasons: Mapping[int, str]) -> dict[int, str]:
    """Return reasons by client instead of by position, in selection order."""
    return {int(selection.clients[i]): reasons[i][:_LONGEST_REASON] for i in sorted(reasons)}
