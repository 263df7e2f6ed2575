"""Measures rounds of a real server with many simulated devices: seconds, CPU time, memory, lost replies.

The server is the SuperLink with its patches, guards and database, as `cohort up` and `cohort server up` start
it. A real ServerApp runs Cohort's strategy. The devices are simulated (`benchmarks.devices.device`). Round 1,
in which the devices report their status and fetch the app, is measured apart.
"""

import json
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from benchmarks.apps import write_app
from benchmarks.devices import app
from benchmarks.devices.cluster import DeviceCluster, Settings
from benchmarks.throughput.processes import cpu_clock, status_of
from deploy.flower.config import ConfigValue
from deploy.processes.groups import wait_until
from strategies.rounds.waiting.wait_time import LATE, NOT_AWAITED

LIMIT = 600.0  # s that a round waits for a reply
# s until a round has ended. With LIMIT alone, a lost reply would end the benchmark instead of being counted.
ROUND_LIMIT = LIMIT + 120.0
AWAY = "error "  # in a round record, the failure of a disconnected device begins with this text
SETTLE = 10.0  # s, the longest wait after the last round for devices to answer or abandon their messages
FLOAT = 4  # bytes of a number in the model
KINDS = ("lost", "away", "refused")  # of replies that were not used

Sample = TypeVar("Sample")


class Use(NamedTuple):
    """What the SuperLink and the load generators use, at one moment."""

    cpu: float  # CPU seconds of the SuperLink since its start
    load_cpu: float  # CPU seconds of the load generators since their start
    files: int  # open files of the SuperLink
    threads: int  # of the SuperLink
    memory: int  # resident memory of the SuperLink, kB


def measure(settings: Settings) -> dict[str, Any]:
    """Run the rounds, and return the results by name; RuntimeError if the run ends early.

    ``round_s`` is the median seconds of a round, ``first_round_s`` those of round 1; CPU seconds are of a
    round. ``superlink_mb`` is the largest resident memory of the SuperLink; ``..._begin`` and ``..._end``
    those after the first and the last round. ``load_average`` is the machine's, before round 1 and after the
    last. ``lost`` are replies that did not come within `LIMIT`, ``away`` errors because the device had left,
    ``refused`` other replies that were not used; ``failures`` some of the reasons; ``counts`` those of
    `device.Load`.
    """
    before = os.getloadavg()[0]
    with devices(settings) as cluster:
        lines, uses = play(settings, cluster, lambda: _use(cluster))
        memory = status_of(cluster.superlinks[0], "VmHWM") / 1000
        failed = failures(lines)
        least = (settings.rounds + 1) * settings.per_round - sum(failed[kind] for kind in KINDS)
        wait_until(lambda: _settled(cluster.counts, least), SETTLE)
        counts = cluster.counts
    first, *lines = lines
    seconds = [line["seconds"] for line in lines]
    return {
        "online_s": round(cluster.online_s, 1),
        "round_s": round(statistics.median(seconds), 3),
        "round_max_s": round(max(seconds), 3),
        "first_round_s": round(first["seconds"], 1),
        "superlink_cpu_s_per_round": round((uses[-1].cpu - uses[0].cpu) / len(lines), 3),
        "serverapp_cpu_s_per_round": round((lines[-1]["cpu"] - first["cpu"]) / len(lines), 3),
        "load_cpu_s_per_round": round((uses[-1].load_cpu - uses[0].load_cpu) / len(lines), 3),
        "superlink_mb": round(memory),
        "superlink_mb_begin": round(uses[0].memory / 1000),
        "superlink_mb_end": round(uses[-1].memory / 1000),
        "files": max(use.files for use in uses),
        "threads": max(use.threads for use in uses),
        "load_average": [round(before, 1), round(os.getloadavg()[0], 1)],
        **failed,
        "counts": counts,
    }


@contextmanager
def devices(settings: Settings) -> Iterator[DeviceCluster]:
    """Run a server with its devices inside a `with` block, in a folder that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="cohort-devices-"))
    try:
        source = write_app(folder / "app", _config(settings, folder), Path(app.__file__))
        with DeviceCluster(folder / "cluster", source, settings) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def play(
    settings: Settings, cluster: DeviceCluster, sample: Callable[[], Sample], name: str = "devices"
) -> tuple[list[dict[str, Any]], list[Sample]]:
    """Run the rounds. Return the line of each (`benchmarks.devices.app`), and a sample from after its end."""
    config = _config(settings, cluster.folder / f"{name}.jsonl")
    file = Path(str(config["lines"]))
    file.touch()
    run = cluster.submit(config, name)
    samples: list[Sample] = []

    def done() -> int:
        cluster.check()
        count = file.read_bytes().count(b"\n")
        while len(samples) < count:
            samples.append(sample())
        return count

    for number in range(settings.rounds + 1):
        wait_until(lambda number=number: done() > number or run.over, ROUND_LIMIT)  # type: ignore[misc]
        if done() <= number:
            raise RuntimeError(f"the run ended early:\n{run.log.read_text()[-3000:]}")
    return [json.loads(line) for line in file.read_text().splitlines()], samples


def failures(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how many replies were lost, were errors of devices that had left, and were refused, and why."""
    found = [why for line in lines for why in line["failures"].values()]
    lost = sum(1 for why in found if why.startswith((LATE, NOT_AWAITED)))
    away = sum(1 for why in found if why.startswith(AWAY))
    counts = dict(zip(KINDS, (lost, away, len(found) - lost - away), strict=True))
    return {**counts, "failures": sorted(set(found))[:5]}


def _config(settings: Settings, lines: Path) -> dict[str, ConfigValue]:
    """Return the settings of `benchmarks.devices.app`."""
    return {
        "lines": str(lines),
        "nodes": settings.nodes,
        "per-round": settings.per_round,
        "rounds": settings.rounds + 1,
        "parameters": max(settings.layers, int(settings.megabytes * 1e6 / FLOAT)),
        "layers": settings.layers,
        "limit": LIMIT,
        "selector": settings.selector,
    }


def _settled(counts: dict[str, int], least: int) -> bool:
    """Return whether the devices got at least `least` messages, and answered or abandoned all of them.

    The devices write their counts every second, so the counts of the last round come late.
    """
    received = counts.get("received", 0)
    return received >= least and received == counts.get("answered", 0) + counts.get("abandoned", 0)


def _use(cluster: DeviceCluster) -> Use:
    (pid,) = cluster.superlinks
    return Use(
        cpu_clock(pid),
        sum(cpu_clock(process.pid) for process in cluster.loads),
        sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        status_of(pid, "Threads"),
        status_of(pid, "VmRSS"),
    )
