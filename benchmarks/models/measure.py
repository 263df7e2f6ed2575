"""The time and the memory of a round with a large model, in stock Flower and as this project runs it.

``cohort bench models [--megabytes 100,500] [--nodes 5] [--rounds 3] [--stock-up-to MB]
[--no-stock] [--json]``, or ``python -m benchmarks.models``

A federation of this machine, with TLS, node authentication and a database, sends a model of float32 to each
node in each round. The nodes do not train: they change a parameter of each layer and send the model back.
With half precision, models and updates travel as float16 (`strategies.half_precision`), half the bytes. The
time is the median of the rounds.

For each node, the model is transferred six times in a round: to the SuperLink, the SuperNode and the
ClientApp, and back. For comparison, the same number of bytes is sent through one local TCP connection without
TLS; the seconds that this takes are called the loopback's time.

The anonymous memory of each process is read 20 times a second (Linux). The memory of a program is the largest
growth of one of its processes since the first reading, as a multiple of the model's size. The ServerApp holds
the replies of all nodes at once, so its multiple grows with the number of nodes.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import noop
from benchmarks.rounds.measure import PYPROJECT, Federation
from benchmarks.throughput.processes import cpu_seconds, tree
from deploy.engines.local_cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploy.engines.local_cluster import Programs

PROGRAMS: dict[str, tuple[Programs, bool]] = {  # name -> programs, and whether they send half precision
    "cohort": ("forked", False),
    "cohort, half precision": ("forked", True),
    "stock": ("stock", False),
}
LOOK = 0.05  # seconds between two looks at the memory of the processes
BLOCK = 1 << 20  # bytes of a write to the loopback


class Cost(NamedTuple):
    """The cost of a round."""

    seconds: float  # the median duration of the rounds
    cpu: float  # CPU seconds of all programs, the mean over the rounds
    loopback: float  # seconds that the same bytes take through the loopback
    copies: dict[str, float]  # program -> the largest growth of one process, in sizes of the model


class Memory:
    """For each program, the largest growth of the memory of one of its processes during the `with` block."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.grown: dict[str, float] = {}  # program -> MB
        self._roots = cluster.roots
        self._first: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK):
            for pid in [pid for root in self._roots for pid in tree(root)]:
                with contextlib.suppress(OSError):  # the process has ended
                    now = _anonymous(pid)
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                    grown = now - self._first.setdefault(pid, now)
                    self.grown[name] = max(self.grown.get(name, 0.0), grown)


def _anonymous(pid: int) -> float:
    """Return the anonymous memory of a process, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0  # a process that is ending


def loopback(size: int) -> float:
    """Return the seconds that `size` bytes take through a TCP connection of this machine."""
    block = bytes(BLOCK)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def send() -> None:
            with socket.create_connection(server.getsockname()) as connection:
                for start in range(0, size, BLOCK):
                    connection.sendall(block[: size - start])

        sender = threading.Thread(target=send)
        began = time.perf_counter()
        sender.start()
        connection, _ = server.accept()
        with connection:
            while connection.recv(BLOCK):
                pass
        sender.join()
    return time.perf_counter() - began


@contextlib.contextmanager
def federation(megabytes: float, programs: Programs, half: bool, nodes: int) -> Iterator[Federation]:
    """Start a federation with a model of this size; afterwards end all processes and remove the files."""
    folder = Path(tempfile.mkdtemp(prefix="cohort-models-"))
    try:
        bundle = folder / "app"
        bundle.mkdir()
        project = PYPROJECT.replace('"noop:', '"large_app:') + f"megabytes = {megabytes}\n"
        (bundle / "pyproject.toml").write_text(project + f"half = {json.dumps(half)}\n")
        shutil.copy(noop.__file__, bundle / "noop.py")
        shutil.copy(Path(__file__).with_name("large_app.py"), bundle)
        with LocalCluster(folder / "cluster", nodes, app=bundle, programs=programs) as cluster:
            yield Federation(cluster, nodes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(megabytes: float, programs: Programs, half: bool, nodes: int, rounds: int) -> Cost:
    """Return the cost of a round, from `rounds` rounds with `nodes` nodes and a model of this size."""
    with federation(megabytes, programs, half, nodes) as running, Memory(running.cluster) as memory:
        running.turn(1, poll=False)
        before = _spent(running.cluster)
        seconds = running.turn(rounds, poll=False)
        cpu = (_spent(running.cluster) - before) / rounds
        running.turn(1, poll=False, last=True)
    through = loopback(round(megabytes * 1e6 * nodes * (3 if half else 6)))
    copies = {name: grown / megabytes for name, grown in memory.grown.items()}
    return Cost(statistics.median(seconds), cpu, through, copies)


def _spent(cluster: LocalCluster) -> float:
    return sum(cpu_seconds(pid) for pid in cluster.roots)


def run(sizes: list[float], nodes: int, rounds: int, stock_up_to: float, as_json: bool) -> None:
    """Print a paragraph for each size and program, or a JSON object. Programs that fail have an ``error``."""
    for megabytes in sizes:
        for name, (programs, half) in PROGRAMS.items():
            if programs == "stock" and megabytes > stock_up_to:
                continue
            row: dict[str, object] = {"megabytes": megabytes, "programs": name}
            try:
                cost = measure(megabytes, programs, half, nodes, rounds)
            except (RuntimeError, TimeoutError) as error:
                row["error"] = str(error).strip().rpartition("\n")[2]
                print(json.dumps(row) if as_json else f"{megabytes:g} MB, {name}: {row['error']}")
                continue
            if as_json:
                print(json.dumps(row | cost._asdict()), flush=True)
                continue
            print(
                f"{megabytes:g} MB, {name}: {cost.seconds:.1f} s a round, {cost.cpu:.1f} s of CPU; "
                f"{cost.seconds / cost.loopback:.1f} times the loopback's {cost.loopback:.2f} s"
            )
            for program, copies in sorted(cost.copies.items(), key=lambda item: -item[1]):
                if copies >= 0.05:
                    print(f"    {program:24} {copies:5.1f} times the model")
