"""Clustered sampling: K distributions over the clients, and one draw from each.

Fraboni, Vidal, Kameni, Lorenzi, "Clustered Sampling: Low-Variance and Improved Representativity for Clients
Selection in Federated Learning" (ICML 2021; arXiv 2105.05883), Algorithms 1 and 2. Published code:
https://github.com/Accenture/Labs-Federated-Learning, branch clustered_sampling. The paper's m is K here.
"""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Floats, Ints
from ...numerics.sampling import Draw, first_seen
from ...numerics.sketches import WIDTH
from ...numerics.streams import generator
from ..presence import Presence
from ..probability import OwnDrawsSettings, ProbabilitySelector
from ..settings import setting
from .ward import ward_groups

TOLERANCE = 1e-9
"""A group may exceed its distribution by this share, so that rounding does not split a group that fits."""


class ClusteredSelector(ProbabilitySelector):
    """Draws one client from each of K distributions r_1..r_K over the clients.

    λ_m is client m's share of the available clients' data. For each client, the distributions satisfy::

        sum_k r_k(m) = K λ_m,        so E[N_m] = K λ_m, and W_m = N_m/(K λ_m), c_m = N_m/K

    N_m is how often client m is drawn. So the aggregate is unbiased, each draw has the weight 1/K, and its
    variance is at most that of ``md``, whatever the distributions are. ``Selection.probabilities`` is λ_m,
    the mean of the r_k(m). If at most K clients are available, each of them is selected once.
    """

    equal_weight_draws = "always"
    own_draws = True
    own_design = ""
    settings_type = OwnDrawsSettings

    def _distribution(self) -> Floats:
        sizes = np.where(self._registered, self.client_sizes, 0.0)
        return sizes / (self._registered_size or 1.0)

    def _draw_available(self, available: Presence, k: int, rng: np.random.Generator) -> Draw:
        drawn, counts = first_seen(self._one_of_each(available, k, rng))
        shares = self.client_sizes[drawn] / available.total_size
        return Draw(drawn, counts, shares, counts / (k * shares))

    @abstractmethod
    def _one_of_each(self, available: Presence, k: int, rng: np.random.Generator) -> Ints:
        """Return (k,) a client from each distribution; 1 <= k < the number of available clients."""


class ClusteredSizesSelector(ClusteredSelector):
    """Clustered sampling by sample size: the distributions hold clients of similar size.

    Algorithm 1: the clients, the largest first, are segments of the length K λ_m, laid end to end.
    Distribution k is the part from k - 1 to k. So at most one client is in both of two neighbouring
    distributions. `ClusteredSelector` states what all distributions have in common.

    The paper leaves the order of clients of equal size open. Here it is random, and the same in all rounds.
    In the published code it depends on the numbers of the clients, and segments are rounded to 1e-10.

    A round costs O(M); if sizes or registrations have changed, O(M log M).
    """

    name = "clustered-sizes"
    summary = "from K clusters of similar sizes"
    data_independent = True

    def _one_of_each(self, available: Presence, k: int, rng: np.random.Generator) -> Ints:
        def compute() -> Ints:
            ties = generator(self._seed, 0, "order").random(self.num_clients)
            order = np.lexsort((ties, -self.client_sizes))
            return order[self._registered[order]]

        order = self._cached("order", ("client_sizes", "registered"), compute)
        if available.count < order.size:
            order = order[available.mask[order]]
        ends = np.cumsum(self.client_sizes[order])
        points = (np.arange(k) + rng.random(k)) * (ends[-1] / k)
        chosen: Ints = order[np.minimum(np.searchsorted(ends, points, side="right"), order.size - 1)]
        return chosen


@dataclass(frozen=True)
class ClusteredUpdatesSettings(OwnDrawsSettings):
    """Settings of clustered sampling by similarity."""

    similarity: str = setting(
        "cosine", choices=("cosine", "euclidean"), doc="the distance of two updates: their angle, or Euclid's"
    )
    tree: str = setting(
        "distances",
        choices=("distances", "rows"),
        doc="what Ward's method clusters: the clients by their distances, or (as in the published code) the "
        "rows of the matrix of distances",
    )
    tree_size: int = setting(
        500, low=2, high=5000, doc="the most clients in the tree; if more are available, others fill up"
    )


class ClusteredUpdatesSelector(ClusteredSelector):
    """Clustered sampling by similarity: the distributions hold clients with similar last updates.

    Algorithm 2, in each round::

        1. the clients' last updates g_m (0 if there is none) and their distances
        2. Ward's tree, cut into groups B of similar clients with sum_{m in B} K λ_m <= 1
        3. each of the K groups with the largest sum is put into a distribution of its own
        4. the clients of the other groups fill these K distributions, in random order inside of a group,
           until the sum of each is 1; a client may be divided among several distributions

    `ClusteredSelector` states what all distributions have in common. The updates are sketches (see
    `numerics.sketches`), so cosines have an error of about .06. The angle to an update of 0 is 0, as in the
    published code.

    A client with K λ_m >= 1 first gets as many distributions of its own as are full; only the rest of its
    K λ_m takes part in the steps. If more than `tree_size` clients are available, the tree has only clients
    with a known update, at most `tree_size` of them at random, and all other clients fill up as in step 4.
    The aggregate stays unbiased.

    The published code differs from the paper in three points. It passes the matrix of distances to SciPy as
    if its rows were the clients' coordinates (``tree="rows"``). It leaves a client with K λ_m > 1 in one
    distribution, so the aggregate is biased. And its "L2" is the squared distance, which Ward's method
    squares again. The order in which the distributions are filled, smallest group first, is the code's.

    A round costs O(M), and for n clients in the tree O(n²): about 20 ms for 500.
    """

    name = "clustered-updates"
    summary = "from K clusters of similar updates"
    compares_updates = True
    new_share = 1.0
    remembered_width = WIDTH
    settings_type = ClusteredUpdatesSettings
    _settings: ClusteredUpdatesSettings

    def _one_of_each(self, available: Presence, k: int, rng: np.random.Generator) -> Ints:
        clients = rng.permutation(available.clients)  # so that the numbers of clients decide nothing
        masses = self.client_sizes[clients] * (k / available.total_size)  # K λ
        whole = np.floor(masses)
        certain = np.repeat(clients, whole.astype(np.int64))
        left = masses > whole
        clients, masses = clients[left], masses[left] - whole[left]
        k -= certain.size
        if not k:
            return certain
        groups, outside = self._groups(clients, masses)
        weights = np.array([masses[group].sum() for group in groups])
        order = np.argsort(-weights, kind="stable")
        filling = np.concatenate([*(groups[i] for i in order[k:][::-1]), outside])
        ends, used = np.cumsum(masses[filling]), 0.0
        drawn = np.empty(k, dtype=np.int64)
        # Distribution i has a group, from 0 to the sum of its masses, and then what fills up. The smallest of
        # the K largest groups is in the first.
        for i, point in enumerate(rng.random(k).tolist()):
            rank = k - 1 - i
            own = float(weights[order[rank]]) if rank < order.size else 0.0
            if point < own or not filling.size:
                group = groups[order[rank]]
                drawn[i] = _at(group, np.cumsum(masses[group]), point)
            else:
                drawn[i] = _at(filling, ends, used + point - own)
            used += max(0.0, 1 - own)
        return np.concatenate([certain, clients[drawn]])

    def _groups(self, clients: Ints, masses: Floats) -> tuple[list[Ints], Ints]:
        """Return the groups of step 2, and the clients outside the tree, as positions in `clients` (n,)."""
        inside = np.arange(clients.size)
        if clients.size > self._settings.tree_size:
            inside = np.flatnonzero(self._remembered.knows(clients))[: self._settings.tree_size]
        outside = np.delete(np.arange(clients.size), inside)
        if not inside.size:
            return [], outside
        squares = _squares(np.nan_to_num(self._remembered.of(clients[inside])), self._settings.similarity)
        if self._settings.tree == "rows":
            squares = _squares(np.sqrt(squares), "euclidean")
        groups = ward_groups(squares, masses[inside], 1 + TOLERANCE)
        return [inside[group] for group in groups], outside


def _at(group: Ints, ends: Floats, point: float) -> int:
    """Return the member of a group whose segment, which ends at `ends` (n,), holds a point."""
    return int(group[min(int(np.searchsorted(ends, point, "right")), group.size - 1)])


def _squares(rows: Floats, similarity: str) -> Floats:
    """Return (n, n) the squared distances of `rows` (n, d); with "cosine", the squared angles."""
    lengths = np.linalg.norm(rows, axis=1)
    if similarity == "cosine":
        unit = rows / np.where(lengths > 0, lengths, 1.0)[:, None]
        angles = np.arccos(np.clip(unit @ unit.T, -1, 1))
        angles[lengths == 0] = 0
        angles[:, lengths == 0] = 0
        squared: Floats = angles**2
    else:
        squared = np.maximum(lengths[:, None] ** 2 + lengths**2 - 2 * rows @ rows.T, 0)
    np.fill_diagonal(squared, 0)
    return squared
