"""Uniform sampling: every client that is here is as likely as any other (McMahan et al. 2017, FedAvg)."""

from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np

from ...numerics.arrays import Floats, Ints
from ...numerics.rejection import accepted, uniform_stream
from ...numerics.sampling import Draw
from ..presence import Presence
from ..probability import StreamSelector


class UniformSelector(StreamSelector):
    """p_m = 1/M.

    With ``replacement=False`` it is simple random sampling: inclusion probability K/n (what
    ``Selection.probabilities`` holds then) and W = n/K for everyone, n being how many are here. This is the
    exact fixed-size design; the successive weights of OSMD's Algorithm 6 would only add variance.
    """

    name = "uniform"
    equal_weight_draws: ClassVar[Literal["always", "with replacement", "never"]] = "always"
    data_independent: ClassVar[bool] = True

    def _distribution(self) -> Floats:
        p: Floats = self._registered / max(1, self._num_registered)
        return p

    def _probabilities_of(self, clients: Ints) -> Floats:
        return np.full(clients.size, 1 / self._num_registered)

    def _stream(self, rng: np.random.Generator) -> Callable[[int], Ints]:
        registered, share = self._registered, self._num_registered / self.num_clients
        if share < 0.5:
            pool = self._cached("pool", ("registered",), lambda: np.flatnonzero(registered))
            return uniform_stream(pool, rng)
        stream = uniform_stream(registered.size, rng)
        return stream if share == 1 else accepted(stream, lambda clients: registered[clients], share)

    def _draw_here(self, here: Presence, k: int, rng: np.random.Generator) -> Draw:
        draw = super()._draw_here(here, k, rng)
        if self._settings.replacement:
            return draw
        inclusion = k / here.count
        return draw._replace(probabilities=np.full(k, inclusion), importance=np.full(k, 1 / inclusion))
