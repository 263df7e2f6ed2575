"""FedIS: importance sampling by the norms of all clients' updates.

Wang, Guo, Lin, Tang, "DELTA: Diverse Client Sampling for Fasting Federated Learning" (NeurIPS 2023), eq. 5
and Algorithm 2.
"""

from ..baselines.optimal import OptimalSelector
from ..importance.importance import ImportanceSettings


class FedISSelector(OptimalSelector):
    """p_i = ||ĝ_i|| / sum_j ||ĝ_j|| (eq. 5), with λ_i ||ĝ_i|| where client weights are unequal.

    This is ``optimal`` with the floor that the paper assumes (p >= γ > 0) but does not define. ĝ_i is the sum
    over the local steps; dividing by their number would change nothing, since it is the same for all. The
    variance that eq. 5 attains is ((1/m) sum ||ĝ_i||)², where eq. 76 prints the norm of the mean.

    All norms must be known before each round; ``prac-is`` needs only those of the participants.
    """

    name = "fed-is"
    settings_type = ImportanceSettings
