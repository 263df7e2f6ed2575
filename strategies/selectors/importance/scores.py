"""Importance sampling: p in proportion to λ times a score, with a floor in sampling and weights alike."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Floats, Ints
from ...numerics.designs import draw_systematic
from ...numerics.sampling import Draw
from ...numerics.streams import generator
from .. import checks
from ..presence import Presence
from ..probability import ProbabilitySelector, ProbabilitySettings
from ..records import Selection
from ..settings import setting


@dataclass(frozen=True)
class ImportanceSettings(ProbabilitySettings):
    """Settings of every selector that samples by importance."""

    floor: float = setting(
        0.1, low=1e-9, high=1.0, doc="ε: q = (1 - ε) p + ε/M is drawn from, and divided by in the weights"
    )
    design: str = setting(
        "draws",
        choices=("draws", "systematic"),
        doc="K draws, or K distinct clients with inclusion probability min(1, c q) and weight λ over it "
        "(then `replacement` has no meaning)",
    )


@dataclass(frozen=True)
class ThinFloorSettings(ImportanceSettings):
    """Settings where scores are exact and positive; the floor costs a thousandth of the variance at most."""

    floor: float = setting(
        0.001, low=1e-9, high=1.0, doc="ε: q = (1 - ε) p + ε/M is drawn from, and divided by in the weights"
    )


class ImportanceSelector(ProbabilitySelector):
    """Draws from ``q = (1 - ε) p + ε/M``, ``p_m = λ_m s_m / sum_j λ_j s_j`` for scores s.

    The papers' probabilities are for equal λ; λ s is what minimises the same bounds for other λ. Where all
    scores are 0, p = λ. The floor keeps W at most 1/ε with replacement: without it a client whose score is 0
    is never drawn again, and the estimate loses it.
    """

    settings_type = ImportanceSettings
    _settings: ImportanceSettings

    @abstractmethod
    def _scores(self) -> Floats:
        """Return s (M,), finite and >= 0; those of removed clients do not matter."""

    def _distribution(self) -> Floats:
        registered = self._registered
        if self._num_registered == self.num_clients:
            return self._floored(self.client_sizes, self._scores())
        q = np.zeros(self.num_clients)
        q[registered] = self._floored(self.client_sizes[registered], self._scores()[registered])
        return q

    def _floored(self, sizes: Floats, scores: Floats) -> Floats:
        """Return q (n,) for these sizes and scores, n >= 0, in a fresh array."""
        largest = scores.max(initial=0.0)
        p: Floats = scores / largest if largest > 0 else np.ones(scores.size)
        p *= sizes
        epsilon = self._settings.floor
        p *= (1 - epsilon) / max(p.sum(), checks.SMALLEST_SIZE)
        p += epsilon / max(1, p.size)
        return p

    def _draw(self, p: Floats, k: int, rng: np.random.Generator) -> Draw:
        if self._settings.design == "systematic":
            return draw_systematic(p, k, rng)
        return super()._draw(p, k, rng)


class ReportedSelector(ImportanceSelector):
    """Scores are what all who are here report before each round: full information, for experiments.

    Who does not answer is not here. Nothing is remembered, so `probabilities` holds what is known before the
    reports, p = λ with the floor.
    """

    def candidates(
        self, round: int, *, available: npt.ArrayLike | None = None, unavailable: npt.ArrayLike | None = None
    ) -> Ints | None:
        """Return all who are here, see `Selector.candidates`."""
        checks.integer("round", round, low=0)
        return self._here(available, unavailable)

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
        """Draw K of those who are here and answered, see `Selector.select`; the reports are required."""
        round = checks.integer("round", round, low=0)
        present = self._presence(available, unavailable)
        k = self._cohort_size(budget)
        if present.count == 0 or k == 0:  # there is nobody to ask
            return super().select(round, available=[])
        here, scores = self._reported_scores(candidates, reports, present)
        if not checks.ascending(here):  # the order in which they were asked does not matter
            order = np.argsort(here)
            here, scores = here[order], scores[order]
        if here.size <= k:
            return super().select(round, available=here, budget=budget)
        sizes = self.client_sizes if here.size == self.num_clients else self.client_sizes[here]
        draw = self._draw(self._floored(sizes, scores), k, generator(self._seed, round, "select"))
        weights = draw.importance * (sizes[draw.clients] / sizes.sum())
        return Selection(here[draw.clients], draw.counts, draw.probabilities, draw.importance, weights)

    @abstractmethod
    def _reported_scores(
        self, candidates: npt.ArrayLike | None, reports: Mapping[str, Floats] | None, here: Presence
    ) -> tuple[Ints, Floats]:
        """Return (clients, scores) of those who answered and are here."""

    def _scores(self) -> Floats:
        return np.ones(self.num_clients)


def at_least_0(name: str, values: Floats) -> Floats:
    """Refuse reported norms or variances of which one is negative."""
    if (values < 0).any():
        checks.in_range(f"reports[{name!r}]", values[np.isfinite(values)], 0)
    return values
