"""A round on arrays: choose, weigh, aggregate, learn. It knows no Message and no network.

The Flower strategy translates messages to and from this; a simulator calls it directly.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from ..numerics.arrays import Array, Bools, Floats
from ..numerics.streams import generator
from ..options import check_correction
from ..selectors import Feedback, Selection, Selector
from .aggregation import Arrays, Model, Update
from .answers import Answers, Reply, examine, who_sent
from .guard import Guard
from .response_rates import ResponseRates
from .trained_clients import TrainedClients
from .variates import ClientVariates

__all__ = [
    "Arrays",
    "Outcome",
    "Reply",
    "RoundLogic",
    "RoundRecord",
    "TrainedClients",
    "client_seed",
    "enough_answers",
]

_LONGEST_REASON = 300  # characters of a failure's reason that are kept; a client writes part of it


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round, aligned with ``selection.clients`` where (S,).

    In a void round the model stays as it is, all weights are 0, and the selector learns from nobody:
    ``feedback.responded`` is False for all. (If it is the server strategy that could not step, the weights
    are those that it was given, and the selector has learned.) Who is not among ``failures`` sent something
    usable.
    """

    round: int
    num_available: int
    selection: Selection
    weights: NDArray[np.float64]  # (S,) c_m with which each update went into the pseudo-gradient
    feedback: Feedback  # as the selector was told
    failures: Mapping[int, str] = field(default_factory=dict)  # client index -> why it was left out
    clipped: Mapping[int, str] = field(default_factory=dict)  # client index -> what of it was bounded
    skipped: str = ""  # why the round changed nothing; "" if it did
    quarantined: tuple[int, ...] = ()  # clients that were here, and put aside for bad reports
    train_loss: float = nan  # of the clients that answered, weighted as their updates
    seconds: float = nan  # from the choice to the new model, waiting included


@dataclass(frozen=True)
class Outcome:
    """What a round came to.

    Attributes
    ----------
    arrays : dict of str to array, or None
        w_t + Δ, the caller's own; None in a void round: the model stays as it is.
    record : RoundRecord
        What happened.
    """

    arrays: Arrays | None
    record: RoundRecord
    _model: Model
    _updates: Mapping[int, Update]  # by position; nobody's in a void round

    def answers(self) -> Iterator[tuple[int, Mapping[str, NDArray[Any]]]]:
        """Yield (position, w_m) of each client that is part of the step, in selection order.

        For server strategies that must see one reply per client; nothing in a void round. Where the guard
        shortened an update, w_m is moved towards w_t; else it is the reply's own mapping, not copied.
        Baselines are left aside. What each weighs is in the record, at the same position.
        """
        for position, update in self._updates.items():
            shortened: Mapping[str, NDArray[Any]] | None = update.sent
            if update.scale < 1:
                shortened = self._model.moved(self._model.fold([(1.0, replace(update, baseline=None))]))
            if shortened is not None:
                yield position, shortened


class RoundLogic:
    """The rounds of one run.

    Parameters
    ----------
    selector : Selector
        Decides who trains and what each update weighs; learns from the feedback.
    local_learning_rate : float (default: 1.0)
        What divides an update's norm, so that ‖g_m‖ is that of the summed local gradients. Selectors that
        only compare clients with each other are indifferent to it.
    guard : Guard, optional
        Bounds what clients say and how far they move the model, and rejects what is absurd.
    quorum : int (default: 1)
        With fewer usable answers than this, >= 1, a round is void.
    responses : ResponseRates, optional
        Corrects the weights for who answers how often. Without it everybody chosen is taken to fail with
        the same probability, see `Selector.finalize`.
    variates : ClientVariates, optional
        Each client's baseline y_m is subtracted from its update, their mean ȳ added to the step.
    updates : {"open", "noised", "masked"} (default: "open")
        What the server sees of an update. "noised": all of it, but noise is to hide it in what follows, so
        the guard leaves norms and losses alone and judges only what is unusable. "masked": each client
        multiplied its own by S c_m, and added a mask; masks cancel in the sum over all S. Norms are then
        the clients' word, and a round in which one is missing is void.

    Raises
    ------
    ValueError
        If ``quorum`` is below 1, or the selector corrects for who answers itself and gets `responses` too.
    """

    def __init__(
        self,
        selector: Selector,
        local_learning_rate: float = 1.0,
        *,
        guard: Guard | None = None,
        quorum: int = 1,
        responses: ResponseRates | None = None,
        variates: ClientVariates | None = None,
        updates: Literal["open", "noised", "masked"] = "open",
    ) -> None:
        if quorum < 1:
            raise ValueError(f"quorum = {quorum}: must be at least 1")
        if responses is not None:
            check_correction(type(selector))
        self.selector = selector
        self.local_learning_rate = local_learning_rate
        self.guard = guard
        self.quorum = quorum
        self.responses = responses
        self.variates = variates
        self.updates = updates

    def choose(
        self,
        round: int,
        here: NDArray[np.int64] | None = None,
        *,
        candidates: NDArray[np.int64] | None = None,
        reports: Mapping[str, Floats] | None = None,
        budget: float | None = None,
    ) -> Selection:
        """Return this round's cohort, out of the clients ``here`` (dense indexes; None = everyone).

        The other arguments are those of `Selector.select`.
        """
        selection = self.selector.select(
            round, available=here, candidates=candidates, reports=reports, budget=budget
        )
        if self.variates is not None:
            self.variates.begin(self.selector.target_shares(available=here))
        return selection

    def add_clients(self, client_sizes: npt.ArrayLike, **per_client: npt.ArrayLike) -> None:
        """Let clients join, as `Selector.add_clients` does; all parts of the round learn of them."""
        before = self.selector.num_clients
        self.selector.add_clients(client_sizes, **per_client)
        joined = self.selector.num_clients - before
        for part in (self.guard, self.responses):
            if part is not None:
                part.add_clients(joined)

    def finish(
        self,
        round: int,
        selection: Selection,
        arrays: Arrays,
        replies: Sequence[Reply] | TrainedClients,
        num_available: int,
    ) -> Outcome:
        """Aggregate what came back and let the selector learn from it.

        A reply that cannot be used counts as none: the round goes on without it, and `finalize` corrects
        the weights of the others. The replies' arrays are asked for one client after the other, to look at
        them and, once more if some could not be used or were shortened, to sum

            Δ = Σ_m c_m s_m (w_m - w_t - y_m) + ȳ

        in selection order, since addition of floats is not associative and a resumed run must be the same
        run. Without a guard all s_m are 1, without variates y_m and ȳ are 0. Diversities take another pass,
        and so do variates.

        Parameters
        ----------
        round : int
            The number of the round.
        selection : Selection
            What `choose` returned.
        arrays : dict of arrays
            w_t, the model that was sent out; stays as it is.
        replies : sequence of Reply, or TrainedClients
            (S,) aligned with ``selection.clients``; or all in one piece, which needs no pass over clients
            unless there are variates or diversities, or an update is shortened.
        num_available : int
            How many clients there were to choose from.

        Returns
        -------
        Outcome
            The new arrays and what happened. The round is void if fewer than ``quorum`` answers are usable,
            or the step is not finite.
        """
        model = Model(arrays)
        # Who sent no arrays is known before anything is looked at. If all others prove usable, these are the
        # weights, and the step is summed on the way.
        likely = who_sent(replies, selection)
        guess = self._weights(selection, likely)
        answers = examine(
            model,
            selection,
            replies,
            self._coefficients(guess),
            self.local_learning_rate,
            variates=self.variates,
            masked=self.updates == "masked",
        )
        if self.guard is not None:
            self._bound(answers, self.guard, round, selection)
        updates, usable = answers.updates, answers.usable()
        weights = guess if np.array_equal(usable, likely) else self._weights(selection, usable)
        diversities = np.full(usable.size, nan)
        moved, skipped = None, self._why_void(usable)
        if not skipped:
            coefficients = self._coefficients(weights)
            step = answers.combined(coefficients, as_examined=weights is guess)
            if "diversity" in self.selector.feedback_used:
                plain = self.selector.diversity_mean == "plain"
                apart = answers.distances(coefficients, step, plain=plain)
                diversities[usable] = np.array(apart) / self.local_learning_rate
            moved = model.moved(step, mean=None if self.variates is None else self.variates.mean())
            if moved is None:  # a sum that is not finite is nobody's in particular: all are left out
                skipped = "the step is not finite"
                answers.failures |= dict.fromkeys(updates, "the step with this update is not finite")
        if self.responses is not None:
            self.responses.observe(selection.clients, usable)
        if skipped:
            updates = {}
        responded = usable & (not skipped)
        weights = np.where(responded, weights, 0.0)

        feedback = Feedback(
            update_norms=np.where(responded, answers.norms, nan),
            losses=np.where(responded, answers.losses, nan),
            gradient_variances=np.where(responded, answers.gradient_variances, nan),
            diversities=np.where(responded, diversities, nan),
            responded=responded,
        )
        self.selector.update(round, selection, feedback)
        if self.variates is not None and updates:
            self.variates.remember(
                selection.clients[responded],
                ((int(selection.clients[i]), model.clipped(update)) for i, update in updates.items()),
                answers.num_steps[responded],
                self.local_learning_rate,
            )

        known = np.isfinite(feedback.losses) & (weights > 0)
        train_loss = nan
        if known.any():
            train_loss = float(np.average(feedback.losses[known], weights=weights[known]))
        record = RoundRecord(
            round=round,
            num_available=num_available,
            selection=selection,
            weights=weights,
            feedback=feedback,
            failures=_by_client(selection, answers.failures),
            clipped=_by_client(selection, answers.clipped),
            skipped=skipped,
            train_loss=train_loss,
        )
        return Outcome(moved, record, model, updates)

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
            If the state has a part that this run has not, or a part refuses its own.
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

    def _bound(self, answers: Answers, guard: Guard, round: int, selection: Selection) -> None:
        """Let the guard bound what clients say and how far they move the model, and reject answers."""
        at_fault = {position: answers.failures[position] for position in answers.at_fault}
        if self.updates == "noised":
            unseen = np.full(selection.clients.size, nan)
            guard.judge(round, selection.clients, unseen, unseen, unseen, at_fault)
            return
        judged = guard.judge(
            round, selection.clients, answers.norms, answers.losses, answers.gradient_variances, at_fault
        )
        answers.norms = answers.norms * judged.scales
        answers.losses, answers.gradient_variances = judged.losses, judged.gradient_variances
        answers.clipped = judged.clipped
        if self.updates == "masked":  # none can be left out or shortened
            numbers = {position: judged.rejected[position] for position in judged.rejected.keys() - at_fault}
            answers.clipped = {**judged.clipped, **numbers}
            return
        answers.failures |= judged.rejected
        answers.updates = {
            position: replace(update, scale=float(judged.scales[position]))
            for position, update in answers.updates.items()
            if position not in judged.rejected
        }

    def _weights(self, selection: Selection, usable: Bools) -> Floats:
        if self.updates == "masked":  # clients were told them, and all must answer
            return selection.weights
        weights = self.selector.finalize(selection, usable)
        if self.responses is None:
            return weights
        return self.responses.correct(weights, selection.clients, usable)

    def _coefficients(self, weights: Floats) -> Floats:
        """Return (S,) what updates are multiplied by: c_m, or equal shares if clients did so themselves."""
        return np.full(weights.size, 1 / max(1, weights.size)) if self.updates == "masked" else weights

    def _why_void(self, usable: Bools) -> str:
        count = int(usable.sum())
        if self.updates == "masked" and 0 < count < usable.size:
            return f"{count} usable of {usable.size} answers: without the others' masks there is no sum"
        if count >= self.quorum:
            return ""
        if not usable.size:
            return "nobody was chosen"
        return f"{count} usable of {usable.size} answers: fewer than the quorum of {self.quorum}"


def enough_answers(selection: Selection, clients_per_round: int, quorum: int = 1) -> int:
    """Return how many answers are a cohort's worth where more clients than that were chosen.

    Those of K draws; of S clients who are D > K draws, K/D of them (rounded up). Where there were no more
    clients to choose, all of them. The quorum in any case.
    """
    size, draws = selection.clients.size, int(selection.counts.sum())
    worth = size if draws <= clients_per_round else -(-size * clients_per_round // draws)
    return min(size, max(worth, quorum))


def client_seed(seed: int, round: int, client: int, purpose: str = "client") -> int:
    """Return the seed, in [0, 2^63), of what a client does in a round: its local training, or its "loss"."""
    return int(generator(seed, round, f"{purpose}-{client}").integers(2**63))


def _by_client(selection: Selection, reasons: Mapping[int, str]) -> dict[int, str]:
    """Return reasons by client instead of by position, in selection order."""
    return {int(selection.clients[i]): reasons[i][:_LONGEST_REASON] for i in sorted(reasons)}
