"""Several distributions on the floored simplex, at a cost that grows with the clients ever touched.

The step of OSMD (Zhao, Wang, Kolar, Proposition 1) raises the entries of the clients drawn and lowers all
others by one common factor, but to no less than the floor. So clients that were never drawn all share one
value, those at the floor stay there until they are drawn, and the rest is a set of weights under one scale.
"""

from collections.abc import Callable

import numpy as np

from .arrays import Bools, Floats, Ints
from .rejection import accepted, uniform_stream

ARITY = 16
AT_FLOOR = -1.0
"""What stands in place of a weight for a client at the floor."""

LARGEST_LOG = 230.0
"""Weights stay below e^230 = 1e100, so that no sum overflows."""

SUM, SMALLEST, FLOORED = range(3)
"""What a node of the tree knows of its leaves: their sum, their smallest, and how many are at the floor."""


class LazyExperts:
    """E distributions q_e over the same living clients, each at least floor = α / (number living).

    ``q_e,m = scale_e w_e,m`` where client m is free and ``floor`` where it is not; the touched have a w each,
    a leaf of a tree over them, the untouched of an expert one in common. The scale is not stored:
    ``scale_e = (1 - floor · number at the floor) / sum of free w`` makes the sum 1 at any time. A node's sum
    is always that of its children, so it is a function of the leaves alone, however they came about.

    It changes in place; `arrays` is all there is to it.

    Parameters
    ----------
    touched : ndarray of int, shape (n,)
        Distinct living clients.
    weights : ndarray, shape (E, n)
        Their w in any unit, > 0 and below 1e100, or AT_FLOOR. Those too small for the floor are put there:
        this is the projection onto the floored simplex.
    default : ndarray, shape (E,)
        The same for each of the untouched.
    living : ndarray of bool, shape (M,)
        Who may be drawn.
    alpha : float
        The floor times the number of living clients, in (0, 1].
    """

    def __init__(self, touched: Ints, weights: Floats, default: Floats, living: Bools, alpha: float) -> None:
        num_living = int(np.count_nonzero(living))
        self.floor = alpha / max(1, num_living)
        self.default = default.copy()
        self.num_untouched = num_living - touched.size
        self._living = living
        # Uniform draws hit a living client at least every second time.
        self._pool = living.size if 2 * num_living >= living.size else np.flatnonzero(living)
        self._slots = np.full(living.size, -1, dtype=np.int32)  # client -> leaf, -1 for the untouched
        self._slots[touched] = np.arange(touched.size)
        self._num_touched = touched.size
        self._touched = touched  # leaf -> client; room for more at the end, as in the leaves
        self._leaves = weights  # (E, capacity) w, AT_FLOOR, or 0 where there is no client yet
        self._levels: list[Floats] = []
        self._make_room(touched.size)
        self._sum_up()
        self._settle()

    @property
    def touched(self) -> Ints:
        """(n,) clients with a weight of their own, in the order in which they came."""
        return self._touched[: self._num_touched]

    def arrays(self) -> tuple[Ints, Floats, Floats]:
        """Return copies of touched, weights and default, from which the constructor makes the same again."""
        return self.touched.copy(), self._leaves[:, : self._num_touched].copy(), self.default.copy()

    def values(self) -> tuple[Floats, Floats]:
        """Return q of the touched (E, n) and of each of the untouched (E,)."""
        return self._q(self._leaves[:, : self._num_touched]), self._q(self.default[:, None])[:, 0]

    def at(self, clients: Ints) -> Floats:
        """Return q (E, S) of living clients."""
        slots = self._slots[clients]
        return self._q(np.where(slots >= 0, self._leaves[:, slots], self.default[:, None]))

    def mixture(self, theta: Floats) -> Floats:
        """Return a fresh array (M,): sum_e theta_e q_e, 0 for those not living."""
        touched, default = self.values()
        p: Floats = np.where(self._living, theta @ default, 0.0)
        p[self.touched] = theta @ touched
        return p

    def step(self, clients: Ints, exponents: Floats) -> None:
        """Set q_e to the projection of q_e,m exp(exponents_e,m), the exponents of all others being 0.

        Parameters
        ----------
        clients : ndarray of int, shape (S,)
            Distinct living clients.
        exponents : ndarray, shape (E, S)
            Finite and >= 0.
        """
        log_q = np.log(self.at(clients)) + exponents
        log_w = log_q - np.log(self.scale)[:, None]
        if log_w.max(initial=0.0) > LARGEST_LOG:
            self._rescale(self.scale)
            excess = np.maximum(log_q.max(axis=1, keepdims=True), 0.0)
            self._rescale(np.exp(-excess[:, 0]))
            log_w = log_q - excess
        new = clients[self._slots[clients] < 0]
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
        untouched = accepted(
            uniform_stream(self._pool, rng),
            lambda clients: (self._slots[clients] < 0) & self._living[clients],
            max(1, self.num_untouched) / (self._pool if isinstance(self._pool, int) else self._pool.size),
        )
        mass = self.scale * self._top[SUM] + self.floor * self._top[FLOORED]
        mass_untouched = self.num_untouched * self._q(self.default[:, None])[:, 0]
        cumulative = np.cumsum(theta * (mass + mass_untouched))

        def draw(n: int) -> Ints:
            random = rng.random((2, n))
            experts = np.searchsorted(cumulative, random[0] * cumulative[-1], side="right")
            experts = np.minimum(experts, theta.size - 1)  # rounding
            at = random[1] * (mass + mass_untouched)[experts]
            in_tree = at < mass[experts]
            clients = np.empty(n, dtype=np.int64)
            clients[in_tree] = self._touched[self._descend(experts[in_tree], at[in_tree])]
            rest = n - np.count_nonzero(in_tree)
            if rest:
                clients[~in_tree] = untouched(int(rest))
            return clients

        return draw

    def _q(self, weights: Floats) -> Floats:
        return np.maximum(self.scale[:, None] * weights, self.floor)  # AT_FLOOR is negative

    # The tree: above the leaves levels (3, E, width), each ARITY times narrower, up to a width of 1.

    @property
    def _top(self) -> Floats:
        """(3, E) what the whole tree holds."""
        return self._levels[-1][:, :, 0]

    def _make_room(self, needed: int) -> None:
        """Have so many leaves at least; how many depends on that number alone, not on how it was reached."""
        capacity = ARITY << (max(0, needed - 1) // ARITY).bit_length()
        if self._levels and capacity == self._touched.size:
            return
        old_leaves, old_touched, old_levels = self._leaves, self._touched, self._levels
        self._leaves = np.zeros((self.default.size, capacity))
        self._leaves[:, : old_leaves.shape[1]] = old_leaves
        self._touched = np.zeros(capacity, dtype=np.int64)
        self._touched[: old_touched.size] = old_touched
        self._levels = []
        width = capacity
        while width > 1:
            width //= ARITY
            width = width if width == 1 else -(-width // ARITY) * ARITY  # blocks are whole
            level = np.zeros((3, self.default.size, width))
            level[SMALLEST] = np.inf
            self._levels.append(level)
        for level, old in zip(self._levels, old_levels, strict=False):
            level[:, :, : old.shape[2]] = old
        self._sum_up(np.zeros(1, dtype=np.int64))  # the levels that are new

    def _sum_up(self, columns: Ints | None = None) -> None:
        """Compute the nodes above some leaves, all if None."""
        below: Floats = self._leaves
        for level in self._levels:
            nodes: slice | Ints = slice(below.shape[-1] // ARITY)
            blocks = below.reshape(*below.shape[:-1], -1, ARITY)
            if columns is not None:
                nodes = columns = np.unique(columns // ARITY)
                blocks = blocks.take(columns, axis=-2)  # a copy in the order of the whole: the same sums
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
        """Multiply all weights by factors (E,); what underflows goes to the floor."""
        for weights in (self._leaves[:, : self._num_touched].T, self.default):
            scaled = weights * factors
            weights[...] = np.where((weights > 0) & (scaled > 0), scaled, AT_FLOOR)
        self._sum_up()

    def _settle(self) -> None:
        """Put to the floor what is below it, until nothing is, and set the scale."""
        while True:
            free = self.num_untouched * (self.default > 0)
            total = self._top[SUM] + np.where(free > 0, self.num_untouched * self.default, 0.0)
            floored = self._top[FLOORED] + self.num_untouched - free
            # Nobody is free where α = 1, or nobody lives: then the scale says nothing.
            self.scale = np.where(
                total > 0, (1 - self.floor * floored) / np.where(total > 0, total, 1.0), 1.0
            )
            threshold = self.floor / self.scale
            experts, columns = self._below(threshold)
            sinking = (free > 0) & (self.default < threshold)
            if not (columns.size or sinking.any()):
                return
            self._leaves[experts, columns] = AT_FLOOR
            self.default[sinking] = AT_FLOOR
            self._sum_up(columns)

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
        """Return the leaves (n,) where the masses `at`, counted from the left of an expert's tree, lie."""
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
            at = np.clip(at, 0.0, np.nextafter(ends[:, -1], 0.0))  # rounding must lead to no empty child
            child = (ends <= at[:, None]).sum(axis=1)
            rows = np.arange(experts.size)
            at = at - (ends[rows, child] - mass[rows, child])
            nodes = nodes * ARITY + child
        return nodes
