"""Selectors that draw K clients from a distribution over all of them."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Floats
from ..numerics.sampling import Draw, draw_with_replacement, draw_without_replacement
from ..numerics.streams import generator
from . import checks, settings
from .base import Selection, Selector


@dataclass(frozen=True)
class ProbabilitySettings(settings.Settings):
    """Settings of every selector that draws from a distribution."""

    replacement: bool = settings.setting(
        True, doc="draw with replacement (False: one after another, without)"
    )


class ProbabilitySelector(Selector):
    """Draws from `probabilities`, restricted to who is here and renormalised.

    The weights are ``c_m = W_m λ_m`` with λ renormalised over who is here too, so that E[sum_m c_m u_m] is
    the weighted mean over those, for any fixed updates u. If at most K clients are here, everybody is taken
    once with W = 1, and ``Selection.probabilities`` holds the inclusion probability 1.
    """

    unbiased: ClassVar[Literal["round", "long-run", "none"]] = "round"
    settings_type = ProbabilitySettings
    _settings: ProbabilitySettings

    @property
    def probabilities(self) -> Floats:
        """(M,) current sampling distribution; sums to 1 over the living, 0 for the removed."""
        p = self._distribution()
        p.flags.writeable = False
        return p

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
        """Draw K of who is here, see `Selector.select`; candidates and reports are not used."""
        round = checks.integer("round", round, low=0)
        here = self._here(available, unavailable)
        k = self._clients_per_round if budget is None else int(checks.real("budget", budget, low=0))
        if here.size <= k:
            ones = np.ones(here.size)
            draw = Draw(np.arange(here.size), np.ones(here.size, dtype=np.int64), ones, ones)
        elif k == 0:
            none = np.empty(0, dtype=np.int64)
            draw = Draw(none, none, np.empty(0), np.empty(0))
        else:
            draw = self._draw(self._distribution()[here], k, generator(self._seed, round, "select"))
        sizes = self.client_sizes[here]
        weights = draw.importance * (sizes[draw.clients] / sizes.sum())
        return Selection(here[draw.clients], draw.counts, draw.probabilities, draw.importance, weights)

    @abstractmethod
    def _distribution(self) -> Floats:
        """Return a fresh array (M,): p over the living, 0 for the removed, all 0 when nobody lives."""

    def _draw(self, p: Floats, k: int, rng: np.random.Generator) -> Draw:
        """Draw k clients from p (n,), the weights of who is here, 1 <= k < n."""
        draw = draw_with_replacement if self._settings.replacement else draw_without_replacement
        return draw(p, k, rng)
