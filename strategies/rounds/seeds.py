"""The seeds of clients' local training, and the draw of the clients that evaluate."""

import numpy as np
from numpy.typing import NDArray

from ..numerics.streams import generator


def client_seed(seed: int, round: int, client: int, purpose: str = "client") -> int:
    """Return a seed for a client in a round, in [0, 2^63).

    ``purpose`` is "client" for local training; "loss" for the samples on which a polled loss is computed;
    "dropout" for the units that a simulated perceptron drops.
    """
    return int(generator(seed, round, f"{purpose}-{client}").integers(2**63))


def evaluators(seed: int, round: int, here: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """Draw the clients that evaluate after a round: round(share · n) of the n ``here``, each at most once."""
    count = int(np.rint(len(here) * share))
    return generator(seed, round, "evaluate").choice(here, count, replace=False)
