"""FedIS: importance sampling by the norms of all clients' updates.

Wang, Guo, Lin, Tang, "DELTA: Diverse Client Sampling for Fasting Federated Learning" (NeurIPS 2023), eq. 5
and Algorithm 2.
"""

from ..baselines.optimal import OptimalSelector
from ..importance.importance import ImportanceSettings


class FedISSelector(OptimalSelector):
    """p_i = ||ĝ_i|| / sum_j ||ĝ_j|| (eq. 5), with λ_i ||ĝ_i|| instead of ||ĝ_i|| if sizes are unequal.

    The paper states the form for unequal sizes after eq. 34, where q_i is λ_i. ĝ_i is the sum of the
    gradients over the local steps.

    FedIS is ``optimal`` with a larger floor. The paper assumes a floor (p >= γ > 0) but does not define it.
    By a misprint, eq. 76 has the norm of the mean of the ĝ_i instead of the mean of the norms.

    All norms must be known before each round. ``prac-is`` needs only the norms of the selected clients.
    """

    name = "fed-is"
    summary = "in proportion to their norms"
    settings_type = ImportanceSettings
