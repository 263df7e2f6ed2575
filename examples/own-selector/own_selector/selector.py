"""A selector of your own: a class, registered under its name."""

from dataclasses import dataclass

import numpy as np
from flwr_cohort import ProbabilitySelector
from flwr_cohort.selectors import register
from flwr_cohort.selectors.probability import ProbabilitySettings
from flwr_cohort.selectors.settings import setting
from numpy.typing import NDArray


@dataclass(frozen=True)
class PowerSettings(ProbabilitySettings):
    """Settings of the selector. Values out of range are refused before the run starts."""

    power: float = setting(0.5, low=0.0, high=1.0, doc="0 is uniform, 1 is in proportion to the data")


@register
class ByPower(ProbabilitySelector):
    """Draws clients in proportion to a power of their data sizes.

    The weights that keep the aggregate unbiased follow from the distribution.
    """

    name = "by-power"
    summary = "in proportion to a power of the data size"
    settings_type = PowerSettings
    _settings: PowerSettings

    def _distribution(self) -> NDArray[np.float64]:
        p = np.where(self.registered, self.client_sizes**self._settings.power, 0.0)
        return p / (p.sum() or 1.0)
