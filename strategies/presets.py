"""Strategies with a fixed selector: each is a `SelectionStrategy` with the selector's settings as arguments.

An argument that is a setting of the selector has the setting's name and default, see
`Selector.allowed_settings`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Strategy

from .options import (
    Budget,
    Buffered,
    Checkpoints,
    Deadlines,
    Eligible,
    Faults,
    Overrides,
    Polling,
    check_kind,
    names_replacements,
)
from .reporters import Reporter
from .rounds.record import RoundRecord
from .selectors import selector_type
from .strategy import SelectionStrategy

VARIANTS = ("pow-d", "cpow-d", "rpow-d", "adapow-d")


def _settings(selector: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the arguments of a strategy that are settings of its selector."""
    known = selector_type(selector).allowed_settings()
    return {name: value for name, value in given.items() if name in known}


def _arguments(selector: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `SelectionStrategy` for those of a strategy with this selector."""
    k, settings = given["clients_per_round"], _settings(selector, given)
    return {"selector": selector, "clients_per_round": k, "selector_settings": settings, **given["options"]}


class Options(TypedDict, total=False):
    """The parameters of `SelectionStrategy` that do not belong to a selector."""

    server_strategy: Strategy | None
    seed: int
    num_rounds: int | None
    min_available_clients: int | None
    local_learning_rate: float | str | None
    budget: Budget | None
    deadlines: Deadlines | None
    polling: Polling | None
    faults: Faults | None
    overrides: Overrides | None
    eligible: Eligible | None
    checkpoints: Checkpoints | None
    variates: Literal["fedvarp", "fedvarp-mean", "scaffold"] | None
    mode: Buffered | None
    masked_updates: bool
    stop: Callable[[int, MetricRecord | None], bool] | None
    on_round: Callable[[RoundRecord], None] | None
    reporters: Sequence[Reporter]


class Forecast(SelectionStrategy):
    """The default strategy: it forecasts the norms of updates from the clients' sizes and past norms.

    It is not from a paper (see docs/forecast.md), and needs no tuning. The aggregate is unbiased in every
    round. docs/results/forecast.md compares it with other strategies.

    Parameters
    ----------
    clients_per_round : int
        K, the number of distinct clients that train in a round.
    replacement : bool (default: True)
        With ``design="own"``: if False, clients are drawn one after another without replacement.
    design : str (default: "balanced")
        How K clients are drawn from the probabilities: a name in `designs.DESIGNS`. "balanced" draws cohorts
        whose remembered updates sum to almost those of all clients, in 32 numbers for each client on the
        server. "own" is one client in each K-th of the running sum of the probabilities ("stratified").
    ask_norms : bool (default: False)
        Ask all available clients once, before round 1, for the norm of an update (``query.norm``).
    **options
        The other parameters of `SelectionStrategy`.

    Examples
    --------
    >>> strategy = Forecast(clients_per_round=10, min_available_clients=50)
    >>> strategy.selector_name
    'forecast'
    """

    @names_replacements
    def __init__(
        self,
        clients_per_round: int,
        *,
        replacement: bool = True,
        design: str = "balanced",
        ask_norms: bool = False,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**_arguments("forecast", locals()))


class AdaptiveOSMD(SelectionStrategy):
    """Adaptive-OSMD sampling: learns from the norms of the updates which clients to draw more often.

    Zhao et al., *Adaptive Client Sampling in Federated Learning via Online Learning with Bandit Feedback*,
    Algorithm 4. The aggregate is unbiased in every round.

    Parameters
    ----------
    clients_per_round : int
        K, the number of draws a round (with replacement, so fewer clients may train).
    alpha : float (default: 0.4)
        Each of the M registered clients keeps a probability of at least alpha / M; in (0, 1].
    learning_rate_multiplier : float (default: 1.0)
        A factor of all learning rates, > 0. With 1, the rates are the paper's, which adapt slowly. Try 100 if
        the norms of the clients' updates differ much.
    replacement : bool (default: True)
        If False, clients are drawn without replacement (Algorithm 6).
    design : str (default: "own")
        How K clients are drawn from the probabilities: a name in `designs.DESIGNS`, such as "balanced". "own"
        is the paper's "independent".
    rates : {"v1", "v2"} (default: "v2")
        The version of the paper, first or later, that gives the number of experts and their learning rates.
    gamma : {"scale-free", "printed"} (default: "scale-free")
        The learning rate of the experts' weights. The paper's rate ("printed") depends on the unit of
        gradients.
    a_max : float, optional
        A fixed upper bound of λ_m² ‖g_m‖² over all clients m, > 0 (default: the largest value observed so
        far). λ_m is the client's share of the data, and g_m the sum of its gradients in a round. The bound is
        ā in the paper's first version and A_max in the later one.
    ask_norms : bool (default: False)
        Ask all available clients once, before round 1, for the norm of an update (``query.norm``), and fix
        the bound (see ``a_max``) at the largest λ_m² ‖g_m‖² of these clients, as the paper does. It must be
        False if ``a_max`` is given.
    initial : {"uniform", "sizes"} (default: "uniform")
        The initial distribution of all experts: uniform (as in the paper) or in proportion to data sizes.
    **options
        The other parameters of `SelectionStrategy`.

    Examples
    --------
    >>> strategy = AdaptiveOSMD(clients_per_round=10, learning_rate_multiplier=100)
    >>> strategy.selector_name
    'adaptive-osmd'
    """

    @names_replacements
    def __init__(
        self,
        clients_per_round: int,
        *,
        alpha: float = 0.4,
        learning_rate_multiplier: float = 1.0,
        replacement: bool = True,
        design: str = "own",
        rates: Literal["v1", "v2"] = "v2",
        gamma: Literal["scale-free", "printed"] = "scale-free",
        a_max: float | None = None,
        ask_norms: bool = False,
        initial: Literal["uniform", "sizes"] = "uniform",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**_arguments("adaptive-osmd", locals()))


class PersonalisedOSMD(SelectionStrategy):
    """Adaptive-OSMD for clients with personal models: one sampler for each part of the gradient.

    The paper of `AdaptiveOSMD`, appendix H.1 (later version: D.1). A client's update is the sum of two parts.
    The client multiplies each part by the part's scale in ``part-scales`` of the TRAIN config. Its report
    holds ``num-parts`` = 2 and the norms of the parts (``model-norm``, ``personal-norm``). The client of this
    repository supports this for personal models that are kept near the global model, see
    `client.personal_model`. With this client, TRAIN configs need ``personal-mu`` and ``personal-holdout``.

    Parameters
    ----------
    clients_per_round : int
        K, the total number of draws in a round, over both samplers.
    personal_share : float (default: 0.5)
        The share, in [0, 1], of the draws for the part of the gradient that goes through the personal models.
        Each sampler gets at least one draw.
    alpha, learning_rate_multiplier, replacement, design, rates, gamma, initial
        Settings of both samplers, see `AdaptiveOSMD`. ``a_max``, ``ask_norms`` and designs that use features
        are not available.
    **options
        The other parameters of `SelectionStrategy`.

    Examples
    --------
    >>> strategy = PersonalisedOSMD(clients_per_round=10, learning_rate_multiplier=100)
    >>> strategy.selector_name
    'personalised-osmd'
    """

    @names_replacements
    def __init__(
        self,
        clients_per_round: int,
        *,
        personal_share: float = 0.5,
        alpha: float = 0.4,
        learning_rate_multiplier: float = 1.0,
        replacement: bool = True,
        design: str = "own",
        rates: Literal["v1", "v2"] = "v2",
        gamma: Literal["scale-free", "printed"] = "scale-free",
        initial: Literal["uniform", "sizes"] = "uniform",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**_arguments("personalised-osmd", locals()))


class Delta(SelectionStrategy):
    """FedPracDELTA: draws clients with a large diversity or a large local variance more often.

    The diversity of a client is the distance of its update from the mean update. The local variance is the
    variance of its gradient between mini-batches. Wang, Guo, Lin, Tang, *DELTA: Diverse Client Sampling for
    Fasting Federated Learning* (NeurIPS 2023), eq. 16. The aggregate is unbiased in every round. Clients
    measure the local variance while they train (``gradient-variance`` in their report). If an app does not
    report it, only diversities have an effect.

    Parameters
    ----------
    clients_per_round : int
        n, the number of draws a round (with replacement, so fewer clients may train).
    local_steps : int (default: 1)
        The number of local steps that a client makes in a round, >= 1. Diversities grow with this number, so
        they are divided by it. If clients make E steps and ``local_steps`` is 1, squared diversities count E²
        times too much.
    alpha_1, alpha_2 : float (default: 0.5)
        Weights of the squared diversity and of the local variance, >= 0, not both 0.
    floor : float (default: 0.1)
        The share of the draws that is uniform, in (0, 1]. Without uniform draws, a client whose diversity and
        local variance were 0 would never be drawn again.
    design : str (default: "own")
        How clients are drawn from the probabilities: a name in `designs.DESIGNS`. "own" is "independent";
        "systematic" selects exactly ``clients_per_round`` distinct clients, with less variance.
    replacement : bool (default: True)
        If False, clients are drawn without replacement. Any other design than "own" requires True.
    smoothness, global_learning_rate : float, optional
        The smoothness L of the gradients and the learning rate η of the server. If they are given, the
        two weights are computed from them by the paper's formulas, and ``alpha_1`` and ``alpha_2`` have no
        effect. Give both or none; with both, ``local_learning_rate`` (η_L, a parameter of
        `SelectionStrategy`) is required.
    diversity_mean : {"weighted", "plain"} (default: "weighted")
        The mean update from which diversities are distances. "weighted": the mean with the weights of the
        round. "plain": the plain mean, as in the paper; it is biased if sampling is not uniform.
    **options
        The other parameters of `SelectionStrategy`.

    Examples
    --------
    >>> strategy = Delta(clients_per_round=10, local_steps=5, design="systematic")
    >>> strategy.selector_settings["local_steps"]
    5
    """

    @names_replacements
    def __init__(
        self,
        clients_per_round: int,
        *,
        local_steps: int = 1,
        alpha_1: float = 0.5,
        alpha_2: float = 0.5,
        floor: float = 0.1,
        design: str = "own",
        replacement: bool = True,
        smoothness: float | None = None,
        global_learning_rate: float | None = None,
        diversity_mean: Literal["weighted", "plain"] = "weighted",
        **options: Unpack[Options],
    ) -> None:
        settings = _settings("prac-delta", locals())
        if smoothness is None and global_learning_rate is None:
            del settings["smoothness"], settings["global_learning_rate"]
        else:
            settings["local_learning_rate"] = options.get("local_learning_rate")
        super().__init__(
            "prac-delta", clients_per_round=clients_per_round, selector_settings=settings, **options
        )


class PowerOfChoice(SelectionStrategy):
    """Power-of-Choice: of d candidates, the clients with the largest losses train.

    Cho, Wang, Joshi, *Towards Understanding Biased Client Selection in Federated Learning* (AISTATS 2022).
    The aggregate is biased on purpose: by default it is the plain mean of the selected clients' updates.
    ``adapow-d`` reduces the number of candidates during the run, which lowers the final loss.

    Parameters
    ----------
    clients_per_round : int
        The number of clients that train in a round (m in the paper).
    variant : {"pow-d", "cpow-d", "rpow-d", "adapow-d"} (default: "pow-d")
        Which loss of a candidate is used. pow-d: the loss of the current model on all of the candidate's
        data; each candidate downloads and evaluates the model. cpow-d: the loss of the current model on one
        mini-batch. rpow-d: the loss in the candidate's last local training, which costs no message. adapow-d:
        the loss of pow-d, with a number of candidates that decreases over rounds.
    num_candidates : int or schedule, optional
        d, the number of candidates, at least ``clients_per_round``, or a schedule over rounds such as
        "20@1/10@100". Default: twice ``clients_per_round`` for pow-d and cpow-d, half of all clients for
        rpow-d, and at first all clients for adapow-d. With a larger d the model converges faster at first,
        but to a larger final loss.
    batch_size : int, optional
        The number of samples of cpow-d's mini-batch (default: 64).
    averaging : {"plain", "sizes", "scaled-sizes"}, optional
        The weights of the selected clients (the paper's appendix E). "plain", the default: all equal.
        "sizes": in proportion to their data, with the sum 1. "scaled-sizes": in proportion to their data,
        scaled by the number of available clients divided by the number of selected clients.
    halve_every : int, optional
        adapow-d halves the number of candidates in each round whose number is a multiple of ``halve_every``
        (default: never).
    drop_at : int, optional
        From this round on adapow-d has ``clients_per_round`` candidates. Default: half of the number of
        rounds, or never if ``halve_every`` or a schedule is given.
    **options
        The other parameters of `SelectionStrategy`. If an app has no ``query.loss`` handler, its candidates
        are asked to evaluate the model instead. ``Polling(poll_with="evaluate", loss_metric="loss")`` asks
        them to evaluate from the start.

    Examples
    --------
    >>> evaluate = Polling(poll_with="evaluate")
    >>> strategy = PowerOfChoice(clients_per_round=5, num_candidates=20, polling=evaluate)
    >>> strategy.selector_name, strategy.selector_settings
    ('pow-d', {'num_candidates': 20})
    >>> PowerOfChoice(clients_per_round=5, variant="rpow-d").selector_name
    'rpow-d'
    """

    @names_replacements
    def __init__(
        self,
        clients_per_round: int,
        *,
        variant: Literal["pow-d", "cpow-d", "rpow-d", "adapow-d"] = "pow-d",
        num_candidates: int | str | None = None,
        batch_size: int | None = None,
        averaging: Literal["plain", "sizes", "scaled-sizes"] | None = None,
        halve_every: int | None = None,
        drop_at: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        if variant not in VARIANTS:
            raise ValueError(f"variant = {variant!r}: must be one of {', '.join(map(repr, VARIANTS))}")
        settings = _settings(variant, locals())
        for name, of in (("batch_size", "cpow-d"), ("halve_every", "adapow-d"), ("drop_at", "adapow-d")):
            if (value := locals()[name]) is not None and variant != of:
                raise ValueError(f"{name} = {value}: only {of} has it, not {variant}")
        super().__init__(
            variant,
            clients_per_round=clients_per_round,
            selector_settings={name: value for name, value in settings.items() if value is not None},
            **options,
        )


class Flics(SelectionStrategy):
    """FLICS: over time, each group's part in the training is as close to its share as availability allows.

    Ribero, Vikalo, de Veciana, *Federated Learning at Scale: Addressing Client Intermittency and Resource
    Constraints*. The aggregate is unbiased over time, not in each round: in early rounds, groups that were
    not available yet are missing. The number of clients that train varies around ``clients_per_round``.

    Parameters
    ----------
    clients_per_round : int
        K, the mean number of clients that train in a round. ``budget`` gives K(t) if K varies over rounds.
    groups : mapping of str to str or int, optional
        The group of each client, by identity. It takes precedence over the ``group`` that a client reports.
        If neither is given, the client is a group of its own.
    group_shares : mapping of str to float, or sequence of float, optional
        The weight of each group in the objective, in any unit (default: the size of the group's data). A
        mapping is by name; a sequence is for the groups 0, 1, .... If ``group_shares`` is given, clients of
        other groups are refused.
    min_shares : mapping of str to float, or sequence of float, optional
        The least share of each group among all clients that trained so far, in [0, 1] (default: 0).
    beta : float (default: 0.0)
        A number >= 0 that is added to each group's count of participants so far, so that a group that first
        takes part late in the run gets no huge weight. Above 0, it causes a bias that goes to 0 over rounds.
    design : {"coins", "numbers"} (default: "coins")
        How a group's clients are drawn. "coins": a coin decides for each client. "numbers": first the number
        of clients is drawn, and then this many clients of the group.
    lone_groups : {"clients", "groups"} (default: "clients")
        Whether a group of one client counts as a client or as a group, if ``group_shares`` is not given.
        "clients": it has its share of the data while it is available. "groups": its missed rounds are made up
        for, as in the paper, so that a client that stays away gets a large weight when it comes.
    cost_budget : float, optional
        The limit of a round's expected cost, which is the sum of the selected clients' costs (default: none).
        Clients report their costs, or you declare them: ``Overrides(settings={"costs": {...}})``, by
        identity.
    energy_budgets : float, mapping of str to float, or sequence of float, optional
        The energy that may be spent per round, by all groups together (a number) or by each group (default:
        no limit). Unused energy may be spent in later rounds. If budgets are given by group, clients of
        other groups are refused. Clients report their energies, or you declare them:
        ``Overrides(settings={"energies": {...}})``, by identity.
    private : bool (default: False)
        If True, the server does not learn any client's group: clients report their groups by randomised
        response, and decide themselves whether they take part. The app then needs the handlers
        ``query.group`` and ``query.invitation``. ``group_shares`` must then be given, and none of ``groups``,
        ``min_shares``, ``beta``, ``design``, ``lone_groups``, ``cost_budget`` and ``energy_budgets``.
    epsilon : float, optional
        The ε of differential privacy with which a client reports its group, > 0 (default: 2.0). Only if
        ``private``.
    coin_epsilon : float, optional
        The ε of differential privacy with which a client decides whether it takes part in a round. The
        decision depends on the client's group, and ε limits what the decision reveals about the group
        (default: no limit). Only if ``private``.
    **options
        The other parameters of `SelectionStrategy`.

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

    @names_replacements
    def __init__(
        self,
        clients_per_round: int,
        *,
        groups: Mapping[str, str | int] | None = None,
        group_shares: Mapping[str, float] | Sequence[float] | None = None,
        min_shares: Mapping[str, float] | Sequence[float] | None = None,
        beta: float | None = None,
        design: Literal["coins", "numbers"] | None = None,
        lone_groups: Literal["clients", "groups"] | None = None,
        cost_budget: float | None = None,
        energy_budgets: float | Mapping[str, float] | Sequence[float] | None = None,
        private: bool = False,
        epsilon: float | None = None,
        coin_epsilon: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        given = locals()
        selector, other = ("flics-private", "flics") if private else ("flics", "flics-private")
        settings = _settings(selector, given)
        for name in ("groups", *_settings(other, given)) if private else _settings(other, given):
            if name not in settings and given[name] is not None:
                raise ValueError(f"{name} = {given[name]!r}: must be None with private = {private}")
        if private and group_shares is None:
            raise ValueError("group_shares = None: must be given with private = True")
        if not private:
            overrides = options.get("overrides") or Overrides()
            check_kind("groups", groups, Mapping, 'a mapping by identity, such as {"phone-1": "night"}')
            if groups is not None:
                overrides = replace(overrides, settings={**overrides.settings, "groups": groups})
            options["overrides"] = overrides
        super().__init__(
            selector,
            clients_per_round=clients_per_round,
            selector_settings={name: value for name, value in settings.items() if value is not None},
            **options,
        )
