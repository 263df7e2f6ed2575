"""Full participation: everybody who is here takes part, with weight λ."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy.typing as npt

from ...numerics.arrays import Floats
from .. import checks
from ..probability import ProbabilitySelector
from ..records import Selection


class FullSelector(ProbabilitySelector):
    """Everybody who is here, once, with W = 1: no variance from sampling, and the cost of all clients.

    `clients_per_round` and the setting `replacement` have no meaning here. A budget below 1 gives the empty
    selection; a larger one does not leave anybody out. `probabilities` holds each one's share, 1/M.
    """

    name = "full"
    equal_weight_draws: ClassVar[Literal["always", "with replacement", "never"]] = "always"
    data_independent: ClassVar[bool] = True

    def select(
        self,
        round: int,
        *,
        available: npt.ArrayLike | None = None,
        unavailable: npt.ArrayLike | None = None,
        candidates: npt.ArrayLike | None = None,
        reports: Mapping[str, Floats] | None = None,
        budget: float | None = None,
    ) -> Selection:
        """Take everybody who is here, see `Selector.select`."""
        nobody = budget is not None and checks.real("budget", budget, low=0) < 1
        return super().select(
            round, available=available, unavailable=unavailable, budget=0 if nobody else self.num_clients
        )

    def _distribution(self) -> Floats:
        p: Floats = self._registered / max(1, self._num_registered)
        return p
