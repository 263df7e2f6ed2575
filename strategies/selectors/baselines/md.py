"""Multinomial sampling: clients are drawn in proportion to their data (Li et al. 2020, FedProx)."""

from collections.abc import Callable

import numpy as np

from ...numerics.arrays import Floats, Ints
from ..probability import StreamSelector


class MultinomialSelector(StreamSelector):
    """p_m = λ_m = size_m / sum of the registered clients' sizes.

    With replacement, a client that was drawn N_m times trains once and has the weight N_m/K. Multinomial
    sampling is a strong baseline if ||g_m|| differs little between clients.
    """

    name = "md"
    summary = "in proportion to their data"
    equal_weight_draws = "with replacement"
    data_independent = True

    def _distribution(self) -> Floats:
        if self._num_registered == self.num_clients:
            return self.client_sizes / self._registered_size
        return np.where(self._registered, self.client_sizes, 0.0) / (self._registered_size or 1.0)

    def _probabilities_of(self, clients: Ints) -> Floats:
        p: Floats = self.client_sizes[clients] / self._registered_size
        return p

    def _stream(self, rng: np.random.Generator) -> Callable[[int], Ints]:
        def compute() -> Floats:
            return np.cumsum(np.where(self._registered, self.client_sizes, 0.0))

        ends = self._cached("ends", ("registered", "client_sizes"), compute)
        # A removed client has mass 0. With side="right" it is never drawn, since random() < 1.
        return lambda n: np.searchsorted(ends, rng.random(n) * ends[-1], side="right")
