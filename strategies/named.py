"""The strategies by name: a selector with its settings as plain arguments."""

from typing import Unpack

from .strategy import Options, SelectionStrategy


class AdaptiveOSMD(SelectionStrategy):
    """Adaptive-OSMD sampling: learns from the norms of the updates whom to draw more often.

    Zhao et al., *Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback*,
    Algorithm 4. The aggregate is unbiased in every round, whatever is learned.

    Parameters
    ----------
    clients_per_round : int
        K, draws a round (with replacement, so fewer clients may train).
    alpha : float (default: 0.4)
        Each client keeps a probability of at least alpha / M; in (0, 1].
    learning_rate_multiplier : float (default: 1.0)
        1 is the printed theory, which moves slowly; 100 is a good first try where clients differ a lot.
    replacement : bool (default: True)
        False draws without replacement (Algorithm 6).
    **options
        The other parameters of `SelectionStrategy`.

    Examples
    --------
    >>> strategy = AdaptiveOSMD(clients_per_round=10, learning_rate_multiplier=100)
    >>> strategy.selector_name
    'adaptive-osmd'
    """

    def __init__(
        self,
        clients_per_round: int,
        *,
        alpha: float = 0.4,
        learning_rate_multiplier: float = 1.0,
        replacement: bool = True,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            "adaptive-osmd",
            clients_per_round=clients_per_round,
            selector_settings={
                "alpha": alpha,
                "learning_rate_multiplier": learning_rate_multiplier,
                "replacement": replacement,
            },
            **options,
        )
