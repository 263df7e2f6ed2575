"""Which simulated clients are available in a round, which of them are eligible, and which clients join."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strategies.clients.printable import listed
from strategies.numerics.arrays import Bools, Ints
from strategies.options import Eligibility, Eligible
from strategies.rounds.guard.claimed_sizes import ClientSizes
from strategies.rounds.logic import RoundLogic
from tasks.federated_data import FederatedData

from ..availability import Availability


class AvailableClients:
    """Finds the clients that may be selected in each round.

    ``per_client`` holds the values (M,) of the selector's settings per client, of which the selector gets
    those of a client that joins. ``sizes_of`` returns the data sizes of the first n clients, given n. The
    other parameters are those of `Simulator`.
    """

    def __init__(
        self,
        availability: Availability | None,
        eligible: Eligible | None,
        names: Sequence[str] | None,
        data: FederatedData,
        per_client: Mapping[str, NDArray[Any]],
        sizes_of: Callable[[int], ClientSizes],
    ) -> None:
        size = data.num_clients
        self._availability, self._per_client, self._sizes_of = availability, per_client, sizes_of
        names = [f"client-{m}" for m in range(size)] if names is None else list(names)
        if len(names) != size:
            raise ValueError(f"client_names holds {len(names)} names: must hold {size}, one per client")
        labels = [None] * size if data.groups is None else np.asarray(data.groups).tolist()
        self._known_as = [
            (name, {} if label is None else {"group": str(label)})
            for name, label in zip(names, labels, strict=True)
        ]
        self._conditions_of = None if eligible is None else Eligibility.of(eligible)
        self._conditions, self._meets = Eligibility(), np.ones(size, dtype=np.bool_)
        self.num_ineligible = 0  # how many clients this round leaves out only because they are not eligible
        if eligible is not None:
            self._eligible(1)  # refuse now, before round 1, conditions that no client meets

    @property
    def conditions(self) -> str:
        return str(self._conditions)

    def available(self, number: int, logic: RoundLogic) -> Ints | None:
        """Let new clients join, and return the clients that may be selected in a round; None for all."""
        available = None
        if self._availability is not None:
            available = self._availability.available(number)
            joining = slice(logic.selector.num_clients, self._availability.num_registered(number))
            if joining.stop > joining.start:
                sizes = self._sizes_of(joining.stop).used
                each = {name: values[joining] for name, values in self._per_client.items()}
                logic.add_clients(sizes[joining], **each)
                changed = np.flatnonzero(sizes != logic.selector.client_sizes)
                if changed.size:
                    logic.set_sizes(changed, sizes[changed])
        if self._conditions_of is None:
            return available
        meets = self._eligible(number)
        here = np.arange(logic.selector.num_clients) if available is None else np.asarray(available)
        eligible: Ints = here[meets[here]]
        self.num_ineligible = here.size - eligible.size
        return eligible

    def _eligible(self, number: int) -> Bools:
        """Return (M,) whether each client meets the conditions of a round; at least one client must."""
        assert self._conditions_of is not None
        conditions = self._conditions_of(number)
        if conditions != self._conditions:
            if conditions.tags or conditions.properties.keys() - {"group"}:
                raise ValueError(
                    f"eligible = {str(conditions)!r}: a batched simulation knows names and groups only"
                )
            meets = np.array([conditions.admits(*each) for each in self._known_as], dtype=np.bool_)
            if not meets.any():
                raise ValueError(
                    f"eligible = {str(conditions)!r}: no client meets this; the names are "
                    f"{listed([name for name, _ in self._known_as], 3)}"
                )
            self._conditions, self._meets = conditions, meets
        return self._meets
