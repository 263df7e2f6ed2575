"""Full participation: every available client is selected, with weight λ."""

from dataclasses import dataclass, replace

from ..context import RoundContext
from ..probability import ProbabilitySettings
from ..records import Selection
from ..settings import setting
from .uniform import UniformSelector


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
