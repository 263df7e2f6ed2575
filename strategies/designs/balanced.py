"""The cube method: the cohort's weighted features sum to those of all clients.

Deville and Tillé, "Efficient Balanced Sampling: The Cube Method" (2004).
"""

import numpy as np

from ..numerics.arrays import Floats, Ints
from ..numerics.sampling import Draw
from .base import Features
from .candidates import Candidates, draw_among

MOST = 500


def draw(scores: Floats, k: int, rng: np.random.Generator, features: Features | None = None) -> Draw:
    """Draw k distinct clients whose features, weighted with 1/π, sum to almost the sum over all clients."""
    return draw_among(scores, k, rng, features, MOST, _draw)


def _draw(candidates: Candidates, rng: np.random.Generator) -> Ints:
    p, y = candidates.pi.copy(), candidates.expanded
    q = max(1, min(5, int(p.sum()) // 2))
    weighted = y * np.sqrt(p * (1 - p))[:, None]
    rows = np.vstack([np.ones(p.size), (y @ np.linalg.svd(weighted, full_matrices=False)[2][:q].T).T])
    live = np.arange(p.size)
    for number in range(len(rows), 0, -1):
        while live.size > number:
            some = rng.permutation(live)[: number + 1]
            u = np.linalg.svd(rows[:number, some])[2][-1]
            with np.errstate(divide="ignore", invalid="ignore"):
                up = np.where(u > 0, (1 - p[some]) / u, np.where(u < 0, -p[some] / u, np.inf)).min()
                down = np.where(u > 0, p[some] / u, np.where(u < 0, (p[some] - 1) / u, np.inf)).min()
            p[some] += (up if rng.random() * (up + down) < down else -down) * u
            live = live[(p[live] > 1e-9) & (p[live] < 1 - 1e-9)]
    return np.flatnonzero(p > 0.5)
