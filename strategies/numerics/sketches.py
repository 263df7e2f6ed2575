"""Sketches: short vectors whose inner products are close to the inner products of long vectors."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Floats
from .streams import generator

WIDTH = 256
"""D, the number of entries of a sketch. The error of a cosine between two sketches is about 1/sqrt(D)."""
SHORT = 32
"""The number of entries of a short sketch, of which many are kept. The error of a cosine is about .18."""
LONGEST = 64 * WIDTH
"""The largest number of entries of a chunk. Long vectors are divided into chunks."""


def of_chunk(chunks: NDArray[Any], number: int) -> Floats:
    """Return the sketches of long vectors that are 0 outside of one chunk.

    The sketch of a vector is the sum of the results for all its chunks.

    The sketch Su of a vector u consists of D sums. Each entry of u is multiplied by a random sign and added
    to one of the sums. The mean of ⟨Su, Sv⟩ over the signs is ⟨u, v⟩ (AMS and count sketches; Charikar, Chen,
    Farach-Colton, "Finding Frequent Items in Data Streams", 2002). The signs are the same in every run, and
    public. So an attacker can make a vector whose inner products differ much from those of its sketch.

    `chunks` (R, n) is the same chunk of R vectors, 1 <= n <= `LONGEST`; vectors that are compared must be
    divided into chunks of equal sizes. `number` is the position of the chunk in the vector, >= 0. The result
    (R, D) may be infinite or NaN by overflow.
    """
    rows = chunks.shape[1] // WIDTH
    # (64, D) the signs of a chunk's entries; column i is for the entries of sum i
    signs = _signs(0, (LONGEST // WIDTH, WIDTH)).astype(chunks.dtype, copy=False)
    whole = chunks[:, : rows * WIDTH].reshape(len(chunks), rows, WIDTH)
    with np.errstate(over="ignore", invalid="ignore"):  # after an overflow the sketch is not finite
        total: Floats = np.einsum("rij,ij->rj", whole, signs[:rows]).astype(np.float64, copy=False)
        rest = chunks[:, rows * WIDTH :]
        if rest.shape[1]:
            total[:, : rest.shape[1]] += rest * signs[rows, : rest.shape[1]]
        total *= _signs(1 + number, (WIDTH,))  # so that entries of two chunks have independent signs
    return total


def shortened(sketches: Floats, width: int = SHORT) -> Floats:
    """Return (R, min(D, width)): short sketches of the same vectors, from their `sketches` (R, D).

    Each entry of a short sketch is the sum of every `width`-th entry. The signs of these are independent, so
    the mean of an inner product is still that of the long vectors.
    """
    folds = -(-sketches.shape[1] // width)
    if folds <= 1:
        return sketches
    padded = np.pad(sketches, ((0, 0), (0, folds * width - sketches.shape[1])))
    short: Floats = padded.reshape(len(sketches), folds, width).sum(axis=1)
    return short


@lru_cache(maxsize=4096)
def _signs(stream: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return generator(0, stream, "sketch").choice(np.array([-1, 1], dtype=np.float32), shape)
