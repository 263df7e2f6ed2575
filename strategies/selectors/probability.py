"""Selectors that draw K clients from a distribution over all of them."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Floats, Ints
from ..numerics.rejection import SMALLEST_SHARE, accepted, independent_draws, successive_draws
from ..numerics.sampling import Draw, draw_with_replacement, draw_without_replacement
from ..numerics.streams import generator
from . import checks, settings
from .base import Selector
from .checks import SMALLEST_SIZE
from .presence import Presence
from .records import Selection


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
        """(M,) current sampling distribution; sums to 1 over the registered clients, 0 for the removed."""
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
        here = self._presence(available, unavailable)
        k = self._cohort_size(budget)
        if here.count <= k:
            ones = np.ones(here.count)
            draw = Draw(here.clients, np.ones(here.count, dtype=np.int64), ones, ones)
        elif k == 0:
            none = np.empty(0, dtype=np.int64)
            draw = Draw(none, none, np.empty(0), np.empty(0))
        else:
            draw = self._draw_here(here, k, generator(self._seed, round, "select"))
        weights = draw.importance * (self.client_sizes[draw.clients] / max(here.total_size, SMALLEST_SIZE))
        return Selection.of_draw(draw, weights)

    @abstractmethod
    def _distribution(self) -> Floats:
        """Return a fresh array (M,): p over the registered clients, 0 for the removed, all 0 when nobody lives."""

    def _draw_here(self, here: Presence, k: int, rng: np.random.Generator) -> Draw:
        """Draw k of the clients that are here, 1 <= k < their number."""
        draw = self._draw(here.of(self._distribution()), k, rng)
        return draw._replace(clients=here.at(draw.clients))

    def _probabilities_of(self, clients: Ints) -> Floats:
        """Return p (n,) of distinct registered clients."""
        return self._distribution()[clients]

    def _draw(self, p: Floats, k: int, rng: np.random.Generator) -> Draw:
        """Draw k clients from p (n,), the weights of who is here, 1 <= k < n."""
        draw = draw_with_replacement if self._settings.replacement else draw_without_replacement
        return draw(p, k, rng)


class StreamSelector(ProbabilitySelector):
    """Draws from p over all the registered clients, and leaves out the absent: a round costs the same at any M.

    Where many are absent, or the few hold almost all mass, it draws from p over those who are here. So it
    does below `lazy_from` clients: selectors of one seed then draw with the same random numbers, and
    comparing them is less noisy.
    """

    lazy_from: ClassVar[int] = 10_000
    """From how many clients on a pass over all of them is avoided."""

    def _draw_here(self, here: Presence, k: int, rng: np.random.Generator) -> Draw:
        absent = here.absent
        if absent is None or self.num_clients < self.lazy_from:
            return super()._draw_here(here, k, rng)
        share = 1 - float(self._probabilities_of(absent).sum()) if absent.size else 1.0
        if share < SMALLEST_SHARE:
            return super()._draw_here(here, k, rng)
        stream = self._stream(rng)
        if absent.size:
            stream = accepted(stream, here.holds, share)

        def probability(clients: Ints) -> Floats:
            return self._probabilities_of(clients) / share

        def whole() -> Floats:
            p = self._distribution()
            p[absent] = 0
            return p / share

        if self._settings.replacement:
            return independent_draws(stream, probability, k)
        return successive_draws(stream, probability, k, whole, rng)

    @abstractmethod
    def _probabilities_of(self, clients: Ints) -> Floats:
        """Return p (n,) of distinct registered clients, normalised over all the registered clients."""

    @abstractmethod
    def _stream(self, rng: np.random.Generator) -> Callable[[int], Ints]:
        """Return a stream of independent draws from p over all the registered clients, see `numerics.rejection`."""
