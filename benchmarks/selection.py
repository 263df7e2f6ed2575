"""The cost of selection: CPU milliseconds per round for selecting and learning, by the number of clients.

All selectors of this project are measured, and two peers that are written in this module. ``textbook`` is
Adaptive-OSMD as printed in its paper, with dense arrays. ``lists`` is a loop over Python lists, like the
published scheduler of Oort. Each cell of the table is measured in a fresh process, whose peak memory is the
cell's memory. Data sizes are lognormal (σ = 1). Each client has a lognormal norm (σ = 2), which selectors can
learn: the norm of an update is this norm times lognormal noise (σ = 0.3).
"""

import math
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks import fresh
from strategies.designs import DESIGNS
from strategies.numerics.arrays import Floats, Ints
from strategies.numerics.sketches import SHORT
from strategies.selectors import Feedback, available, create, selector_type

K, NUM_ROUNDS, SLEEPING, LEAVERS = 100, 1000, 3000, 2000
SETTINGS: dict[str, dict[str, Any]] = {
    # With the paper's learning rates the probabilities, and so the trees that hold them, would hardly change.
    name: {"learning_rate_multiplier": 1000.0}
    for name in ("osmd", "adaptive-osmd", "adaptive-doubling-osmd")
} | {"flics-private": {"group_shares": (1.0,) * 100}}
LIMITS = {"textbook": 10**7, "lists": 10**6}  # peer -> largest M; with more clients, a round takes minutes
ASLEEP, LEFT, WITHOUT, BY_SIZE = " asleep", " left", " without", " by size"
SCENARIOS = {
    "": "all clients are available",
    ASLEEP: f"{SLEEPING:,} clients (a tenth, if fewer) are unavailable",
    LEFT: f"{LEAVERS:,} clients (a tenth, if fewer) have left",
    WITHOUT: "K draws without replacement",
    BY_SIZE: "a start in proportion to data, while clients are unavailable",
} | {f" {design}": f"draws by the design `{design}`, while clients are unavailable" for design in DESIGNS}
OF_DESIGN: dict[str, Any] = {f" {design}": {"design": design} for design in DESIGNS}
OF_SETTING: dict[str, dict[str, Any]] = {
    WITHOUT: {"replacement": False},
    BY_SIZE: {"initial": "sizes"},
    **OF_DESIGN,
}
IN_ALL_SCENARIOS = ("uniform", "md", "osmd", "adaptive-osmd", "forecast")


class Cell(NamedTuple):
    """One measurement."""

    name: str  # name of the peer, or of the selector and the scenario
    clients: int  # M
    milliseconds: float  # CPU time of a round in ms, median over the measured rounds
    slowest: float  # CPU time of the slowest measured round in ms
    rounds: int  # number of measured rounds
    megabytes: float  # peak resident memory of the process
    problem: str = ""  # the reason why there is no measurement, "" if there is one


class TextbookOSMD:
    """Adaptive-OSMD as printed in its paper (Zhao et al.): each expert has a dense array of probabilities.

    They are projected with Algorithm 2, which sorts all weights, and drawn with NumPy's ``choice``.
    """

    def __init__(
        self, sizes: Floats, rng: np.random.Generator, alpha: float = 0.4, num_experts: int = 7
    ) -> None:
        m = sizes.size
        self.weights, self.rng, self.alpha = sizes / sizes.sum(), rng, alpha
        self.experts = np.full((num_experts, m), 1 / m)
        e = np.arange(1, num_experts + 1)
        self.theta = (1 + 1 / num_experts) / (e * (e + 1))
        base = K * (alpha / m) ** 3 * math.sqrt(math.log(m) / (2 * NUM_ROUNDS))
        self.rates = 1000 * base * 2.0 ** (e - 1)
        self.gamma = math.sqrt(8 / NUM_ROUNDS) * alpha**2 * K / m**2
        self.reference = 0.0

    def select(self, round: int) -> Ints:
        self.p = self.theta @ self.experts
        self.p /= self.p.sum()
        drawn: Ints = self.rng.choice(self.p.size, size=K, p=self.p)
        return drawn

    def update(self, clients: Ints, norms: Floats) -> None:
        clients, first, counts = np.unique(clients, return_index=True, return_counts=True)
        a = (self.weights[clients] * norms[first]) ** 2
        self.reference = max(self.reference, float(a.max()))
        a /= self.reference
        losses = np.empty(len(self.theta))
        for e, q in enumerate(self.experts):
            losses[e] = (counts * a / (q[clients] * self.p[clients])).sum() / K**2
            raised = q.copy()
            exponents = self.rates[e] * counts * a / (K**2 * q[clients] ** 2 * self.p[clients])
            raised[clients] *= np.exp(np.minimum(exponents, 500))
            self.experts[e] = self.project(raised)
        self.theta *= np.exp(-self.gamma * losses)
        self.theta /= self.theta.sum()

    def project(self, weights: Floats) -> Floats:
        """Project weights (M,) onto the distributions with probabilities >= alpha/M (Algorithm 2).

        In ascending order of the weights, ``first`` is the first rank whose projected weight is above the
        floor.
        """
        m = weights.size
        ascending = np.sort(weights)
        above = np.cumsum(ascending[::-1])[::-1]
        floored = np.arange(m)
        first = int(np.argmax(ascending * (1 - floored * self.alpha / m) > self.alpha / m * above))
        p: Floats = np.maximum(self.alpha / m, weights * (1 - first * self.alpha / m) / above[first])
        return p


class ListScheduler:
    """Utility-based selection over a dict of clients, as in Oort's published scheduler (Lai et al. 2021).

    A loop scores every client that was selected before: its utility (norm times data size), clipped at a
    quantile and scaled, plus a bonus for the round in which it was last selected. Some clients are drawn
    among those with nearly the best scores, the others among those never selected, in proportion to their
    data sizes.
    """

    def __init__(self, sizes: Floats, rng: np.random.Generator) -> None:
        self.rng, self.exploration = rng, 0.9
        self.clients = {
            client: {"size": float(size), "utility": 0.0, "round": 0, "count": 0}
            for client, size in enumerate(sizes)
        }
        self.unexplored = set(self.clients)

    def select(self, round: int) -> Ints:
        feasible = [client for client in self.clients if self.clients[client]["size"] > 0]
        seen = [client for client in feasible if self.clients[client]["count"] > 0]
        utilities = sorted(self.clients[client]["utility"] for client in seen)
        scores = {}
        if seen:
            low, clip = utilities[0], utilities[min(int(0.95 * len(utilities)), len(utilities) - 1)]
            for client in seen:
                known = self.clients[client]
                utility = (min(known["utility"], clip) - low) / max(clip - low, 1e-9)
                scores[client] = utility + math.sqrt(0.1 * math.log(round + 1) / max(1, known["round"]))
        self.exploration = max(0.3, self.exploration * 0.98)
        num_known = min(int(K * (1 - self.exploration)), len(scores))
        picked: list[int] = []
        if num_known:
            ranked = sorted(scores, key=lambda client: scores[client], reverse=True)
            near = [client for client in ranked if scores[client] > 0.95 * scores[ranked[num_known - 1]]]
            total = sum(scores[client] for client in near) or 1.0
            chances = np.array([max(scores[client], 1e-12) / total for client in near])
            picked = list(self.rng.choice(near, num_known, p=chances / chances.sum(), replace=False))
        fresh = [client for client in feasible if client in self.unexplored]
        by_size = sorted(fresh, key=lambda client: self.clients[client]["size"], reverse=True)
        chances = np.array([self.clients[client]["size"] for client in by_size])
        num_fresh = min(K - len(picked), len(by_size))
        if num_fresh:
            picked += list(self.rng.choice(by_size, num_fresh, p=chances / chances.sum(), replace=False))
        self.round = round
        return np.array(picked)

    def update(self, clients: Ints, norms: Floats) -> None:
        for client, norm in zip(clients.tolist(), norms.tolist(), strict=True):
            known = self.clients[client]
            known["utility"], known["round"] = norm * known["size"], self.round
            known["count"] += 1
            self.unexplored.discard(client)


def peer(kind: Callable[..., Any]) -> Callable[..., Callable[[int], float]]:
    """Return a function that creates a peer, and returns a function: round -> CPU seconds of the peer."""

    def make(sizes: Floats, norms: Floats, rng: np.random.Generator) -> Callable[[int], float]:
        scheduler = kind(sizes, rng)

        def play(round: int) -> float:
            start = time.process_time()
            clients = scheduler.select(round)
            chosen = time.process_time() - start
            reported = norms[clients] * rng.lognormal(0, 0.3, clients.size)
            start = time.process_time()
            scheduler.update(clients, reported)
            return chosen + time.process_time() - start

        return play

    return make


def ours(
    name: str, scenario: str, sizes: Floats, norms: Floats, rng: np.random.Generator
) -> Callable[[int], float]:
    """Create one of this project's selectors; return a function: round -> CPU seconds of the selector.

    `scenario` is a key of `SCENARIOS`; `sizes` and `norms` (M,) are the clients' data sizes and mean norms.
    """
    m = sizes.size
    settings = SETTINGS.get(name, {}) | per_client(name, m, rng) | OF_SETTING.get(scenario, {})
    selector = create(name, m, client_sizes=sizes, clients_per_round=K, num_rounds=NUM_ROUNDS, **settings)
    unavailable = None
    if scenario not in ("", LEFT, WITHOUT):
        unavailable = rng.choice(m, min(SLEEPING, m // 10), replace=False)
    if scenario == LEFT:
        selector.remove_clients(rng.choice(m, min(LEAVERS, m // 10), replace=False))

    def play(round: int) -> float:
        start = time.process_time()
        candidates = selector.candidates(round, unavailable=unavailable)
        seconds = time.process_time() - start
        answers: dict[str, Any] = {}
        if candidates is not None:
            known = {"loss": norms, "update_norm": norms, "gradient_variance": norms**2, "diversity": norms}
            known["group"] = (np.arange(m) % 100).astype(np.float64)
            reports = {kind: known[kind][candidates] for kind in selector.polls_for}
            start = time.process_time()
            invitation = selector.invitation(round, candidates, reports)
            seconds += time.process_time() - start
            if invitation is not None:  # the time of these draws does not count: clients make them
                chances = invitation.rates[invitation.versions, reports["group"].astype(np.int64)]
                reports["accepts"] = (rng.random(candidates.size) < chances).astype(np.float64)
            answers = {"candidates": candidates, "reports": reports}
        start = time.process_time()
        selection = selector.select(round, unavailable=unavailable, **answers)
        seconds += time.process_time() - start
        reported = norms[selection.clients] * rng.lognormal(0, 0.3, selection.clients.size)
        responded = np.ones(reported.size, dtype=np.bool_)
        feedback = Feedback(
            reported,
            reported,
            reported**2,
            reported,
            responded,
            sketches=rng.normal(size=(reported.size, SHORT)) if selector.uses_sketches else None,
        )
        start = time.process_time()
        selector.update(round, selection, feedback)
        return seconds + time.process_time() - start

    return play


def per_client(name: str, m: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return values (M,) for per-client settings without a default: groups from 0 to 99, or lognormal."""
    return {
        setting: rng.integers(0, 100, m)
        if kind.integer
        else np.clip(rng.lognormal(0, 1, m), kind.low, kind.high)
        for setting, kind in selector_type(name).per_client.items()
        if kind.default is None
    }


def possible(name: str, scenario: str) -> bool:
    """Return whether a selector has the settings that a scenario changes; designs are measured with `md`."""
    changed = OF_SETTING.get(scenario, {}).keys()
    return changed <= selector_type(name).allowed_settings().keys() and (
        name == "md" or "design" not in changed
    )


def measure(name: str, m: int, seconds: float) -> Cell:
    """Measure a cell: a peer, or a selector in a scenario, with `m` clients.

    At least 3 and at most 300 rounds are played, for about `seconds` of CPU time. But a round that takes more
    than five times `seconds` is the last.
    """
    rng = np.random.default_rng(0)
    sizes, norms = rng.lognormal(0, 1, m), rng.lognormal(0, 2, m)
    scenario = next((each for each in SCENARIOS if each and name.endswith(each)), "")
    try:
        if name in PEERS:
            play = PEERS[name](sizes, norms, rng)
        else:
            play = ours(name.removesuffix(scenario), scenario, sizes, norms, rng)
        play(1)  # not measured, since it allocates memory that later rounds reuse
        times: list[float] = []
        while len(times) < 3 or (sum(times) < seconds and len(times) < 300):
            times.append(play(len(times) + 2))
            if times[-1] > 5 * seconds:
                break
    except (TypeError, ValueError, NotImplementedError) as error:
        return Cell(name, m, math.nan, math.nan, 0, math.nan, f"{type(error).__name__}: {error}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Cell(name, m, 1e3 * float(np.median(times)), 1e3 * max(times), len(times), peak)


PEERS = {"textbook": peer(TextbookOSMD), "lists": peer(ListScheduler)}


def compare(
    sizes: Sequence[int], names: Sequence[str], every: bool, seconds: float
) -> Iterator[dict[str, Any]]:
    """Yield each cell, for about `seconds` CPU seconds each.

    Without `names`, all selectors and peers are measured; selectors that are not in `IN_ALL_SCENARIOS` only
    in the scenario in which all clients are available, unless `every`.
    """
    rows = [
        name + scenario
        for name in available()
        for scenario in SCENARIOS
        if not scenario or ((name in IN_ALL_SCENARIOS or every) and possible(name, scenario))
    ]
    for row in (*rows, *PEERS):
        if not names or row.split(" ")[0] in names:
            for m in sizes:
                if m <= LIMITS.get(row, m):
                    yield fresh.call(measure, row, m, seconds)._asdict()
