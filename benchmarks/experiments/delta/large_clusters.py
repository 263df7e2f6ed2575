"""Importance sampling by clusters without that of small gradients: DELTA's Figure 7, appendix B.2."""

from dataclasses import replace

import numpy as np

from strategies.numerics.arrays import Ints
from strategies.selectors import Selection
from strategies.selectors.context import RoundContext
from strategies.selectors.delta.cluster_is import ClusterISSelector


class LargeClustersSelector(ClusterISSelector):
    """Selects as `cluster-is`, but in the second half of the rounds omits the cluster of smallest norms.

    After 250 of 500 rounds, the paper replaces the clients of that cluster with clients of the other cluster.
    Here the draws of the second half are from the other clusters, and the aggregate estimates the mean over
    these clusters only, so it is biased. Clusters are made anew in each round, from the norms of each
    client's last participation. So an omitted client can return after the other norms have fallen.
    """

    name = "large-clusters-is"
    summary = "from clusters of similar norms, later without the smallest"
    unbiased = "none"  # type: ignore[assignment]

    def _select(self, context: RoundContext) -> Selection:
        if self._num_rounds is None:
            raise ValueError(
                f"num_rounds = None: must be given with {self.name}, which changes at half of it"
            )
        clients = context.available.clients
        if context.round > self._num_rounds // 2:
            large = self._large(clients)
            context = replace(context, available=self._presence(large, None))
        return super()._select(context)

    def _large(self, clients: Ints) -> Ints:
        """Return the clients outside the cluster of smallest known norms; all, if there is one cluster.

        Clients without a known norm are a cluster of their own, which is never omitted.
        """
        clusters = self._split(clients)
        known = [members for members in clusters if self._norms[clients[members[0]]] >= 0]
        if not known or len(clusters) == 1:
            return clients
        return np.delete(clients, known[0])
