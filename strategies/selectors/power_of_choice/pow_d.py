"""pow-d: Power-of-Choice on each candidate's loss over all its data (Cho et al. 2022, section 4)."""

from .candidates import PowerOfChoiceSelector


class PowDSelector(PowerOfChoiceSelector):
    """F_k(w) = the mean loss of the current global model over all samples of candidate k.

    It asks d clients in each round to download the model and evaluate it.
    """

    name = "pow-d"
