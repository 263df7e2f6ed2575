"""Distributions with a floor, whose cost grows with the number of clients drawn so far, not of all clients.

A client is touched when it is first drawn. The step of OSMD (Zhao, Wang, Kolar, Proposition 1) raises the
entries of the drawn clients. The step also multiplies all other entries by one common factor, but lowers no
entry below the floor. So untouched clients above the floor keep their initial proportions, and a client at
the floor remains there until it is drawn. For each client above the floor, only a weight is stored. One
common factor, the scale, turns these weights into the entries of the distribution.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .arrays import Bools, Floats, Ints
from .rejection import accepted, uniform_stream
from .sum_tree import SumTree

ARITY = 16
AT_FLOOR = -1.0
"""The weight of a client at the floor."""

LARGEST_LOG = 230.0
"""Weights stay below e^230 = 1e100, so that no sum overflows."""

SUM, SMALLEST, FLOORED = range(3)
"""The numbers in a node of the tree. They describe the leaves below the node: the sum of the weights above
the floor, the smallest of these weights, and the number of clients at the floor."""


class Untouched(NamedTuple):
    """The weights of the untouched clients.

    Each of the E distributions is called an expert, e. All experts share the base b (M,), which holds the
    clients' initial proportions. In expert e, client m has the weight slope_e b_m if b_m >= cut_e, and the
    weight default_e otherwise. One cut for each expert is enough, because the clients with the smallest b
    reach the floor first, and the cut then rises above their b.
    """

    # (E,) the weight of the clients below the cut; AT_FLOOR if they are at the floor. No client above the cut
    # has a smaller weight.
    default: Floats
    slope: Floats  # (E,) the weight of clients above the cut, divided by their b
    cut: Floats  # (E,) >= 0; inf if all clients have the default weight, so that b has no effect

    @classmethod
    def alike(cls, default: Floats) -> "Untouched":
        """Return weights that equal the default for all clients."""
        return cls(default, np.zeros(default.size), np.full(default.size, np.inf))

    @classmethod
    def proportional(cls, slope: Floats) -> "Untouched":
        """Return weights that are slope times b for all clients."""
        return cls(np.full(slope.size, AT_FLOOR), slope, np.zeros(slope.size))

    def times(self, factors: Floats) -> "Untouched":
        """Return the weights multiplied by factors (E,). AT_FLOOR is kept; an underflow becomes AT_FLOOR."""
        default, slope = self.default * factors, self.slope * factors
        default = np.where((self.default > 0) & (default > 0), default, AT_FLOOR)
        return Untouched(default, slope, np.where(slope > 0, self.cut, np.inf))


class LazyExperts:
    """E distributions q_e over the same registered clients. No entry is below the floor.

    The floor is α divided by the number of registered clients. If client m is at the floor, ``q_e,m`` is the
    floor. Otherwise client m is free, and ``q_e,m = scale_e w_e,m``. Each touched client has its own w, a
    leaf of a tree. The untouched clients have the weights of `Untouched`. The scale
    ``scale_e = (1 - floor · number at the floor) / sum of free w`` normalises q_e to the sum 1, and is not
    part of the state. A node's sum is always the sum of its children, so the leaves alone determine it.

    The object changes in place; `arrays` is its whole state.

    `touched` (n,) are distinct registered clients, and `weights` (E, n) their w in any unit, > 0 and below
    1e100, or AT_FLOOR. Weights below the floor become AT_FLOOR, which is the projection onto the floored
    simplex. `registered` (M,) says which clients may be drawn. `base` is b; it is needed if a cut is finite.
    """

    def __init__(
        self,
        touched: Ints,
        weights: Floats,
        untouched: Untouched,
        registered: Bools,
        alpha: float,
        base: "Ranking | None" = None,
    ) -> None:
        num_registered = int(np.count_nonzero(registered))
        self.floor = alpha / max(1, num_registered)
        self.untouched = untouched
        self.num_untouched = num_registered - touched.size
        self._base = None if base is None else _Base(base, registered, touched)
        self._registered = registered
        # Uniform draws from all indexes are fast enough if at least half of the clients are registered.
        self._pool = registered.size if 2 * num_registered >= registered.size else np.flatnonzero(registered)
        self._slots = np.full(registered.size, -1, dtype=np.int32)  # client -> leaf, -1 if untouched
        self._slots[touched] = np.arange(touched.size)
        self._num_touched = touched.size
        self._touched = touched  # leaf -> client; with spare room at the end, as in the leaves
        self._leaves = weights  # (E, capacity) w, AT_FLOOR, or 0 where there is no client yet
        self._levels: list[Floats] = []
        self.scale: Floats  # (E,)
        self._above: Ints  # (E,) number of untouched clients above the cut
        self._sums: Floats  # (E,) the sum of b over these clients
        self._make_room(touched.size)
        self._sum_up()
        self._settle()

    @property
    def touched(self) -> Ints:
        """(n,) the touched clients, in the order in which they were touched."""
        return self._touched[: self._num_touched]

    def arrays(self) -> tuple[Ints, Floats, Untouched]:
        """Return `touched`, `weights` (both copied) and `untouched`, which make an equal object."""
        return self.touched.copy(), self._leaves[:, : self._num_touched].copy(), self.untouched

    def values(self) -> tuple[Floats, Untouched]:
        """Return q (E, n) of the touched clients, and q of the untouched clients as an `Untouched`."""
        default, slope, cut = self.untouched
        untouched = Untouched(self._q(default[:, None])[:, 0], self.scale * slope, cut)
        return self._q(self._leaves[:, : self._num_touched]), untouched

    def at(self, clients: Ints) -> Floats:
        """Return q (E, S) of registered clients."""
        slots = self._slots[clients]
        default, slope, cut = (each[:, None] for each in self.untouched)
        if self._base is None:
            weights = np.repeat(default, clients.size, axis=1)
        else:
            b = self._base.of.values[clients]
            weights = np.where(b >= cut, slope * b, default)
        known = np.flatnonzero(slots >= 0)
        weights[:, known] = self._leaves[:, slots[known]]
        return self._q(weights)

    def mixture(self, theta: Floats) -> Floats:
        """Return a new array (M,): sum_e theta_e q_e with the weights theta (E,); 0 for removed clients."""
        touched, (default, slope, cut) = self.values()
        if self._base is None:
            p: Floats = np.where(self._registered, theta @ default, 0.0)
        else:
            b, p = self._base.of.values, np.zeros(self._registered.size)
            for each in zip(theta, default, slope, cut, strict=True):
                p += each[0] * np.where(b >= each[3], np.maximum(each[2] * b, self.floor), each[1])
            p *= self._registered
        p[self.touched] = theta @ touched
        return p

    def step(self, clients: Ints, exponents: Floats) -> None:
        """Set q_e to the projection of q_e exp(`exponents` (E, S) >= 0 at `clients` (S,), 0 elsewhere)."""
        log_q = np.log(self.at(clients)) + exponents
        log_w = log_q - np.log(self.scale)[:, None]
        if log_w.max(initial=0.0) > LARGEST_LOG:
            self._rescale(self.scale)
            excess = np.maximum(log_q.max(axis=1, keepdims=True), 0.0)
            self._rescale(np.exp(-excess[:, 0]))
            log_w = log_q - excess
        new = clients[self._slots[clients] < 0]
        if self._base is not None:
            self._base.remove(new)
        self._make_room(self._num_touched + new.size)
        self._slots[new] = np.arange(self._num_touched, self._num_touched + new.size)
        self._touched[self._num_touched : self._num_touched + new.size] = new
        self._num_touched += new.size
        self.num_untouched -= new.size
        columns = self._slots[clients].astype(np.int64)
        weights = np.exp(log_w)
        self._leaves[:, columns] = np.where(weights > 0, weights, AT_FLOOR)
        self._sum_up(columns)
        self._settle()

    def stream(self, theta: Floats, rng: np.random.Generator) -> Callable[[int], Ints]:
        """Return a stream of independent draws from sum_e theta_e q_e, theta a distribution (E,)."""
        anybody = accepted(
            uniform_stream(self._pool, rng),
            lambda clients: (self._slots[clients] < 0) & self._registered[clients],
            max(1, self.num_untouched) / (self._pool if isinstance(self._pool, int) else self._pool.size),
        )
        above, sums = self._above, self._sums
        mass = np.stack(
            [
                self.scale * self._top[SUM] + self.floor * self._top[FLOORED],
                self.scale * self.untouched.slope * sums,
                (self.num_untouched - above) * self._q(self.untouched.default[:, None])[:, 0],
            ]
        )
        ends = np.cumsum(mass, axis=0)
        cumulative = np.cumsum(theta * ends[-1])

        def draw(n: int) -> Ints:
            random = rng.random((2, n))
            experts = np.searchsorted(cumulative, random[0] * cumulative[-1], side="right")
            experts = np.minimum(experts, theta.size - 1)  # rounding
            at = random[1] * ends[-1, experts]
            clients = np.empty(n, dtype=np.int64)
            in_tree = at < ends[0, experts]
            clients[in_tree] = self._touched[self._descend(experts[in_tree], at[in_tree])]
            by_base = ~in_tree & (at < ends[1, experts])
            others = np.flatnonzero(~(in_tree | by_base))
            if self._base is None:
                if others.size:
                    clients[others] = anybody(others.size)
                return clients
            e = experts[by_base]
            share = (at[by_base] - ends[0, e]) / mass[1, e]
            clients[by_base] = self._base.find(np.minimum(share, np.nextafter(1.0, 0.0)) * sums[e])
            first = above[experts[others]]
            clients[others] = self._base.nth(first + rng.integers(self.num_untouched - first))
            return clients

        return draw

    def _q(self, weights: Floats) -> Floats:
        return np.maximum(self.scale[:, None] * weights, self.floor)  # AT_FLOOR is negative

    # The tree has levels (3, E, width) above the leaves. Each level is ARITY times narrower than the level
    # below it, and the root has the width 1.

    @property
    def _top(self) -> Floats:
        """(3, E) the root of the tree."""
        return self._levels[-1][:, :, 0]

    def _make_room(self, needed: int) -> None:
        """Make room for at least `needed` leaves; the capacity is a function of `needed` alone."""
        capacity = ARITY << (max(0, needed - 1) // ARITY).bit_length()
        if self._levels and capacity == self._touched.size:
            return
        old_leaves, old_touched, old_levels = self._leaves, self._touched, self._levels
        self._leaves = np.zeros((len(old_leaves), capacity))
        self._leaves[:, : old_leaves.shape[1]] = old_leaves
        self._touched = np.zeros(capacity, dtype=np.int64)
        self._touched[: old_touched.size] = old_touched
        self._levels = []
        width = capacity
        while width > 1:
            width //= ARITY
            width = width if width == 1 else -(-width // ARITY) * ARITY  # whole blocks
            level = np.zeros((3, len(old_leaves), width))
            level[SMALLEST] = np.inf
            self._levels.append(level)
        for level, old in zip(self._levels, old_levels, strict=False):
            level[:, :, : old.shape[2]] = old
        self._sum_up(np.zeros(1, dtype=np.int64))  # leaf 0 is below every node that is new and not empty

    def _sum_up(self, columns: Ints | None = None) -> None:
        below: Floats = self._leaves
        for level in self._levels:
            nodes: slice | Ints = slice(below.shape[-1] // ARITY)
            blocks = below.reshape(*below.shape[:-1], -1, ARITY)
            if columns is not None:
                nodes = columns = np.unique(columns // ARITY)
                blocks = blocks.take(columns, axis=-2)  # same memory order as without `columns`: equal sums
            if below is self._leaves:
                free = blocks > 0
                sums, floored = np.where(free, blocks, 0.0), blocks < 0
                smallest = np.where(free, blocks, np.inf)
            else:
                sums, smallest, floored = blocks
            level[SUM][:, nodes] = sums.sum(axis=-1)
            level[SMALLEST][:, nodes] = smallest.min(axis=-1)
            level[FLOORED][:, nodes] = floored.sum(axis=-1)
            below = level

    def _rescale(self, factors: Floats) -> None:
        """Multiply all weights by factors (E,); weights that underflow become AT_FLOOR."""
        weights = self._leaves[:, : self._num_touched]
        scaled = weights * factors[:, None]
        weights[...] = np.where((weights > 0) & (scaled > 0), scaled, AT_FLOOR)
        self.untouched = self.untouched.times(factors)
        self._sum_up()

    def _settle(self) -> None:
        """Compute the scale, and set weights below the floor to AT_FLOOR; repeat while any are below."""
        self._above = self._count_above(self.untouched.cut)
        while True:
            default, slope, cut = self.untouched
            above = self._above
            sums = self._sums = np.zeros(above.size) if self._base is None else self._base.sums(above)
            below = self.num_untouched - above
            free = below * (default > 0)
            total = self._top[SUM] + slope * sums + np.where(free > 0, below * default, 0.0)
            floored = self._top[FLOORED] + below - free
            # No client is free if α = 1 or if no client is registered. The scale then has no effect.
            self.scale = np.where(
                total > 0, (1 - self.floor * floored) / np.where(total > 0, total, 1.0), 1.0
            )
            threshold = self.floor / self.scale
            experts, columns = self._below(threshold)
            sinking = (free > 0) & (default < threshold)
            with np.errstate(divide="ignore", over="ignore"):
                new_cut = np.maximum(cut, threshold / slope)
            self._above = self._count_above(new_cut)
            crossing = self._above < above
            sinking |= crossing
            if not (columns.size or sinking.any()):
                return
            self.untouched = Untouched(
                np.where(sinking, AT_FLOOR, default), slope, np.where(crossing, new_cut, cut)
            )
            if columns.size:
                self._leaves[experts, columns] = AT_FLOOR
                self._sum_up(columns)

    def _count_above(self, cut: Floats) -> Ints:
        """Return the numbers of untouched clients above the cuts (E,)."""
        return np.zeros(cut.size, dtype=np.int64) if self._base is None else self._base.above(cut)

    def _below(self, threshold: Floats) -> tuple[Ints, Ints]:
        """Return (experts, leaves) of the free weights below their expert's threshold."""
        experts = np.flatnonzero(self._top[SMALLEST] < threshold)
        nodes = np.zeros(experts.size, dtype=np.int64)
        for level in [*(each[SMALLEST] for each in self._levels[-2::-1]), self._leaves]:
            children = nodes[:, None] * ARITY + np.arange(ARITY)
            values = level[experts[:, None], children]
            below = (values > 0) & (values < threshold[experts][:, None])
            experts, nodes = np.repeat(experts, below.sum(axis=1)), children[below]
        return experts, nodes

    def _descend(self, experts: Ints, at: Floats) -> Ints:
        """Return the leaves (n,) at which the running masses of the experts' trees pass `at` (n,)."""
        nodes = np.zeros(experts.size, dtype=np.int64)
        scale = self.scale[experts][:, None]
        for level in [*self._levels[-2::-1], None]:
            where = experts[:, None], nodes[:, None] * ARITY + np.arange(ARITY)
            if level is None:
                weights = self._leaves[where]
                mass = np.where(weights != 0, np.maximum(scale * weights, self.floor), 0.0)
            else:
                mass = scale * level[SUM][where] + self.floor * level[FLOORED][where]
            ends = np.cumsum(mass, axis=1)
            at = np.clip(at, 0.0, np.nextafter(ends[:, -1], 0.0))  # rounding must not lead to an empty child
            child = (ends <= at[:, None]).sum(axis=1)
            rows = np.arange(experts.size)
            at = at - (ends[rows, child] - mass[rows, child])
            nodes = nodes * ARITY + child
        return nodes


class Ranking:
    """A base b > 0 of all clients, `values` (M,), and the clients in descending order of b, sorted once."""

    def __init__(self, values: Floats) -> None:
        self.values = values
        negative = -values
        order = np.argsort(negative, kind="stable")
        self.clients = order.astype(np.int32)  # rank -> client, largest b first
        self.ranks = np.empty(values.size, dtype=np.int32)  # client -> rank
        self.ranks[self.clients] = np.arange(values.size, dtype=np.int32)
        self.negative = negative[order]  # -b, ascending


class _Base:
    """The b of the untouched clients, largest first, with sums that are updated when clients are touched."""

    def __init__(self, of: Ranking, registered: Bools, touched: Ints) -> None:
        self.of = of
        counted = registered[of.clients]
        counted[of.ranks[touched]] = False
        self._tree = SumTree(np.where(counted, -of.negative, 0.0))
        self._gone = np.flatnonzero(~counted)  # ranks of the clients left out, ascending
        self._count()

    def remove(self, clients: Ints) -> None:
        """Leave out these clients, which are now touched."""
        ranks = np.sort(self.of.ranks[clients]).astype(np.int64)
        if ranks.size:
            self._tree.assign(ranks, np.zeros(ranks.size))
            self._gone = np.insert(self._gone, np.searchsorted(self._gone, ranks), ranks)
            self._count()

    def above(self, cut: Floats) -> Ints:
        """Return the numbers of untouched clients with b >= cut (E,)."""
        ends = np.searchsorted(self.of.negative, -cut, side="right")
        return ends - np.searchsorted(self._gone, ends)

    def sums(self, counts: Ints) -> Floats:
        """Return (E,): for each expert e, the sum of the counts[e] largest b among the untouched clients."""
        return self._tree.before(self._ranks_of(counts))

    def find(self, targets: Floats) -> Ints:
        """Return the untouched clients where the running sum of b, largest first, passes the targets (n,)."""
        return self.of.clients[self._tree.find(targets)].astype(np.int64)

    def nth(self, places: Ints) -> Ints:
        """Return the untouched clients at these places (n,) in the order of b, largest first."""
        return self.of.clients[self._ranks_of(places)].astype(np.int64)

    def _ranks_of(self, places: Ints) -> Ints:
        """Turn places among the untouched clients into ranks among all; the one after the last becomes M."""
        return places + np.searchsorted(self._kept_before, places, side="right")

    def _count(self) -> None:
        # For each client that is left out, the number of untouched clients with a rank before it.
        self._kept_before = self._gone - np.arange(self._gone.size)
