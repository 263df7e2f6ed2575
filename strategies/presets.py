"""The strategies by name: a selector with its settings as plain arguments.

Each takes what `SelectionStrategy` takes besides, and is used as any strategy of Flower::

    strategy.start(grid, initial_arrays, num_rounds=100)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Strategy

from .options import Checkpoints, Deadlines, Faults, Overrides, Polling
from .rounds.logic import RoundRecord
from .strategy import SelectionStrategy

VARIANTS = ("pow-d", "cpow-d", "rpow-d", "adapow-d")
_NO_SHARE = 1e-100  # of clients whose group has no share: the least that a selector takes


class Options(TypedDict, total=False):
    """What every strategy takes besides its selector's settings; see `SelectionStrategy`."""

    server_strategy: Strategy | None
    seed: int
    num_rounds: int | None
    min_available_clients: int | None
    local_learning_rate: float | None
    deadlines: Deadlines | None
    polling: Polling | None
    faults: Faults | None
    overrides: Overrides | None
    checkpoints: Checkpoints | None
    variates: Literal["fedvarp", "scaffold"] | None
    masked_updates: bool
    stop: Callable[[int, MetricRecord | None], bool] | None
    on_round: Callable[[RoundRecord], None] | None


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


class Forecast(SelectionStrategy):
    """The default: forecasts what each client's update will weigh, from its size and what it sent before.

    Not from a paper; it mixes what drawing by data size, by the last norm and by averaged norms get right,
    and follows whichever explained the last draws best. The aggregate is unbiased in every round. It has
    nothing to tune; what it gains, and where it loses, is in the docstring of `strategies.selectors.forecast.forecast`.

    Parameters
    ----------
    clients_per_round : int
        K, draws a round (with replacement, so fewer clients may train).
    **options
        The other parameters of `SelectionStrategy`.

    Examples
    --------
    >>> strategy = Forecast(clients_per_round=10, min_available_clients=50)
    >>> strategy.selector_name
    'forecast'
    """

    def __init__(self, clients_per_round: int, **options: Unpack[Options]) -> None:
        super().__init__("forecast", clients_per_round=clients_per_round, **options)


class Delta(SelectionStrategy):
    """FedPracDELTA: draws clients whose updates differ from the others', or vary a lot from batch to batch.

    Wang, Guo, Lin, Tang, *DELTA: Diverse Client Sampling for Fasting Federated Learning* (NeurIPS 2023),
    eq. 16. The aggregate is unbiased in every round. Clients measure the variance of their gradients while
    they train (``gradient-variance`` in their report); where an app does not, diversity decides alone.

    Parameters
    ----------
    clients_per_round : int
        n, draws a round (with replacement, so fewer clients may train).
    local_steps : int (default: 1)
        How many local steps an update sums; without it diversity outweighs the variance by its unit.
    diversity_weight, variance_weight : float (default: 0.5)
        α1 and α2, >= 0, not both 0.
    floor : float (default: 0.1)
        The share of draws that is uniform, in (0, 1]; without any, who scores 0 once is never drawn again.
    systematic : bool (default: False)
        Take exactly ``clients_per_round`` distinct clients; less variance than draws with replacement.
    **options
        The other parameters of `SelectionStrategy`.

    Examples
    --------
    >>> strategy = Delta(clients_per_round=10, local_steps=5, systematic=True)
    >>> strategy.selector_settings["local_steps"]
    5
    """

    def __init__(
        self,
        clients_per_round: int,
        *,
        local_steps: int = 1,
        diversity_weight: float = 0.5,
        variance_weight: float = 0.5,
        floor: float = 0.1,
        systematic: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            "prac-delta",
            clients_per_round=clients_per_round,
            selector_settings={
                "local_steps": local_steps,
                "alpha_1": diversity_weight,
                "alpha_2": variance_weight,
                "floor": floor,
                "design": "systematic" if systematic else "draws",
            },
            **options,
        )


class PowerOfChoice(SelectionStrategy):
    """Power-of-Choice: of some candidates, those with the largest losses train.

    Cho, Wang, Joshi, *Towards Understanding Biased Client Selection in Federated Learning* (AISTATS 2022).
    Faster at first; the aggregate is the plain mean of the worst off, biased on purpose, so that the loss
    ends at a floor that grows with the number of candidates. ``adapow-d`` removes it.

    Parameters
    ----------
    clients_per_round : int
        m, how many train.
    variant : {"pow-d", "cpow-d", "rpow-d", "adapow-d"} (default: "pow-d")
        What a candidate's loss is. pow-d: that of the current model on all its data, for which each
        candidate downloads the model and evaluates it. cpow-d: the same of one mini-batch. rpow-d: that of
        its last local training, which costs no message. adapow-d: pow-d with fewer and fewer candidates.
    num_candidates : int, optional
        d, at least ``clients_per_round``; default: twice as many (pow-d, cpow-d), half of all clients
        (rpow-d), at first all (adapow-d). Larger is faster, to a higher floor.
    batch_size : int, optional
        Of the mini-batch of cpow-d; default: 64.
    halve_every : int, optional
        adapow-d has half as many candidates every so many rounds; default: ``clients_per_round`` from half of
        the rounds on.
    **options
        The other parameters of `SelectionStrategy`. Apps without a ``query.loss`` handler are evaluated: by
        ``Polling(poll_with="evaluate", loss_metric="loss")`` at once, where the metric has that name.

    Raises
    ------
    ValueError
        If there is no such variant, or it has no such parameter.

    Examples
    --------
    >>> evaluate = Polling(poll_with="evaluate")
    >>> strategy = PowerOfChoice(clients_per_round=5, num_candidates=20, polling=evaluate)
    >>> strategy.selector_name, strategy.selector_settings
    ('pow-d', {'num_candidates': 20})
    >>> PowerOfChoice(clients_per_round=5, variant="rpow-d").selector_name
    'rpow-d'
    """

    def __init__(
        self,
        clients_per_round: int,
        *,
        variant: Literal["pow-d", "cpow-d", "rpow-d", "adapow-d"] = "pow-d",
        num_candidates: int | None = None,
        batch_size: int | None = None,
        halve_every: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        if variant not in VARIANTS:
            raise ValueError(f"variant = {variant!r}: must be one of {', '.join(map(repr, VARIANTS))}")
        settings: dict[str, Any] = {}
        for name, value, of in (
            ("num_candidates", num_candidates, variant),
            ("batch_size", batch_size, "cpow-d"),
            ("halve_every", halve_every, "adapow-d"),
        ):
            if value is None:
                continue
            if variant != of:
                raise ValueError(f"{name} = {value}: only {of} has it, not {variant}")
            settings[name] = value
        super().__init__(variant, clients_per_round=clients_per_round, selector_settings=settings, **options)


class Flics(SelectionStrategy):
    """FLICS: groups of clients that come and go take part as evenly, over time, as their availability allows.

    Ribero, Vikalo, de Veciana, *Federated Learning at Scale: Addressing Client Intermittency and Resource
    Constraints*. The aggregate is unbiased over time, not in each round: early rounds lack groups that were
    not here yet. More than ``clients_per_round`` may train in a round, fewer in another.

    Parameters
    ----------
    clients_per_round : int
        K, how many train on average.
    groups : mapping of str to str or int, optional
        The group of each client, by identity; goes before the ``group`` that a client reports. A client with
        neither is a group of its own.
    group_shares : mapping of str to float, or sequence of float, optional
        How much each group matters, in any unit; default: its data. By name; clients of other groups then
        hardly ever train. With ``private`` a sequence, for the groups 0, 1, ...
    private : bool (default: False)
        The server learns nobody's group: clients say it by randomised response and decide themselves whether
        they take part. Takes the handlers ``query.group`` and ``query.invitation``, and ``group_shares``.
    epsilon : float, optional
        ε of that answer (default: 2.0); with ``private`` only.
    coin_epsilon : float, optional
        ε of what taking part tells of the group in a round (default: no bound); with ``private`` only.
    **options
        The other parameters of `SelectionStrategy`.

    Raises
    ------
    ValueError
        If parameters do not go together.

    Examples
    --------
    >>> strategy = Flics(
    ...     clients_per_round=20,
    ...     groups={"phone-1": "night", "phone-2": "day"},
    ...     group_shares={"day": 2, "night": 1},
    ... )
    >>> strategy.selector_name
    'flics'
    >>> Flics(clients_per_round=20, private=True, group_shares=[3, 1, 1]).selector_name
    'flics-private'
    """

    def __init__(
        self,
        clients_per_round: int,
        *,
        groups: Mapping[str, str | int] | None = None,
        group_shares: Mapping[str, float] | Sequence[float] | None = None,
        private: bool = False,
        epsilon: float | None = None,
        coin_epsilon: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        settings: dict[str, Any] = {}
        overrides = options.get("overrides") or Overrides()
        if private:
            if groups is not None:
                raise ValueError("groups: must not be given with private=True, where the server knows none")
            if group_shares is None or isinstance(group_shares, Mapping):
                raise ValueError(
                    f"group_shares = {group_shares!r}: must be a sequence with private=True, how much the "
                    "groups 0, 1, ... matter"
                )
            settings = {"group_shares": tuple(group_shares), "coin_epsilon": coin_epsilon}
            if epsilon is not None:
                settings["epsilon"] = epsilon
        else:
            for name, value in (("epsilon", epsilon), ("coin_epsilon", coin_epsilon)):
                if value is not None:
                    raise ValueError(f"{name} = {value}: needs private=True, without which groups are known")
            if groups is not None:
                overrides = replace(overrides, settings={**overrides.settings, "groups": groups})
            if group_shares is not None:
                if not isinstance(group_shares, Mapping):
                    raise ValueError(f"group_shares = {group_shares!r}: must say which group has which share")
                settings = {"group_shares": (*group_shares.values(), _NO_SHARE)}
                overrides = replace(overrides, group_names=tuple(group_shares))
        options["overrides"] = overrides
        super().__init__(
            "flics-private" if private else "flics",
            clients_per_round=clients_per_round,
            selector_settings=settings,
            **options,
        )
