"""Uniform sampling: every available client has the same probability (McMahan et al. 2017, FedAvg)."""

from collections.abc import Callable

import numpy as np

from ...numerics.arrays import Floats, Ints
from ...numerics.rejection import accepted, uniform_stream
from ...numerics.sampling import Draw
from ..presence import Presence
from ..probability import StreamSelector


class UniformSelector(StreamSelector):
    """p_m = 1/M for each of the M registered clients.

    ``replacement=False`` is simple random sampling of K of the n available clients. Then
    ``Selection.probabilities`` holds the inclusion probability K/n, and the importance W of each selected
    client is n/K. Algorithm 6 of the OSMD paper (Zhao, Wang, Kolar) has importance weights that depend on the
    order of the draws. They would also be unbiased, but would add variance.
    """

    name = "uniform"
    summary = "with equal probability"
    equal_weight_draws = "always"
    data_independent = True

    def _distribution(self) -> Floats:
        return self._uniform()

    def _probabilities_of(self, clients: Ints) -> Floats:
        return np.full(clients.size, 1 / self._num_registered)

    def _stream(self, rng: np.random.Generator) -> Callable[[int], Ints]:
        registered, share = self._registered, self._num_registered / self.num_clients
        if share < 0.5:
            pool = self._cached("pool", ("registered",), lambda: np.flatnonzero(registered))
            return uniform_stream(pool, rng)
        stream = uniform_stream(registered.size, rng)
        return stream if share == 1 else accepted(stream, lambda clients: registered[clients], share)

    def _draw_available(self, available: Presence, k: int, rng: np.random.Generator) -> Draw:
        draw = super()._draw_available(available, k, rng)
        if self._settings.replacement:
            return draw
        inclusion = k / available.count
        return draw._replace(probabilities=np.full(k, inclusion), importance=np.full(k, 1 / inclusion))
