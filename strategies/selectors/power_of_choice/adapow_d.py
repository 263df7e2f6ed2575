"""adapow-d: Power-of-Choice with a d that shrinks to K (Cho et al. 2022, section 4 and appendix F)."""

from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Array
from ..base import Selector
from ..settings import setting
from .pow_d import PowDSelector, PowDSettings


@dataclass(frozen=True)
class AdaPowDSettings(PowDSettings):
    """Settings of adapow-d."""

    halve_every: int = setting(
        0,
        low=0,
        doc="d is halved in each round that is a multiple of this number (5000 in the paper's quadratic); "
        "0: never",
    )
    drop_at: int = setting(
        0,
        low=0,
        doc="from this round on d = clients_per_round; 0: half of num_rounds (the paper's Synthetic(1,1)), "
        "or never if halve_every or a schedule of num_candidates is given",
    )


class AdaPowDSelector(PowDSelector):
    """Halves the number of candidates d every n rounds, sets d = K from a given round on, or does both.

    In round t, d(t) = max(K, d_0 / 2^(t // n)), where n is `halve_every`, and d_0 is `num_candidates`
    (default: all registered clients). From round `drop_at` on, d = K. At first the model converges as fast as
    with `pow-d`; later it reaches the lower final error of d = K.

    The round in which d drops to K is part of the state, so a resume with another `num_rounds` does not
    change it.
    """

    name = "adapow-d"
    summary = "with the largest losses; polls fewer later"
    settings_type = AdaPowDSettings
    _settings: AdaPowDSettings
    state_axes = Selector.state_axes | {"drop_at": ()}

    def _initial_state(self) -> dict[str, Array]:
        drop_at, given = self._settings.drop_at, self._settings
        if not (drop_at or given.halve_every or len(given.num_candidates.steps) > 1):
            if self._num_rounds is None:
                raise ValueError(
                    f"num_rounds = None: must be given with {self.name} (d drops at half of the rounds), or "
                    "else halve_every, drop_at or a schedule of num_candidates"
                )
            drop_at = max(1, self._num_rounds // 2)
        return super()._initial_state() | {"drop_at": np.array(drop_at)}

    def _num_candidates(self, round: int) -> int:
        drop_at = int(self._array("drop_at"))
        if drop_at and round >= drop_at:
            return self._clients_per_round
        d, every = super()._num_candidates(round), self._settings.halve_every
        return max(self._clients_per_round, d >> (round // every) if every else d)

    def _default_candidates(self) -> int:
        return max(self._clients_per_round, self._num_registered)
