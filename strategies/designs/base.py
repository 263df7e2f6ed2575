"""What all designs have in common: the type of a design, and of the features that some of them use."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ..numerics.arrays import Floats, Ints
from ..numerics.sampling import Draw

Features: TypeAlias = Callable[[Ints], Floats]
"""Takes positions (c,) in the scores, returns features (c, d).

The features of client m are λ_m u_m, its last known contribution to the aggregate, or a linear sketch of it.
The row of a client of whom nothing is known holds NaN.
"""

Drawing: TypeAlias = Callable[[Floats, int, np.random.Generator, Features | None], Draw]


@dataclass(frozen=True)
class Design:
    """A way of drawing about k clients, given their scores.

    ``draw(scores, k, rng, features)`` takes scores (n,) >= 0 of the available clients, in any unit, and
    1 <= k < n. It returns a `Draw` whose importance weights W have E[W_m] = 1 for each client with a positive
    score. Other clients are never drawn.
    """

    name: str
    fixed_size: bool  # whether it draws k distinct clients, or all with a positive score if they are fewer
    uses_features: bool  # whether it draws clients apart whose features are alike
    draw: Drawing
