"""DivFL: the K clients whose last updates represent those of all clients best.

Balakrishnan, Li, Zhou, Himayat, Smith, Bilmes, "Diverse Client Selection for Federated Learning via
Submodular Maximization" (ICLR 2022). Published code: https://github.com/melodi-lab/divfl.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...numerics.arrays import Floats, Ints
from ...numerics.sketches import WIDTH
from ..context import RoundContext
from ..power_of_choice.plain_mean import MeanSettings, PlainMeanSelector
from ..presence import Presence
from ..records import Selection
from ..remembered import RememberingSelector
from ..settings import setting


@dataclass(frozen=True)
class DivFLSettings(MeanSettings):
    """Settings of DivFL."""

    averaging: str = setting(
        "clusters",
        choices=("clusters", "plain", "sizes"),
        doc="c_m of a selected client: the share γ_m/n of the clients that it represents; 1/S; or λ_m "
        "divided by the sum of λ over the selected, as in the published code",
    )
    subsample: float = setting(
        1.0,
        low=1e-6,
        high=1.0,
        doc="share of the clients that each step of the greedy search looks at, at random; 1: all of them",
    )
    ground_set: int = setting(
        1000, low=2, high=10_000, doc="the most clients in the search, drawn at random if more are known"
    )


class DivFLSelector(RememberingSelector, PlainMeanSelector):
    """Selects K clients that minimise the distance of all clients to the nearest selected one.

    In each round::

        G(S)  = sum_k min_{i in S} ||g_k - g_i||               g: the clients' last updates
        S     <- {};  K times: S <- S + the client i that makes G(S + i) least, among a random subset of
                 the others (stochastic greedy; with `subsample` = 1, among all of them)
        γ_i   = the number of clients k whose nearest selected client is i
        Δ     = (1/n) sum_{i in S} γ_i u_i

    -G plus a constant is submodular, the facility location function. By the triangle inequality, G(S) bounds
    the distance of sum_i γ_i g_i to the sum of all g. The updates are those of different rounds ("no
    overheads" in the paper), and sketches of them (see `numerics.sketches`), so the square of a distance has
    an error of about a tenth.

    The paper and its code ask all clients for gradients before round 1. Here, clients without a known update
    are selected first, at random; with γ = 1. In a round without other clients the weights are 1/K. If more
    than `ground_set` clients with known updates are available, as many of them at random are searched and
    represented.

    The published code differs from the paper. It weights the selected clients by their numbers of samples
    (``averaging="sizes"``; the line with γ is commented out) and searches greedily among all clients.

    The aggregate is biased: clients that are far from all others, or near to many, are selected again and
    again, and no weight makes up for it. Between equally good clients, chance decides. There are no
    probabilities: `probabilities` and ``Selection.probabilities`` hold 1/n for n available clients. If
    updates are masked or no sketches are computed, all selections are uniform.

    A round costs O(M), and for n clients in the search O(K n²): with n = 1000 and K = 10, about 50 ms.
    """

    name = "divfl"
    summary = "that represent the last updates of all"
    equal_weight_draws = "never"  # the weights are γ
    compares_updates = True
    new_share = 1.0
    remembered_width = WIDTH
    settings_type = DivFLSettings
    _settings: DivFLSettings
    sum_to_one: ClassVar[frozenset[str]] = frozenset({"sizes", "clusters"})

    def _first_draw(self, available: Presence) -> Floats:
        return np.full(available.count, 1 / available.count)

    def _select(self, context: RoundContext) -> Selection:
        if self._settings.averaging != "clusters":
            return super()._select(context)
        (clients, shares), n = self._represented(context), context.available.count
        p = np.full(clients.size, 1.0 if clients.size == n else 1 / n)
        importance = shares * context.available.total_size / self.client_sizes[clients]
        return Selection(clients, np.ones(clients.size, dtype=np.int64), p, importance, shares)

    def _choose(self, context: RoundContext) -> tuple[Ints, Floats]:
        clients, _ = self._represented(context)
        return clients, np.full(clients.size, 1 / context.available.count)

    def _represented(self, context: RoundContext) -> tuple[Ints, Floats]:
        """Return (S, the share of the available clients that each selected client represents)."""
        rng, available = context.rng("select"), context.available
        clients = rng.permutation(available.clients)  # so that chance decides between equally good clients
        knows = self._remembered.knows(clients)
        fresh = clients[~knows][: context.k]
        left = min(context.k, clients.size) - fresh.size
        if not left:
            return fresh, np.full(fresh.size, 1 / fresh.size)
        known = clients[knows]
        ground = known[: max(left, self._settings.ground_set)]
        chosen, counts = self._greedy(self._distances(ground), left, rng)
        represented = np.concatenate([np.ones(fresh.size), counts * (known.size / ground.size)])
        return np.concatenate([fresh, ground[chosen]]), represented / clients.size

    def _distances(self, clients: Ints) -> Floats:
        updates = self._remembered.of(clients)
        squares = np.einsum("ij,ij->i", updates, updates)
        d: Floats = np.sqrt(np.maximum(squares[:, None] + squares - 2 * updates @ updates.T, 0))
        np.fill_diagonal(d, 0)
        return d

    def _greedy(self, distances: Floats, number: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Return (number,) the positions of the selected, and how many each represents; distances: (n, n)."""
        n = len(distances)
        rest = np.arange(n)
        size = max(1, round(self._settings.subsample * n))
        nearest = np.full(n, np.inf)
        chosen = np.empty(number, dtype=np.int64)
        for step in range(number):
            looked = rest if size >= rest.size else rng.permutation(rest)[:size]
            best = int(looked[np.argmin(np.minimum(nearest, distances[looked]).sum(axis=1))])
            chosen[step] = best
            nearest = np.minimum(nearest, distances[best])
            rest = rest[rest != best]
        counts = np.bincount(np.argmin(distances[chosen], axis=0), minlength=number)
        return chosen, counts
