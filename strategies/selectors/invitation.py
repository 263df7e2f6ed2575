"""Clients that decide for themselves whether they take part, because only they know their group.

Ribero, Vikalo, de Veciana, "Federated Learning at Scale: Addressing Client Intermittency and Resource
Constraints", Algorithm 1, lines 5, 9 and 12, and Remark 4. This file holds the invitation and the client's
side; the server's side is `flics_private`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..numerics.arrays import Floats, Ints
from ..numerics.randomised_response import randomise
from ..numerics.streams import generator
from . import checks


@dataclass(frozen=True, eq=False)
class Invitation:
    """What candidates are sent before a round; arrays are read-only.

    Attributes
    ----------
    clients : ndarray of int, shape (n,)
        The invited clients.
    rates : ndarray, shape (V, G)
        r/a: the probabilities with which clients of each group accept, in V versions.
    versions : ndarray of int, shape (n,)
        Client ``clients[i]`` is sent ``rates[versions[i]]``.
    scales : ndarray, shape (G,)
        p/ŝ: the factors by which clients of each group multiply their update.
    """

    clients: Ints
    rates: Floats
    versions: Ints
    scales: Floats

    def __post_init__(self) -> None:
        for array in (self.clients, self.rates, self.versions, self.scales):
            array.flags.writeable = False


@dataclass(frozen=True)
class GroupMember:
    """A client that keeps its group private.

    All its draws come from its secret, so that a question repeated in a round gets the same answer.

    Attributes
    ----------
    group : int
        From 0 to G - 1.
    num_groups : int
        G, >= 1.
    epsilon : float
        The ε of the group that it reports, > 0; the server must know ε.
    secret : int
        >= 0, random, and the same for the client's whole life. The server must not know it and must not be
        able to guess it: do not derive it from a run's seed, except in simulations.
    permanent : bool
        Whether it reports the same group in all rounds. If so, privacy costs ε once, but the error of the
        server's counts stays as long as the population does. If not, every round costs ε again, and the
        error averages out over rounds.

    Raises
    ------
    TypeError, ValueError
        If an argument is refused.
    """

    group: int
    num_groups: int
    epsilon: float
    secret: int
    permanent: bool = True

    def __post_init__(self) -> None:
        checks.integer("num_groups", self.num_groups, low=1)
        checks.integer("group", self.group, low=0, high=self.num_groups - 1)
        checks.integer("secret", self.secret, low=0)

    def report(self, round: int) -> int:
        """Return the group to report: the true one with probability e^ε/(e^ε + G - 1)."""
        rng = generator(self.secret, 0 if self.permanent else round, "group")
        return int(randomise([self.group], self.num_groups, self.epsilon, rng)[0])

    def accepts(self, round: int, rates: npt.ArrayLike) -> bool:
        """Return whether it accepts: True with probability ``rates[group]``; the rates are (G,)."""
        chance = self._own("rates", rates, 1.0)
        return bool(generator(self.secret, round, "coin").random() < chance)

    def scale(self, scales: npt.ArrayLike) -> float:
        """Return the factor for its update: ``scales[group]``; the scales are (G,)."""
        return self._own("scales", scales, np.finfo(np.float64).max)

    def _own(self, name: str, values: npt.ArrayLike, high: float) -> float:
        array = checks.floats(name, values, self.num_groups)
        checks.in_range(name, array, 0, high)
        return float(array[self.group])
