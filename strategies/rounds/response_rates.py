"""How often each client answers when it is asked, and weights corrected for it.

`Selector.finalize` takes every chosen client to fail with the same probability. Where slow clients miss the
deadline more often than others, or only the first to answer are taken (over-selection), that is wrong: those
who answer are not a random sample, and the aggregate leans towards the fast ones' data. What is known of each
client's response rate mends that, as sampling theory does non-response (Särndal, Swensson, Wretman, "Model
Assisted Survey Sampling", chapter 15).
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Array, Floats
from ..selectors import checks


class ResponseRates:
    """Estimates ρ_m, the probability that client m gives a usable answer when it is chosen.

    Of a_m answers to n_m questions, the older ones fading, and ρ̄ over all clients::

        ρ_m = (a_m + strength ρ̄) / (n_m + strength),  at least ρ̄ / limit

    Parameters
    ----------
    num_clients : int
        M, >= 1.
    strength : float (default: 5)
        How many questions' worth the rate of all is to a client's own, > 0. Unknown clients have that rate.
    memory : float (default: 200)
        How many of a client's own questions the estimate looks back on, >= 1: habits change.
    limit : float (default: 10)
        How many times an average client's correction one client's can be, >= 1. A client that is
        hardly ever here, by nature or on purpose, does not take over the round in which it is.
    normalised : bool (default: True)
        Which weights `correct` gives: a little bias, or more variance. `benchmarks.over_selection` has both.

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
        self._totals = np.zeros(2)  # of the two, kept so that a round costs nothing of size M

    def rates(self, clients: npt.ArrayLike) -> Floats:
        """Return ρ (n,), in (0, 1], of the clients (n,)."""
        who = checks.indexes("clients", clients, self._asked.size)
        asked, answered = self._totals
        everyone = (answered + 1.0) / (asked + 1.0)
        own = (self._answered[who] + self.strength * everyone) / (self._asked[who] + self.strength)
        return np.clip(own, everyone / self.limit, 1.0)

    def correct(self, weights: npt.ArrayLike, clients: npt.ArrayLike, responded: npt.ArrayLike) -> Floats:
        """Return what `Selector.finalize` gave, c_m S/S' for the S' of S who answered, corrected.

        Normalised: c_m/ρ_m, Horvitz and Thompson's weights, times S / Σ 1/ρ over who answered, a sum whose
        expectation is S. So equal rates change nothing, and what `finalize` promises for them holds exactly;
        only ratios of rates matter; and how many are here in a round does not move the sum of the weights.
        The price is the bias of a ratio, of order 1/S': of 10 clients half of which answer 95 % and half
        30 % of the time, a quarter of the uncorrected bias is left.

        Not normalised: c_m/ρ_m. Without that bias, but how many answer, and how rare they are, multiplies
        what all updates have in common; and while no rate is known, nothing makes up for who is missing.
        Better where rates are very unlike and rounds are many: noise averages out, bias does not.

        Both have the bias of rates that are estimates, and of the limit.

        Assumption: whether a client answers depends on who it is, not on what its update in this round
        would have been; clients answer independently of each other, or nearly so, as the first K of many.

        Parameters
        ----------
        weights : array_like, shape (S,)
            c_m; 0 for those who did not answer.
        clients : array_like of int, shape (S,)
            The chosen clients.
        responded : array_like of bool, shape (S,)
            Who gave a usable answer. Not to be told to `observe` before: rates that know of this round's
            answers would correct for luck.
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
        """Learn who of the chosen clients (S,) gave a usable answer (S,)."""
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
            If keys, shapes or ranges do not fit; nothing has changed then.
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
