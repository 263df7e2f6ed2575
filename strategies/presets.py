"""Strategies by name: each is `SelectionStrategy` with one selector, whose settings are plain arguments.

They are used as any strategy of Flower::

    strategy.start(grid, initial_arrays, num_rounds=100)

An argument of a selector has the selector's own name and default, see its `allowed_settings`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Strategy

from .options import Checkpoints, Deadlines, Faults, Overrides, Polling
from .rounds.record import RoundRecord
from .strategy import SelectionStrategy

VARIANTS = ("pow-d", "cpow-d", "rpow-d", "adapow-d")
_NO_SHARE = 1e-100  # of clients whose group has no share: the least that a selector takes


class Options(TypedDict, total=False):
    """The parameters of `SelectionStrategy` that do not belong to a selector."""

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


class Forecast(SelectionStrategy):
    """The default: forecasts the norm of each client's update from its size and its earlier updates.

    Not from a paper. It mixes 32 forecasts, from data size, last norm and averaged norms, and gives the
    largest weights to those that explained the last draws best. The aggregate is unbiased in every round.
    There is nothing to tune. `strategies.selectors.forecast.forecast` says where it gains and where it loses.

    Parameters
    ----------
    clients_per_round : int
        K, the number of draws a round (with replacement, so fewer clients may train).
    replacement : bool (default: True)
        False draws without replacement.
    **options
        The other parameters of `SelectionStrategy`.

    Examples
    --------
    >>> strategy = Forecast(clients_per_round=10, min_available_clients=50)
    >>> strategy.selector_name
    'forecast'
    """

    def __init__(
        self, clients_per_round: int, *, replacement: bool = True, **options: Unpack[Options]
    ) -> None:
        super().__init__(
            "forecast",
            clients_per_round=clients_per_round,
            selector_settings={"replacement": replacement},
            **options,
        )


class AdaptiveOSMD(SelectionStrategy):
    """Adaptive-OSMD sampling: learns from the norms of the updates which clients to draw more often.

    Zhao et al., *Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback*,
    Algorithm 4. The aggregate is unbiased in every round, whatever is learned.

    Parameters
    ----------
    clients_per_round : int
        K, the number of draws a round (with replacement, so fewer clients may train).
    alpha : float (default: 0.4)
        Each client keeps a probability of at least alpha / M; in (0, 1].
    learning_rate_multiplier : float (default: 1.0)
        1 is the printed theory, which adapts slowly; try 100 where clients differ a lot.
    replacement : bool (default: True)
        False draws without replacement (Algorithm 6).
    expert_base : {"K", "K2"} (default: "K")
        The factor of the experts' rates: K (the paper's later version) or K² (eq. 13).
    initial : {"uniform", "sizes"} (default: "uniform")
        The distribution that all experts start from: the uniform one (the paper's) or by data size.
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
        expert_base: Literal["K", "K2"] = "K",
        initial: Literal["uniform", "sizes"] = "uniform",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            "adaptive-osmd",
            clients_per_round=clients_per_round,
            selector_settings={
                "alpha": alpha,
                "learning_rate_multiplier": learning_rate_multiplier,
                "replacement": replacement,
                "expert_base": expert_base,
                "initial": initial,
            },
            **options,
        )


class Delta(SelectionStrategy):
    """FedPracDELTA: draws clients whose updates differ from the others', or vary much between mini-batches.

    Wang, Guo, Lin, Tang, *DELTA: Diverse Client Sampling for Fasting Federated Learning* (NeurIPS 2023),
    eq. 16. The aggregate is unbiased in every round. Clients measure the variance of their gradients while
    they train (``gradient-variance`` in their report); where an app does not, diversity alone decides.

    Parameters
    ----------
    clients_per_round : int
        n, the number of draws a round (with replacement, so fewer clients may train).
    local_steps : int (default: 1)
        The number of local steps that an update sums; without it diversity outweighs the variance.
    alpha_1, alpha_2 : float (default: 0.5)
        Weights of the squared diversity and of the local variance, >= 0, not both 0.
    floor : float (default: 0.1)
        The share of draws that is uniform, in (0, 1]; without it a client that scores 0 once is never drawn
        again.
    design : {"draws", "systematic"} (default: "draws")
        "systematic" takes exactly ``clients_per_round`` distinct clients, with less variance than draws.
    replacement : bool (default: True)
        False draws without replacement; without effect if ``design="systematic"``.
    smoothness, global_learning_rate : float, optional
        L of the gradients and η of the server: with ``local_learning_rate`` (η_L, a parameter of
        `SelectionStrategy`) they replace ``alpha_1`` and ``alpha_2`` by the paper's constants.
    diversity_mean : {"weighted", "plain"} (default: "weighted")
        The mean that diversities are distances from: with the weights of the estimate, or plain (the paper's,
        biased where sampling is not uniform).
    **options
        The other parameters of `SelectionStrategy`.

    Examples
    --------
    >>> strategy = Delta(clients_per_round=10, local_steps=5, design="systematic")
    >>> strategy.selector_settings["local_steps"]
    5
    """

    def __init__(
        self,
        clients_per_round: int,
        *,
        local_steps: int = 1,
        alpha_1: float = 0.5,
        alpha_2: float = 0.5,
        floor: float = 0.1,
        design: Literal["draws", "systematic"] = "draws",
        replacement: bool = True,
        smoothness: float | None = None,
        global_learning_rate: float | None = None,
        diversity_mean: Literal["weighted", "plain"] = "weighted",
        **options: Unpack[Options],
    ) -> None:
        settings: dict[str, Any] = {
            "local_steps": local_steps,
            "alpha_1": alpha_1,
            "alpha_2": alpha_2,
            "floor": floor,
            "design": design,
            "replacement": replacement,
            "diversity_mean": diversity_mean,
        }
        if smoothness is not None or global_learning_rate is not None:
            settings |= {
                "smoothness": smoothness,
                "global_learning_rate": global_learning_rate,
                "local_learning_rate": options.get("local_learning_rate"),
            }
        super().__init__(
            "prac-delta", clients_per_round=clients_per_round, selector_settings=settings, **options
        )


class PowerOfChoice(SelectionStrategy):
    """Power-of-Choice: of some candidates, those with the largest losses train.

    Cho, Wang, Joshi, *Towards Understanding Biased Client Selection in Federated Learning* (AISTATS 2022).
    Faster at first. The aggregate is the plain mean of the updates of the clients with the largest losses, so
    it is biased on purpose: the loss ends at a floor that rises with the number of candidates. ``adapow-d``
    removes the floor.

    Parameters
    ----------
    clients_per_round : int
        m, the number of clients that train.
    variant : {"pow-d", "cpow-d", "rpow-d", "adapow-d"} (default: "pow-d")
        What a candidate's loss is. pow-d: the loss of the current model on all its data, for which each
        candidate downloads the model and evaluates it. cpow-d: the same on one mini-batch. rpow-d: the loss
        of its last local training, which costs no message. adapow-d: pow-d with fewer and fewer candidates.
    num_candidates : int or schedule, optional
        d, at least ``clients_per_round``, or a schedule over rounds such as "20@1/10@100" (default: twice
        ``clients_per_round`` for pow-d and cpow-d, half of all clients for rpow-d, all of them at first for
        adapow-d). A larger d is faster, to a higher floor.
    batch_size : int, optional
        Size of cpow-d's mini-batch (default: 64).
    halve_every : int, optional
        adapow-d halves the candidates after every ``halve_every`` rounds (default: it does not).
    drop_at : int, optional
        adapow-d has ``clients_per_round`` candidates from this round on (default: from half of the rounds on,
        unless ``halve_every`` or a schedule is given).
    **options
        The other parameters of `SelectionStrategy`. An app without a ``query.loss`` handler is evaluated
        instead; ``Polling(poll_with="evaluate", loss_metric="loss")`` does so at once.

    Raises
    ------
    ValueError
        If the variant is unknown or has no such parameter.

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
        num_candidates: int | str | None = None,
        batch_size: int | None = None,
        halve_every: int | None = None,
        drop_at: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        if variant not in VARIANTS:
            raise ValueError(f"variant = {variant!r}: must be one of {', '.join(map(repr, VARIANTS))}")
        settings: dict[str, Any] = {}
        for name, value, of in (
            ("num_candidates", num_candidates, variant),
            ("batch_size", batch_size, "cpow-d"),
            ("halve_every", halve_every, "adapow-d"),
            ("drop_at", drop_at, "adapow-d"),
        ):
            if value is None:
                continue
            if variant != of:
                raise ValueError(f"{name} = {value}: only {of} has it, not {variant}")
            settings[name] = value
        super().__init__(variant, clients_per_round=clients_per_round, selector_settings=settings, **options)


class Flics(SelectionStrategy):
    """FLICS: groups of clients that come and go take part as evenly, over time, as availability allows.

    Ribero, Vikalo, de Veciana, *Federated Learning at Scale: Addressing Client Intermittency and Resource
    Constraints*. The aggregate is unbiased over time, not in each round: early rounds lack the groups that
    were not available yet. More than ``clients_per_round`` clients may train in one round, fewer in another.

    Parameters
    ----------
    clients_per_round : int
        K, the number of clients that train, on average.
    groups : mapping of str to str or int, optional
        The group of each client, by identity; takes precedence over the ``group`` that a client reports. A
        client without either is a group of its own.
    group_shares : mapping of str to float, or sequence of float, optional
        The weight of each group, by name, in any unit (default: its data). Clients of other groups then
        hardly ever train. With ``private`` a sequence, for the groups 0, 1, ...
    min_shares : mapping of str to float, optional
        By name, the least share of a group among all clients that trained so far (default: 0).
    cost_budget : float, optional
        What the selected clients of a round may cost together, on average. The costs are
        ``Overrides(settings={"costs": {...}})``, by identity.
    energy_budgets : float or mapping of str to float, optional
        The energy that may be spent per round, for all groups together or by name (then 0 for other groups).
        The energies are ``Overrides(settings={"energies": {...}})``, by identity.
    private : bool (default: False)
        The server learns no client's group: clients report it by randomised response and decide themselves
        whether they take part. Needs the handlers ``query.group`` and ``query.invitation``, and
        ``group_shares``.
    epsilon : float, optional
        ε of that report (default: 2.0); with ``private`` only.
    coin_epsilon : float, optional
        ε of what taking part reveals of the group in a round (default: no bound); with ``private`` only.
    **options
        The other parameters of `SelectionStrategy`.

    Raises
    ------
    TypeError, ValueError
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
        min_shares: Mapping[str, float] | None = None,
        cost_budget: float | None = None,
        energy_budgets: float | Mapping[str, float] | None = None,
        private: bool = False,
        epsilon: float | None = None,
        coin_epsilon: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        known_groups = {
            "groups": groups,
            "min_shares": min_shares,
            "cost_budget": cost_budget,
            "energy_budgets": energy_budgets,
        }
        hidden_groups = {"epsilon": epsilon, "coin_epsilon": coin_epsilon}
        for name, value in (known_groups if private else hidden_groups).items():
            if value is not None:
                raise ValueError(f"{name} = {value!r}: must be None with private = {private}")
        settings: dict[str, Any]
        if private:
            if group_shares is None or isinstance(group_shares, Mapping):
                raise ValueError(
                    f"group_shares = {group_shares!r}: must be a sequence with private = True, the weights "
                    "of the groups 0, 1, ..."
                )
            settings = {"group_shares": tuple(group_shares), **hidden_groups}
        else:
            overrides = options.get("overrides") or Overrides()
            if groups is not None:
                overrides = replace(overrides, settings={**overrides.settings, "groups": groups})
            given = [each for each in (group_shares, min_shares, energy_budgets) if isinstance(each, Mapping)]
            names = tuple(dict.fromkeys(name for each in given for name in each))
            options["overrides"] = replace(overrides, group_names=names)
            settings = {
                "group_shares": _by_group("group_shares", group_shares, names, others=_NO_SHARE),
                "min_shares": _by_group("min_shares", min_shares, names, others=0.0),
                "cost_budget": cost_budget,
                "energy_budgets": energy_budgets
                if isinstance(energy_budgets, int | float)
                else _by_group("energy_budgets", energy_budgets, names, others=0.0),
            }
        super().__init__(
            "flics-private" if private else "flics",
            clients_per_round=clients_per_round,
            selector_settings={name: value for name, value in settings.items() if value is not None},
            **options,
        )


def _by_group(name: str, given: object, names: tuple[str, ...], *, others: float) -> tuple[float, ...] | None:
    """Return a number for each named group and one for all others, in the order of their numbers."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} = {given!r}: must be a mapping of each group's name to its number")
    return (*(given.get(each, others) for each in names), others)
