"""Random streams that are functions of (seed, round, purpose). So a resume needs no state of a generator."""

from zlib import crc32

import numpy as np


def generator(seed: int, round: int, purpose: str) -> np.random.Generator:
    """Return the random generator for one purpose in one round. Equal arguments give equal streams.

    Parameters
    ----------
    seed : int
        The run's seed, >= 0.
    round : int
        The round, >= 0.
    purpose : str
        What the random numbers are for, for example ``"select"``. Each purpose has a stream of its own.

    Returns
    -------
    np.random.Generator
        A new generator, at the start of its stream.

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
