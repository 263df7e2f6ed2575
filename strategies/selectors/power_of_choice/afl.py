"""AFL, active federated learning: clients with large losses are drawn more often.

Goetz, Malik, Bui, Moon, Liu, Kumar, "Active Federated Learning" (2019), Algorithm 1.
"""

import math
from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import Floats, Ints
from ...numerics.sampling import largest
from ..context import RoundContext
from ..presence import Presence
from ..settings import setting
from .plain_mean import LastLossSelector, MeanSettings


@dataclass(frozen=True)
class AFLSettings(MeanSettings):
    """Settings of AFL; the defaults are the paper's."""

    alpha1: float = setting(
        0.75, low=0.0, high=1.0, doc="the share of clients that are left out: the lowest values"
    )
    alpha2: float = setting(0.01, low=0.0, high=1e3, doc="scale of the values in the softmax")
    alpha3: float = setting(0.1, low=0.0, high=1.0, doc="the share of K that is drawn uniformly")


class AFLSelector(LastLossSelector):
    """Draws clients by the value ``v_k = sqrt(n_k) · (mean loss of k's last local training)``.

    n_k is the size of client k, and n the number of available clients. AFL's paper takes the loss of the
    received model on all samples of client k, before the client trains. Here the loss is the mean over the
    mini-batches of the local training, and comes with the reply. So clients that learn much in a round have
    lower values than in the paper. In each round::

        the floor(α1 n) available clients with the lowest v_k get v_k = -inf
        (1 - α3) K clients are drawn without replacement, in proportion to exp(α2 v_k)
        α3 K clients are drawn uniformly from the other available clients

    α3 K is rounded up or down at random, so that the mean number of uniform draws is α3 K. Clients whose
    value equals the lowest kept value are kept, too. Clients that were never selected have an infinite value:
    they are drawn before all others, with equal probability.

    α2 must fit the units of sizes and losses. With the paper's α2 = 0.01, losses near 1 and a few hundred
    samples, exp(α2 v_k) is nearly equal for all kept clients, so the selection depends almost only on which
    clients are left out. A client with a low value keeps this value until a uniform draw selects it.

    In a run, unlike in the paper, a client with more than twice its share of the draws rests for some rounds
    (`GuardSettings.draws`; the guard is on by default).

    The weights follow the setting `averaging`, by default the plain mean. `probabilities` is
    (1 - α3) p + α3/M for M registered clients, where p is in proportion to exp(α2 v_k).
    """

    name = "afl"
    summary = "more often if their past losses are large"
    settings_type = AFLSettings
    _settings: AFLSettings

    def _first_draw(self, available: Presence) -> Floats:
        kept, log_weights = self._kept(available)
        uniform = self._settings.alpha3
        p = np.full(available.count, uniform / available.count)
        p[kept] += (1 - uniform) * _softmax(log_weights)
        return p

    def _choose(self, context: RoundContext) -> tuple[Ints, Floats]:
        rng, available = context.rng("select"), context.available
        k = min(context.k, available.count)
        explored = self._settings.alpha3 * k
        num_valued = k - math.floor(explored) - int(rng.random() < explored % 1)
        kept, log_weights = self._kept(available)
        num_valued = min(num_valued, kept.size)
        new = np.flatnonzero(log_weights == np.inf)
        if num_valued <= new.size:
            valued = rng.choice(new, num_valued, replace=False)
        else:  # Gumbel top-k: the largest sums of log weight and noise are draws by weight, one after another
            valued = largest(log_weights + rng.gumbel(size=kept.size), num_valued, rng)
        valued = kept[valued]
        # `others` are k clients in random order. At least k - num_valued of them were not drawn by value. The
        # first k - num_valued of those are selected.
        others = rng.choice(available.count, size=k, replace=False)
        others = others[~np.isin(others, valued)][: k - num_valued]
        chosen = np.concatenate([valued, others])
        place = np.minimum(np.searchsorted(kept, chosen), kept.size - 1)
        by_value = np.where(kept[place] == chosen, _softmax(log_weights)[place], 0.0)
        uniform = self._settings.alpha3
        return available.at(chosen), (1 - uniform) * by_value + uniform / available.count

    def _kept(self, available: Presence) -> tuple[Ints, Floats]:
        """Return (positions among the available, α2 v_k) of the kept clients; +inf: never selected."""
        losses = available.of(self._last_losses())
        values: Floats = np.clip(losses, -1e150, 1e150)  # so that a loss times sqrt(n_k) is finite
        values *= np.sqrt(available.of(self.client_sizes))
        values[losses == np.inf] = np.inf
        lowest = min(int(self._settings.alpha1 * available.count), available.count - 1)
        kept = np.flatnonzero(values >= np.partition(values, lowest)[lowest])
        log_weights = values[kept]
        np.multiply(log_weights, self._settings.alpha2, out=log_weights, where=log_weights < np.inf)
        return kept, log_weights


def _softmax(log_weights: Floats) -> Floats:
    """Return (n,) weights of sum 1 ∝ exp(log_weights); if some are +inf, they share the weight equally."""
    top = log_weights.max()
    weights: Floats = np.exp(log_weights - top) if top < np.inf else 1.0 * (log_weights == np.inf)
    weights /= weights.sum()
    return weights
