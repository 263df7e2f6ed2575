"""Sampling designs of fixed size: k distinct clients, each with an exactly known inclusion probability.

Madow, "On the Theory of Systematic Sampling, II" (1949); Särndal, Swensson, Wretman, "Model Assisted Survey
Sampling" (1992), section 3.6.
"""

import numpy as np
import numpy.typing as npt

from .arrays import Floats, Ints
from .sampling import Draw

BLOCK = 256
"""The mean number of clients in a block of the random order. To draw k of M clients,
`systematic` shuffles at most k blocks. Together, these blocks should have far fewer clients than M."""


def inclusion_probabilities(scores: npt.ArrayLike, k: int) -> Floats:
    """Return ``π_m = min(1, c s_m)``, where c is such that the sum of π is k.

    π_m is capped if c s_m > 1. Only the k largest scores can be capped. If the j largest scores are capped, c
    is (k - j) divided by the sum of all other scores. The solution has the smallest j for which the next
    largest score times c is at most 1. Sums start with the smallest scores, so no digits cancel. The
    computation takes O(M + k log k).

    `scores` (M,) is s >= 0 with a finite sum, in any unit. k, the expected number of clients, is at most the
    number of positive scores. With `systematic` the number of drawn clients is always k. The result (M,) is 1
    if capped, and 0 if the score is 0.
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
    if k * s.max() <= total:  # no score is capped
        even: Floats = s * (k / total)
        return np.minimum(even, 1.0, out=even)
    top = np.argpartition(s, s.size - k)[s.size - k :]
    largest = -np.sort(-s[top])
    small = s.copy()
    small[top] = 0
    others = small.sum() + np.cumsum(largest[::-1])[::-1]  # entry j: the sum of all scores but the j largest
    with np.errstate(over="ignore"):  # only capped scores may overflow, and min(1, ...) corrects them
        j = int(np.argmax((k - np.arange(k)) * largest <= others))
        pi: Floats = np.minimum((k - j) * s / others[j], 1.0)
    return pi


def systematic(pi: npt.ArrayLike, rng: np.random.Generator) -> Ints:
    """Draw clients by randomised systematic sampling.

    Client m is drawn with probability π_m, and the number of drawn clients is always the sum of π. Each
    client with 0 < π < 1 is a segment of length π. The segments are laid end to end in random order. With one
    uniform number u, the clients whose segments contain the points u, u + 1, ... are drawn. No segment is
    longer than the distance between two points, so no client is drawn twice. The clients with π = 1 are
    returned first, ascending, then the drawn clients in random order.

    The random order is made in two steps: each client is put into a random block, and the clients of a block
    are shuffled. Blocks without a point need no shuffling, so the work that grows with M is small.

    `pi` (M,) holds inclusion probabilities in [0, 1]. Their sum must be an integer, up to a relative error of
    1e-6.
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
    # If rounding puts two points on one client, or a point beyond the last segment, a neighbour is drawn.
    at = np.minimum(np.maximum.accumulate(at - steps) + steps, order.size - size + steps)
    return np.concatenate([certain, clients[order[at]]])


def draw_systematic(p: npt.ArrayLike, k: int, rng: np.random.Generator) -> Draw:
    """Draw k distinct clients by scores p (M,) with `systematic`: π = min(1, c p), W_m = 1/π_m."""
    pi = inclusion_probabilities(p, k)
    clients = systematic(pi, rng)
    return Draw(clients, np.ones(clients.size, dtype=np.int64), pi[clients], 1 / pi[clients])
