"""The duration of a round without any training, on Flower's own engine and on Flower as this project runs it.

``cohort bench rounds [--nodes 4,16] [--per-round 4] [--rounds 12] [--no-stock] [--profile] [--json]``

Federations of an app without work (`benchmarks.noop`) run side by side on this machine, each with TLS, node
authentication, a database and a process per client. ``stock`` has Flower's unchanged programs, FedAvg and
Flower's grid. ``cohort`` has the programs that `cohort up` starts, and this project's strategy.

The federations take turns of three rounds, so that all run under the same load. ``--rounds`` is rounded up to
whole turns. A ``train`` round sends TRAIN to the selected clients. A ``poll`` round first sends a QUERY to
all clients. The first round of each kind, in which the clients fetch the app, is not measured.

Another federation has clients that are not forked from a common parent. Each is started as on a device, by
``python -m deploy.flower.launch flower-supernode``. A second table gives the cost of a waiting client: the
CPU time and the memory of all its processes. PSS counts 1/n of a page that n processes share. With several
``--nodes``, stock Flower takes part with the first number only. ``--json`` prints a line for each federation.
With one number of nodes, it prints only the medians, ``{"stock": {"train": s, "poll": s}, "cohort": {...}}``.

``--profile`` runs one federation, and prints how many CPU seconds each program takes in a round. A process
that handles a message ends before the next round. Its CPU time is in the column "ended children", in the row
of the program that forked it: an app server or the fork server.
"""

import contextlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks import noop
from benchmarks.throughput.processes import cpu_by_program, stat, tree
from deploy.engines.engine import ProcessRun
from deploy.engines.local_cluster import LocalCluster, Programs
from deploy.processes.groups import wait_until

STOCK, COHORT, DEVICES = "stock", "cohort", "cohort, each client by itself"
TURN = 3  # number of rounds in a turn
SETTLE = 5.0  # seconds between the last round and the measurement of waiting clients
IDLE = 30.0  # seconds for which waiting clients are measured
PYPROJECT = """
[project]
name = "noop"
version = "1.0.0"
license = { text = "Apache-2.0" }
[tool.flwr.app]
publisher = "cohort"
[tool.flwr.app.components]
serverapp = "noop:server"
clientapp = "noop:client"
[tool.flwr.app.config]
folder = ""
nodes = 0
per-round = 0
stock = false
"""


class Federation:
    """A cluster whose ServerApp runs rounds in turns, as `benchmarks.noop` says.

    Parameters
    ----------
    cluster : LocalCluster
        A running cluster.
    per_round : int
        K, the number of clients that train in a round.
    """

    def __init__(self, cluster: LocalCluster, per_round: int) -> None:
        self.cluster = cluster
        self.turns = 0
        self.app_cpu = 0.0  # CPU seconds that the clients' handlers reported in the last turn
        self._folder = cluster.folder / "turns"
        self._folder.mkdir()
        self._run: ProcessRun = cluster.submit(
            {
                "folder": str(self._folder),
                "nodes": cluster.num_clients,
                "per-round": per_round,
                "stock": cluster.programs == "stock",
            },
            "noop",
        )

    def turn(self, rounds: int, *, poll: bool, last: bool = False) -> list[float]:
        """Let the app run `rounds` rounds, and return the seconds of each.

        Parameters
        ----------
        rounds : int
            Number of rounds.
        poll : bool
            Whether each round first sends a QUERY to all clients.
        last : bool
            Whether the app ends after this turn.

        Raises
        ------
        RuntimeError
            If the app's run ends early.
        """
        self.turns += 1
        # Written under another name first, so that the app never reads half a file.
        new = self._folder / "turn.new"
        new.write_text(json.dumps({"rounds": rounds, "poll": poll, "last": last}))
        new.rename(self._folder / f"turn-{self.turns}.json")
        done = self._folder / f"done-{self.turns}.json"
        wait_until(lambda: done.exists() or self._run.over, (rounds + 1) * noop.LIMIT)
        if not done.exists():
            raise RuntimeError(f"the run ended early:\n{self._run.log.read_text()[-3000:]}")
        measured = json.loads(done.read_text())
        self.app_cpu = measured["cpu"]
        if last:
            self._run.wait(noop.LIMIT)
        seconds: list[float] = measured["seconds"]
        return seconds


class Cost(NamedTuple):
    """The cost of a waiting client: the sum over its processes, and the mean over the clients."""

    cpu: float  # percent of a core, with the client's share of the common parent's CPU time
    pss: float  # MB
    rss: float  # MB
    shared: float  # PSS in MB of the process that all clients are forked from; 0 without such a process


@contextlib.contextmanager
def federations(names: list[str], nodes: int, per_round: int) -> Iterator[dict[str, Federation]]:
    """Start a federation for each of `names`; afterwards end them all and remove their files."""
    programs: dict[str, Programs] = {STOCK: "stock", COHORT: "forked", DEVICES: "patched"}
    folder = Path(tempfile.mkdtemp(prefix="cohort-rounds-"))
    try:
        app = folder / "app"
        app.mkdir()
        (app / "pyproject.toml").write_text(PYPROJECT)
        shutil.copy(noop.__file__, app / "noop.py")
        with contextlib.ExitStack() as stack:
            yield {
                name: Federation(
                    stack.enter_context(
                        LocalCluster(folder / programs[name], nodes, app=app, programs=programs[name])
                    ),
                    per_round,
                )
                for name in names
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(running: dict[str, Federation], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each measured round: name of the federation -> kind of round -> seconds.

    Each federation runs at least `rounds` rounds of each kind.
    """
    seconds: dict[str, dict[str, list[float]]] = {name: {"train": [], "poll": []} for name in running}
    turns = -(-rounds // TURN)
    for turn in range(1 + turns):
        for kind in ("train", "poll"):
            for name, federation in running.items():
                last = turn == turns and kind == "poll"
                # Turn 0 is a single round that is not measured: the clients fetch the app in it.
                took = federation.turn(TURN if turn else 1, poll=kind == "poll", last=last)
                if turn:
                    seconds[name][kind] += took
    return seconds


def profile(nodes: int, per_round: int, rounds: int) -> str:
    """Return a table of the CPU seconds that each program of `cohort up` spends in a round (Linux)."""
    lines = [f"{'CPU seconds a round':32} {'kind':6} {'running':>8} {'ended children':>15}"]
    with federations([COHORT], nodes, per_round) as running:
        federation = running[COHORT]
        federation.turn(1, poll=True)
        for kind in ("train", "poll"):
            before = _by_program(federation.cluster)
            took = federation.turn(rounds, poll=kind == "poll")
            after = _by_program(federation.cluster)
            costs = {
                name: [
                    (now - then) / rounds for now, then in zip(spent, before.get(name, (0, 0)), strict=True)
                ]
                for name, spent in after.items()
            }
            for name, (own, ended) in sorted(costs.items(), key=lambda item: -sum(item[1])):
                if own + ended >= 0.0005:
                    lines.append(f"{name:32} {kind:6} {own:8.3f} {ended:15.3f}")
            own, ended = map(sum, zip(*costs.values(), strict=True))
            lines.append(f"{'all programs':32} {kind:6} {own:8.3f} {ended:15.3f}")
            lines.append(f"{'seconds a round (median)':32} {kind:6} {statistics.median(took):8.3f}")
        federation.turn(1, poll=False, last=True)
    return "\n".join(lines)


def _by_program(cluster: LocalCluster) -> dict[str, tuple[float, float]]:
    (root,) = cluster.roots  # the fork server: all programs are forked from it
    return cpu_by_program(root)


def idle_costs(running: dict[str, Federation]) -> dict[str, Cost]:
    """Measure the cost of a waiting client in each federation, in all of them at the same time (Linux)."""
    time.sleep(SETTLE)
    before = {name: _cpu_seconds(federation.cluster) for name, federation in running.items()}
    time.sleep(IDLE)
    costs = {}
    for name, federation in running.items():
        cluster = federation.cluster
        clients = [pid for process in cluster.client_processes for pid in tree(process.pid)]
        count, server = cluster.num_clients, cluster.fork_server_process
        costs[name] = Cost(
            cpu=100 * (_cpu_seconds(cluster) - before[name]) / IDLE / count,
            pss=sum(_megabytes(pid, "Pss") for pid in clients) / count,
            rss=sum(_megabytes(pid, "Rss") for pid in clients) / count,
            shared=_megabytes(server.pid, "Pss") if server else 0.0,
        )
    return costs


def _cpu_seconds(cluster: LocalCluster) -> float:
    """Return the CPU seconds so far of all clients' processes and of the process they are forked from."""
    pids = {pid for process in cluster.client_processes for pid in tree(process.pid)}
    if cluster.fork_server_process:
        pids.add(cluster.fork_server_process.pid)
    ticks = 0
    for pid in pids:
        user, system = stat(pid)[11:13]
        ticks += int(user) + int(system)
    return ticks / os.sysconf("SC_CLK_TCK")


def _megabytes(pid: int, what: str) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) / 1000
    raise ValueError(f"what = {what!r}: not in smaps_rollup")


def table_of_rounds(seconds: dict[str, dict[str, list[float]]]) -> str:
    """Return the result of `measure` as a table."""
    lines = [f"{'seconds a round':32}  kind   median    10 %    90 %     max  rounds"]
    for name, kinds in seconds.items():
        for kind, took in kinds.items():
            tenths = statistics.quantiles(took, n=10, method="inclusive")
            lines.append(
                f"{name:32}  {kind:5} {statistics.median(took):7.2f} {tenths[0]:7.2f} {tenths[-1]:7.2f} "
                f"{max(took):7.2f} {len(took):7}"
            )
    return "\n".join(lines)


def table_of_costs(costs: dict[str, Cost]) -> str:
    """Return the result of `idle_costs` as a table."""
    lines = [f"{'a waiting client':32}   CPU %   PSS MB   RSS MB   PSS MB of the common parent"]
    for name, cost in costs.items():
        lines.append(f"{name:32} {cost.cpu:7.2f} {cost.pss:8.0f} {cost.rss:8.0f} {cost.shared:8.0f}")
    return "\n".join(lines)


def medians(nodes: int, per_round: int, rounds: int, no_stock: bool) -> dict[str, dict[str, float]]:
    """Return the median seconds of a round, {"stock": {"train": s, "poll": s}, "cohort": {...}}."""
    with federations([STOCK, COHORT][no_stock:], nodes, per_round) as running:
        return {
            name: {kind: round(statistics.median(took), 3) for kind, took in kinds.items()}
            for name, kinds in measure(running, rounds).items()
        }


def run(nodes: int, per_round: int, rounds: int, no_stock: bool, as_json: bool) -> None:
    """Print the tables, or a JSON object for each federation: median seconds, and the costs of waiting."""
    names = [STOCK, COHORT, DEVICES][no_stock:]
    with federations(names, nodes, per_round) as running:
        seconds = measure(running, rounds)
        if not as_json:
            print(table_of_rounds(seconds), flush=True)
        waiting = idle_costs(running)
    if not as_json:
        print(f"\n{table_of_costs(waiting)}\n")
        return
    for name, kinds in seconds.items():
        row: dict[str, object] = {"programs": name, "nodes": nodes, "per_round": per_round}
        row |= {f"{kind}_s": round(statistics.median(took), 3) for kind, took in kinds.items()}
        cost = waiting[name]
        print(json.dumps(row | {"waiting_cpu_percent": cost.cpu, "waiting_mb": cost.pss}), flush=True)
