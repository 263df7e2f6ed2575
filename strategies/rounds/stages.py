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
    """A round before the selection."""

    number: int  # >= 1
    candidates: Ints | None  # (C,) the clients to poll; None if the selector needs no poll
    # The selection size: the budget K(t) times the over-selection factor, rounded up. None if this is the
    # selector's `clients_per_round`.
    budget: float | None
    # The selectable clients, or the registered clients that are not selectable. At most one of the two is
    # given. If both are None, all registered clients are selectable. See `Selector.select`.
    available: Ints | None
    unavailable: Ints | None
    num_available: int  # the number of selectable clients
    quarantined: Ints  # the available clients that are not selectable because of offences or silence
    silent: Ints  # of these, the clients that are quarantined for silence or errors
    # The selectable clients whose quarantine for offences ends early, since without them too few clients
    # would be left for a quorum.
    released: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    draw: int = 0  # the number of earlier selections in this round, which only a buffered round has
    learning_rate: float = 1.0  # the clients' learning rate, by which norms are divided, see `RoundLogic`

    def selectable(self, registered: Bools) -> Ints:
        """Return the selectable clients, ascending. ``registered`` (M,) is `Selector.registered`."""
        if self.available is not None:
            return self.available
        clients: Ints = np.flatnonzero(registered)
        return clients if self.unavailable is None else np.setdiff1d(clients, self.unavailable)

    def absent(self, registered: Bools, most: int) -> Ints | None:
        """Return who is not selectable, removed clients too, ascending; None if they are over ``most``."""
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
    """A round whose clients are selected and have to train."""

    opened: Opened  # the round before the selection
    selection: Selection
    enough: int  # the number of usable models after which the round no longer waits for the other clients
    # client -> which values were clipped or ignored in its answer to the poll
    clipped: Mapping[int, str] = field(default_factory=dict)
    staleness: Ints | None = None  # (S,) of each client's update in a buffered round; None in any other round
    num_stale: int = 0  # how many updates of a buffered round are too stale to be used
    # (M,) the clients' data sizes at the selection. If the selector has other sizes when the round ends, the
    # weights are computed again. None: the weights do not change.
    sizes: Floats | None = None


@dataclass(frozen=True)
class Outcome:
    """The result of a round before the server step."""

    # The model w_t plus the aggregate Δ, in arrays that the caller may change; None in a skipped round.
    arrays: Arrays | None
    # without what only the caller knows, such as ``seconds``; `closed` completes the record
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

        ``skipped`` is why the server step did not change the model, "" if it did; the others are fields of
        `RoundRecord`.
        """
        return replace(
            self.record,
            skipped=skipped,
            seconds=seconds,
            phases=dict(phases or {}),
            eligible=eligible,
            num_ineligible=num_ineligible,
        )
