"""Sketches: short vectors whose inner products are close to the inner products of long vectors."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Floats
from .streams import generator

WIDTH = 256
"""D, the number of entries of a sketch. The error of a cosine between two sketches is about 1/sqrt(D)."""
LONGEST = 64 * WIDTH
"""The largest number of entries of a chunk."""


def add(sketch: Floats, chunk: NDArray[Any], number: int) -> None:
    """Add one chunk of a long vector to the vector's sketch.

    The sketch Su of a vector u consists of D sums. Each entry of u is multiplied by a random sign and added
    to one of the sums. The mean of ⟨Su, Sv⟩ over the signs is ⟨u, v⟩ (AMS and count sketches; Charikar, Chen,
    Farach-Colton, "Finding Frequent Items in Data Streams", 2002). The signs are the same in every run, and
    public. So an attacker can make a vector whose inner products differ much from those of its sketch.

    Parameters
    ----------
    sketch : ndarray, shape (D,)
        The sketch, which is changed in place. It may become infinite or NaN by overflow.
    chunk : ndarray, shape (n,)
        1 <= n <= `LONGEST` floats. Vectors that are compared must be divided into chunks of equal sizes.
    number : int
        The position of the chunk in the vector, >= 0.
    """
    rows = chunk.size // WIDTH
    signs, whole = _signs(), chunk[: rows * WIDTH].reshape(rows, WIDTH)
    total = np.zeros(WIDTH)
    with np.errstate(over="ignore", invalid="ignore"):  # after an overflow the sketch is not finite
        total += (whole * signs[:rows]).sum(axis=0)
        rest = chunk[rows * WIDTH :]
        if rest.size:
            total[: rest.size] += rest * signs[rows, : rest.size]
        sketch += total * _signs_of_chunk(number)


@lru_cache(maxsize=1)
def _signs() -> NDArray[np.float32]:
    """Return the signs (64, D) of a chunk's entries; column i is for the entries of sum i."""
    return _random_signs(0, (LONGEST // WIDTH, WIDTH))


@lru_cache(maxsize=4096)
def _signs_of_chunk(number: int) -> NDArray[np.float32]:
    """Return the signs (D,) of one chunk's sums, so that entries of two chunks have independent signs."""
    return _random_signs(1 + number, (WIDTH,))


def _random_signs(stream: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return generator(0, stream, "sketch").choice(np.array([-1, 1], dtype=np.float32), shape)
