"""The stages of a round: opened, clients chosen, finished. Each one holds what the next one needs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from ..numerics.arrays import Ints
from ..selectors import Selection
from .aggregation import Arrays, Model, Update
from .record import RoundRecord


@dataclass(frozen=True)
class Opened:
    """A round before the selection.

    Attributes
    ----------
    number : int
        The round.
    candidates : ndarray of int, shape (C,), or None
        The clients to poll; None if the selector needs no poll.
    budget : float or None
        K of this round, if it is over-selected.
    available, unavailable : ndarray of int, or None
        The selectable clients, or those that are not, of which at most one is given, see `Selector.select`.
    num_available : int
        The number of selectable clients.
    quarantined : ndarray of int
        The clients that would be selectable without their offences.
    """

    number: int
    candidates: Ints | None
    budget: float | None
    available: Ints | None
    unavailable: Ints | None
    num_available: int
    quarantined: Ints


@dataclass(frozen=True)
class Chosen:
    """A round whose clients are selected and have to train.

    Attributes
    ----------
    opened : Opened
        The round before.
    selection : Selection
        The selected clients and their weights.
    enough : int
        The number of trained models after which the round goes on without the others.
    clipped : mapping of int to str
        Client -> which of the values it reported in the poll were clipped.
    """

    opened: Opened
    selection: Selection
    enough: int
    clipped: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The result of a round before the server step.

    Attributes
    ----------
    arrays : dict of str to array, or None
        w_t + Δ, the caller's own; None in a skipped round.
    record : RoundRecord
        What happened so far; `closed` completes it.
    """

    arrays: Arrays | None
    record: RoundRecord
    _model: Model
    _updates: Mapping[int, Update]  # by position; empty in a skipped round

    def client_models(self) -> Iterator[tuple[int, Mapping[str, NDArray[Any]]]]:
        """Yield (position, w_m) of each client that is part of the step, in selection order.

        For server strategies that need one reply per client; their weights are in the record, at the same
        positions. If the guard clipped an update, w_m is moved towards w_t; otherwise it is the reply's own
        mapping, not a copy. Variates' baselines are not subtracted.
        """
        for position, update in self._updates.items():
            model: Mapping[str, NDArray[Any]] | None = update.sent
            if update.scale < 1:
                model = self._model.moved(self._model.fold([(1.0, replace(update, baseline=None))]))
            if model is not None:
                yield position, model

    def closed(self, skipped: str, seconds: float) -> RoundRecord:
        """Return the complete record; ``skipped``: why the server step changed nothing, "" if it did."""
        return replace(self.record, skipped=skipped, seconds=seconds)
