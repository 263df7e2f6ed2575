"""The time and the memory of a round with a large model, in stock Flower and as this project runs it.

A federation of this machine, with TLS, node authentication and a database, sends a model of float32 to each
node in each round. The nodes do not train: they change a parameter of each layer and send the model back.
With half precision, models and updates travel as float16, half the bytes.

For each node, the model is transferred six times in a round: to the SuperLink, the SuperNode and the
ClientApp, and back. The loopback's time is that of the same bytes through one local TCP connection without
TLS. The memory of a program is the largest growth of the anonymous memory of one of its processes, read 20
times a second (Linux), as a multiple of the model's size. The ServerApp holds the replies of all nodes at
once.
"""

from __future__ import annotations

import contextlib
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.messages.measure import spent
from benchmarks.rounds.measure import federation
from benchmarks.throughput.processes import status_of, tree
from deploy.engines.local_cluster import LocalCluster, Programs

PROGRAMS: dict[str, tuple[Programs, bool]] = {  # name -> programs, and whether they send half precision
    "cohort": ("forked", False),
    "cohort, half precision": ("forked", True),
    "stock": ("stock", False),
}
LOOK = 0.05  # seconds between two looks at the memory of the processes
BLOCK = 1 << 20  # bytes of a write to the loopback


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
                with contextlib.suppress(OSError, IndexError):  # the process has ended, or is ending
                    now = status_of(pid, "RssAnon") * 1024 / 1e6
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                    grown = now - self._first.setdefault(pid, now)
                    self.grown[name] = max(self.grown.get(name, 0.0), grown)


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


def measure(megabytes: float, programs: Programs, half: bool, nodes: int, rounds: int) -> dict[str, object]:
    """Return the cost of a round: median "seconds", mean "cpu" of all programs, and "loopback", "copies".

    "loopback": the seconds that the same bytes take through the loopback; "copies": program -> the largest
    growth of one process, in sizes of the model.
    """
    app, config = Path(__file__).with_name("large_app.py"), {"megabytes": megabytes, "half": half}
    with federation(programs, nodes, app=app, config=config) as running, Memory(running.cluster) as memory:
        running.turn(1, poll=False)
        before = spent(running.cluster)
        seconds = running.turn(rounds, poll=False)
        cpu = (spent(running.cluster) - before) / rounds
        running.turn(1, poll=False, last=True)
    return {
        "seconds": statistics.median(seconds),
        "cpu": cpu,
        "loopback": loopback(round(megabytes * 1e6 * nodes * (3 if half else 6))),
        "copies": {name: grown / megabytes for name, grown in memory.grown.items()},
    }


def compare(sizes: list[float], nodes: int, rounds: int, stock_up_to: float) -> Iterator[dict[str, object]]:
    """Yield a record for each size and program. Programs that fail have an ``error``."""
    for megabytes in sizes:
        for name, (programs, half) in PROGRAMS.items():
            if programs == "stock" and megabytes > stock_up_to:
                continue
            row: dict[str, object] = {"megabytes": megabytes, "programs": name}
            try:
                yield row | measure(megabytes, programs, half, nodes, rounds)
            except (RuntimeError, TimeoutError) as error:
                yield row | {"error": str(error).strip().rpartition("\n")[2]}
