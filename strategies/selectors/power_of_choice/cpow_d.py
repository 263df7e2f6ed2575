"""cpow-d: Power-of-Choice by the loss on one mini-batch (Cho et al. 2022, section 4 and Algorithm 1)."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..settings import setting
from .pow_d import PowDSelector, PowDSettings


@dataclass(frozen=True)
class CPowDSettings(PowDSettings):
    """Settings of cpow-d. The default batch size is the paper's for FMNIST."""

    batch_size: int = setting(64, low=1, doc="b, the samples that a candidate evaluates, drawn at random")


class CPowDSelector(PowDSelector):
    """Selects as `pow-d`, but estimates the loss F_k by the mean loss over b random samples of client k.

    This saves computation at the candidates. Only the poll differs from `pow-d`, see `poll_settings`.
    """

    name = "cpow-d"
    summary = "with the largest estimated losses"
    settings_type = CPowDSettings
    _settings: CPowDSettings

    @property
    def poll_settings(self) -> Mapping[str, int | float]:
        """The batch size b, see `Selector.poll_settings`."""
        return {"batch-size": self._settings.batch_size}
