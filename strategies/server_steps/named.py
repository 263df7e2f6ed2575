"""Flower's strategies by name, and the defaults, ranges and meanings of their settings.

Names and defaults are Flower's, except where a docstring states a difference.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy

from ..selectors.checks import did_you_mean
from ..selectors.settings import Settings, setting

_SMALL, _LARGE = 1e-12, 1e6


@dataclass(frozen=True)
class MomentumSettings(Settings):
    """Settings of FedAvgM. The default momentum is 0.9; Flower's default is 0, which gives FedAvg."""

    server_learning_rate: float = setting(1.0, low=_SMALL, high=_LARGE, doc="multiplies the server step")
    server_momentum: float = setting(0.9, low=0.0, high=0.9999, doc="how much of the last step is kept")


@dataclass(frozen=True)
class AdagradSettings(Settings):
    """Settings of FedAdagrad. Flower's ``eta_l`` is left out, because it has no effect."""

    eta: float = setting(0.1, low=_SMALL, high=_LARGE, doc="the server's learning rate")
    tau: float = setting(1e-3, low=_SMALL, high=_LARGE, doc="is added to the root of the second moment")


@dataclass(frozen=True)
class AdamSettings(AdagradSettings):
    """Settings of FedAdam."""

    beta_1: float = setting(0.9, low=0.0, high=0.9999, doc="the decay of the first moment")
    beta_2: float = setting(0.99, low=0.0, high=0.999999, doc="the decay of the second moment")


@dataclass(frozen=True)
class YogiSettings(AdamSettings):
    """Settings of FedYogi."""

    eta: float = setting(0.01, low=_SMALL, high=_LARGE, doc="the server's learning rate")


@dataclass(frozen=True)
class TrimmedSettings(Settings):
    """Settings of FedTrimmedAvg."""

    beta: float = setting(0.2, low=0.0, high=0.4999, doc="the share that is cut off at each end")


@dataclass(frozen=True)
class QSettings(Settings):
    """Settings of QFedAvg."""

    q: float = setting(0.1, low=0.0, high=100.0, doc="how much large losses count; 0: as in FedAvg")
    client_learning_rate: float | None = setting(
        None, low=_SMALL, high=_LARGE, doc="the clients' learning rate (default: the run's)"
    )


@dataclass(frozen=True)
class KrumSettings(Settings):
    """Settings of Krum and Bulyan."""

    num_malicious_nodes: int = setting(0, low=0, high=10**6, doc="how many selected clients may attack")


@dataclass(frozen=True)
class MultiKrumSettings(KrumSettings):
    """Settings of MultiKrum."""

    num_nodes_to_select: int = setting(1, low=1, high=10**6, doc="the number of clients in the mean")


@dataclass(frozen=True)
class ProximalSettings(Settings):
    """Settings of FedProx, which is FedAvg with a proximal term in the clients' loss."""

    proximal_mu: float | None = setting(
        None, low=_SMALL, high=_LARGE, doc="the weight of the clients' proximal term (default: the run's)"
    )


@dataclass(frozen=True)
class FixedClippingSettings(Settings):
    """Settings of DifferentialPrivacyServerSideFixedClipping. Flower gives them no defaults."""

    noise_multiplier: float = setting(1.0, low=0.0, high=_LARGE, doc="noise / clipping norm; 0: no noise")
    clipping_norm: float = setting(1.0, low=_SMALL, high=_LARGE, doc="the largest norm of an update")


SETTINGS: dict[str, type[Settings]] = {
    "FedAvg": Settings,
    "FedAvgM": MomentumSettings,
    "FedAdam": AdamSettings,
    "FedAdagrad": AdagradSettings,
    "FedYogi": YogiSettings,
    "FedProx": ProximalSettings,
    "FedMedian": Settings,
    "FedTrimmedAvg": TrimmedSettings,
    "QFedAvg": QSettings,
    "Krum": KrumSettings,
    "MultiKrum": MultiKrumSettings,
    "Bulyan": KrumSettings,
    "DifferentialPrivacyServerSideFixedClipping": FixedClippingSettings,
}
"""The settings of each strategy that a run can use by its name."""


def create_server_strategy(
    name: str,
    settings: Mapping[str, Any] | None = None,
    *,
    learning_rate: float | None = None,
    proximal_mu: float = 0.0,
    fraction_evaluate: float = 0.0,
) -> Strategy:
    """Make one of Flower's strategies.

    ``name`` is a key of `SETTINGS`; a missing setting has its default. QFedAvg uses the clients'
    ``learning_rate``, None if the rate changes during the run, and FedProx the ``proximal_mu`` that the run
    sends to the clients. ``fraction_evaluate`` is the share of the available clients that evaluate the model
    after each round.

    Examples
    --------
    >>> create_server_strategy("FedAdam", {"eta": 0.05}).eta
    0.05
    """
    if name not in SETTINGS:
        hint = did_you_mean(name, SETTINGS)
        allowed = f"no such server strategy{hint}" if hint else f"must be one of {', '.join(SETTINGS)}"
        raise ValueError(f"server-strategy = {name!r}: {allowed}")
    try:
        checked = SETTINGS[name].of(settings or {}, name)
    except (TypeError, ValueError) as error:
        raise type(error)(f"server-strategy = {name!r}: {error}") from None
    values: dict[str, Any] = {each.name: getattr(checked, each.name) for each in fields(checked)}
    if isinstance(checked, QSettings) and checked.client_learning_rate is None:
        if learning_rate is None:
            raise ValueError(
                "server-strategy = 'QFedAvg': must have client-learning-rate if learning-rate is a schedule"
            )
        values["client_learning_rate"] = learning_rate
    if isinstance(checked, ProximalSettings):
        mu = checked.proximal_mu or proximal_mu
        if not mu:
            raise ValueError("server-strategy = 'FedProx': must have proximal-mu above 0; else use FedAvg")
        if proximal_mu not in (0, mu):
            raise ValueError(f"proximal-mu = {proximal_mu}: must be {mu}, as in server-strategy, or 0")
        values["proximal_mu"] = mu
    if isinstance(checked, FixedClippingSettings):
        # The server step replaces the number of sampled clients in each round.
        return flower.DifferentialPrivacyServerSideFixedClipping(
            _evaluated_by(fraction_evaluate, FedAvg()), num_sampled_clients=1, **values
        )
    return _evaluated_by(fraction_evaluate, getattr(flower, name)(**values))


def _evaluated_by(share: float, strategy: FedAvg) -> FedAvg:
    strategy.fraction_evaluate = share  # as an argument, 0.0 would log a warning
    return strategy
