"""The base of the OSMD family: a mixture of experts, each of which is a distribution over the clients."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...numerics.arrays import Array, Bools, Floats, Ints
from ...numerics.lazy_experts import Ranking
from .. import checks
from ..base import Selector
from ..probability import LARGEST_NORM, AskingSettings, StreamSelector
from ..settings import setting
from .experts import AXES, Dense, Experts, Lazy


@dataclass(frozen=True)
class ExpertsSettings(AskingSettings):
    """Settings of the OSMD family; the defaults are the paper's, except that clients are not asked for ā."""

    alpha: float = setting(0.4, low=1e-15, high=1.0, doc="every client keeps probability alpha / M or more")
    rates: str = setting(
        "v2",
        choices=("v1", "v2"),
        doc="the learning rates and the number of experts of the paper's first or later version",
    )
    learning_rate_multiplier: float = setting(
        1.0,
        low=1e-9,
        high=1e9,
        doc="multiplies the learning rates; 1: the printed rates, which are slow in practice",
    )
    a_max: float | None = setting(
        None,
        low=1e-200,
        high=1e200,
        doc="ā (A_max), a fixed bound of λ²||g||², where g is the sum of a client's gradients; none: the "
        "largest so far",
    )
    initial: str = setting(
        "uniform",
        choices=("uniform", "sizes"),
        doc="the start of all experts: the uniform distribution (the paper's), or in proportion to data",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.a_max is not None and self.ask_norms:
            raise ValueError(f"a_max = {self.a_max}, ask_norms = True: must be at most one of them")


class ExpertsSelector(StreamSelector):
    """Draws from ``p = sum_e θ_e q_e``, where every q_e,m is at least α/M for M registered clients.

    θ_e is the weight of expert e, and q_e its distribution. From `lazy_from` clients on, the experts are
    `Lazy`, and below `Dense`. The state has the same keys in both forms. `Lazy` experts change in place, and
    `state_dict` asks them for their arrays.
    """

    lazy_from: ClassVar[int] = 10_000
    """From this number of clients on, the experts are `Lazy`.

    With 7 experts and K = 100, a round takes about 2 ms in the lazy form; in the dense form, 1.1 ms with
    10,000 clients and 2.6 ms with 40,000. Do not change this number: for a number of clients between the old
    and the new value, a seed would give other draws, and saved states would be refused.
    """

    state_axes = (
        Selector.state_axes
        | AXES
        | {
            "log_theta": ("experts",),
            "bound": (),  # sqrt(ā) from the answers to ask_norms, in the unit of size times norm; 0 if none
        }
    )

    settings_type = ExpertsSettings
    _settings: ExpertsSettings

    @property
    def _alpha(self) -> float:
        return self._settings.alpha

    @property
    def _by_size(self) -> bool:
        return self._settings.initial == "sizes"

    def _fixed_reference(self) -> float:
        """Return sqrt(ā) in the unit of size times norm if `a_max` or `ask_norms` determines ā; else 0."""
        a_max = self._settings.a_max
        return float(self._array("bound")) if a_max is None else math.sqrt(a_max) * self._registered_size

    def _learn_first(self, clients: Ints, norms: Floats) -> dict[str, Array]:
        """Return the new "bound": the largest product of size and norm among the clients that answered."""
        roots = self.client_sizes[clients] * np.minimum(norms, LARGEST_NORM)
        return {"bound": np.array(roots.max(initial=0.0))}

    # The experts.

    def _is_lazy(self, num_clients: int) -> bool:
        return num_clients >= self.lazy_from

    @property
    def _kind(self) -> type[Experts]:
        return Lazy if self._is_lazy(self.num_clients) else Dense

    @property
    def _experts(self) -> Experts:
        def ranked(base: Floats) -> Ranking:
            return self._cached("ranking", ("base",), lambda: Ranking(base))

        def made() -> Experts:
            return self._kind(self._state, self._registered, self._alpha, ranked)

        return self._cached("made experts", ("touched", "experts", "base"), made)

    @property
    def _theta(self) -> Floats:
        theta: Floats = np.exp(self._array("log_theta"))
        return theta

    def _started(self, num_experts: int) -> dict[str, Array]:
        """Return the arrays of E new experts with the initial distribution and θ_e = (1 + 1/E)/(e(e + 1))."""
        experts = self._kind.started(
            num_experts, self.client_sizes, self._registered, self._alpha, by_size=self._by_size
        )
        return experts | {"log_theta": _log_theta(num_experts)}

    def _restarted(self, num_experts: int, warm: bool) -> dict[str, Array]:
        """Return the arrays of E new experts, from the mixture p if `warm`, else those of `_started`."""
        if not warm:
            return self._started(num_experts)
        experts = self._experts.restarted(num_experts, self._theta, by_size=self._by_size)
        return experts | {"log_theta": _log_theta(num_experts)}

    def _joined(self, registered: Bools) -> dict[str, Array]:
        return self._experts.joined(registered, as_lazy=self._is_lazy(registered.size))

    def _left(self, registered: Bools) -> dict[str, Array]:
        return self._experts.left(registered)

    def _distribution(self) -> Floats:
        return self._experts.mixture(self._theta)

    def _probabilities_of(self, clients: Ints) -> Floats:
        p: Floats = self._theta @ self._experts.at(clients)
        return p

    def _stream(self, rng: np.random.Generator) -> Callable[[int], Ints]:
        experts = self._experts
        assert isinstance(experts, Lazy)  # see `StreamSelector`
        return experts.stream(self._theta, rng)

    def state_dict(self) -> dict[str, Array]:
        return super().state_dict() | self._experts.arrays()

    def _check_state(self, state: Mapping[str, Array]) -> None:
        super()._check_state(state)
        registered, touched = state["registered"], checks.ints("state['touched']", state["touched"])
        if not self._is_lazy(registered.size):
            if not np.array_equal(touched, np.arange(registered.size)):
                raise ValueError(
                    f"state['touched'] = {touched}: must be all clients, 0..{registered.size - 1}"
                )
        elif (size := state["base"].size) not in (0, registered.size):
            raise ValueError(f"state['base'] has shape ({size},): must be (0,) or ({registered.size},)")
        elif not registered[checks.indexes("state['touched']", touched, registered.size)].all():
            raise ValueError("state['touched'] holds a client that was removed")


def _log_theta(num_experts: int) -> Floats:
    e = np.arange(1, num_experts + 1)
    log_theta: Floats = np.log((1 + 1 / num_experts) / (e * (e + 1)))
    return log_theta
