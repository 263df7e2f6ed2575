"""Measures front ends that share one PostgreSQL with simulated devices, and one with SQLite beside them.

PostgreSQL has its own defaults, and is reached over TCP without TLS. `benchmarks.devices.measure` explains
the server and the devices.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.devices.cluster import DeviceCluster, Settings
from benchmarks.devices.measure import devices, failures, play
from benchmarks.devices.postgres import STATISTICS, Postgres
from benchmarks.throughput.processes import cpu_clock, cpu_seconds, status_of, tree
from deploy.fleet.storage.postgres import connect

SQLITE, POSTGRES = "SQLite", "PostgreSQL"
LOOK = 0.05  # s between two looks at the lock
# Statements, the seconds that PostgreSQL worked or waited for their results (not for commits to reach the
# disk), and of these the seconds until the lock of transactions that exclude each other was free
_STATEMENTS = (
    "SELECT coalesce(sum(calls), 0)::float8, coalesce(sum(total_exec_time), 0) / 1000, "
    "coalesce(sum(total_exec_time) FILTER (WHERE query LIKE '%pg_advisory_xact_lock%'), 0) / 1000 "
    "FROM pg_stat_statements JOIN pg_database ON dbid = pg_database.oid WHERE datname = '{name}'"
)
_LOCK = (
    "SELECT count(*) FROM pg_locks JOIN pg_database ON database = pg_database.oid "
    "WHERE locktype = 'advisory' AND granted AND datname = current_database()"
)


class Use(NamedTuple):
    """What each part has used since its start: CPU seconds, and numbers of the machine and the database."""

    apps: float  # CPU seconds of the executors and the ServerApp
    postgres: float
    load: float  # of the load generators
    loopback_mb: float  # that all programs of this machine have sent each other, but not through sockets
    written_mb: float  # written to files by the SuperLinks and PostgreSQL
    statements: float
    statements_s: float
    lock_wait_s: float
    superlinks: tuple[float, ...]


class Database:
    """A new database of a cell: of a PostgreSQL, or a file if `server` is None."""

    def __init__(self, server: Postgres | None, name: str) -> None:
        self.server, self.name = server, name
        self.url = server.tcp_url(name) if server else ""

    @contextmanager
    def made(self) -> Iterator[Database]:
        """Make the database; remove it at the end of the `with` block."""
        if self.server:
            self.server.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            self.server.execute(f"CREATE DATABASE {self.name}")
        yield self
        if self.server:
            self.server.execute(f"DROP DATABASE {self.name} WITH (FORCE)")

    @contextmanager
    def lock_looked_at(self) -> Iterator[list[int]]:
        """Inside a `with` block, look whether the lock is held, and put 1 or 0 into the list each time."""
        found: list[int] = []
        if not self.server:
            yield found
            return
        over = threading.Event()

        def look() -> None:
            with connect(self.url) as connection:
                while not over.wait(LOOK):
                    found.append(int(connection.execute(_LOCK).fetchone()[0]))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join()

    def use(self, cluster: DeviceCluster) -> Use:
        """Return what everything has used until now."""
        superlinks = tuple(map(cpu_clock, cluster.superlinks))
        roots, counted = list(cluster.superlinks), (0.0, 0.0, 0.0)
        if self.server:
            roots.append(self.server.process.pid)
            counted = self.server.execute(_STATEMENTS.format(name=self.name))[0]
        return Use(
            sum(map(cpu_seconds, cluster.superlinks)) - sum(superlinks),
            cpu_seconds(self.server.process.pid) if self.server else 0.0,
            sum(cpu_clock(process.pid) for process in cluster.loads),
            int(Path("/proc/net/dev").read_text().partition("lo:")[2].split()[0]) / 1e6,
            sum(map(_written, roots)) / 1e6,
            *counted,
            superlinks,
        )


def compare(
    fronts: Sequence[int], nodes: int, per_round: Sequence[int], rounds: int, turns: int
) -> Iterator[dict[str, Any]]:
    """Yield the results of each cell of each turn, in rounds with each number of devices.

    The cells are SQLite with one SuperLink, and PostgreSQL with each number of front ends; every second turn
    goes backwards. ``..._s`` and ``..._mb`` are of a round, except ``superlinks_mb``, the largest resident
    memory of each SuperLink, and ``online_s``; ``round_s`` is a median. ``lock_share`` is the share of the
    time in which the lock of transactions that exclude each other was held. `Use` explains the others.
    """
    cells = [(SQLITE, 1), *((POSTGRES, count) for count in fronts)]
    with Postgres(STATISTICS, tcp=True) as server:
        for turn in range(turns):
            for kind, count in cells[:: -1 if turn % 2 else 1]:
                database = Database(server if kind == POSTGRES else None, f"turn_{turn}_{count}")
                with database.made():
                    settings = Settings(nodes, rounds=rounds, fronts=count, database=database.url)
                    with devices(settings) as cluster:
                        for number in per_round:
                            found = _rounds(settings._replace(per_round=number), cluster, database)
                            yield {"turn": turn, "database": kind, "front_ends": count, **found}


def _rounds(settings: Settings, cluster: DeviceCluster, database: Database) -> dict[str, Any]:
    held: list[list[int]] = []
    with database.lock_looked_at() as looks:

        def sample() -> Use:
            held.append(looks.copy())
            return database.use(cluster)

        lines, uses = play(settings, cluster, sample, f"of-{settings.per_round}")
    first, last, count = uses[0], uses[-1], len(uses) - 1
    looked = held[-1][len(held[0]) :]
    each = {name: round((getattr(last, name) - getattr(first, name)) / count, 4) for name in Use._fields[:-1]}
    cpu = {f"{name}_cpu_s": each.pop(name) for name in ("apps", "postgres", "load")}
    return {
        "per_round": settings.per_round,
        "online_s": round(cluster.online_s, 1),
        "first_round_s": round(lines[0]["seconds"], 2),
        "round_s": round(statistics.median(line["seconds"] for line in lines[1:]), 3),
        "superlinks_cpu_s": _each(first.superlinks, last.superlinks, count),
        **cpu,
        **each,
        "lock_share": round(statistics.fmean(looked), 3) if looked else 0.0,
        "superlinks_mb": [round(status_of(pid, "VmHWM") / 1000) for pid in cluster.superlinks],
        **failures(lines),
    }


def wait(fronts: Sequence[int], nodes: int, seconds: float, processes: int) -> Iterator[dict[str, Any]]:
    """Yield what devices that only wait cost each number of front ends, in so many seconds after their start.

    ``..._cpu_ms`` are milliseconds of CPU time a second; ``kb_per_device`` is the growth of all SuperLinks'
    resident memory. ``offline``: devices that are not online at the end.
    """
    with Postgres(STATISTICS, tcp=True) as server:
        for count in fronts:
            with Database(server, f"waiting_{count}").made() as database:
                settings = Settings(nodes, processes=processes, fronts=count, database=database.url)
                with devices(settings) as cluster:
                    began, sent = time.monotonic(), cluster.counts["requests"]
                    first = database.use(cluster)
                    while time.monotonic() < began + seconds:
                        cluster.check()
                        time.sleep(1)
                    last, counts = database.use(cluster), cluster.counts
                    took = time.monotonic() - began
                    memory = [status_of(pid, "VmRSS") for pid in cluster.superlinks]
                    grown = sum(memory) - sum(cluster.empty_kb)
                    yield {
                        "front_ends": count,
                        "devices": nodes,
                        "seconds": round(took, 1),
                        "online_s": round(cluster.online_s, 1),
                        "requests_per_s": round((counts["requests"] - sent) / took, 2),
                        "superlinks_cpu_ms": _each(first.superlinks, last.superlinks, took / 1000),
                        "postgres_cpu_ms": round((last.postgres - first.postgres) / took * 1000, 2),
                        "load_cpu_ms": round((last.load - first.load) / took * 1000, 2),
                        "statements_per_s": round((last.statements - first.statements) / took, 2),
                        "superlinks_mb": [round(each / 1000) for each in memory],
                        "kb_per_device": round(grown / nodes, 1),
                        "offline": nodes - counts["online"],
                    }


def _each(first: Sequence[float], last: Sequence[float], count: float) -> list[float]:
    return [round((after - before) / count, 3) for before, after in zip(first, last, strict=True)]


def _written(root: int) -> int:
    """Return the bytes that a process has written to files, with its descendants, running or ended."""
    found = 0
    for pid in tree(root):
        try:
            text = Path(f"/proc/{pid}/io").read_text()
        except OSError:  # it has ended meanwhile
            continue
        found += int(text.partition("\nwrite_bytes:")[2].split()[0])
    return found
