"""A round on arrays: choose, weigh, aggregate, learn. It knows no Message and no network.

The Flower strategy translates messages to and from this; a simulator calls it directly.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from .aggregation import Arrays, Model, UnusableError, Update
from .guard import Guard
from .numerics.arrays import Array, Bools, Floats
from .numerics.streams import generator
from .reports import Report
from .responses import ResponseRates
from .selectors import Feedback, Selection, Selector
from .trained import TrainedCohort, TrainedModel, spread
from .variates import ClientVariates

__all__ = ["Arrays", "Outcome", "Reply", "RoundLogic", "RoundRecord", "TrainedCohort", "client_seed"]

_LONGEST_REASON = 300  # characters of a failure's reason that are kept; a client writes part of it


@dataclass(frozen=True)
class Reply:
    """What came back from one chosen client: its trained arrays, or the reason why there are none."""

    arrays: Mapping[str, NDArray[Any]] | None = None  # w_m; may decode an array each time it is asked for
    report: Report = field(default_factory=Report)
    metrics: Mapping[str, Any] = field(default_factory=dict)  # all that it measured, passed through
    failure: str = ""  # why there are no arrays, for the log
    sent: bool = False  # beside a failure: the client did send something, and it cannot be used


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
    bounded: Mapping[int, str] = field(default_factory=dict)  # client index -> what of it was bounded
    void: str = ""  # why the round changed nothing; "" if it did
    aside: tuple[int, ...] = ()  # clients that were here, and put aside for bad reports
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


@dataclass
class _Answers:
    """A round's replies, looked at. Updates, failures and bounds are by position."""

    updates: dict[int, Update]  # those that can be used
    norms: Floats  # (S,) ‖g_m‖; NaN where there is none
    losses: Floats  # (S,) as reported
    gradient_variances: Floats  # (S,) as reported
    failures: dict[int, str]
    at_fault: list[int]  # positions of failures that are the client's own: it sent something
    step: Arrays | None  # the sum of all of them, as `Model.fold` returns it; None if some were not usable
    bounded: Mapping[int, str] = field(default_factory=dict)
    cohort: TrainedCohort | None = None  # where they came in one piece


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
        If ``quorum`` is below 1.
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
            sizes = np.where(self.selector.living, self.selector.client_sizes, 0.0)
            if here is not None:
                sizes[np.setdiff1d(np.arange(sizes.size), here)] = 0.0
            self.variates.begin(sizes / (sizes.sum() or 1.0))
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
        replies: Sequence[Reply] | TrainedCohort,
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
        replies : sequence of Reply, or TrainedCohort
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
        if isinstance(replies, TrainedCohort) and self.variates is not None:
            replies = _one_by_one(replies, selection)
        # Who sent no arrays is known before anything is looked at. If all others prove usable, these are the
        # weights, and the step is summed on the way.
        likely = _who_sent(replies, selection)
        guess = self._weights(selection, likely)
        if isinstance(replies, TrainedCohort):
            answers = self._examine_cohort(replies, selection, self._coefficients(guess))
        else:
            answers = self._examine(model, selection, replies, self._coefficients(guess))
        if self.guard is not None:
            self._bound(answers, self.guard, round, selection)
        updates = answers.updates
        usable = np.zeros(likely.size, dtype=np.bool_)
        usable[list(updates)] = True

        weights = guess if np.array_equal(usable, likely) else self._weights(selection, usable)
        diversities = np.full(likely.size, nan)
        moved, void = None, self._why_void(usable)
        if not void:
            coefficients = self._coefficients(weights)
            parts = [(float(coefficients[position]), update) for position, update in updates.items()]
            step, answers.step = answers.step, None
            if step is None or weights is not guess or any(update.scale < 1 for update in updates.values()):
                step = None  # not two at a time
                step = _combined(model, answers, parts)
            if "diversity" in self.selector.learns:
                diversities[usable] = self._diversities(model, parts, step)
            moved = model.moved(step, mean=None if self.variates is None else self.variates.mean())
            if moved is None:  # a sum that is not finite is nobody's in particular: all are left out
                void = "the step is not finite"
                answers.failures |= dict.fromkeys(updates, "the step with this update is not finite")
        if self.responses is not None:
            self.responses.observe(selection.clients, usable)
        if void:
            updates = {}
        responded = usable & (not void)
        weights = np.where(responded, weights, 0.0)

        feedback = Feedback(
            update_norms=np.where(responded, answers.norms, nan),
            losses=np.where(responded, answers.losses, nan),
            gradient_variances=np.where(responded, answers.gradient_variances, nan),
            diversities=np.where(responded, diversities, nan),
            responded=responded,
        )
        self.selector.update(round, selection, feedback)
        if self.variates is not None and updates and not isinstance(replies, TrainedCohort):
            self.variates.remember(
                selection.clients[responded],
                ((int(selection.clients[i]), model.bounded(update)) for i, update in updates.items()),
                _reported(replies, "num_steps")[responded],
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
            bounded=_by_client(selection, answers.bounded),
            void=void,
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

    def _examine(
        self, model: Model, selection: Selection, replies: Sequence[Reply], weights: Floats
    ) -> _Answers:
        """Look at the replies, one by one, and sum them with these weights, while all are usable."""
        answers = _Answers(
            updates={},
            norms=np.full(len(replies), nan),
            losses=_reported(replies, "train_loss"),
            gradient_variances=_reported(replies, "gradient_variance"),
            failures={},
            at_fault=[],
            step=model.nothing(),
        )
        for position, (client, reply) in enumerate(zip(selection.clients, replies, strict=True)):
            if reply.failure:
                answers.failures[position] = reply.failure
                answers.at_fault += [position] * reply.sent
                continue
            baseline = None if self.variates is None else self.variates.baseline(int(client))
            update = Update(reply.arrays or {}, baseline=baseline)
            try:
                length = model.examine(update, answers.step, float(weights[position]))
            except UnusableError as error:
                answers.failures[position] = str(error)
                answers.at_fault.append(position)
                answers.step = None
            else:
                said = reply.report.update_norm
                if self.updates == "masked":
                    length = nan if said is None else said
                answers.norms[position] = length / self.local_learning_rate
                answers.updates[position] = update
        return answers

    def _examine_cohort(self, cohort: TrainedCohort, selection: Selection, weights: Floats) -> _Answers:
        """Look at a cohort in one piece; what it is asked to sum is finite."""
        size, positions = weights.size, cohort.positions
        norms = cohort.updates.norms()
        answers = _Answers(
            updates={},
            norms=spread(norms / self.local_learning_rate, positions, size),
            losses=spread(cohort.losses, positions, size),
            gradient_variances=spread(cohort.gradient_variances, positions, size),
            failures=dict(cohort.failures),
            at_fault=[],
            step=None,
            cohort=cohort,
        )
        finite = np.isfinite(norms)
        for row in np.flatnonzero(~finite).tolist():
            position = int(positions[row])
            answers.failures[position] = "the norm of the update is not finite"
            answers.at_fault.append(position)
            answers.norms[position] = nan
        answers.updates = {
            position: Update(TrainedModel(cohort.updates, row))
            for row, position in enumerate(positions.tolist())
            if finite[row]
        }
        if finite.all():
            answers.step = _flat(cohort.updates.combined(weights[positions]))
        return answers

    def _bound(self, answers: _Answers, guard: Guard, round: int, selection: Selection) -> None:
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
        answers.bounded = judged.bounded
        if self.updates == "masked":  # none can be left out or shortened
            numbers = {position: judged.rejected[position] for position in judged.rejected.keys() - at_fault}
            answers.bounded = {**judged.bounded, **numbers}
            return
        answers.failures |= judged.rejected
        answers.updates = {
            position: replace(update, scale=float(judged.scales[position]))
            for position, update in answers.updates.items()
            if position not in judged.rejected
        }

    def _weights(self, selection: Selection, usable: Bools) -> Floats:
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

    def _diversities(self, model: Model, parts: Sequence[tuple[float, Update]], step: Arrays) -> list[float]:
        """Return ‖g_m - mean g‖ of each update; the mean has the weights of the step, or equal ones."""
        total = sum(weight for weight, _ in parts)
        if getattr(self.selector.settings, "diversity_mean", "weighted") == "plain" or not total > 0:
            total = float(len(parts))
            step = model.fold((1.0, update) for _, update in parts)
        return [model.distance(update, step, 1 / total) / self.local_learning_rate for _, update in parts]


def client_seed(seed: int, round: int, client: int, purpose: str = "client") -> int:
    """Return the seed, in [0, 2^63), of what a client does in a round: its local training, or its "loss"."""
    return int(generator(seed, round, f"{purpose}-{client}").integers(2**63))


def _who_sent(replies: Sequence[Reply] | TrainedCohort, selection: Selection) -> Bools:
    """Return (S,) whether there are arrays."""
    if isinstance(replies, TrainedCohort):
        sent = np.zeros(selection.clients.size, dtype=np.bool_)
        sent[replies.positions] = True
        return sent
    return np.array([not reply.failure for reply in replies], dtype=np.bool_)


def _one_by_one(cohort: TrainedCohort, selection: Selection) -> list[Reply]:
    """Return a cohort's replies, for what works on each client's update."""
    replies = [Reply(failure=cohort.failures.get(i, "no answer")) for i in range(selection.clients.size)]
    for row, position in enumerate(cohort.positions.tolist()):
        variance = float(cohort.gradient_variances[row])
        report = Report(
            num_steps=int(cohort.num_steps[row]),
            train_loss=float(cohort.losses[row]) if isfinite(cohort.losses[row]) else None,
            gradient_variance=variance if isfinite(variance) else None,
        )
        replies[position] = Reply(TrainedModel(cohort.updates, row), report)
    return replies


def _combined(model: Model, answers: _Answers, parts: Sequence[tuple[float, Update]]) -> Arrays:
    """Return Σ c s (w_m - w_t - y_m) over (c, update); parts are aligned with the answers' updates."""
    if answers.cohort is None:
        return model.fold(parts)
    scaled = np.zeros(answers.norms.size)
    for position, (coefficient, update) in zip(answers.updates, parts, strict=True):
        scaled[position] = coefficient * update.scale
    return _flat(answers.cohort.updates.combined(scaled[answers.cohort.positions]))


def _flat(arrays: Arrays) -> Arrays:
    return {name: array.reshape(-1) for name, array in arrays.items()}


def _reported(replies: Sequence[Reply], name: str) -> Floats:
    """Return (S,) a number that clients report with their update, NaN where they do not."""
    said = [None if reply.failure else getattr(reply.report, name) for reply in replies]
    return np.array([nan if value is None else float(value) for value in said])


def _by_client(selection: Selection, reasons: Mapping[int, str]) -> dict[int, str]:
    """Return reasons by client instead of by position, in selection order."""
    return {int(selection.clients[i]): reasons[i][:_LONGEST_REASON] for i in sorted(reasons)}
