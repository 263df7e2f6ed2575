"""How often each selected client replies, and weights corrected for that.

`Selector.finalize` assumes that every selected client fails with the same probability. This is wrong if slow
clients miss the deadline more often than others, or if a round takes only the first replies (over-selection):
the replying clients are not a random sample, and the aggregate leans towards the data of fast clients.
Estimated response rates correct the weights, as sampling theory corrects for non-response (Särndal, Swensson,
Wretman, "Model Assisted Survey Sampling", chapter 15).
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Array, Floats
from ..selectors import checks


class ResponseRates:
    """Estimates ρ_m, the probability that client m sends a usable reply when it is selected.

    From a_m replies in n_m selections, where older ones count less, and ρ̄ over all clients::

        ρ_m = (a_m + strength ρ̄) / (n_m + strength),  at least ρ̄ / limit

    Parameters
    ----------
    num_clients : int
        M, >= 1.
    strength : float (default: 5)
        How many selections of its own the rate over all clients counts for, > 0. A client that was never
        selected has that rate.
    memory : float (default: 200)
        How many of a client's own selections the estimate looks back on, >= 1: clients change.
    limit : float (default: 10)
        The largest correction of one client, as a multiple of an average client's, >= 1. A client that
        hardly ever replies, by nature or on purpose, does not dominate the round in which it does.
    normalised : bool (default: True)
        Which weights `correct` returns: with a little bias, or with more variance.
        `benchmarks.over_selection` compares both.

    Raises
    ------
    TypeError, ValueError
        If an argument is refused.
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
        count = checks.integer("num_clients", num_clients, low=1)
        self.strength = checks.real("strength", strength, low=1e-9)
        self.memory = checks.real("memory", memory, low=1.0)
        self.limit = checks.real("limit", limit, low=1.0)
        self.normalised = normalised
        self._asked, self._answered = np.zeros(count), np.zeros(count)
        self._totals = np.zeros(2)  # of both, so that a round needs no sum over all clients

    def rates(self, clients: npt.ArrayLike) -> Floats:
        """Return ρ (n,), in (0, 1], of the clients (n,)."""
        who = checks.indexes("clients", clients, self._asked.size)
        asked, answered = self._totals
        everyone = (answered + 1.0) / (asked + 1.0)
        own = (self._answered[who] + self.strength * everyone) / (self._asked[who] + self.strength)
        return np.clip(own, everyone / self.limit, 1.0)

    def correct(self, weights: npt.ArrayLike, clients: npt.ArrayLike, responded: npt.ArrayLike) -> Floats:
        """Return the weights of `Selector.finalize`, c_m S/S' for the S' replies of S clients, corrected.

        Normalised: c_m/ρ_m, the weights of Horvitz and Thompson, times S / Σ 1/ρ over the replying clients;
        the expectation of this sum is S. So equal rates change nothing, and what `finalize` guarantees for
        them holds exactly; only ratios of rates matter; and the sum of the weights does not depend on how
        many clients reply. The price is the bias of a ratio, of order 1/S': with 10 clients, half of which
        reply 95 % and half 30 % of the time, a quarter of the uncorrected bias remains.

        Not normalised: c_m/ρ_m. It lacks that bias, but what all updates have in common is multiplied by a
        factor that depends on how many clients reply, and how rarely they do; and while no rate is known,
        nothing makes up for missing replies. It is better if rates are very unlike and there are many rounds:
        noise averages out, bias does not.

        Both keep the bias of estimated rates, and of the limit.

        Assumption: whether a client replies depends on the client, not on what its update in this round would
        have been; and clients reply independently of each other, or nearly so, as the first K of many.

        Parameters
        ----------
        weights : array_like, shape (S,)
            c_m; 0 for clients that did not reply.
        clients : array_like of int, shape (S,)
            The selected clients.
        responded : array_like of bool, shape (S,)
            Whether each client sent a usable reply. `observe` must come after: rates that include this
            round's replies would correct for chance.
        """
        factors = 1.0 / self.rates(clients)
        given = checks.floats("weights", weights, factors.size)
        answered = checks.bools("responded", responded, factors.size)
        if not answered.any():
            return given
        scale = factors[answered].mean() if self.normalised else answered.size / answered.sum()
        corrected: Floats = given * (factors / scale)
        return corrected

    def observe(self, clients: npt.ArrayLike, responded: npt.ArrayLike) -> None:
        """Learn which of the selected clients (S,) sent a usable reply (S,)."""
        who = checks.indexes("clients", clients, self._asked.size)
        answered = checks.bools("responded", responded, who.size)
        kept = 1.0 - 1.0 / self.memory
        for counts, total, seen in ((self._asked, 0, 1.0), (self._answered, 1, answered)):
            before = counts[who]
            counts[who] = before * kept + seen
            self._totals[total] += float((counts[who] - before).sum())

    def add_clients(self, count: int) -> None:
        """Let clients join; they get the next ``count`` indexes."""
        joining = np.zeros(checks.integer("count", count, low=0))
        self._asked = np.concatenate([self._asked, joining])
        self._answered = np.concatenate([self._answered, joining])

    def state_dict(self) -> dict[str, Array]:
        """Return copies of the arrays needed to go on, bit for bit."""
        return {
            "asked": self._asked.copy(),
            "answered": self._answered.copy(),
            "totals": self._totals.copy(),
        }

    def load_state_dict(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Go on from a saved state; the number of clients becomes the state's.

        Raises
        ------
        TypeError, ValueError
            If keys, shapes or ranges do not fit; then nothing has changed.
        """
        keys = {"asked", "answered", "totals"}
        if state.keys() != keys:
            raise ValueError(f"state has keys {sorted(state)}: must be {sorted(keys)}")
        asked = checks.floats("state['asked']", state["asked"])
        answered = checks.floats("state['answered']", state["answered"], asked.size)
        totals = checks.floats("state['totals']", state["totals"], 2)
        checks.in_range("state['asked']", asked, 0, self.memory)
        checks.in_range("state['asked'] - state['answered']", asked - answered, 0)
        checks.in_range("state['answered']", answered, 0)
        checks.in_range("state['totals']", totals, -1e-6, np.finfo(np.float64).max)
        self._asked, self._answered, self._totals = asked, answered, totals
