"""Random streams that are functions of (seed, round, purpose). So a resume needs no state of a generator."""

from zlib import crc32

import numpy as np


def generator(seed: int, round: int, purpose: str) -> np.random.Generator:
    """Return the random generator for one purpose in one round. Equal arguments give equal streams.

    `seed` and `round` are >= 0. Each `purpose`, such as ``"select"``, has a stream of its own.
    """
    if seed < 0:
        raise ValueError(f"seed = {seed}: must be >= 0")
    if round < 0:
        raise ValueError(f"round = {round}: must be >= 0")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(round, crc32(purpose.encode()))))
