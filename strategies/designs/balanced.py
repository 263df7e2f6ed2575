"""The cube method: the features of the cohort, weighted with 1/π, sum to almost the sum over all clients.

Deville and Tillé, "Efficient Balanced Sampling: The Cube Method" (2004); Chauvet and Tillé, "A Fast Algorithm
for Balanced Sampling" (2006). If the updates of this round were those that the features remember, the
aggregate would be almost exact. So only what is new in them adds variance.
"""

import numpy as np

from ..numerics.arrays import Floats, Ints
from ..numerics.sampling import Draw
from .base import Features
from .candidates import Candidates, draw_among_candidates

COMPONENTS = 6

CLOSE = 1e-12
"""A probability closer than this to 0 or 1 is decided."""


def draw(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw k distinct clients whose weighted features are balanced in up to COMPONENTS and k/2 components."""
    return draw_among_candidates(scores, k, rng, features, max(1, min(COMPONENTS, k // 2)), _draw)


def _draw(candidates: Candidates, rng: np.random.Generator) -> Ints:
    """Flight phase and landing phase.

    The flight leaves at most q + 1 clients undecided. Then components are dropped, the smallest first. The
    size of the cohort is never dropped.
    """
    p = candidates.pi.copy()
    columns = np.column_stack([np.ones(p.size), candidates.components])
    for number in range(columns.shape[1], 0, -1):
        _fly(p, columns[:, :number], rng)
    return np.flatnonzero(p > 0.5)


def _fly(p: Floats, columns: Floats, rng: np.random.Generator) -> None:
    """Move p (c,) at random, with its mean and Σ p columns (c, r) kept, in groups, until r are undecided."""
    width = columns.shape[1]
    while True:
        live = np.flatnonzero((p > CLOSE) & (p < 1 - CLOSE))
        if live.size <= width:
            return
        number = max(1, live.size // (2 * width))
        length = live.size // number
        _fly_in_groups(p, columns, rng.permutation(live)[: number * length].reshape(number, length), rng)


def _fly_in_groups(p: Floats, columns: Floats, groups: Ints, rng: np.random.Generator) -> None:
    """Let p move until each of the groups (g, l), l > r, has at most r undecided clients.

    r clients of a group are its basis. A further client enters: one direction exists in which it and the
    basis may move. p moves as far as it can, forwards or backwards, which decides one of them. If this is
    a client of the basis, the entering client takes its place. As in the simplex method, the inverse of the
    basis is then updated instead of computed.
    """
    number, width = len(groups), columns.shape[1]
    every, basis = np.arange(number), groups[:, :width].copy()
    inverse = np.linalg.inv(columns[basis].transpose(0, 2, 1))
    inside = p[basis]
    for entering, random in zip(
        groups[:, width:].T, rng.random((groups.shape[1] - width, number)), strict=True
    ):
        own = p[entering]
        # Forwards: the entering client moves by +1, and the basis by -d. The sum of d is 1, up to rounding.
        d = (inverse @ columns[entering][:, :, None])[:, :, 0]
        d /= d.sum(axis=1, keepdims=True)
        falls, speed = d > 0, np.maximum(np.abs(d), 1e-300)
        ahead = np.where(falls, inside, 1 - inside) / speed
        behind = np.where(falls, 1 - inside, inside) / speed
        forwards, backwards = np.minimum(ahead.min(axis=1), 1 - own), np.minimum(behind.min(axis=1), own)
        up = random * (forwards + backwards) < backwards  # so that the mean of the step is 0
        step = np.where(up, forwards, -backwards)
        room = np.where(up[:, None], ahead, behind)
        place = room.argmin(axis=1)
        leaves = room[every, place] < np.where(up, 1 - own, own)  # a client of the basis is decided
        p[np.where(leaves, basis[every, place], entering)] = np.where(leaves, falls[every, place] != up, up)
        inside -= step[:, None] * d
        some, at = every[leaves], place[leaves]
        inside[some, at] = own[some] + step[some]
        basis[some, at] = entering[some]
        row = inverse[some, at] / d[some, at, None]
        d[some, at] -= 1
        inverse[some] -= d[some, :, None] * row[:, None, :]
    p[basis] = inside.clip(0, 1)
