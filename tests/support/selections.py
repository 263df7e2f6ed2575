"""What the selector tests share."""

import numpy as np

from strategies.selectors import Feedback


def feedback(norms, responded=None, **others):
    """Feedback with these norms; what is not given was not reported."""
    norms = np.asarray(norms, dtype=float)
    missing = np.full(norms.size, np.nan)
    fields = {"losses": missing, "gradient_variances": missing, "diversities": missing} | others
    responded = np.ones(norms.size, dtype=bool) if responded is None else responded
    return Feedback(update_norms=norms, responded=responded, **fields)
