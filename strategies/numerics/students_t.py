"""The quantile .975 of Student's t, for 95 % intervals."""

import numpy as np

# The degrees of freedom 1, 2, ..., 30, 60, 120 and infinity, and the quantile for each of them.
_DEGREES = np.array([*range(1, 31), 60, 120, np.inf])
_QUANTILES = np.array(
    [
        *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
        *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
        *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
        *(2.000, 1.980, 1.960),
    ]
)


def quantile(degrees: float) -> float:
    """Return the quantile for this many degrees of freedom, >= 1; interpolated in 1 / degrees."""
    return float(np.interp(1 / max(1.0, degrees), 1 / _DEGREES[::-1], _QUANTILES[::-1]))
