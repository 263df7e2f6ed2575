"""Uniform sampling (McMahan et al. 2017, FedAvg), and full participation, which selects all with weight λ."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ...numerics.arrays import Floats, Ints
from ...numerics.rejection import accepted, uniform_stream
from ...numerics.sampling import Draw
from ..context import RoundContext
from ..presence import Presence
from ..probability import ProbabilitySettings, StreamSelector
from ..records import Selection
from ..settings import setting


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


@dataclass(frozen=True)
class FullSettings(ProbabilitySettings):
    """Settings of full participation: nothing is drawn, so there is no choice of a design."""

    design: str = setting("own", choices=("own",), doc="all available clients, without a draw")


class FullSelector(UniformSelector):
    """Selects every available client once, with W = 1, so the aggregate has no variance from sampling.

    `clients_per_round` and the setting `replacement` have no effect. A round with a budget below 1 selects no
    client; any other round selects all available clients. `probabilities` holds 1/M for each of the M
    registered clients.
    """

    name = "full"
    summary = "whenever they are available"
    settings_type = FullSettings

    def _select(self, context: RoundContext) -> Selection:
        return super()._select(replace(context, k=context.available.count))
