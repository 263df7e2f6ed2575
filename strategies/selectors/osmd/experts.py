"""The experts of the OSMD family, in two forms with one interface: `Dense` and `Lazy`.

Each expert e is a distribution q_e over the registered clients, with q_e,m >= α/M for M registered clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...numerics.arrays import Array, Bools, Floats, Ints
from ...numerics.lazy_experts import LazyExperts, Ranking, Untouched
from ...numerics.projection import scale_rows_above_floor

AXES: dict[str, tuple[str, ...]] = {
    "touched": ("touched",),  # clients that have their own weights; dense: all clients
    "experts": ("experts", "touched"),  # these weights, see LazyExperts; dense: q_e, 0 if removed
    "default": ("experts",),  # default, slope, cut: the weights of all other clients, see Untouched
    "slope": ("experts",),
    "cut": ("experts",),
    "base": ("base",),  # b of all clients, see Untouched; empty if no cut is finite
}
"""The arrays of a selector's state that hold its experts, with their axes. Both forms have the same keys."""


class Experts(ABC):
    """E experts. A method that returns a dict returns the arrays of the selector's state that change.

    ``state``: the arrays named in `AXES`. ``registered`` (M,): which clients may be drawn. ``alpha``: α: the
    floor times the number of registered clients. ``ranked``: Returns the `Ranking` of a base; the selector
    keeps it.
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        registered: Bools,
        alpha: float,
        ranked: Callable[[Floats], Ranking] = Ranking,
    ) -> None:
        self._state, self._registered, self._alpha = state, registered, alpha

    @classmethod
    @abstractmethod
    def started(
        cls, num_experts: int, sizes: Floats, registered: Bools, alpha: float, *, by_size: bool
    ) -> dict[str, Array]:
        """Return E experts that are uniform, or in proportion to sizes (M,), projected to the floor."""

    @abstractmethod
    def at(self, clients: Ints) -> Floats:
        """Return q (E, S) of these registered clients (S,)."""

    @abstractmethod
    def mixture(self, theta: Floats) -> Floats:
        """Return a new array (M,): sum_e theta_e q_e with the weights theta (E,); 0 for removed clients."""

    @abstractmethod
    def stepped(self, clients: Ints, exponents: Floats) -> dict[str, Array]:
        """Set q_e to the projection of q_e exp(`exponents` (E, S) >= 0 at `clients` (S,), 0 elsewhere)."""

    @abstractmethod
    def restarted(self, num_experts: int, theta: Floats, *, by_size: bool) -> dict[str, Array]:
        """Replace the experts by E copies of sum_e theta_e q_e. ``by_size`` is that of their start."""

    @abstractmethod
    def joined(self, registered: Bools, *, as_lazy: bool) -> dict[str, Array]:
        """Give each joining client the probability 1/M, and multiply all other probabilities by one factor.

        The floor still holds, because it decreases by the same factor. ``as_lazy`` states the form of the
        result: joining clients may turn dense experts into lazy ones, which does not change them.
        """

    @abstractmethod
    def left(self, registered: Bools) -> dict[str, Array]:
        """Divide the probability of removed clients among the others, in proportion to q; project again."""

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of the state that changed since the experts were made."""
        return {}


class Dense(Experts):
    """Experts as an array (E, M), which a step replaces. Removed clients have q = 0."""

    @classmethod
    def started(
        cls, num_experts: int, sizes: Floats, registered: Bools, alpha: float, *, by_size: bool
    ) -> dict[str, Array]:
        p: Floats = registered / max(1, int(np.count_nonzero(registered)))
        if by_size:
            p = _projected(sizes[None], registered, alpha)[0]
        return cls._alike(p, num_experts)

    @staticmethod
    def _alike(p: Floats, num_experts: int) -> dict[str, Array]:
        weights, untouched = np.tile(p, (num_experts, 1)), Untouched.alike(np.ones(num_experts))
        return _arrays(np.arange(p.size), weights, untouched, np.empty(0))

    @property
    def _q(self) -> Floats:
        q: Floats = self._state["experts"]
        return q

    def at(self, clients: Ints) -> Floats:
        return self._q.take(clients, axis=1)

    def mixture(self, theta: Floats) -> Floats:
        p: Floats = theta @ self._q
        return p

    def stepped(self, clients: Ints, exponents: Floats) -> dict[str, Array]:
        # All weights are divided by the largest factor, so that none overflows.
        largest = exponents.max(axis=1)[:, None]
        weights = self._q * np.exp(-largest)
        weights[:, clients] = self.at(clients) * np.exp(exponents - largest)
        return {"experts": _projected(weights, self._registered, self._alpha)}

    def restarted(self, num_experts: int, theta: Floats, *, by_size: bool) -> dict[str, Array]:
        return self._alike(self.mixture(theta), num_experts)

    def joined(self, registered: Bools, *, as_lazy: bool) -> dict[str, Array]:
        before, after = int(np.count_nonzero(self._registered)), int(np.count_nonzero(registered))
        new = np.arange(self._registered.size, registered.size)
        if as_lazy:
            touched, unit = np.flatnonzero(self._registered), np.full(len(self._q), float(max(1, before)))
            return _with_joined(touched, self._q[:, touched], _untouched(self._state), unit, new)
        joining = np.full((len(self._q), new.size), 1 / max(1, after))
        q = np.hstack([self._q * (before / max(1, after)), joining])
        return {"touched": np.arange(registered.size), "experts": q}

    def left(self, registered: Bools) -> dict[str, Array]:
        return {"experts": _projected(self._q, registered, self._alpha)}


class Lazy(Experts):
    """Experts as `LazyExperts`, whose steps cost O(clients drawn so far). They change in place.

    A client is touched if it has weights of its own, usually because it was drawn. If the experts start in
    proportion to sizes, the sizes are their base (see `Untouched`). A restart of such experts from the
    mixture makes the mixture their new base, which takes a pass over all clients and a sort.
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        registered: Bools,
        alpha: float,
        ranked: Callable[[Floats], Ranking] = Ranking,
    ) -> None:
        super().__init__(state, registered, alpha)
        touched, weights, base = (state[key] for key in ("touched", "experts", "base"))
        ranking = ranked(base) if base.size else None
        self._lazy = LazyExperts(touched, weights, _untouched(state), registered, alpha, ranking)

    @classmethod
    def started(
        cls, num_experts: int, sizes: Floats, registered: Bools, alpha: float, *, by_size: bool
    ) -> dict[str, Array]:
        ones, base = np.ones(num_experts), sizes if by_size else np.empty(0)
        untouched = Untouched.proportional(ones / base.max()) if by_size else Untouched.alike(ones)
        return _arrays(np.arange(0), np.empty((num_experts, 0)), untouched, base)

    def at(self, clients: Ints) -> Floats:
        return self._lazy.at(clients)

    def mixture(self, theta: Floats) -> Floats:
        return self._lazy.mixture(theta)

    def stream(self, theta: Floats, rng: np.random.Generator) -> Callable[[int], Ints]:
        """Return a stream of independent draws from sum_e theta_e q_e."""
        return self._lazy.stream(theta, rng)

    def stepped(self, clients: Ints, exponents: Floats) -> dict[str, Array]:
        self._lazy.step(clients, exponents)
        return {}

    def restarted(self, num_experts: int, theta: Floats, *, by_size: bool) -> dict[str, Array]:
        q, untouched = self._lazy.values()
        start = self._lazy.touched.copy(), np.tile(theta @ q, (num_experts, 1))
        if not by_size:
            return _arrays(*start, Untouched.alike(np.full(num_experts, theta @ untouched.default)))
        p = self.mixture(theta)
        return _arrays(*start, Untouched.proportional(np.ones(num_experts)), np.where(p > 0, p, 1.0))

    def joined(self, registered: Bools, *, as_lazy: bool) -> dict[str, Array]:
        base, new = self._state["base"], np.arange(self._registered.size, registered.size)
        unit = self._lazy.scale * max(1, int(np.count_nonzero(self._registered)))
        found = _with_joined(*self._lazy.arrays(), unit, new)
        if base.size:  # joining clients are touched, so their b is never used
            found["base"] = np.concatenate([base, np.ones(new.size)])
        return found

    def left(self, registered: Bools) -> dict[str, Array]:
        touched, (experts, untouched) = self._lazy.touched, self._lazy.values()
        stay = registered[touched]
        # The values q serve as weights. Building the new LazyExperts from them projects them.
        return _arrays(touched[stay], experts[:, stay], untouched)

    def arrays(self) -> dict[str, Array]:
        return _arrays(*self._lazy.arrays())


def _with_joined(
    touched: Ints, weights: Floats, untouched: Untouched, unit: Floats, new: Ints
) -> dict[str, Array]:
    """Return lazy experts with new clients.

    Lazy experts have q = scale · weight. The weights of the old clients stay unchanged, so the scale becomes
    scale · before / after. New clients get q = 1/after, so their weight is 1/``unit`` (E,), where the unit is
    scale · before.
    """
    joining = np.tile(1 / unit, (new.size, 1)).T
    return _arrays(np.concatenate([touched, new]), np.hstack([weights, joining]), untouched)


def _arrays(
    touched: Ints, weights: Floats, untouched: Untouched, base: Array | None = None
) -> dict[str, Array]:
    # The arrays of `untouched` are copied because arrays of the state are made read-only.
    found: dict[str, Array] = {"touched": touched, "experts": weights}
    found |= {key: values.copy() for key, values in untouched._asdict().items()}
    return found if base is None else found | {"base": base}


def _untouched(state: Mapping[str, Any]) -> Untouched:
    return Untouched(*(state[key] for key in Untouched._fields))


def _projected(weights: Floats, registered: Bools, alpha: float) -> Floats:
    """Return the projection of each row of `weights` (E, M) onto the registered clients; 0 for others."""
    number = int(np.count_nonzero(registered))
    if number == registered.size:
        return scale_rows_above_floor(weights, alpha / number)
    experts = np.zeros(weights.shape)
    if number:
        experts[:, registered] = scale_rows_above_floor(weights[:, registered], alpha / number)
    return experts
