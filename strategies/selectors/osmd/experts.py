"""The state of the OSMD family: several distributions over the clients, mixed into one; dense or lazy."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from ...numerics.arrays import Array, Bools, Floats, Ints
from ...numerics.lazy_experts import LazyExperts, Ranking, Untouched
from ...numerics.projection import scale_rows_above_floor
from .. import checks
from ..base import Selector
from ..probability import StreamSelector


class ExpertsSelector(StreamSelector):
    """Draws from ``p = sum_e θ_e q_e``; every q_e is at least α/M, M being the number of registered clients.

    From `lazy_from` clients on the q are `LazyExperts`, which change in place; below that they are an array.
    Both have one form of state: in the dense form all clients are touched, and their weights are q. So
    joiners that bring the number of clients to `lazy_from` change the form and nothing else.

    Where q starts in proportion to sizes, the sizes are the base of the lazy experts; a restart from the
    mixture makes the mixture the new base, which takes a pass over all clients and a sort.
    """

    lazy_from: ClassVar[int] = 10_000
    """From this number of clients on the lazy form is used.

    Measured (7 experts, K = 100, a busy machine), lazy against dense: 2.2 to .8 ms a round at 3,000 clients,
    2.2 to 1.1 at 10,000, 2.1 to 1.5 at 20,000, 2.0 to 2.6 at 40,000; the same where many reach the floor.
    Another number would change the draws of a seed, and refuse states of runs with clients in between.
    """

    state_axes = Selector.state_axes | {
        "touched": ("touched",),  # clients with their own weights; dense: all
        "experts": ("experts", "touched"),  # their weights, see LazyExperts; dense: q_e, 0 for the removed
        "default": ("experts",),  # the weights of all others, see Untouched
        "slope": ("experts",),
        "cut": ("experts",),
        "base": ("base",),  # what slope multiplies: of all clients, or empty if no cut is finite
        "log_theta": ("experts",),
    }

    @property
    @abstractmethod
    def _alpha(self) -> float:
        """α, in (0, 1]."""

    @property
    @abstractmethod
    def _by_size(self) -> bool:
        """Whether all experts start from p ∝ λ, projected (False: uniform)."""

    # For the algorithms. The methods return the changes, except that `_stepped` steps lazy experts in place.

    def _at(self, clients: Ints) -> Floats:
        """Return q (E, S) of registered clients."""
        if self._is_lazy:
            return self._lazy.at(clients)
        q: Floats = self._array("experts").take(clients, axis=1)
        return q

    def _stepped(self, clients: Ints, exponents: Floats) -> dict[str, Array]:
        """Set q to the projection of q exp(exponents): (E, S), >= 0, for these clients, 0 for all others."""
        if self._is_lazy:
            self._lazy.step(clients, exponents)
            return {}
        # Against overflow all weights are divided by the largest factor.
        largest = exponents.max(axis=1)[:, None]
        weights = self._array("experts") * np.exp(-largest)
        weights[:, clients] = self._at(clients) * np.exp(exponents - largest)
        return {"experts": self._project(weights, self._registered)}

    def _started(self, num_experts: int) -> dict[str, Array]:
        """Return E new experts at their start, θ_e = (1 + 1/E)/(e(e + 1))."""
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

    def _restarted(self, num_experts: int, changes: Mapping[str, Array] | None) -> dict[str, Array]:
        """Return E new experts at their start, or if changes are given, at the mixture p after them.

        Lazy experts without a base restart in place.
        """
        theta: Floats | None = None
        if changes is not None:
            theta = np.exp(changes.get("log_theta", self._array("log_theta")))
        if self._is_lazy and not self._by_size:
            self._lazy.restart(num_experts, theta)
            return {"log_theta": _log_theta(num_experts)}
        if changes is None or theta is None:
            return self._started(num_experts)
        ones = np.ones(num_experts)
        if self._is_lazy:
            p, touched = self._lazy.mixture(theta), self._lazy.touched.copy()
            untouched, base = Untouched.proportional(ones), np.where(p > 0, p, 1.0)
        else:
            p, touched = theta @ changes.get("experts", self._array("experts")), np.arange(self.num_clients)
            untouched, base = Untouched.alike(ones), np.empty(0)
        start = _state(touched, np.tile(p[touched], (num_experts, 1)), untouched)
        return start | {"base": base, "log_theta": _log_theta(num_experts)}

    # Joining, leaving, drawing, saving.

    def _joined(self, registered: Bools) -> dict[str, Array]:
        """Give joiners 1/M each and let the others shrink to make room, which keeps the floor."""
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
        # q = 1/after in a unit in which the others need not change.
        joining = np.tile(1 / (scale * max(1, before)), (new.size, 1)).T
        base = self._array("base")
        if base.size:  # the value of joiners is never used
            base = np.concatenate([base, np.ones(new.size)])
        state = _state(np.concatenate([touched, new]), np.hstack([weights, joining]), untouched)
        return state | {"base": base}

    def _left(self, registered: Bools) -> dict[str, Array]:
        """Divide the mass of leavers in proportion, and project again."""
        if not self._is_lazy:
            return {"experts": self._project(self._array("experts"), registered)}
        touched, (experts, untouched) = self._lazy.touched, self._lazy.values()
        stay = registered[touched]
        # Values are weights, too; they are projected when the new experts are built.
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
        """Return the projection of each row of weights (E, M), 0 for removed clients."""
        number = int(np.count_nonzero(registered))
        if number == registered.size:
            return scale_rows_above_floor(weights, self._alpha / number)
        experts = np.zeros(weights.shape)
        if number:
            experts[:, registered] = scale_rows_above_floor(weights[:, registered], self._alpha / number)
        return experts


def _state(touched: Ints, weights: Floats, untouched: Untouched) -> dict[str, Array]:
    # Copies, since arrays of the state are made read-only.
    return {"touched": touched, "experts": weights} | {
        key: values.copy() for key, values in untouched._asdict().items()
    }


def _log_theta(num_experts: int) -> Floats:
    """Return log θ_e = log((1 + 1/E)/(e(e + 1)))."""
    e = np.arange(1, num_experts + 1)
    log_theta: Floats = np.log((1 + 1 / num_experts) / (e * (e + 1)))
    return log_theta
