"""The faults that the nemesis can cause, and when it causes them: a function of a seed alone."""

import random
from dataclasses import asdict, dataclass

from ..support.proxy import Trouble

SUPERLINK, SERVERAPP, SUPERNODE, CLIENTAPP, DATABASE, NETWORK = (
    "superlink",
    "serverapp",
    "supernode",
    "clientapp",
    "database",
    "network",
)
# Of several front ends on one PostgreSQL: the processes of one of them, with its ServerApp; the connections
# of one to PostgreSQL; PostgreSQL; a front end's executor; the process that follows the run.
MACHINE, LINK, POSTGRES, EXECUTOR, FOLLOWER = "machine", "link", "postgres", "executor", "follower"
LONGEST = {"pause": 20.0, "lock": 12.0, "partition": 25.0, "half": 25.0, "clock": 25.0}  # s
JUMPS = -60.0, -5.0, 5.0, 60.0  # s
LONGEST_OUTAGE = {(MACHINE, "kill"): 40.0, (POSTGRES, "kill"): 15.0}  # s until it is started again
# (part, fault): how often it is drawn
FAULTS = {
    (SUPERLINK, "pause"): 2,
    (SUPERLINK, "kill"): 2,
    (SUPERLINK, "restart"): 1,
    (SERVERAPP, "pause"): 2,
    (SERVERAPP, "kill"): 2,
    (SERVERAPP, "restart"): 1,
    (SUPERNODE, "pause"): 3,
    (SUPERNODE, "kill"): 3,
    (SUPERNODE, "restart"): 1,
    (CLIENTAPP, "pause"): 2,
    (CLIENTAPP, "kill"): 3,
    (DATABASE, "lock"): 3,
    (NETWORK, "partition"): 5,
    (NETWORK, "half"): 3,
    (MACHINE, "kill"): 4,
    (MACHINE, "clock"): 3,
    (LINK, "partition"): 5,
    (POSTGRES, "kill"): 2,
    (POSTGRES, "restart"): 1,
    (POSTGRES, "pause"): 2,
    (EXECUTOR, "kill"): 1,
    (EXECUTOR, "pause"): 1,
    (FOLLOWER, "kill"): 2,
    (FOLLOWER, "pause"): 1,
}


@dataclass(frozen=True)
class Fault:
    """One fault: it begins `start` seconds after its episode and is healed `seconds` later."""

    part: str
    fault: str
    client: int | None
    """The client whose SuperNode, ClientApp or connection is meant; None for all clients' connections, or for
    those of every second client (half)."""
    start: float
    seconds: float
    trouble: str = ""
    """What a partition does to the connections; see `proxy.Trouble`."""
    delay: float = 0.0
    """Seconds that each chunk is delayed."""
    reset: bool = False
    """Whether connections break when a partition is healed, instead of going on."""
    front: int | None = None
    """The front end whose process or connections are meant, if there are several; None for all."""
    jump: float = 0.0
    """Seconds by which a machine's clock jumps; healed, it jumps back."""


@dataclass(frozen=True)
class Episode:
    """Faults that overlap, after some quiet seconds."""

    number: int
    quiet: float
    faults: tuple[Fault, ...]

    def line(self):
        """Return it for a JSON line, without the settings that are not used."""
        always = {"client", "start", "seconds"}
        faults = [
            {
                name: value
                for name, value in asdict(fault).items()
                if value or name in always or (name == "front" and value is not None)
            }
            for fault in self.faults
        ]
        return {"episode": self.number, "quiet": self.quiet, "faults": faults}


def episode(seed, number, num_clients, parts, fronts=1):
    """Return an episode of the schedule of a seed.

    Parameters
    ----------
    parts : frozenset of str
        "part fault" of `FAULTS` that the engine can suffer.
    fronts : int
        How many front ends the server has.
    """
    chance = random.Random(f"{seed} {number}")
    known = [(part, fault) for part, fault in FAULTS if f"{part} {fault}" in parts]
    kinds = chance.choices(known, [FAULTS[kind] for kind in known], k=chance.choice((1, 1, 2, 3)))
    faults = tuple(_fault(chance, part, fault, num_clients, fronts) for part, fault in kinds)
    return Episode(number, round(chance.uniform(1, 4), 2), faults)


def _fault(chance, part, fault, num_clients, fronts):
    longest = LONGEST_OUTAGE.get((part, fault), LONGEST.get(fault, 0.0))
    seconds = round(min(longest, chance.choice((0.3, 1.0)) * chance.uniform(0.1, 1) * longest), 2)
    one = part in (SUPERNODE, CLIENTAPP, NETWORK) and fault != "half"
    client = chance.randrange(num_clients) if one else None
    start = round(chance.uniform(0, 3), 2)
    front = None
    if fronts > 1 and part in (SUPERLINK, EXECUTOR, MACHINE, LINK, NETWORK):
        front = chance.randrange(fronts)
    if part not in (NETWORK, LINK):
        jump = chance.choice(JUMPS) if fault == "clock" else 0.0
        return Fault(part, fault, client, start, seconds, front=front, jump=jump)
    if one and chance.random() < 0.25:
        client = None
    trouble = chance.choice([each for each in Trouble if each is not Trouble.NONE])
    delay = round(chance.uniform(0.2, 2), 2) if trouble is Trouble.DELAY else 0.0
    reset = chance.random() < 0.5
    if fronts > 1 and one and chance.random() < 0.5:
        front = None
    return Fault(part, fault, client, start, seconds, trouble.value, delay, reset, front)
