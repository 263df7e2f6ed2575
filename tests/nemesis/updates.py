"""What a client of the nemesis trains: an update that is a function of (client, round, model).

The ClientApp and the checker share this file. It uses NumPy only, since it is also bundled with the app.
"""

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
NUM_EXAMPLES = (100, 110, 120, 130, 140, 150, 160, 170)  # by client, modulo their number


def num_examples(client):
    """Return how many samples a client claims to hold."""
    return NUM_EXAMPLES[client % len(NUM_EXAMPLES)]


def trained(client, round, model):
    """Return the model that a client sends back.

    All updates of a round have a part in common, so that no guard has a reason to take an honest client for a
    dishonest one; the rest differs by client and round, so that a reply that counts twice, or in another
    round, leads to another model.
    """
    result = {}
    for name, array in model.items():
        key = zlib.crc32(name.encode())
        common = np.random.default_rng([key, round]).standard_normal(array.shape)
        own = np.random.default_rng([key, round, client + 1]).standard_normal(array.shape)
        result[name] = (0.9 * array + 0.1 * common + 0.05 * own).astype(array.dtype)
    return result


def fingerprint(model):
    """Return three projections of a model, which tell two models apart and tolerate rounding."""
    flat = np.concatenate([model[name].ravel().astype(np.float64) for name in sorted(model)])
    directions = np.random.default_rng(0).standard_normal((3, flat.size)) / np.sqrt(flat.size)
    return [float(value) for value in directions @ flat]
