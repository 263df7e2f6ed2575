"""The seeds of clients' local training, and the draw of the clients that evaluate."""

import numpy as np
from numpy.typing import NDArray

from ..numerics.streams import generator


def client_seed(seed: int, round: int, client: int, purpose: str = "client") -> int:
    """Return a seed for a client in a round, in [0, 2^63).

    Parameters
    ----------
    seed, round, client : int
        The seed of the run, the round and the index of the client, all >= 0.
    purpose : str (default: "client")
        "client": local training; "loss": the samples on which a polled loss is computed; "dropout": the units
        that a simulated perceptron drops.
    """
    return int(generator(seed, round, f"{purpose}-{client}").integers(2**63))


def evaluators(seed: int, round: int, here: NDArray[np.int64], share: float) -> NDArray[np.int64]:
    """Draw the clients that evaluate the model after a round, without replacement.

    Parameters
    ----------
    seed, round : int
        The seed of the run and the round, both >= 0.
    here : ndarray of int, shape (n,)
        The clients that can be asked to evaluate.
    share : float
        The share of these clients that is drawn, in [0, 1]. The number share · n is rounded.
    """
    count = int(np.rint(len(here) * share))
    return generator(seed, round, "evaluate").choice(here, count, replace=False)
