"""Sampling designs of fixed size: k distinct clients, each with an exactly known inclusion probability.

Madow, "On the Theory of Systematic Sampling, II" (1949); Särndal, Swensson, Wretman, "Model Assisted Survey
Sampling" (1992), section 3.6.
"""

import numpy as np
import numpy.typing as npt

from .arrays import Floats, Ints
from .sampling import Draw

BLOCK = 256
"""Mean number of clients in a block of the random order; it is small next to M, and so are K blocks."""


def inclusion_probabilities(scores: npt.ArrayLike, k: int) -> Floats:
    """Return ``π_m = min(1, c s_m)`` with the one c that makes their sum k.

    Only the k largest scores can be capped. With the j largest capped, c is (k - j) over the sum of the
    others; the solution is the first j at which the next largest stays below 1. The sums start at the small
    end, so nothing cancels. It takes O(M + k log k).

    Parameters
    ----------
    scores : array_like, shape (M,)
        s >= 0 with a finite sum, in any unit.
    k : int
        Expected and, under `systematic`, actual number of clients; from 0 to the number of positive scores.

    Returns
    -------
    ndarray, shape (M,)
        π in [0, 1], 1 where capped, 0 where the score is; the sum is k up to rounding.

    Raises
    ------
    ValueError
        If `scores` or `k` is out of range.
    """
    s: Floats = np.asarray(scores, dtype=np.float64)
    if s.ndim != 1:
        raise ValueError(f"scores has shape {s.shape}: must be (M,)")
    total = float(s.sum())
    if not (0 <= total < np.inf and s.min(initial=0.0) >= 0):
        raise ValueError(f"scores has sum {total}: must be finite, and no score negative")
    positive = np.count_nonzero(s)
    if not 0 <= k <= positive:
        raise ValueError(f"k = {k}: must be between 0 and {positive} (the clients with a positive score)")
    if k == 0:
        return np.zeros(s.size)
    if k * s.max() <= total:  # none is capped
        even: Floats = s * (k / total)
        return np.minimum(even, 1.0, out=even)
    top = np.argpartition(s, s.size - k)[s.size - k :]
    largest = -np.sort(-s[top])
    small = s.copy()
    small[top] = 0
    others = small.sum() + np.cumsum(largest[::-1])[::-1]  # entry j: the sum of all but the j largest
    with np.errstate(over="ignore"):  # beyond the capped ones nothing overflows
        j = int(np.argmax((k - np.arange(k)) * largest <= others))
        pi: Floats = np.minimum((k - j) * s / others[j], 1.0)
    return pi


def systematic(pi: npt.ArrayLike, rng: np.random.Generator) -> Ints:
    """Draw by randomised systematic sampling: P(m is drawn) = π_m, and the number drawn is always sum π.

    Clients with 0 < π < 1 are laid end to end in random order, each as a segment of length π. One uniform
    number u sets the points u, u + 1, ..., and the clients whose segment holds a point are drawn. No segment
    is longer than the distance of two points, so no client is drawn twice. Clients with π = 1 come first,
    ascending, the others in random order.

    The random order is made in two steps: each client is put into a random block, and shuffled within it.
    Blocks without a point need no shuffling, so only one pass grows with M.

    Parameters
    ----------
    pi : array_like, shape (M,)
        Inclusion probabilities in [0, 1] whose sum is an integer, to a millionth of it.
    rng : np.random.Generator
        Source of randomness.

    Returns
    -------
    ndarray of int, shape (S,)
        Distinct indexes into `pi`.

    Raises
    ------
    ValueError
        If `pi` is out of range, or its sum is not an integer.
    """
    p: Floats = np.asarray(pi, dtype=np.float64)
    if p.ndim != 1:
        raise ValueError(f"pi has shape {p.shape}: must be (M,)")
    for extreme in (p.min(initial=0.0), p.max(initial=0.0)):
        if not 0 <= extreme <= 1:
            raise ValueError(f"pi holds {extreme}: must be between 0 and 1")
    total = float(p.sum())
    size = round(total)
    if abs(total - size) > 1e-6 * max(1, size):
        raise ValueError(f"pi has sum {total}: must be an integer")
    certain = np.flatnonzero(p == 1)
    clients = np.flatnonzero((p > 0) & (p < 1))
    size -= certain.size
    if size == 0:
        return certain
    steps = np.arange(size)
    shares = p if clients.size == p.size else p[clients]
    num_blocks = max(1, clients.size // BLOCK)
    blocks = np.zeros(clients.size, dtype=np.int64)
    if num_blocks > 1:
        blocks = rng.integers(num_blocks, size=clients.size)
    block_ends = np.cumsum(np.bincount(blocks, weights=shares, minlength=num_blocks))
    points = (rng.random() + steps) * (block_ends[-1] / size)
    hit = np.zeros(num_blocks + 1, dtype=np.bool_)
    hit[np.searchsorted(block_ends, points, side="right")] = True
    order = rng.permutation(np.flatnonzero(hit[blocks]))
    order = order[np.argsort(blocks[order], kind="stable")]
    of = blocks[order]
    sums = np.cumsum(shares[order])
    first = np.searchsorted(of, of)  # where the block of each client begins
    ends = sums - np.where(first > 0, sums[first - 1], 0.0) + np.where(of > 0, block_ends[of - 1], 0.0)
    last = np.append(of[1:] != of[:-1], True)
    ends[last] = block_ends[of[last]]
    at = np.searchsorted(ends, points, side="right")
    # If rounding puts two points on one client, or one past the end, the neighbour gets the point.
    at = np.minimum(np.maximum.accumulate(at - steps) + steps, order.size - size + steps)
    return np.concatenate([certain, clients[order[at]]])


def draw_systematic(p: npt.ArrayLike, k: int, rng: np.random.Generator) -> Draw:
    """Draw k distinct clients with π = min(1, c p) by `systematic`; W_m = 1/π_m.

    Parameters
    ----------
    p, k
        As `scores` and `k` of `inclusion_probabilities`.
    rng : np.random.Generator
        Source of randomness.

    Returns
    -------
    Draw
        Exactly k clients with counts 1; `probabilities` are the inclusion probabilities.

    Raises
    ------
    ValueError
        If an argument is refused.
    """
    pi = inclusion_probabilities(p, k)
    clients = systematic(pi, rng)
    return Draw(clients, np.ones(clients.size, dtype=np.int64), pi[clients], 1 / pi[clients])
