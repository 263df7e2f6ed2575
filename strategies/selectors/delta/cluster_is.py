"""Cluster-based importance sampling: clients with similar norms form a cluster.

The draws are divided among the clusters in proportion to their numbers of clients. This is the baseline
"Cluster-based IS" of Wang, Guo, Lin, Tang, "DELTA: Diverse Client Sampling for Fasting Federated Learning"
(NeurIPS 2023), sections 1 and B.2, after Shen et al. (2022).
"""

from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Floats, Ints
from ...numerics.budget_allocation import round_to_total
from ...numerics.fixed_size_sampling import draw_systematic
from ...numerics.sampling import Draw
from ..importance.importance import ImportanceSelector, ImportanceSettings
from ..importance.last_norms import LastNormSelector
from ..presence import Presence
from ..settings import setting

MAX_PASSES = 100


@dataclass(frozen=True)
class ClusterISSettings(ImportanceSettings):
    """Settings of cluster-based importance sampling."""

    num_clusters: int = setting(2, low=1, high=100, doc="centres of the k-means of norms")
    design: str = setting(
        "own",
        choices=("own", "systematic"),
        doc="how the draws of each cluster are made; own: independently, systematic: of distinct clients",
    )


class ClusterISSelector(LastNormSelector, ImportanceSelector):
    """Stratified importance sampling.

    K draws are made in three steps::

        1. k-means of the last known norms gives the clusters c; clients without a norm are one more cluster
        2. cluster c gets n_c draws: Q_c = K M_c/M rounded up or down at random, E[n_c] = Q_c, sum n_c = K
        3. the n_c draws are from p_m|c = (1 - ε) λ_m ||g_m|| / sum_c + ε/M_c
           (from the uniform distribution in the cluster of clients without a norm)

        W_m = N_m / (n_c p_m|c min(1, Q_c))

    M is the number of available clients, M_c the number of these in cluster c, and sum_c the sum of
    λ_m ||g_m|| over cluster c. ε is the setting `floor`. N_m is how often client m was drawn. A cluster with
    Q_c >= 1 gets draws in every round; its W_m are the usual weights of a stratified sample. A cluster with
    Q_c < 1 gets a draw with probability Q_c. ``replacement=False`` and ``design="systematic"`` apply to the
    draws of step 3. ``Selection.probabilities`` holds the probability of one draw, M_c/M p_m|c. Under the
    systematic design, it holds min(1, Q_c) π_m, where π_m is the probability that the design selects
    client m.

    The paper does not say how the draws are divided among clusters, nor whether it clusters by the norms of
    all clients in this round. Here the norm of a client is that of its last update.

    With the floor and with replacement, each draw of a client adds at most 2 M/(K ε) to its W: n_c is at
    least Q_c/2 if Q_c >= 1.

    A cluster gets its share of the draws however small its norms are. So if half of the clients have small
    norms, ``fed-is`` is better.
    """

    name = "cluster-is"
    summary = "from clusters of similar norms"
    own_draws = True
    settings_type = ClusterISSettings
    _settings: ClusterISSettings

    def _scores(self) -> Floats:
        return self._norms

    def _distribution(self) -> Floats:
        clients = np.flatnonzero(self._registered)
        q = np.zeros(self.num_clients)
        for members in self._split(clients):
            q[clients[members]] = self._within(clients[members]) * (members.size / clients.size)
        return q

    @property
    def _draws_as_own(self) -> bool:
        return True

    def _draw_available(self, available: Presence, k: int, rng: np.random.Generator) -> Draw:
        clients = available.clients
        clusters = self._split(clients)
        quotas = k * np.array([members.size for members in clusters]) / clients.size
        draws = round_to_total(quotas, rng)
        parts = [
            self._draw_within(clients[members], int(n), quota, k, rng)
            for members, n, quota in zip(clusters, draws, quotas, strict=True)
            if n
        ]
        return Draw(*(np.concatenate(field) for field in zip(*parts, strict=True)))

    def _draw_within(self, clients: Ints, n: int, quota: float, k: int, rng: np.random.Generator) -> Draw:
        """Make n >= 1 of the round's k draws from the clients of one cluster, whose Q_c is `quota`."""
        chance = min(1.0, quota)  # the probability that the cluster gets a draw
        systematic = self._settings.design == "systematic"
        draw = (draw_systematic if systematic else self._draw)(self._within(clients), n, rng)
        share = chance if systematic else quota / k
        return Draw(clients[draw.clients], draw.counts, draw.probabilities * share, draw.importance / chance)

    def _within(self, clients: Ints) -> Floats:
        """Return p_m|c (n,) of the n >= 1 clients of one cluster."""
        norms = self._norms[clients]
        if norms[0] < 0:
            return np.full(clients.size, 1 / clients.size)
        return self._floored(self.client_sizes[clients], norms)

    def _split(self, clients: Ints) -> list[Ints]:
        """Return the positions in ``clients`` of each cluster's members; those without a norm come first."""
        norms = self._norms

        def compute() -> Floats:
            return _boundaries(norms[self._registered & (norms >= 0)], self._settings.num_clusters)

        bounds = self._cached("bounds", ("update_norms", "registered"), compute)
        labels = np.searchsorted(np.concatenate([[0.0], bounds]), norms[clients], side="right")
        groups = (np.flatnonzero(labels == label) for label in range(bounds.size + 2))
        return [members for members in groups if members.size]


def _boundaries(values: Floats, num_clusters: int) -> Floats:
    """Return the smallest value of each cluster of `values` (n,) >= 0, ascending, without the lowest cluster.

    The clusters are those of Lloyd's algorithm, which starts from quantiles. The values are sorted, so one
    pass takes O(k log n) for k clusters. If there are fewer distinct values than clusters, some clusters are
    empty, and some of the returned values may be equal.
    """
    if values.size == 0:
        return np.empty(0)
    values = np.sort(values)
    sums = np.concatenate([[0.0], np.cumsum(values / (values[-1] or 1.0))])
    starts = np.arange(1, num_clusters) * values.size // num_clusters
    for _ in range(MAX_PASSES):
        edges = np.concatenate([[0], starts, [values.size]])
        sizes = np.diff(edges)
        filled = sizes > 0
        centres = np.diff(sums[edges])[filled] / sizes[filled] * values[-1]
        middles = (centres[:-1] + centres[1:]) / 2
        moved = np.searchsorted(values, middles)
        if np.array_equal(moved, starts):
            break
        starts = moved
    return values[starts[starts < values.size]]
