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
from ..settings import Settings, setting
from .last_losses import LastLossSelector


@dataclass(frozen=True)
class AFLSettings(Settings):
    """Settings of AFL; the defaults are the paper's."""

    alpha1: float = setting(
        0.75, low=0.0, high=1.0, doc="share of clients, those of the lowest values, that are left out"
    )
    alpha2: float = setting(0.01, low=0.0, high=1e3, doc="scale of the values in the softmax")
    alpha3: float = setting(0.1, low=0.0, high=1.0, doc="the share of K drawn uniformly")


class AFLSelector(LastLossSelector):
    """The value of a client is ``v_k = sqrt(n_k) · (mean loss of k's last local training)``.

    In each round::

        the floor(α1 n) of the n available clients with the lowest v_k get v_k = -inf
        (1 - α3) K are drawn without replacement in proportion to exp(α2 v_k)
        α3 K are drawn uniformly from the other available clients

    α3 K is rounded up or down at random, so that its mean is exact and K below 10 explores too. A value
    equal to the lowest one kept is kept. Clients never selected have an infinite value: they are drawn first,
    uniformly.

    The units of sizes and losses matter: α2 must fit them. With the printed 0.01, losses near 1 and some
    hundred samples the softmax is nearly flat, and the threshold alone selects. Values age: a client left out
    keeps its old value until the uniform part draws it.

    Weights are plain means. `probabilities` mixes the softmax and the uniform part as (1 - α3) and α3.
    """

    name = "afl"
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
        else:  # the largest of log weight + Gumbel noise are successive draws in proportion to the weights
            valued = largest(log_weights + rng.gumbel(size=kept.size), num_valued, rng)
        valued = kept[valued]
        # Of k clients in random order, at least k - num_valued are not among the valued: take the first.
        others = rng.choice(available.count, size=k, replace=False)
        others = others[~np.isin(others, valued)][: k - num_valued]
        chosen = np.concatenate([valued, others])
        place = np.minimum(np.searchsorted(kept, chosen), kept.size - 1)
        by_value = np.where(kept[place] == chosen, _softmax(log_weights)[place], 0.0)
        uniform = self._settings.alpha3
        return available.at(chosen), (1 - uniform) * by_value + uniform / available.count

    def _kept(self, available: Presence) -> tuple[Ints, Floats]:
        """Return (positions among the available, α2 v_k) of the clients kept; +inf if never selected."""
        losses = available.of(self._last_losses())
        values: Floats = np.clip(losses, -1e150, 1e150)  # so that they are finite times sqrt(n_k)
        values *= np.sqrt(available.of(self.client_sizes))
        values[losses == np.inf] = np.inf
        lowest = min(int(self._settings.alpha1 * available.count), available.count - 1)
        kept = np.flatnonzero(values >= np.partition(values, lowest)[lowest])
        log_weights = values[kept]
        np.multiply(log_weights, self._settings.alpha2, out=log_weights, where=log_weights < np.inf)
        return kept, log_weights


def _softmax(log_weights: Floats) -> Floats:
    """Return (n,) weights with sum 1; if some log weights are infinite, these share it equally."""
    top = log_weights.max()
    weights: Floats = np.exp(log_weights - top) if top < np.inf else 1.0 * (log_weights == np.inf)
    weights /= weights.sum()
    return weights
