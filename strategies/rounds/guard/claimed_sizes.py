"""Decides which of the clients' claims about themselves are believed: data sizes, costs and energies."""

from __future__ import annotations

from math import inf, log, nan

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Floats
from ...numerics.robust import bulk
from ...options import GuardSettings
from ...selectors import checks

_PRIOR_SPREAD = 0.5
"""The spread of logarithms that is assumed while few values are known."""
_FLAGRANT = 2.0
"""A claim above its limit by more than this factor is ignored."""


def believed_sizes(
    claimed: npt.ArrayLike, overrides: npt.ArrayLike | None = None, guard: GuardSettings | None = None
) -> Floats:
    """Return the data size that the server uses for each client.

    The size of a client is its override if there is one, otherwise its clipped claim. A client with neither
    gets the mean of all these sizes, or 1 if no size is known.

    Parameters
    ----------
    claimed : array_like, shape (M,)
        The sizes that the clients claim, in samples; NaN = no claim. Values outside [1e-100, 1e100] are
        ignored.
    overrides : array_like, shape (M,), optional
        The sizes that the operator declared, in [1e-100, 1e100]; NaN = none (default: none). They are not
        clipped.
    guard : GuardSettings, optional
        The settings by which `_limits` computes the limit to which claims are clipped, and the size
        above which claims are ignored (default: all claims are believed).

    Returns
    -------
    ndarray, shape (M,)
        The sizes, > 0.

    Raises
    ------
    TypeError, ValueError
        If the lengths differ, or an override is out of range.
    """
    sizes = checks.floats("claimed", claimed)
    sizes[~((sizes >= checks.SMALLEST_SIZE) & (sizes <= checks.LARGEST_SIZE))] = nan
    is_claim = ~np.isnan(sizes)
    if overrides is not None:
        declared = checks.floats("overrides", overrides, sizes.size)
        is_declared = ~np.isnan(declared)
        checks.in_range("overrides", declared[is_declared], checks.SMALLEST_SIZE, checks.LARGEST_SIZE)
        sizes[is_declared] = declared[is_declared]
        is_claim &= ~is_declared
    if guard is not None:
        limit, absurd = _limits(sizes[~np.isnan(sizes)], guard)
        sizes[is_claim & (sizes > absurd)] = nan
        sizes[is_claim] = np.minimum(sizes[is_claim], limit)  # NaN stays NaN
    unknown = np.isnan(sizes)
    sizes[unknown] = 1.0 if unknown.all() else sizes[~unknown].mean()
    return sizes


def believed_numbers(claimed: npt.ArrayLike, guard: GuardSettings | None = None) -> Floats:
    """Return (M,) the costs or energies of the clients, clipped in the same way as sizes; NaN = unknown.

    Parameters
    ----------
    claimed : array_like, shape (M,)
        The costs or energies that clients reported, >= 0; NaN = not reported.
    guard : GuardSettings, optional
        The settings by which `_limits` computes the limit to which claims are clipped, and the number
        above which claims are ignored (default: all claims are believed).
    """
    numbers = checks.floats("claimed", claimed)
    if guard is not None:
        limit, absurd = _limits(numbers[numbers > 0], guard)
        numbers[numbers > absurd] = nan
        numbers = np.minimum(numbers, limit)
    return numbers


def _limits(sizes: Floats, settings: GuardSettings) -> tuple[float, float]:
    """Return the limit of a claimed data size, and the size above which a claim is ignored.

    Both are computed from all known sizes (n,), > 0. If n = 0, both are infinite.
    """
    logs = np.log(sizes)
    if not logs.size:
        return inf, inf
    usual = bulk(
        logs,
        deviations=settings.size_deviations,
        least=log(settings.factor),
        prior=_PRIOR_SPREAD,
    )
    limit = usual.centre + usual.margin
    with np.errstate(over="ignore"):
        return float(np.exp(limit)), float(np.exp(limit + max(log(_FLAGRANT), usual.spread)))
