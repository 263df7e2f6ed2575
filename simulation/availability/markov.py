"""Who is here tends to stay."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from strategies.numerics.arrays import Bools, Ints

from .base import Availability, checked_rates


class Markov(Availability):
    """Each client is a chain of two states: who is here tends to stay, who is away too.

    In each round a client goes on as it was with probability ``memory``, else it tosses its coin anew. So it
    is here for 1/((1 - memory)(1 - rate)) rounds at a time, away for 1/((1 - memory) rate), and its state is
    correlated by memory^n with that of n rounds before.

    Parameters
    ----------
    num_clients, seed : int
        See `Availability`.
    rates : float or array_like, shape (M,) (default: 0.5)
        In which share of the rounds each client is here, in [0, 1]; from round 1 on.
    memory : float (default: 0.8)
        In [0, 1).
    """

    def __init__(
        self, num_clients: int, seed: int = 0, *, rates: npt.ArrayLike = 0.5, memory: float = 0.8
    ) -> None:
        super().__init__(num_clients, seed)
        if not 0 <= memory < 1:
            raise ValueError(f"memory = {memory}: must be in [0, 1)")
        self.rates = checked_rates("rates", rates, num_clients)
        self.memory = memory
        self._known: tuple[int, Bools] = (0, np.zeros(num_clients, dtype=np.bool_))  # a round and its state

    def _here(self, round: int) -> Ints:
        return np.flatnonzero(self.state(round))

    def state(self, round: int) -> Bools:
        """Return (M,) who is here; not to be written to.

        Goes back from the round to the last toss of each client, or to the state that is known. That is one
        step in a run, and in a resumed one no more rounds than the longest without a toss.
        """
        known, state = self._known
        if round == known:
            return state
        here = np.zeros(self.num_clients, dtype=np.bool_)
        untossed = np.ones(self.num_clients, dtype=np.bool_)
        for past in range(round, 0, -1):
            if past == known:
                here |= untossed & state
                break
            drawn = self._generator(past).random(self.num_clients, dtype=np.float32)
            toss = np.float32(1 if past == 1 else 1 - self.memory)
            here |= untossed & (drawn < toss * self.rates)
            untossed &= drawn >= toss
            if not untossed.any():
                break
        self._known = round, here
        return here
