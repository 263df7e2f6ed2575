"""Full participation: every available client takes part, with weight λ."""

from dataclasses import replace

from ..context import RoundContext
from ..records import Selection
from .uniform import UniformSelector


class FullSelector(UniformSelector):
    """Every available client once, with W = 1: no variance from sampling, and the cost of all clients.

    `clients_per_round` and the setting `replacement` have no effect. A budget below 1 gives the empty
    selection; any other takes all. `probabilities` holds the share of each client, 1/M.
    """

    name = "full"

    def _select(self, context: RoundContext) -> Selection:
        return super()._select(replace(context, k=context.available.count))
