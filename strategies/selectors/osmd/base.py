"""The base of the OSMD family: a mixture of experts, each of which is a distribution over the clients."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...numerics.arrays import Array, Bools, Floats, Ints
from ...numerics.lazy_experts import LazyExperts, Ranking, Untouched
from ...numerics.projection import scale_rows_above_floor
from .. import checks
from ..base import Selector
from ..probability import LARGEST_NORM, AskingSettings, StreamSelector
from ..settings import setting


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

    θ_e is the weight of expert e, and q_e its distribution. The experts q_e are stored in one of two forms.
    From `lazy_from` clients on they are `LazyExperts`, which change in place. Below this number they are
    dense: an array (E, M). The state has the same keys in both forms. In the lazy form, a client is touched
    if it has weights of its own, usually because it was drawn. In the dense form, all clients are touched,
    and their weights are q. So when joining clients bring the number of clients to `lazy_from`, the change of
    form does not change the distributions.

    If lazy experts start in proportion to sizes, the sizes are their base (see `Untouched`). A restart of
    such experts from the mixture makes the mixture their new base, which takes a pass over all clients and a
    sort.
    """

    lazy_from: ClassVar[int] = 10_000
    """From this number of clients on, the lazy form is used.

    With 7 experts and K = 100, a round takes about 2 ms in the lazy form; in the dense form, 1.1 ms with
    10,000 clients and 2.6 ms with 40,000. Do not change this number: for a number of clients between the old
    and the new value, a seed would give other draws, and saved states would be refused.
    """

    state_axes = Selector.state_axes | {
        "touched": ("touched",),  # clients that have their own weights; dense: all clients
        "experts": ("experts", "touched"),  # these weights, see LazyExperts; dense: q_e, 0 if removed
        "default": ("experts",),  # default, slope, cut: the weights of all other clients, see Untouched
        "slope": ("experts",),
        "cut": ("experts",),
        "base": ("base",),  # b of all clients, see Untouched; empty if no cut is finite
        "log_theta": ("experts",),
        "bound": (),  # sqrt(ā) from the answers to ask_norms, in the unit of size times norm; 0 if none
    }

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

    # Methods that the subclasses call. They return the changed arrays of the state, but lazy experts may
    # change in place, see `_stepped` and `_restarted`.

    def _at(self, clients: Ints) -> Floats:
        """Return q (E, S) of these registered clients (S,)."""
        if self._is_lazy:
            return self._lazy.at(clients)
        q: Floats = self._array("experts").take(clients, axis=1)
        return q

    def _stepped(self, clients: Ints, exponents: Floats) -> dict[str, Array]:
        """Set each q_e to the projection of q_e exp(exponents_e), and return the changed arrays.

        `exponents` (E, S) >= 0 are for `clients` (S,). The exponents of all other clients are 0. Lazy experts
        are changed in place.
        """
        if self._is_lazy:
            self._lazy.step(clients, exponents)
            return {}
        # All weights are divided by the largest factor, so that none overflows.
        largest = exponents.max(axis=1)[:, None]
        weights = self._array("experts") * np.exp(-largest)
        weights[:, clients] = self._at(clients) * np.exp(exponents - largest)
        return {"experts": self._project(weights, self._registered)}

    def _started(self, num_experts: int) -> dict[str, Array]:
        """Return the arrays of E new experts with the initial distribution and θ_e = (1 + 1/E)/(e(e + 1))."""
        ones = np.ones(num_experts)
        touched, untouched, base = np.arange(self.num_clients), Untouched.alike(ones), np.empty(0)
        p = self._uniform()
        if self._is_lazy:
            touched, p = touched[:0], p[:0]
            if self._by_size:
                base = self.client_sizes
                untouched = Untouched.proportional(ones / base.max())
        elif self._by_size:
            p = self._project(self.client_sizes[None], self._registered)[0]
        weights = np.tile(p, (num_experts, 1))
        return _state(touched, weights, untouched) | {"base": base, "log_theta": _log_theta(num_experts)}

    def _restarted(self, num_experts: int, warm: bool) -> dict[str, Array]:
        """Return the arrays of E new experts, from the mixture p if `warm`, else those of `_started`.

        Lazy experts without a base are changed in place.
        """
        theta = np.exp(self._array("log_theta"))
        if self._is_lazy and not self._by_size:
            self._lazy.restart(num_experts, theta if warm else None)
            return {"log_theta": _log_theta(num_experts)}
        if not warm:
            return self._started(num_experts)
        ones = np.ones(num_experts)
        if self._is_lazy:
            p, touched = self._lazy.mixture(theta), self._lazy.touched.copy()
            untouched, base = Untouched.proportional(ones), np.where(p > 0, p, 1.0)
        else:
            p, touched = theta @ self._array("experts"), np.arange(self.num_clients)
            untouched, base = Untouched.alike(ones), np.empty(0)
        start = _state(touched, np.tile(p[touched], (num_experts, 1)), untouched)
        return start | {"base": base, "log_theta": _log_theta(num_experts)}

    # Joining, leaving, drawing, saving.

    def _joined(self, registered: Bools) -> dict[str, Array]:
        """Give each joining client the probability 1/M, and multiply all other probabilities by one factor.

        The floor still holds, because it decreases by the same factor.
        """
        before, after = self._num_registered, int(np.count_nonzero(registered))
        new = np.arange(self.num_clients, registered.size)
        if registered.size < self.lazy_from:
            experts = self._array("experts") * (before / max(1, after))
            joining = np.full((len(experts), new.size), 1 / max(1, after))
            return {"touched": np.arange(registered.size), "experts": np.hstack([experts, joining])}
        if self._is_lazy:
            touched, weights, untouched = self._lazy.arrays()
            scale = self._lazy.scale
        else:
            touched, untouched = np.flatnonzero(self._registered), self._untouched
            weights, scale = self._array("experts")[:, touched], np.ones(len(self._array("experts")))
        # Lazy experts have q = scale · weight. The weights of the old clients stay unchanged, so the scale
        # becomes scale · before / after. Joining clients get q = 1/after, so their weight is
        # 1 / (scale · before).
        joining = np.tile(1 / (scale * max(1, before)), (new.size, 1)).T
        base = self._array("base")
        if base.size:  # joining clients are touched, so their b is never used
            base = np.concatenate([base, np.ones(new.size)])
        state = _state(np.concatenate([touched, new]), np.hstack([weights, joining]), untouched)
        return state | {"base": base}

    def _left(self, registered: Bools) -> dict[str, Array]:
        """Divide the probability of removed clients among the others, in proportion to q; project again."""
        if not self._is_lazy:
            return {"experts": self._project(self._array("experts"), registered)}
        touched, (experts, untouched) = self._lazy.touched, self._lazy.values()
        stay = registered[touched]
        # The values q serve as weights. Building the new LazyExperts from them projects them.
        return _state(touched[stay], experts[:, stay], untouched)

    def _distribution(self) -> Floats:
        theta = np.exp(self._array("log_theta"))
        p: Floats = self._lazy.mixture(theta) if self._is_lazy else theta @ self._array("experts")
        return p

    def _probabilities_of(self, clients: Ints) -> Floats:
        p: Floats = np.exp(self._array("log_theta")) @ self._at(clients)
        return p

    def _stream(self, rng: np.random.Generator) -> Callable[[int], Ints]:
        return self._lazy.stream(np.exp(self._array("log_theta")), rng)

    def state_dict(self) -> dict[str, Array]:
        state = super().state_dict()
        if self._is_lazy:
            state |= _state(*self._lazy.arrays())
        return state

    def _check_state(self, state: Mapping[str, Array]) -> None:
        super()._check_state(state)
        registered, touched = state["registered"], checks.ints("state['touched']", state["touched"])
        if registered.size < self.lazy_from:
            if not np.array_equal(touched, np.arange(registered.size)):
                raise ValueError(
                    f"state['touched'] = {touched}: must be all clients, 0..{registered.size - 1}"
                )
        elif (size := state["base"].size) not in (0, registered.size):
            raise ValueError(f"state['base'] has shape ({size},): must be (0,) or ({registered.size},)")
        elif not registered[checks.indexes("state['touched']", touched, registered.size)].all():
            raise ValueError("state['touched'] holds a client that was removed")

    @property
    def _is_lazy(self) -> bool:
        return self.num_clients >= self.lazy_from

    @property
    def _lazy(self) -> LazyExperts:
        def build() -> LazyExperts:
            touched, weights, base = (self._array(key) for key in ("touched", "experts", "base"))
            ranking = self._cached("ranking", ("base",), lambda: Ranking(base)) if base.size else None
            return LazyExperts(touched, weights, self._untouched, self._registered, self._alpha, ranking)

        return self._cached("lazy", ("touched", "experts", "base"), build)

    @property
    def _untouched(self) -> Untouched:
        return Untouched(*(self._array(key) for key in Untouched._fields))

    def _project(self, weights: Floats, registered: Bools) -> Floats:
        """Return the projection of each row of `weights` (E, M) onto the registered clients; 0 for others."""
        number = int(np.count_nonzero(registered))
        if number == registered.size:
            return scale_rows_above_floor(weights, self._alpha / number)
        experts = np.zeros(weights.shape)
        if number:
            experts[:, registered] = scale_rows_above_floor(weights[:, registered], self._alpha / number)
        return experts


def _state(touched: Ints, weights: Floats, untouched: Untouched) -> dict[str, Array]:
    # The arrays of `untouched` are copied because arrays of the state are made read-only.
    return {"touched": touched, "experts": weights} | {
        key: values.copy() for key, values in untouched._asdict().items()
    }


def _log_theta(num_experts: int) -> Floats:
    """Return log θ_e = log((1 + 1/E)/(e(e + 1)))."""
    e = np.arange(1, num_experts + 1)
    log_theta: Floats = np.log((1 + 1 / num_experts) / (e * (e + 1)))
    return log_theta
