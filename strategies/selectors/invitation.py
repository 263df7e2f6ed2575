"""flics-private, the client's side: the invitation, and the client's decision by its private group.

Ribero, Vikalo, de Veciana, "Federated Learning at Scale: Addressing Client Intermittency and Resource
Constraints", Algorithm 1, lines 5, 9 and 12, and Remark 4. The server's side is `flics_private`.

In a round of `flics-private`, every selectable client is a candidate and reports a randomised group. The
server sends an invitation to each candidate that has reported, with an acceptance rate and an update scale
for every group. The client draws whether it takes part, with the rate of its true group
(`GroupMember.accepts`). A client that takes part scales its update itself.
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
    """What the server sends to the candidates of a round; its arrays are read-only."""

    clients: Ints  # (n,) the invited clients
    # (V, G) the probabilities with which a client of each group accepts. (In the paper r/a: the number of
    # clients that should take part, divided by the number of available clients.) The candidates are split
    # into V parts, and each part has a row of its own, see `flics_private`.
    rates: Floats
    versions: Ints  # (n,) the row of ``rates`` that is sent to each client
    # (G,) the factors >= 0 by which a client of each group multiplies its update. (In the paper p/ŝ: the
    # group's target share, divided by its mean number of participants per round.)
    scales: Floats

    def __post_init__(self) -> None:
        for array in (self.clients, self.rates, self.versions, self.scales):
            array.flags.writeable = False


@dataclass(frozen=True)
class GroupMember:
    """A client that keeps its group private.

    All its random draws are a function of its secret and the round, so a repeated question gets the same
    answer.

    Attributes
    ----------
    group : int
        The client's true group, from 0 to G - 1.
    num_groups : int
        The number of groups G, >= 1.
    epsilon : float
        ε > 0 of the randomised response with which the client reports its group. The server must know ε.
    secret : int
        A random number >= 0 that never changes. The server must not know it and must not be able to guess
        it: do not derive it from a run's seed, except in simulations.
    permanent : bool
        True (the default): the client reports the same group in all rounds. The privacy loss is ε in total,
        but the error of the server's counts remains as long as the clients remain. False: the client draws a
        new report in each round. The privacy loss is ε in each round, and the error averages out over rounds.
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
        if not checks.real("epsilon", self.epsilon) > 0:
            raise ValueError(f"epsilon = {self.epsilon}: must be > 0")

    def report(self, round: int) -> int:
        """Return the group to report: with probability e^ε/(e^ε + G - 1) the true one, else another."""
        rng = generator(self.secret, 0 if self.permanent else round, "group")
        return int(randomise([self.group], self.num_groups, self.epsilon, rng)[0])

    def accepts(self, round: int, rates: npt.ArrayLike) -> bool:
        """Return whether the client accepts: with the probability ``rates[group]``; rates (G,) in [0, 1]."""
        chance = self._own("rates", rates, 1.0)
        return bool(generator(self.secret, round, "coin").random() < chance)

    def scale(self, scales: npt.ArrayLike) -> float:
        """Return the factor for the client's update: ``scales[group]`` of the scales (G,), each >= 0."""
        return self._own("scales", scales, np.finfo(np.float64).max)

    def _own(self, name: str, values: npt.ArrayLike, high: float) -> float:
        array = checks.floats(name, values, self.num_groups)
        checks.in_range(name, array, 0, high)
        return float(array[self.group])
