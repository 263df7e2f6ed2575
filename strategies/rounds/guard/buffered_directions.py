"""Remembers the directions of updates in buffered rounds, by which the guard compares clients."""

from math import sqrt

import numpy as np

from ...numerics.arrays import Array, Floats, Ints
from ...numerics.sketches import WIDTH
from .directions import Agreements, unit_vectors

_UPDATES = 128
"""How many updates are remembered."""
_KEPT = 4
"""How many of each client's newest updates are forgotten last."""
_FEWEST = 8
"""If updates of fewer clients than this are remembered, no agreement is computed."""
_NEAR = 3.0
"""When an update is compared with another client's update, the other update's weight falls by a factor of e
for every three rounds between the models from which the two were trained."""


class VersionedDirections:
    """Remembers the directions of 128 updates, and the rounds from whose models they were trained.

    If there is no room for a new update, the oldest update that is not among its client's four newest is
    forgotten. If every update is among its client's four newest, the oldest of all is forgotten.

    Honest updates also differ if they were trained from different models: between these models, the global
    model has moved, perhaps beyond the minimum. So an update is compared with one update of each other
    client: the one that was trained from the nearest model. This other update has the weight exp(-d/3), where
    d is the number of rounds between the two models. The *company* of an update is the sum of these weights.
    With more company, the cosine of the update with the weighted sum is more reliable. A client's agreement
    is the mean of the cosines of all its remembered updates, weighted by their company.

    The first update from the newest model has little company, so it hardly counts until other clients'
    updates from this model arrive.

    The time of a round with n updates is O(128² (128 + D)).
    """

    def __init__(self) -> None:
        self._clients = np.full(_UPDATES, -1, dtype=np.int64)  # filled from the end
        self._versions = np.zeros(_UPDATES, dtype=np.int64)
        self._directions = np.zeros((_UPDATES, WIDTH), dtype=np.float32)

    def agreements(self, clients: Ints, sketches: Floats, versions: Ints) -> Agreements:
        """Remember updates, and compute the agreements of their clients and of the other clients.

        `sketches` (n, D) of the updates of the distinct `clients` (n,) may hold any floats. `versions` (n,)
        are the rounds from whose models the updates were trained.
        """
        found, single = np.full(clients.size, np.nan), np.ones(clients.size, dtype=np.bool_)
        deviations = np.ones(clients.size)
        usable, directions = unit_vectors(clients, sketches)
        usable, width = usable[:_UPDATES], sketches.shape[1]
        self._remember(clients[usable], versions[usable], directions[:_UPDATES])
        known = self._clients >= 0
        senders, age = np.unique(self._clients[known][::-1], return_index=True)
        if senders.size < _FEWEST:
            return Agreements(found, np.empty(0), single, deviations)
        senders = senders[np.argsort(-age)]  # the newest at the end
        cosines, company = _compared(
            self._clients[known], self._versions[known], self._directions[known, :width].astype(np.float64)
        )
        own = self._clients[known] == senders[:, None]
        with np.errstate(invalid="ignore"):  # 0/0 if all other updates are thousands of rounds apart
            weights = own * company / (own * company).sum(axis=1, keepdims=True)
        agreements = (weights * cosines).sum(axis=1)
        at = {client: position for position, client in enumerate(senders.tolist())}
        for i in usable.tolist():
            position = at[int(clients[i])]
            found[i], single[i] = agreements[position], own[position].sum() == 1
            deviations[i] = sqrt(np.square(weights[position]).sum())
        return Agreements(found, agreements[~np.isin(senders, clients[usable])], single, deviations)

    def _remember(self, clients: Ints, versions: Ints, directions: Floats) -> None:
        for client, version, direction in zip(clients, versions, directions, strict=True):
            newest_first = self._clients[::-1]
            later = (newest_first == newest_first[:, None]) & np.tri(_UPDATES, dtype=np.bool_)
            spare = np.flatnonzero((later.sum(axis=1)[::-1] > _KEPT) | (self._clients < 0))
            out = spare[0] if spare.size else 0
            for array, added in ((self._clients, client), (self._versions, version)):
                array[out:] = np.append(array[out + 1 :], added)
            self._directions[out:-1] = self._directions[out + 1 :].copy()
            self._directions[-1] = 0
            self._directions[-1, : direction.size] = direction

    def arrays(self) -> dict[str, Array]:
        """Return all arrays of the state by name. They are not copies."""
        return {"clients": self._clients, "versions": self._versions, "directions": self._directions}


def _compared(clients: Ints, versions: Ints, units: Floats) -> tuple[Floats, Floats]:
    """Return (n,) the cosine of each of ``units`` (n, D) with the weighted sum of others, and its company."""
    products = np.einsum("id,jd->ij", units, units)  # the last digits of @ would depend on the machine
    apart = np.abs(versions[:, None] - versions)
    weights = np.zeros_like(products)
    rows = np.arange(clients.size)
    for client in np.unique(clients):
        its = np.flatnonzero(clients == client)[::-1]
        nearest = its[apart[:, its].argmin(axis=1)]
        weights[rows, nearest] = np.exp(-apart[rows, nearest] / _NEAR) * (clients != client)
    along = (weights * products).sum(axis=1)
    lengths = np.sqrt((np.einsum("ij,jk->ik", weights, products) * weights).sum(axis=1).clip(1e-12))
    return np.clip(along / lengths, -1, 1), weights.sum(axis=1)
