"""The selectors that the experiments of `section_f` compare: their settings, and the labels of their rows.

a is λ² ||g||² of a client, and ā the bound of all a that the learning rates depend on. In Adaptive-OSMD,
several experts with learning rates η propose probabilities; γ is the rate of the experts' weights.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.experiments.methods import OWN_DRAWS
from benchmarks.experiments.osmd.least_squares import Problem
from benchmarks.experiments.regret import Oracle
from strategies.numerics.arrays import Floats
from strategies.selectors import Selector, create

M, K, T = 100, 5, 1000
ALPHA = 0.4
SCAFFOLD_RATE = 1e-3
NORM_BOUND = 1e3
"""Larger than any norm in section F."""


class Maker:
    """Makes the selectors of a comparison, which draw with the same random numbers."""

    def __init__(self, seed: int, num_rounds: int) -> None:
        self._seed, self._num_rounds = seed, num_rounds

    def __call__(self, name: str, **settings: Any) -> Selector:
        return create(name, M, clients_per_round=K, num_rounds=self._num_rounds, seed=self._seed, **settings)

    def adaptive(
        self, multiplier: float = 1.0, initial_norms: Floats | None = None, rates: str = "v1", **settings: Any
    ) -> Selector:
        """Return Adaptive-OSMD with the scale-free γ, and `multiplier` times the printed learning rates η.

        The largest a of `initial_norms` (M,) is the first value of ā. In the paper (appendix C.3) and in
        `with_fixed_a_max`, ā keeps this value; here it rises to any larger a. With None, ā is the largest a
        so far.
        """
        selector = self(
            "adaptive-osmd",
            alpha=settings.pop("alpha", ALPHA),
            rates=rates,
            learning_rate_multiplier=multiplier,
            **settings,
        )
        return selector if initial_norms is None else _with_largest(selector, float(initial_norms.max()))

    def with_fixed_a_max(self, initial_norms: Floats, rates: str = "v1", **settings: Any) -> Selector:
        """Return Adaptive-OSMD whose ā stays at the largest a before training."""
        a_max = float(initial_norms.max() / M) ** 2
        return self("adaptive-osmd", alpha=ALPHA, rates=rates, a_max=a_max, **settings)

    def doubling(self) -> Selector:
        """Return Adaptive-Doubling-OSMD with the first version's rates, and the scale-free γ.

        ā of a block is the largest a of the block before. The first block, of one round, makes no step, so
        asking clients for their norms before training would change nothing.
        """
        return self("adaptive-doubling-osmd", alpha=ALPHA, rates="v1")

    def oracle(self, floor: float) -> Selector:
        """Return the oracle, which uses the best probabilities p >= floor in each round."""
        return Oracle(M, K, self._seed, floor)

    def osmd(self, rate: float) -> Selector:
        """Return OSMD (Algorithm 1) with the learning rate η = `rate` for losses not divided by ā."""
        theory = K**2 * (ALPHA / M) ** 3 * math.sqrt(math.log(M) / (2 * self._num_rounds))  # η ā from eq. 11
        multiplier = rate * (NORM_BOUND / M) ** 2 / theory
        selector = self("osmd", alpha=ALPHA, rates="v1", learning_rate_multiplier=multiplier)
        return _with_largest(selector, NORM_BOUND)


def _with_largest(selector: Selector, largest_norm: float) -> Selector:
    """Set the largest norm that a selector of the OSMD family has seen so far, which gives its ā."""
    selector.load_state_dict({**selector.state_dict(), "reference": np.array(largest_norm)})
    return selector


Make = Callable[[Maker, Problem], Mapping[str, Selector]]
"""Makes the selectors of a comparison: row of the table -> selector."""


def make_f1(new: Maker, problem: Problem) -> Mapping[str, Selector]:
    """Make the selectors of F.1: Adaptive-OSMD with printed and larger η, `uniform`, and the oracles."""
    initial_norms = problem.initial_norms()
    return {
        "uniform": new("uniform"),
        "adaptive-osmd, v2": new.adaptive(1, initial_norms, rates="v2"),
        "adaptive-osmd": new.adaptive(1, initial_norms),
        "adaptive-osmd × 10": new.adaptive(10, initial_norms),
        "adaptive-osmd × 100": new.adaptive(100, initial_norms),
        "adaptive-osmd × 1000": new.adaptive(1000, initial_norms),
        "adaptive-osmd × 100, cold": new.adaptive(100),
        "adaptive-osmd × 100, ā fixed": new.with_fixed_a_max(initial_norms, learning_rate_multiplier=100.0),
        "adaptive-doubling-osmd": new.doubling(),
        "best p ≥ α/M (oracle)": new.oracle(ALPHA / M),
        "optimal (oracle)": new.oracle(0),
    }


def make_f2(new: Maker, problem: Problem) -> Mapping[str, Selector]:
    """Make the selectors of F.2: `uniform`, the paper's samplers that learn, and `forecast`."""
    initial_norms = problem.initial_norms()
    return {
        "uniform": new("uniform"),
        "adaptive-osmd": new.adaptive(1, initial_norms),
        "adaptive-osmd × 100": new.adaptive(100, initial_norms),
        "mabs": new("mabs"),
        "vrb": new("vrb"),
        "avare, cold": new("avare"),
        "avare": new("avare", update_norms=initial_norms),
        "forecast, cold": new("forecast", **OWN_DRAWS),
        "forecast": new("forecast", **OWN_DRAWS, update_norms=initial_norms),
    }


def make_authors(new: Maker, problem: Problem) -> Mapping[str, Selector]:
    """Make the selectors of F.1 and F.2, and `forecast`. Adaptive-OSMD has a fixed ā."""
    initial_norms = problem.initial_norms()
    return {
        "uniform": new("uniform"),
        "adaptive-osmd": new.with_fixed_a_max(initial_norms),
        "adaptive-osmd, printed γ": new.with_fixed_a_max(initial_norms, gamma="printed"),
        "adaptive-osmd, v2": new.with_fixed_a_max(initial_norms, rates="v2"),
        "mabs": new("mabs"),
        "vrb": new("vrb"),
        "avare, cold": new("avare"),
        "avare": new("avare", update_norms=initial_norms),
        "forecast, cold": new("forecast", **OWN_DRAWS),
        "best p ≥ α/M (oracle)": new.oracle(ALPHA / M),
        "optimal (oracle)": new.oracle(0),
    }


def make_f3(new: Maker, problem: Problem) -> Mapping[str, Selector]:
    """Make the selectors of F.3: Adaptive-OSMD with several α.

    For each α one has the printed η, which are proportional to α³; the other, "fast", 100 times η of α = 0.4.
    """
    initial_norms, alphas = problem.initial_norms(), (0.01, 0.1, 0.4, 0.7, 0.9, 1.0)
    selectors = {"uniform": new("uniform")}
    for alpha in alphas:
        selectors[f"α = {alpha:g}"] = new.adaptive(1, initial_norms, alpha=alpha)
    for alpha in alphas[:-1]:
        multiplier = 100 * (ALPHA / alpha) ** 3
        selectors[f"α = {alpha:g}, fast"] = new.adaptive(multiplier, initial_norms, alpha=alpha)
    return selectors


def make_f4(new: Maker, problem: Problem) -> Mapping[str, Selector]:
    """Make the selectors of F.4, which draw with or without replacement."""
    initial_norms = problem.initial_norms()
    selectors = {}
    for replacement, how in ((True, "with"), (False, "without")):
        selectors[f"uniform, {how}"] = new("uniform", replacement=replacement)
        selectors[f"adaptive-osmd, {how}"] = new.adaptive(1, initial_norms, replacement=replacement)
        selectors[f"adaptive-osmd × 100, {how}"] = new.adaptive(100, initial_norms, replacement=replacement)
    return selectors


def make_scaffold(new: Maker, problem: Problem) -> Mapping[str, Selector]:
    """Make the selectors of appendix E of the later version, which are trained with SCAFFOLD."""
    return {
        "uniform": new("uniform"),
        f"osmd, rate {SCAFFOLD_RATE:g}": new.osmd(SCAFFOLD_RATE),
        "osmd, rate of theory": new("osmd"),
        "adaptive-osmd × 100, cold": new.adaptive(100),
        "forecast, cold": new("forecast", **OWN_DRAWS),
    }
