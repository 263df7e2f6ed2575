"""The duration of a round without any training, on Flower's own engine and on Flower as this project runs it.

Federations of an app without work (`benchmarks.noop`) run side by side on this machine, each with TLS, node
authentication, a database and a process per client. ``stock`` has Flower's unchanged programs, FedAvg and
Flower's grid. ``cohort`` has the programs that `cohort up` starts, and this project's strategy. The clients
of another federation are not forked from a common parent: each is started as on a device.

The federations take turns of three rounds, so that all run under the same load. A ``train`` round sends TRAIN
to the selected clients. A ``poll`` round first sends a QUERY to all clients. The first round of each kind, in
which the clients fetch the app, is not measured. Then the CPU time and the memory of a waiting client's
processes are measured. PSS counts 1/n of a page that n processes share.

A process that handles a message ends before the next round. In a profile, its CPU time is in the column
"ended children", in the row of the program that forked it: an app server or the fork server.
"""

import contextlib
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import noop
from benchmarks.apps import write_app
from benchmarks.throughput.processes import cpu_by_program, stat, tree
from deploy.engines.engine import ProcessRun
from deploy.engines.local_cluster import LocalCluster, Programs
from deploy.processes.groups import wait_until

STOCK, COHORT, DEVICES = "stock", "cohort", "cohort, each client by itself"
PROGRAMS: dict[str, Programs] = {STOCK: "stock", COHORT: "forked", DEVICES: "patched"}
TURN = 3  # number of rounds in a turn
SETTLE = 5.0  # seconds between the last round and the measurement of waiting clients
IDLE = 30.0  # seconds for which waiting clients are measured
CONFIG = {"folder": "", "nodes": 0, "per-round": 0, "stock": False}
"""The settings of `benchmarks.noop`."""


class Federation:
    """A running cluster whose ServerApp runs rounds with K = `per_round` in turns, see `benchmarks.noop`."""

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

        With `poll`, each round first sends a QUERY to all clients. With `last`, the app ends after this turn.
        Raises RuntimeError if the app's run ends early.
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


@contextlib.contextmanager
def federation(
    programs: Programs,
    nodes: int,
    per_round: int | None = None,
    app: Path | None = None,
    config: Mapping[str, object] | None = None,
) -> Iterator[Federation]:
    """Start a federation; afterwards end all its processes and remove its files.

    It runs `benchmarks.noop`, or the file `app`, which has the further settings `config` and imports noop.
    """
    folder = Path(tempfile.mkdtemp(prefix="cohort-rounds-"))
    try:
        sources = (Path(noop.__file__), *([] if app is None else [app]))
        bundle = write_app(folder / "app", {**CONFIG, **(config or {})}, *sources)
        with LocalCluster(folder / "cluster", nodes, app=bundle, programs=programs) as cluster:
            yield Federation(cluster, per_round or nodes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(running: dict[str, Federation], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of rounds, at least `rounds` of each kind: federation -> kind -> seconds."""
    seconds: dict[str, dict[str, list[float]]] = {name: {"train": [], "poll": []} for name in running}
    turns = -(-rounds // TURN)
    for turn in range(1 + turns):
        for kind in ("train", "poll"):
            for name, each in running.items():
                last = turn == turns and kind == "poll"
                # Turn 0 is a single round that is not measured: the clients fetch the app in it.
                took = each.turn(TURN if turn else 1, poll=kind == "poll", last=last)
                if turn:
                    seconds[name][kind] += took
    return seconds


def profile(nodes: int, per_round: int, rounds: int) -> str:
    """Return a table of the CPU seconds that each program of `cohort up` spends in a round (Linux)."""
    lines = [f"{'CPU seconds a round':32} {'kind':6} {'running':>8} {'ended children':>15}"]
    with federation("forked", nodes, per_round) as running:
        (root,) = running.cluster.roots  # the fork server: all programs are forked from it
        running.turn(1, poll=True)
        for kind in ("train", "poll"):
            before = cpu_by_program(root)
            took = running.turn(rounds, poll=kind == "poll")
            costs = {
                name: [
                    (now - then) / rounds for now, then in zip(spent, before.get(name, (0, 0)), strict=True)
                ]
                for name, spent in cpu_by_program(root).items()
            }
            costs["all programs"] = [sum(each) for each in zip(*costs.values(), strict=True)]
            for name, (own, ended) in sorted(costs.items(), key=lambda item: sum(item[1])):
                if own + ended >= 0.0005:
                    lines.append(f"{name:32} {kind:6} {own:8.3f} {ended:15.3f}")
            lines.append(f"{'seconds a round (median)':32} {kind:6} {statistics.median(took):8.3f}")
        running.turn(1, poll=False, last=True)
    return "\n".join(lines)


def idle_costs(running: dict[str, Federation]) -> dict[str, dict[str, float]]:
    """Measure the cost of a waiting client in each federation, in all of them at the same time (Linux).

    It is a sum over the client's processes, with its share of the common parent's CPU time.
    """
    time.sleep(SETTLE)
    before = {name: _cpu_seconds(each.cluster) for name, each in running.items()}
    time.sleep(IDLE)
    costs = {}
    for name, each in running.items():
        count = each.cluster.num_clients
        clients = [pid for process in each.cluster.client_processes for pid in tree(process.pid)]
        costs[name] = {
            "waiting_cpu_percent": 100 * (_cpu_seconds(each.cluster) - before[name]) / IDLE / count,
            "waiting_mb": sum(map(_pss_megabytes, clients)) / count,
        }
    return costs


def _cpu_seconds(cluster: LocalCluster) -> float:
    """Return the CPU seconds so far of all clients' processes and of the process they are forked from."""
    pids = {pid for process in cluster.client_processes for pid in tree(process.pid)}
    if cluster.fork_server_process:
        pids.add(cluster.fork_server_process.pid)
    return sum(int(ticks) for pid in pids for ticks in stat(pid)[11:13]) / os.sysconf("SC_CLK_TCK")


def _pss_megabytes(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.partition("\nPss:")[2].split()[0]) / 1000


def compare(nodes: list[int], per_round: int | None, rounds: int, no_stock: bool) -> Iterator[dict[str, Any]]:
    """Yield for each federation its size, the median seconds of a round, and the costs of waiting.

    With several numbers of nodes, stock Flower takes part with the first number only.
    """
    for number in nodes:
        names = list(PROGRAMS)[no_stock or number != nodes[0] :]
        with contextlib.ExitStack() as stack:
            running = {
                name: stack.enter_context(federation(PROGRAMS[name], number, per_round)) for name in names
            }
            seconds, waiting = measure(running, rounds), idle_costs(running)
        for name, kinds in seconds.items():
            medians = {f"{kind}_s": round(statistics.median(took), 3) for kind, took in kinds.items()}
            row = {"programs": name, "nodes": number, "per_round": per_round or number}
            yield {**row, **medians, **waiting[name]}
