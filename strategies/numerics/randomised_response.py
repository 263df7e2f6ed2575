"""Randomised response over G values: single answers are uncertain, their counts can be estimated.

Warner, "Randomized response" (1965); for G values Kairouz, Bonawitz, Ramage, "Discrete distribution
estimation under local privacy" (2016), section 3. The answer is the true value with probability
P = e^ε/(e^ε + G - 1), and each other value with probability Q = P e^-ε. So any answer is at most e^ε times as
likely under one truth as under another (ε-local differential privacy).
"""

from math import exp
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .arrays import Floats, Ints


class Counts(NamedTuple):
    """Estimates of how many clients hold each value.

    Attributes
    ----------
    values : ndarray, shape (G,)
        Unbiased; they sum to the number of answers, and single values may be negative.
    variances : ndarray, shape (G,)
        Their variances, with `values` in place of the true counts (at least 0).
    """

    values: Floats
    variances: Floats


def randomise(truths: npt.ArrayLike, num_values: int, epsilon: float, rng: np.random.Generator) -> Ints:
    """Return the answers: the truth with probability P, else one of the other values at random.

    Parameters
    ----------
    truths : array_like of int, shape (n,)
        From 0 to G - 1.
    num_values : int
        G, >= 1.
    epsilon : float
        ε > 0.
    rng : np.random.Generator
        Source of randomness; 2n numbers are taken. They must stay secret: they reveal the truths.

    Returns
    -------
    ndarray of int, shape (n,)
        The answers.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    likely, _ = _chances(num_values, epsilon)
    values = _values("truths", truths, num_values)
    honest = rng.random(values.size) < likely
    others = (values + 1 + np.floor(rng.random(values.size) * (num_values - 1))).astype(np.int64)
    return np.where(honest, values, others % num_values)


def estimate_counts(answers: npt.ArrayLike, num_values: int, epsilon: float) -> Counts:
    """Return estimates of how many clients hold each value: (n_j - n Q)/(P - Q) for n_j answers j out of n.

    The variance is ``(a_j P (1 - P) + (n - a_j) Q (1 - Q))/(P - Q)²`` if a_j clients hold j: mostly n c with
    c = Q (1 - Q)/(P - Q)², which is 3.6 / .38 / .023 at ε = 1 / 2 / 4 and G = 10.

    Parameters
    ----------
    answers : array_like of int, shape (n,)
        What `randomise` returned, from 0 to G - 1.
    num_values, epsilon
        As for `randomise`.

    Returns
    -------
    Counts
        (G,) each.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    likely, unlikely = _chances(num_values, epsilon)
    values = _values("answers", answers, num_values)
    if num_values == 1:
        return Counts(np.array([float(values.size)]), np.zeros(1))
    gap = likely - unlikely
    counted = np.bincount(values, minlength=num_values).astype(np.float64)
    estimates: Floats = (counted - values.size * unlikely) / gap
    holders = np.clip(estimates, 0, values.size)
    spread = holders * likely * (1 - likely) + (values.size - holders) * unlikely * (1 - unlikely)
    variances: Floats = spread / gap**2
    return Counts(estimates, variances)


def coin_privacy(rates: npt.ArrayLike) -> float:
    """Return the ε of a yes or no, where holders of j say yes at rate ``rates[j]``; inf if one excludes j.

    Parameters
    ----------
    rates : array_like, shape (G,)
        In [0, 1].
    """
    chances = np.asarray(rates, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        odds = [np.log(side.max() / side.min()) for side in (chances, 1 - chances) if side.any()]
    return float(max(odds))


def _chances(num_values: int, epsilon: float) -> tuple[float, float]:
    """Return (P, Q)."""
    if num_values < 1:
        raise ValueError(f"num_values = {num_values}: must be >= 1")
    if not 0 < epsilon < np.inf:
        raise ValueError(f"epsilon = {epsilon}: must be finite and > 0")
    unlikely = exp(-epsilon) / (1 + (num_values - 1) * exp(-epsilon))
    return 1 - (num_values - 1) * unlikely, unlikely


def _values(name: str, values: npt.ArrayLike, num_values: int) -> Ints:
    array = np.asarray(values)
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{name} has shape {array.shape} and dtype {array.dtype}: must be (n,) integers")
    wrong = array[(array < 0) | (array >= num_values)]
    if wrong.size:
        raise ValueError(f"{name} holds {wrong[0]}: must be between 0 and {num_values - 1}")
    return array.astype(np.int64)
