"""AFL, active federated learning: clients with valuable data are drawn more often.

Goetz, Malik, Bui, Moon, Liu, Kumar, "Active Federated Learning" (2019), Algorithm 1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Floats, Ints
from ..numerics.streams import generator
from .plain_mean import LastLossSelector, largest
from .settings import Settings, setting


@dataclass(frozen=True)
class AFLSettings(Settings):
    """Settings of AFL; the defaults are the paper's."""

    alpha1: float = setting(0.75, low=0.0, high=1.0, doc="the share of clients with low values left out")
    alpha2: float = setting(0.01, low=0.0, high=1e3, doc="scale of the values in the softmax")
    alpha3: float = setting(0.1, low=0.0, high=1.0, doc="the share of K drawn uniformly")


class AFLSelector(LastLossSelector):
    """Values clients by ``v_k = sqrt(n_k) · (mean loss of k's last local training)``.

    In each round::

        the floor(α1 n) of the n clients here with the lowest v_k get v_k = -inf
        (1 - α3) K are drawn without replacement in proportion to exp(α2 v_k)
        α3 K are drawn uniformly from the others who are here

    α3 K is rounded up or down at random, so that it is right on average and K below 10 explores too. A value
    equal to the lowest one kept is kept. Clients never selected have an infinite value: they are drawn first,
    uniformly.

    The units of sizes and losses matter: α2 must fit them. With the printed 0.01, losses near 1 and some
    hundred samples the softmax is nearly flat, and it is the threshold that selects. Values age: a client
    left out keeps its old one until the uniform part finds it.

    Weights are plain means. `probabilities` mixes the softmax and the uniform part as (1 - α3) and α3.
    """

    name = "afl"
    settings_type = AFLSettings
    _settings: AFLSettings

    def _distribution(self, here: Ints) -> Floats:
        return self._mixture(self._log_weights(here))

    def _mixture(self, log_weights: Floats) -> Floats:
        """Return (n,) the softmax mixed with the uniform part."""
        uniform = self._settings.alpha3
        new = np.isposinf(log_weights)
        weights = new.astype(np.float64) if new.any() else np.exp(log_weights - log_weights.max())
        p: Floats = (1 - uniform) * weights / weights.sum() + uniform / log_weights.size
        return p

    def _choose(
        self,
        round: int,
        here: Ints,
        k: int,
        candidates: npt.ArrayLike | None,
        reports: Mapping[str, Floats] | None,
    ) -> tuple[Ints, Floats]:
        rng = generator(self._seed, round, "select")
        k = min(k, here.size)
        explored = self._settings.alpha3 * k
        num_valued = k - math.floor(explored) - int(rng.random() < explored % 1)
        log_weights = self._log_weights(here)
        num_valued = min(num_valued, int(np.count_nonzero(log_weights > -np.inf)))
        # The largest of log weight + Gumbel noise are successive draws in proportion to the weights.
        valued = largest(log_weights + rng.gumbel(size=here.size), num_valued, rng)
        others = np.delete(np.arange(here.size), valued)
        uniform = rng.choice(others, size=k - num_valued, replace=False)
        chosen = np.concatenate([valued, uniform])
        return here[chosen], self._mixture(log_weights)[chosen]

    def _log_weights(self, here: Ints) -> Floats:
        """Return (n,) α2 v_k of who is here; -inf for those left out, +inf for those never selected."""
        losses = self._array("losses")[here]
        new = np.isposinf(losses)
        # Bounded, so that times sqrt(n_k) it is finite.
        values = np.sqrt(self.client_sizes[here]) * np.clip(losses, -1e150, 1e150)
        values[new] = np.inf
        lowest = min(int(self._settings.alpha1 * here.size), here.size - 1)
        left_out = values < np.partition(values, lowest)[lowest]
        values[new] = 0
        log_weights: Floats = self._settings.alpha2 * values
        log_weights[new], log_weights[left_out] = np.inf, -np.inf
        return log_weights
