"""The events of a history, drawn from a seed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

import numpy as np
from flwr.serverapp import strategy as flower

from strategies import SelectionStrategy, selectors
from strategies.options import Deadlines, Faults, Overrides, Polling

EPOCH = 1024.0
"""Seconds on the clock at the beginning. Times are sums of powers of two, hence free of rounding errors."""
DEADLINE = 0.5
"""Seconds that a round waits for replies; short, so that the server polls rarely."""
TOO_LATE = 4 * DEADLINE
"""Latency of a late reply, in seconds."""

REGISTERED = "registered-"
"""Prefix of the names given by the operator."""

SERVER_STRATEGIES = {
    "FedAvg": flower.FedAvg,
    "FedAvgM": lambda **kw: flower.FedAvgM(server_momentum=0.9, **kw),
    "FedAdam": flower.FedAdam,
    "FedYogi": flower.FedYogi,
    "FedAdagrad": flower.FedAdagrad,
    "FedProx": flower.FedProx,
    "FedMedian": flower.FedMedian,
    "FedTrimmedAvg": flower.FedTrimmedAvg,
    "Krum": lambda **kw: flower.Krum(num_malicious_nodes=0, **kw),
    "QFedAvg": lambda **kw: flower.QFedAvg(client_learning_rate=0.1, **kw),
}
_STEPS = ("FedAvg", "FedAvg", "FedAvg", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad", "FedProx")

UNANSWERED = ("crash", "dead", "vanish", "silence", "late", "stale", "misaddressed", "decline")
"""Faults without a usable reply in this round; "stale" replies to an older round instead."""
GARBAGE = (
    "other names",
    "a name too few",
    "a name too many",
    "other shape",
    "complex numbers",
    "text",
    "NaN",
    "infinite",
    "beyond float32",
    "junk bytes",
    "another serialisation",
    "two models",
    "nothing",
    "size -3",
    "size 1e200",
    "size NaN",
    "size in words",
)
"""Unusable replies."""
ODD = (
    "twice",
    "stale and own",
    "float64",
    "column order",
    "loss NaN",
    "loss negative",
    "variance infinite",
    "variance negative",
    "no report",
    "steps 0",
    "metrics in lists",
    "extra metrics",
)
"""Unusual replies that must be used."""
LIES = ("update x 1e3", "update x 1e6", "update x 1e36", "sign flip", "loss 1e6", "size 1e9", "no update")
"""False replies that must be used, clipped if there is a guard."""
POLL = ("silence", "crash", "late", "NaN", "infinite", "negative", "huge", "nothing", "decline")
"""Faults in replies to polls."""
EVALUATION = ("silence", "crash", "late", "NaN", "no size")
STATUS = ("silence", "crash", "garbage")
"""Faults in replies to status queries."""

KILLS = ("asking", "sent", "replies", "aggregated", "saving", "saved", "torn")
"""When the server is killed: during polls; after sending TRAIN messages; after some replies; between
aggregation and saving; while saving; before the next round. "torn": the latter, with a damaged checkpoint."""


@dataclass(frozen=True)
class Member:
    """A client and the properties that it reports."""

    claim: str | None  # the identity that the client reports
    name: str  # the name under which the operator registered its node
    size: int
    group: int


@dataclass(frozen=True)
class Kill:
    """A kill of the server."""

    round: int
    moment: str  # of KILLS
    share: float = 0.0  # selects among several replies or damages, in [0, 1)


@dataclass(frozen=True)
class Script:
    """The plan of a history.

    Attributes
    ----------
    seed : int
        The seed of all draws.
    num_rounds : int
        3 to 10.
    members : tuple of Member
        All clients of the history.
    nodes : tuple of mapping of int to int
        The online nodes of each round from 1: node id -> position in `members`.
    ghosts : frozenset of (round, node id)
        Nodes that appear online but are dead.
    asleep : frozenset of (round, member)
        Members that are unavailable for training.
    faults, poll_faults, evaluation_faults : mapping of (round, member) to str
        The fault of a reply.
    status_faults : mapping of member to (fault, last round)
        The fault of its status replies, up to that round.
    latencies : mapping of (round, member) to float
        Seconds; they change the order of the replies.
    kills : tuple of Kill
        The kills of the server.
    options : mapping
        Options of `SelectionStrategy`; ``server_strategy`` is a key of `SERVER_STRATEGIES`.
    evaluate : float
        Share of the nodes that evaluate the model.
    """

    seed: int
    num_rounds: int
    members: tuple[Member, ...]
    nodes: tuple[Mapping[int, int], ...]
    ghosts: frozenset[tuple[int, int]]
    asleep: frozenset[tuple[int, int]]
    faults: Mapping[tuple[int, int], str]
    poll_faults: Mapping[tuple[int, int], str]
    evaluation_faults: Mapping[tuple[int, int], str]
    status_faults: Mapping[int, tuple[str, int]]
    latencies: Mapping[tuple[int, int], float]
    kills: tuple[Kill, ...]
    options: Mapping[str, Any]
    evaluate: float

    @property
    def between_rounds(self):
        """Duration of an evaluation, in seconds.

        Long enough that a node with a disputed identity is registered after some rounds. With kills, too
        short for that: a resumed server starts this waiting time again.
        """
        return 1.0 if self.kills else 32.0

    def strategy(self, **more):
        """Return a fresh strategy with the script's settings and ``more``."""
        return _strategy({**self.options, **more}, self.evaluate)

    def lines(self):
        """Return the script as text."""
        lines = [f"seed {self.seed}: {self.num_rounds} rounds"]
        lines += [f"  {name} = {value!r}" for name, value in self.options.items()]
        lines += [f"  {self.evaluate:.0%} of the nodes evaluate"] if self.evaluate else []
        lines += [f"  member {number}: {member}" for number, member in enumerate(self.members)]
        for number, nodes in enumerate(self.nodes, start=1):
            online = ", ".join(
                f"{node}={member}{' (ghost)' if (number, node) in self.ghosts else ''}"
                for node, member in nodes.items()
            )
            lines.append(f"  round {number}: nodes {online}")
            asleep = [member for round, member in sorted(self.asleep) if round == number]
            lines += [f"    asleep: {asleep}"] if asleep else []
            for kind in ("faults", "poll_faults", "evaluation_faults"):
                found = {
                    member: fault for (round, member), fault in getattr(self, kind).items() if round == number
                }
                lines += [f"    {kind.replace('_', ' ')}: {found}"] if found else []
            lines += [
                f"    the server is killed: {kill.moment} ({kill.share:.2f})"
                for kill in self.kills
                if kill.round == number
            ]
        for member, (fault, last) in self.status_faults.items():
            lines.append(f"  member {member}, asked who it is: {fault} up to round {last}")
        return lines


def draw(seed):
    """Draw the script of a seed.

    The members needed for the quorum are online, available and identified in each round, so that no run ends
    early for lack of clients.
    """
    rng = Random(f"faults {seed}")
    num_rounds = rng.choice((3, 3, 3, 3, 4, 4, 4, 5, 6, 10))
    first = rng.choice((2, 2, 3, 3, 4, 4, 5, 6, 8))
    options, evaluate = _options(rng, first, num_rounds)
    num_kills = rng.choice((0, 0, 0, 0, 1, 1, 2, 3))
    k = int(options["clients_per_round"])
    solid = rng.choice((int(options["quorum"]), k, first))
    members = [_member(rng, number) for number in range(first)]
    nodes, ghosts = _comings_and_goings(rng, members, num_rounds, solid)
    names = [member.name for member in members if member.name]
    impostor = rng.randrange(len(members))
    # A claim of another member's name. A resumed server would reject the claim a round earlier.
    if names and not num_kills and not members[impostor].name:
        members[impostor] = replace(members[impostor], claim=names[-1])
    asleep = {
        (round, member)
        for member in range(solid, len(members))
        if rng.random() < 0.3
        for begin in [rng.randint(1, num_rounds)]
        for round in range(begin, begin + rng.randint(1, 3))
    }
    rate = rng.choice((0.0, 0.1, 0.3, 0.3, 0.6))
    usual = rng.sample((*UNANSWERED, *GARBAGE, *ODD, *LIES), rng.randint(1, 6))
    grid = [(round, member) for round in range(1, num_rounds + 1) for member in range(len(members))]

    def some(kinds, rate):
        return {each: rng.choice(kinds) for each in grid if rng.random() < rate}

    everything = (*UNANSWERED, *rng.sample(GARBAGE, 3), *ODD, *LIES)
    faults = some(usual if rng.random() < 0.5 else everything, rate)
    status_faults = {
        member: _status_fault(rng, num_rounds, num_kills)
        for member in range(max(k, solid), len(members))
        if rng.random() < 0.15
    }
    if rng.random() < 0.05:  # all members have the same app
        status_faults = dict.fromkeys(range(len(members)), ("no handler", num_rounds))
    script = Script(
        seed=seed,
        num_rounds=num_rounds,
        members=tuple(members),
        nodes=tuple(nodes),
        ghosts=frozenset(ghosts),
        asleep=frozenset(asleep),
        faults=faults,
        poll_faults=some(POLL, rate / 2),
        evaluation_faults=some(EVALUATION, rate / 2) if evaluate else {},
        status_faults=status_faults,
        latencies={each: rng.randrange(256) / 1024 for each in grid},
        kills=tuple(
            Kill(rng.randint(1, num_rounds), rng.choice(KILLS), rng.random()) for _ in range(num_kills)
        ),
        options=options,
        evaluate=evaluate,
    )
    # Drawn last, so that the other draws of a seed stay the same.
    level = rng.choice(("sane", "strict", False))
    if options["guard"] is not True or (options.get("masked_updates") and level == "strict"):
        return script
    return replace(script, options={**options, "guard": level})


def _status_fault(rng, num_rounds, num_kills):
    """Draw the fault of a member's status replies.

    The server repeats unanswered queries soon, then ever more rarely, and does not repeat answered ones. A
    resumed server queries all members again and must receive the same replies. So silence ends soon, and
    other faults last for the whole run.
    """
    fault = rng.choice(STATUS)
    if fault in ("silence", "crash"):
        return fault, 1 if num_kills else rng.randint(1, 4)
    return fault, num_rounds


def _member(rng, number):
    named = rng.random() < 0.2
    return Member(
        claim=None if rng.random() < 0.05 else f"client-{number:02d}",
        name=f"{REGISTERED}{number:02d}" if named else "",
        size=rng.choice((1, 5, 10, 30, 100)),
        group=rng.randrange(2),
    )


def _comings_and_goings(rng, members, num_rounds, solid):
    """Return the nodes of each round and the ghosts; append joining clients to the members.

    The first ``solid`` members are always online, but their node ids may change.
    """
    now = {rng.randrange(10, 10**6): member for member in range(len(members))}
    away = []
    rounds = [dict(now)]
    ghosts = set()
    restless = rng.choice((0.0, 0.1, 0.4))
    for round in range(2, num_rounds + 1):
        for ghost in [node for at, node in ghosts if at == round - 1]:
            now.pop(ghost, None)
        if len(members) < 12 and rng.random() < restless:
            members.append(_member(rng, len(members)))
            now[rng.randrange(10, 10**6)] = len(members) - 1
        if rng.random() < restless:  # a node leaves
            node, member = rng.choice(sorted(now.items()))
            if member >= solid:
                del now[node]
                away.append(member)
        if away and rng.random() < 0.5:  # a member returns under a new node id
            now[rng.randrange(10, 10**6)] = away.pop(rng.randrange(len(away)))
        if rng.random() < restless:  # a node restarts
            node, member = rng.choice(sorted(now.items()))
            if member not in {rounds[-1].get(ghost) for at, ghost in ghosts if at == round - 1}:
                now[rng.randrange(10, 10**6)] = member
                registered = members[member].name  # refused until the old connection is detected as dead
                if member >= solid and not registered and rng.random() < 0.5:
                    ghosts.add((round, node))
                else:
                    del now[node]
        if len(members) < 12 and rng.random() < restless / 4:  # a second device claims a client's identity
            double = rng.choice(members)
            members.append(Member(double.claim, "", rng.choice((1, 10, 100)), rng.randrange(2)))
            now[rng.randrange(10, 10**6)] = len(members) - 1
        order = list(now.items())
        rng.shuffle(order)
        rounds.append(dict(order))
    return rounds, ghosts


def _options(rng, num_clients, num_rounds):
    k = rng.randint(1, min(num_clients, 5))
    selector = rng.choice(accepted_selectors())
    settings = dict(_SETTINGS.get(selector, {}))
    for name in sorted(selectors.selector_type(selector).allowed_settings()):
        if name == "replacement":
            settings[name] = rng.random() < 0.7
    guard = rng.choice((True, True, False, {"strikes": 1, "memory": 2, "quarantine": rng.randint(1, 3)}))
    options = {
        "selector": selector,
        "clients_per_round": k,
        "selector_settings": settings,
        "server_strategy": rng.choice((*_STEPS, *SERVER_STRATEGIES)),
        "seed": rng.randrange(1000),
        "quorum": rng.randint(1, k) if rng.random() < 0.3 else 1,
        "over_selection": rng.choice((1.0, 1.0, 1.0, 1.5, 2.0)),
        "correction": rng.choice(("equal", "equal", "rates")),
        "guard": guard,
        "variates": rng.choice((None, None, None, "fedvarp", "scaffold")),
        "ask_status": rng.random() < 0.95,
        "poll_with": rng.choice(("query", "query", "evaluate")),
        "local_learning_rate": rng.choice((0.1, 1.0)),
    }
    if rng.random() < 0.2:
        options["client_sizes"] = {f"client-{number:02d}": float(rng.randint(1, 50)) for number in range(3)}
    if selector in _CLIENT_SETTINGS:
        options["client_settings"] = _CLIENT_SETTINGS[selector]
    if selectors.selector_type(selector).unbiased == "long-run":
        options["correction"] = "equal"  # required: these selectors correct for missing replies themselves
    if rng.random() < 0.2:
        options["num_rounds"] = num_rounds + rng.randint(0, 5)
    evaluate = rng.choice((0.0, 0.0, 0.0, 0.0, 0.5, 1.0))
    if rng.random() < 0.1:
        options |= {"masked_updates": True, "variates": None, "over_selection": 1.0, "correction": "equal"}
    for refused in ({}, {"variates": None}, {"server_strategy": "FedAvg"}, {"masked_updates": False}):
        options |= refused
        try:
            _strategy(options, evaluate)
        except (TypeError, ValueError):  # an incompatible combination
            continue
        return options, evaluate
    raise ValueError(f"options = {options}: refused, whatever is left out")


# Those of a strategy's options that are fields of one object; a script holds them by their own names.
_FAULTS = ("quorum", "over_selection", "correction", "guard")
_POLLING = ("ask_status", "poll_with")
_OVERRIDES = ("client_sizes", "client_settings")
_SETTINGS = {"flics-private": {"group_shares": (0.5, 0.5)}}
_CLIENT_SETTINGS = {"lipschitz-is": {"lipschitz": {"client-00": 1.0, "client-01": 5.0, "client-03": 20.0}}}


@cache
def accepted_selectors():
    """Return the selectors that do not need all updates in advance."""
    accepted = []
    for name in selectors.available():
        try:
            SelectionStrategy(
                name,
                clients_per_round=2,
                selector_settings=_SETTINGS.get(name),
                overrides=Overrides(settings=_CLIENT_SETTINGS.get(name, {})),
            )
        except ValueError:
            continue
        accepted.append(name)
    return tuple(accepted)


def _strategy(options, evaluate):
    made = dict(options)
    make = SERVER_STRATEGIES[made["server_strategy"]]
    made["server_strategy"] = make(fraction_evaluate=evaluate)
    return SelectionStrategy(
        **{name: value for name, value in made.items() if name not in {*_FAULTS, *_POLLING, *_OVERRIDES}},
        deadlines=Deadlines(
            join=2 * DEADLINE, absence=2 * DEADLINE, round=DEADLINE, status=DEADLINE, poll=DEADLINE
        ),
        polling=Polling(interval=DEADLINE / 4, **{name: made[name] for name in _POLLING}),
        faults=Faults(**{name: made[name] for name in _FAULTS}),
        overrides=Overrides(made.get("client_sizes", {}), made.get("client_settings", {})),
    )


def initial_arrays(seed):
    """Return the initial model: tiny, with a matrix in column order and a 0-d array."""
    first = np.float32(seed % 7) / 7
    return {"w": np.full((2, 2), first, np.float32, order="F"), "b": np.array(0.5)}
