"""The stages of a round: `Opened`, `Chosen` and `Outcome`. Each holds the data that the next steps need."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..numerics.arrays import Bools, Floats, Ints
from ..selectors import Selection
from .aggregation import Arrays, Model, Update
from .record import RoundRecord


@dataclass(frozen=True)
class Opened:
    """A round before the selection.

    Attributes
    ----------
    number : int
        The number of the round, >= 1.
    candidates : ndarray of int, shape (C,), or None
        The clients to poll; None if the selector needs no poll.
    budget : float or None
        The selection size: the budget K(t) times the over-selection factor, rounded up. None if this is the
        selector's `clients_per_round`.
    available, unavailable : ndarray of int, or None
        The selectable clients, or the registered clients that are not selectable. At most one of the two is
        given. If both are None, all registered clients are selectable. See `Selector.select`.
    num_available : int
        The number of selectable clients.
    quarantined : ndarray of int
        The available clients that are not selectable because of offences or silence.
    silent : ndarray of int
        The clients among ``quarantined`` that are quarantined for silence or errors.
    released : ndarray of int (default: empty)
        The selectable clients whose quarantine for offences ends early, since without them too few clients
        would be left for a quorum.
    draw : int (default: 0)
        The number of earlier selections in this round. Only a buffered round has more than one selection.
    """

    number: int
    candidates: Ints | None
    budget: float | None
    available: Ints | None
    unavailable: Ints | None
    num_available: int
    quarantined: Ints
    silent: Ints
    released: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    draw: int = 0

    def selectable(self, registered: Bools) -> Ints:
        """Return the selectable clients, ascending. ``registered`` (M,) is `Selector.registered`."""
        if self.available is not None:
            return self.available
        clients: Ints = np.flatnonzero(registered)
        return clients if self.unavailable is None else np.setdiff1d(clients, self.unavailable)

    def absent(self, registered: Bools, most: int) -> Ints | None:
        """Return the clients that are not selectable, ascending; None if there are more than ``most``.

        ``registered`` (M,) is `Selector.registered`. Removed clients are absent, too.
        """
        number = registered.size - self.num_available
        if number > most:
            return None
        if number == 0:
            return np.empty(0, dtype=np.int64)
        selectable = np.zeros(registered.size, dtype=np.bool_)
        selectable[self.selectable(registered)] = True
        return np.flatnonzero(~selectable)


@dataclass(frozen=True)
class Chosen:
    """A round whose clients are selected and have to train.

    Attributes
    ----------
    opened : Opened
        The round before the selection.
    selection : Selection
        The selected clients and their weights.
    enough : int
        The number of usable trained models after which the round no longer waits for the other clients.
    clipped : mapping of int to str
        Client -> which values were clipped or ignored in its answer to the poll.
    staleness : ndarray of int, shape (S,), or None
        The staleness of each client's update in a buffered round; None in any other round.
    factors : ndarray, shape (S,), or None
        The staleness factors, by which the weights of a buffered round are multiplied (`Buffer.factors`);
        None in any other round.
    num_stale : int (default: 0)
        How many updates of a buffered round are too stale to be used.
    sizes : ndarray, shape (M,), or None
        The clients' data sizes at the selection. If the selector has other sizes when the round ends, the
        weights are computed again. None: the weights do not change.
    """

    opened: Opened
    selection: Selection
    enough: int
    clipped: Mapping[int, str] = field(default_factory=dict)
    staleness: Ints | None = None
    factors: Floats | None = None
    num_stale: int = 0
    sizes: Floats | None = None


@dataclass(frozen=True)
class Outcome:
    """The result of a round before the server step.

    Attributes
    ----------
    arrays : dict of str to array, or None
        The model w_t plus the aggregate Δ, in arrays that the caller may change; None in a skipped round.
    record : RoundRecord
        The record of the round, without what only the caller knows, such as ``seconds``; `closed` completes
        the record.
    """

    arrays: Arrays | None
    record: RoundRecord
    _model: Model
    _updates: Mapping[int, Update]  # position -> usable update; empty in a skipped round

    def client_models(self) -> Iterator[tuple[int, Mapping[str, NDArray[Any]]]]:
        """Yield (position, trained model w_m) of each client in the aggregate, in selection order.

        The weights of these clients are in ``record.weights`` at the same positions. If the guard clipped an
        update, w_m is moved towards w_t. Otherwise w_m is the mapping in the client's reply, and not a copy.
        The baseline of a client (`ClientVariates`) is not subtracted from w_m.
        """
        for position, update in self._updates.items():
            model: Mapping[str, NDArray[Any]] | None = update.sent
            if update.scale < 1:
                model = self._model.moved(self._model.fold([(1.0, replace(update, baseline=None))]))
            if model is not None:
                yield position, model

    def closed(
        self,
        skipped: str,
        seconds: float,
        phases: Mapping[str, float] | None = None,
        *,
        eligible: str = "",
        num_ineligible: int = 0,
    ) -> RoundRecord:
        """Return the complete record.

        Parameters
        ----------
        skipped : str
            Why the server step did not change the model; "" if it changed the model.
        seconds : float
            The time from the poll to the new model.
        phases : mapping of str to float, optional
            The seconds of each part of this time, see `RoundRecord` (default: unknown).
        eligible : str (default: "")
            The conditions of `Eligibility`; "" if every client is eligible.
        num_ineligible : int (default: 0)
            The number of clients that are online and willing to train, but do not meet these conditions.
        """
        return replace(
            self.record,
            skipped=skipped,
            seconds=seconds,
            phases=dict(phases or {}),
            eligible=eligible,
            num_ineligible=num_ineligible,
        )
