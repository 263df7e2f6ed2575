"""Each client is a Markov chain: its availability depends on its availability in the previous round."""

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Bools, Ints

from .base import Availability, checked_rates


class Markov(Availability):
    """Each client is a chain of two states, available and unavailable.

    In each round a client keeps its state with probability ``memory``; otherwise it draws its state anew and
    is available with probability ``rate``. So a period of availability lasts 1/((1 - memory)(1 - rate))
    rounds on average, and a period of absence 1/((1 - memory) rate) rounds. States that are n rounds apart
    have the correlation memory^n.

    Parameters
    ----------
    rates : float or array_like, shape (M,) (default: 0.5)
        Share of the rounds in which each client is available, in [0, 1]. The chain is stationary from
        round 1.
    memory : float (default: 0.8)
        Probability that a client keeps its state without a new draw, in [0, 1).
    """

    def __init__(
        self, num_clients: int, seed: int = 0, *, rates: npt.ArrayLike = 0.5, memory: float = 0.8
    ) -> None:
        super().__init__(num_clients, seed)
        if not 0 <= memory < 1:
            raise ValueError(f"memory = {memory}: must be in [0, 1)")
        self.rates = checked_rates("rates", rates, num_clients)
        self.memory = memory
        self._cached: tuple[int, Bools] = (0, np.zeros(num_clients, dtype=np.bool_))  # a round and its states

    def _available(self, round: int) -> Ints:
        return np.flatnonzero(self.states(round))

    def states(self, round: int) -> Bools:
        """Return (M,) whether each client is available; read-only.

        The search for each client's last draw goes from ``round`` back to the cached round: one step if the
        rounds are requested in order. After a resume, it goes back until every client's last draw is found.
        """
        cached, cached_states = self._cached
        if round == cached:
            return cached_states
        states = np.zeros(self.num_clients, dtype=np.bool_)
        pending = np.ones(self.num_clients, dtype=np.bool_)  # clients whose last draw is not found yet
        for past in range(round, 0, -1):
            if past == cached:
                states |= pending & cached_states
                break
            drawn = self._generator(past).random(self.num_clients, dtype=np.float32)
            draws_anew = np.float32(1 if past == 1 else 1 - self.memory)
            states |= pending & (drawn < draws_anew * self.rates)
            pending &= drawn >= draws_anew
            if not pending.any():
                break
        self._cached = round, states
        return states
