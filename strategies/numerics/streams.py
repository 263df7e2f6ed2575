"""Random streams that are functions of (seed, round, purpose), so that a resume needs no generator state."""

from zlib import crc32

import numpy as np


def generator(seed: int, round: int, purpose: str) -> np.random.Generator:
    """Return the generator of one purpose in one round; the same arguments give the same stream.

    Parameters
    ----------
    seed : int
        The run's seed, >= 0.
    round : int
        The round, >= 0.
    purpose : str
        The use of the numbers, for example ``"select"``; each purpose has its own stream.

    Returns
    -------
    np.random.Generator
        A fresh generator at the start of its stream.

    Raises
    ------
    ValueError
        If `seed` or `round` is negative.
    """
    if seed < 0:
        raise ValueError(f"seed = {seed}: must be >= 0")
    if round < 0:
        raise ValueError(f"round = {round}: must be >= 0")
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(round, crc32(purpose.encode()))))
