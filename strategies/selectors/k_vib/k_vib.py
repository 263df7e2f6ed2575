"""K-Vib: independent draws, and follow the regularised leader with bandit feedback.

Zeng, Xu, Pan, Luo, Wang, Tang, "Enhanced Federated Optimization: Adaptive Unbiased Client Sampling with
Reduced Variance" (TMLR 2025; arXiv 2310.02698). Published code: https://github.com/dunzeng/K-Vib. The paper's
N is M here, the number of clients.
"""

from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Floats
from ...numerics.fixed_size_sampling import inclusion_probabilities
from ...numerics.sampling import Draw
from ..importance.bandit import CumulatedSelector
from ..presence import Presence
from ..probability import OwnDrawsSettings
from ..settings import setting


@dataclass(frozen=True)
class KVibSettings(OwnDrawsSettings):
    """Settings of K-Vib; the defaults are the paper's theory."""

    gamma_multiplier: float = setting(
        1.0, low=1e-12, high=1e12, doc="γ in multiples of the theory's G² M/(K θ); below 1: p follows sooner"
    )
    bound: float | None = setting(
        None, low=1e-300, high=1e300, doc="G² >= a = λ²||g||² of all clients (None: the largest so far)"
    )
    mix: float | None = setting(
        None, low=1e-9, high=1.0, doc="θ, the share of uniform sampling (None: (M/(T K))^(1/3), at most 1)"
    )


class KVibSelector(CumulatedSelector):
    """Selects each client by a coin of its own, with K selected clients on average.

    In each round::

        p   = argmin sum_m (w_m + γ)/p_m  over 0 < p_m <= 1 with sum p = K
            = min(1, c sqrt(w_m + γ)),  with c such that sum p = K
        p̃_m = (1 - θ) p_m + θ K/M
        S   = each client m with probability p̃_m, independently
        d   = sum_{m in S} λ_m g_m / p̃_m                         the aggregate
        w_m <- w_m + a_m / p̃_m  for m in S                       a_m = λ_m² ||g_m||²
        θ   = (M/(T K))^(1/3),   γ = G² M/(K θ)                   G² >= all a

    M is the number of registered clients, and T the number of rounds. If M >= T K, θ is 1, which is uniform
    sampling. G² is the setting `bound`, by default the largest a_m so far. With absent clients, p and p̃ are
    those of the available ones. If a selected client does not reply, the others' w grow by S/S' times as
    much, as their weights do.

    The paper's bound of the regret holds for the γ above. It is so large that p stays near uniform for many
    rounds: γ is the sum of M/(K θ) squares of the largest norm, and a client's w grows by its own square per
    round on average. Tune γ with `gamma_multiplier`, for instance .001. As in `vrb`, old norms are never
    forgotten.

    The published code (``sampler.py``) differs from the paper in three points. It takes p in proportion to
    w + γ, without the square root. If clients are capped, its solver gives the first of them a p above 1, so
    the sum of p exceeds K. And it sets γ = reg M/(K θ), with reg = .1 in its README, where the paper has G²;
    here that is ``bound=0.1``.

    Nobody is selected with a probability of at most e^-K; the round is then skipped. A round costs O(M).
    ``Selection.probabilities`` holds p̃.
    """

    name = "k-vib"
    summary = "by coins, with past norms"
    own_draws = True
    own_design = "poisson"
    fixed_size = False
    settings_type = KVibSettings
    _settings: KVibSettings

    @property
    def _bound(self) -> float | None:
        return self._settings.bound

    def _distribution(self) -> Floats:
        registered = self._registered
        k = min(self._clients_per_round, self._num_registered)
        p = np.zeros(self.num_clients)
        if k:
            p[registered] = self._inclusion(self._array("totals")[registered], k) / k
        return p

    def _inclusion(self, totals: Floats, k: int) -> Floats:
        """Return p̃ (n,) of n clients with these w / G², for 1 <= k <= n expected draws."""
        m, usual = self._num_registered, self._clients_per_round
        theta = self._settings.mix or min(1.0, (m / (float(self._array("num_rounds")) * usual)) ** (1 / 3))
        gamma = self._settings.gamma_multiplier * m / (usual * theta)
        mixed: Floats = (1 - theta) * inclusion_probabilities(np.sqrt(totals + gamma), k)
        mixed += theta * k / totals.size
        return np.minimum(mixed, 1.0, out=mixed)

    def _draw_available(self, available: Presence, k: int, rng: np.random.Generator) -> Draw:
        p = self._inclusion(available.of(self._array("totals")), k)
        heads = rng.permutation(np.flatnonzero(rng.random(p.size) < p))
        chosen = p[heads]
        return Draw(available.at(heads), np.ones(heads.size, dtype=np.int64), chosen, 1 / chosen)
