"""stand-in"""
from collections.abc import Callable
from dataclasses import dataclass
import numpy as np
from ..numerics.arrays import Floats, Ints
from ..numerics.fixed_size_sampling import draw_systematic, inclusion_probabilities
from ..numerics.sampling import Draw, draw_with_replacement, first_seen

Features = Callable[[Ints], Floats]


@dataclass(frozen=True)
class Design:
    name: str
    fixed_size: bool
    uses_features: bool
    draw: Callable[..., Draw]


def _strat(p, k, rng, f=None):
    ends = np.cumsum(p)
    c, n = first_seen(np.searchsorted(ends, np.minimum((np.arange(k) + rng.random(k)) / k, np.nextafter(1, 0)) * ends[-1], side="right"))
    q = p[c] / ends[-1]
    return Draw(c, n, q, n / (k * q))


def _poisson(p, k, rng, f=None):
    pi = inclusion_probabilities(p, k)
    c = np.flatnonzero(rng.random(pi.size) < pi)
    return Draw(c, np.ones(c.size, dtype=np.int64), pi[c], 1 / pi[c])


def _feat(p, k, rng, f=None):
    if f is not None:
        f(np.arange(len(p)))
    return draw_systematic(p, k, rng)


DESIGNS = {
    d.name: d
    for d in (
        Design("independent", True, False, lambda p, k, r, f=None: draw_with_replacement(p, k, r)),
        Design("stratified", True, False, _strat),
        Design("systematic", True, False, lambda p, k, r, f=None: draw_systematic(p, k, r)),
        Design("poisson", False, False, _poisson),
        Design("ordered", True, True, _feat),
        Design("spread", True, True, _feat),
        Design("balanced", True, True, _feat),
    )
}


def draw(name, scores, k, rng, features=None):
    return DESIGNS[name].draw(scores, k, rng, features)
