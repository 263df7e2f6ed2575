"""Compares the norms that clients report about their updates with the norms that the server measures."""

import numpy as np

from ...numerics.arrays import Floats

_SUMS = 1e-3
"""The relative error that is allowed, since a client may sum up the squares in float32."""


def contradictions(measured: Floats, reported: Floats, rounding: float) -> dict[int, str]:
    """Return the positions at which the two norms differ by more than rounding explains.

    Return position -> both norms, in one line. ``measured`` and ``reported`` (S,) hold ‖w_m - w_t‖, NaN = not
    known. ``rounding`` >= 0 is the largest difference that the types of the arrays explain, see
    `Model.rounding`.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        allowed = _SUMS * measured + rounding
        differ = np.abs(measured - reported) > allowed
    return {
        int(i): f"update norm {reported[i]:.6g} was reported, {measured[i]:.6g} was measured"
        for i in np.flatnonzero(differ)
    }
