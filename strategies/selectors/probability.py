"""The base of the selectors that draw K clients from a distribution over all registered clients."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from .. import designs
from ..numerics.arrays import Floats, Ints
from ..numerics.rejection import SMALLEST_SHARE, accepted, independent_draws, successive_draws
from ..numerics.sampling import Draw, draw_with_replacement, draw_without_replacement
from .checks import SMALLEST_SIZE
from .context import RoundContext
from .presence import Presence
from .records import Feedback, Selection
from .remembered import RememberingSelector
from .settings import Settings, setting

LARGEST_NORM = 1e150
"""Norms are clipped to this limit, so that their squares stay finite."""


@dataclass(frozen=True)
class ProbabilitySettings(Settings):
    """Settings of every selector that draws from a distribution."""

    replacement: bool = setting(True, doc="draw with replacement if design is own (False: without)")
    design: str = setting(
        "own",
        choices=("own", *designs.DESIGNS),
        doc="how a cohort is drawn from the probabilities (docs/draws.md); own: as the selector's paper says",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.replacement and self.design in ("independent", "stratified"):
            raise ValueError(
                f"replacement = False with design = {self.design!r}: must be True, or the design 'own' or "
                "one that draws each client at most once, such as 'systematic'"
            )


@dataclass(frozen=True)
class OwnDrawsSettings(ProbabilitySettings):
    """The base of the settings of selectors that draw only in their own way."""

    # Not settings: the selector's source says how it draws.
    replacement: bool = field(default=True, init=False)
    design: str = field(default="own", init=False)


@dataclass(frozen=True)
class AskingSettings(ProbabilitySettings):
    """Settings of the selectors that can use all clients' norms before the first selection."""

    ask_norms: bool = setting(
        False, doc="ask all available clients once, before round 1, for the norm of an update"
    )


class ProbabilitySelector(RememberingSelector):
    """Draws from `probabilities`, restricted to the available clients and renormalised.

    The weights are ``c_m = W_m λ_m``, where W_m is the importance, and λ_m is client m's share of the
    available clients' data. So, for any fixed updates u, E[sum_m c_m u_m] is the mean of the available
    clients' updates, weighted by λ. If at most K clients are available, each of them is selected once with
    W = 1, and ``Selection.probabilities`` is 1.

    The setting `design` says how K clients are drawn from p, see `designs`. For designs that use features,
    the selector remembers a sketch of each client's updates (`RememberedUpdates`).
    """

    unbiased = "round"
    own_draws: ClassVar[bool] = False
    """True if the draws are neither independent of each other nor made one after another, so that the
    aggregate's variance does not follow from `probabilities` alone."""
    settings_type: ClassVar[type[ProbabilitySettings]] = ProbabilitySettings
    _settings: ProbabilitySettings
    lazy_from: ClassVar[int] = 10_000
    """From this number of clients on, a round avoids a pass over all clients."""
    own_design: ClassVar[str] = "independent"
    """The design of the selector's own draws with replacement; "" if none of `designs.DESIGNS` has these."""

    @property
    def uses_sketches(self) -> bool:
        """Whether the design uses features, or the selector compares updates itself."""
        design = designs.DESIGNS.get(self._settings.design)
        return self.compares_updates or (design is not None and design.uses_features)

    @property
    def _wants_norms(self) -> bool:
        return isinstance(self._settings, AskingSettings) and self._settings.ask_norms

    def _select(self, context: RoundContext) -> Selection:
        available, k = context.available, context.k
        if available.count <= k:
            ones = np.ones(available.count)
            draw = Draw(available.clients, np.ones(available.count, dtype=np.int64), ones, ones)
        else:
            rng = context.rng("select")
            if self._draws_as_own:
                draw = self._draw_available(available, k, rng)
            else:
                draw = self._drawn(*self._scores_to_draw(available), k, rng)
        sizes = self.client_sizes[draw.clients]
        return Selection.of_draw(draw, draw.importance * (sizes / max(available.total_size, SMALLEST_SIZE)))

    def _draw_available(self, available: Presence, k: int, rng: np.random.Generator) -> Draw:
        """Make the selector's own draws of k of the available clients; 1 <= k < the number of these."""
        return self._drawn(available.of(self._distribution()), available.at, k, rng)

    def _scores_to_draw(self, available: Presence) -> tuple[Floats, Callable[[Ints], Ints]]:
        """Return scores (n,) for the designs, and what takes positions in them to clients."""
        p, absent = self._distribution(), available.absent
        if absent is None or self.num_clients < self.lazy_from:
            return available.of(p), available.at
        p[absent] = 0  # cheaper than an array of all available clients
        return p, lambda positions: positions

    @property
    def _draws_as_own(self) -> bool:
        return self._settings.design in ("own", self.own_design)

    def _drawn(self, p: Floats, clients_at: Callable[[Ints], Ints], k: int, rng: np.random.Generator) -> Draw:
        """Draw k clients from p (n,) by the setting `design`; `clients_at` takes positions in p."""

        def features(positions: Ints) -> Floats:
            clients = clients_at(positions)
            return self._remembered.of(clients) * self.client_sizes[clients][:, None]

        if self._draws_as_own:
            draw = self._draw(p, k, rng)
        else:
            known = features if self._remembered.number else None
            draw = designs.draw(self._settings.design, p, k, rng, known)
        return draw._replace(clients=clients_at(draw.clients))

    def _draw(self, p: Floats, k: int, rng: np.random.Generator) -> Draw:
        """Draw k positions in ``p`` (n,), 1 <= k < n, of available clients; p need not sum to 1."""
        draw = draw_with_replacement if self._settings.replacement else draw_without_replacement
        return draw(p, k, rng)

    def _probabilities_of(self, clients: Ints) -> Floats:
        """Return the probabilities p (n,) of distinct registered clients."""
        return self._distribution()[clients]

    def _roots(self, selection: Selection, feedback: Feedback) -> tuple[Ints, Floats, Floats]:
        """Return (clients, importance W, roots) of the clients whose norm is usable.

        A root is size_m ||g_m||. It stands for the papers' sqrt(a_m) = λ_m ||g_m||, which has the share λ_m
        instead of the size. The quotient of the size and the share is the sum of all sizes, which cancels
        wherever two roots are compared. Unlike λ, sizes do not change when clients join or leave.
        """
        clients, importance, norms = self._usable(selection, feedback, feedback.update_norms)
        return clients, importance, self.client_sizes[clients] * np.minimum(norms, LARGEST_NORM)


class StreamSelector(ProbabilitySelector):
    """Draws from p over all registered clients and drops draws of absent clients.

    So a round needs no pass over all M clients. In three cases, the selector computes p for all available
    clients and draws from it instead: if many clients are absent, if the absent clients have almost all of
    the probability, or if M is below `lazy_from`. If M is below `lazy_from`, selectors with the same seed use
    the same random numbers, so a comparison between them is less noisy.
    """

    def _draw_available(self, available: Presence, k: int, rng: np.random.Generator) -> Draw:
        absent = available.absent
        if absent is None or self.num_clients < self.lazy_from:
            return super()._draw_available(available, k, rng)
        share = 1 - float(self._probabilities_of(absent).sum()) if absent.size else 1.0
        if share < SMALLEST_SHARE:
            return super()._draw_available(available, k, rng)
        stream = self._stream(rng)
        if absent.size:
            stream = accepted(stream, available.holds, share)

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
        """Return the probabilities p (n,) of distinct registered clients; over all of them, p sums to 1."""

    @abstractmethod
    def _stream(self, rng: np.random.Generator) -> Callable[[int], Ints]:
        """Return a function of n that returns n independent draws from p, see `numerics.rejection`."""
