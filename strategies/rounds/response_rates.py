"""Estimates how often each client replies when it is selected, and corrects the weights by these rates.

`Selector.finalize` assumes that all selected clients fail with the same probability. This assumption is wrong
if slow clients miss the deadline more often than other clients, or if a round uses only the first replies
(over-selection). Then the replying clients are not a random sample, and the aggregate is biased towards the
data of fast clients. Estimated response rates correct the weights. Sampling theory corrects for non-response
in this way (Särndal, Swensson, Wretman, "Model Assisted Survey Sampling", chapter 15).
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Array, Floats
from ..selectors import checks


class ResponseRates:
    """Estimates ρ_m, the probability that client m sends a usable reply when it is selected.

    The estimate is ::

        ρ_m = (a_m + strength ρ̄) / (n_m + strength),  at least ρ̄ / limit

    where n_m is the number of times that the client was selected, a_m is the number of its usable replies,
    and ρ̄ is the rate over all clients. In a_m and n_m, older selections count less.

    ``num_clients``: M, the number of clients, >= 1. ``strength`` (default: 5): ρ̄ counts as much as this many
    selections of the client, > 0. The rate of a client that was never selected is ρ̄. ``memory`` (default:
    200): the estimate mainly depends on this many of the client's last selections, >= 1. Older selections
    count less because response rates change. ``limit`` (default: 10): the largest ratio of ρ̄ to a client's
    rate, >= 1. So a client that hardly ever replies, whether by nature or on purpose, does not dominate a
    round in which it replies. ``normalised`` (default: True): whether `correct` normalises the weights.
    Normalisation causes a small bias, and reduces the variance.
    """

    def __init__(
        self,
        num_clients: int,
        *,
        strength: float = 5.0,
        memory: float = 200.0,
        limit: float = 10.0,
        normalised: bool = True,
    ) -> None:
        self.strength, self.memory, self.limit, self.normalised = strength, memory, limit, normalised
        self._asked, self._answered = np.zeros((2, num_clients))
        self._totals = np.zeros(2)  # the sums of both arrays over all clients, updated in each round

    def rates(self, clients: npt.ArrayLike) -> Floats:
        """Return (n,) the estimated response rates of clients (n,), in (0, 1]."""
        indexes = np.asarray(clients)
        asked, answered = self._totals
        everyone = (answered + 1.0) / (asked + 1.0)
        own: Floats = (self._answered[indexes] + self.strength * everyone) / (
            self._asked[indexes] + self.strength
        )
        return own.clip(everyone / self.limit, 1.0)

    def correct(self, weights: npt.ArrayLike, clients: npt.ArrayLike, responded: npt.ArrayLike) -> Floats:
        """Return the weights of `Selector.finalize` after a correction by response rates.

        `Selector.finalize` returns c_m S/S' for the S' replying clients of S selected clients.

        - With ``normalised``, the result is c_m/ρ_m (the weights of Horvitz and Thompson) times S / Σ 1/ρ.
          The sum is over the replying clients, and its expectation is S. If all rates are equal, the result
          is equal to ``weights``. The bias of this ratio is of order 1/S'.
        - Without ``normalised``, the result is c_m/ρ_m, which has no such bias and a larger variance. Before
          any reply is observed, all rates are 1, so nothing makes up for missing replies.

        Both results have a bias because the rates are estimates, and because ``limit`` bounds the rates. Both
        rest on the assumption that whether a client replies depends neither on its update in this round nor
        on the other clients. With over-selection, it depends a little on the other clients.

        ``weights`` (S,) is the result of `Selector.finalize` for the selected ``clients`` (S,); ``responded``
        (S,) says which sent a usable reply. Call `observe` for this round only after `correct`, since the
        rates must not depend on the replies whose weights they correct.
        """
        factors = 1.0 / self.rates(clients)
        given, answered = np.array(weights, dtype=np.float64), np.asarray(responded)
        if not answered.any():
            return given
        scale = factors[answered].mean() if self.normalised else answered.size / answered.sum()
        corrected: Floats = given * (factors / scale)
        return corrected

    def observe(self, clients: npt.ArrayLike, responded: npt.ArrayLike) -> None:
        """Learn from a round: ``responded`` (S,) states which selected clients (S,) sent a usable reply."""
        indexes, answered = np.asarray(clients), np.asarray(responded)
        kept = 1.0 - 1.0 / self.memory
        for counts, total, seen in ((self._asked, 0, 1.0), (self._answered, 1, answered)):
            before = counts[indexes]
            counts[indexes] = before * kept + seen
            self._totals[total] += float((counts[indexes] - before).sum())

    def add_clients(self, count: int) -> None:
        joining = np.zeros(count)
        self._asked = np.concatenate([self._asked, joining])
        self._answered = np.concatenate([self._answered, joining])

    def state_dict(self) -> dict[str, Array]:
        return {"asked": self._asked.copy(), "answered": self._answered.copy(), "totals": self._totals.copy()}

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        axes = {"asked": ("clients",), "answered": ("clients",)}
        asked, answered, totals = checks.state(state, self.state_dict(), axes).values()
        checks.in_range("state['asked']", asked, 0, self.memory)
        checks.in_range("state['asked'] - state['answered']", asked - answered, 0)
        checks.in_range("state['answered']", answered, 0)
        checks.in_range("state['totals']", totals, -1e-6, np.finfo(np.float64).max)
        self._asked, self._answered, self._totals = asked, answered, totals
