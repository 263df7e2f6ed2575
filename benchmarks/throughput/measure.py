"""Measures engines in turns: while one engine runs, the processes of all other engines are stopped."""

import contextlib
import json
import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.throughput import processes
from benchmarks.throughput.engines import ENGINES
from benchmarks.throughput.workloads import Parameters, Workload, save
from deploy.processes.groups import processes_with
from deploy.processes.watchdog import watchdog_command

ROOT = Path(__file__).parents[2]
MARK = "COHORT_THROUGHPUT"  # environment variable that marks the workers' processes, so that all can be ended
PATIENCE = 300.0  # seconds that an engine may take to start, or to run a block of rounds
WARM_UP = 0.5  # least duration of the rounds that run before the measurement, in seconds
LOG = 3000  # number of characters of a failed engine's log that are printed
CLOSING = 10.0  # seconds that an engine may take to exit before it is killed


class EngineError(Exception):
    """An engine cannot be measured: the reason, and its log's end or the command that installs a package."""


class Cost(NamedTuple):
    """The cost of an engine's client updates."""

    updates_per_s: float  # median over the blocks
    cpu_ms: float  # CPU time of all the engine's processes per update, median over the blocks
    start_s: float  # from the start of the engine's process to the end of its first round
    peak_mb: float  # sum of the processes' peak resident memory; memory that n processes share counts n times


class Worker:
    """An engine in a process of its own, which is stopped (SIGSTOP) outside its turns.

    `folder` has the workload and its samples, and gets the engine's log; `python` is the interpreter. Raises
    EngineError if a package or the interpreter is missing, or the engine fails.
    """

    def __init__(self, name: str, folder: Path, python: Path) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        self._model = folder / f"{name}.npz"
        if shutil.which(python) is None:
            raise _not_installed(name, str(python))
        # Ray adds long names to its folder, and the path of a socket must stay below about 108 bytes.
        own = {MARK: str(folder), "PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(folder)}
        start = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.throughput.worker", name, folder],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=os.environ | own,
            )  # fmt: skip
        self.pid = self._process.pid
        try:
            missing = self._answer().get("missing")
            if missing is not None:
                raise _not_installed(name, missing)
        except BaseException:
            self.end()
            raise
        self.start_seconds = time.monotonic() - start
        processes.send(self.pid, signal.SIGSTOP)

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Let the engine's processes run (SIGCONT) within the `with` block."""
        processes.send(self.pid, signal.SIGCONT)
        try:
            yield
        finally:
            processes.send(self.pid, signal.SIGSTOP)

    def run(self, rounds: int) -> float:
        """Run `rounds` rounds, and return the seconds that they took."""
        seconds: float = self._ask(rounds=rounds)["seconds"]
        return seconds

    def model(self) -> Parameters:
        """Return the global model."""
        self._ask(model=str(self._model))
        with np.load(self._model) as arrays:
            return list(arrays.values())

    def end(self) -> None:
        """End all processes of the engine, by force if necessary."""
        processes.send(self.pid, signal.SIGCONT)
        try:
            self._process.communicate(timeout=CLOSING)  # the worker exits at the end of its input
        except subprocess.TimeoutExpired:
            processes.send(self.pid, signal.SIGKILL)
            self._process.wait()

    def _ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the worker has ended, so `_answer` raises
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        output = self._process.stdout
        assert output is not None
        ready, _, _ = select.select([output], [], [], PATIENCE)
        line = output.readline() if ready else b""
        if not line:
            log = self._log.read_text().strip()
            why = log.rpartition("\n")[2] if ready else f"no answer within {PATIENCE:.0f} s"
            raise EngineError(f"failed: {why}\n{log[-LOG:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _not_installed(name: str, missing: str) -> EngineError:
    return EngineError(f"not installed ({missing} is missing): {ENGINES[name].install}")


@contextlib.contextmanager
def prepared(workload: Workload, data: Path | None) -> Iterator[Path]:
    """Write a workload and its samples to a new folder; at the end, end the workers and remove the folder.

    If this process is killed, a watchdog ends the workers.
    """
    short = tempfile.gettempdir() if len(tempfile.gettempdir()) < 30 else "/tmp"
    folder = Path(tempfile.mkdtemp(prefix="cohort-", dir=short))
    watchdog = subprocess.Popen(watchdog_command(MARK, str(folder), folder), start_new_session=True)
    try:
        save(workload, workload.data(data), folder)
        os.sync()  # so that Linux writes none of the files to disk during a measurement
        yield folder
    finally:
        watchdog.kill()
        watchdog.wait()
        for pid in processes_with(MARK, str(folder)):
            with contextlib.suppress(ProcessLookupError):  # the process has ended meanwhile
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def workers(
    names: Sequence[str], folder: Path, peers_python: Path, failures: dict[str, str]
) -> Iterator[list[Worker]]:
    """Start the engines one after another, and end them afterwards; `failures` gets why one cannot start."""
    with contextlib.ExitStack() as stack:
        started = []
        for name in names:
            python = peers_python if ENGINES[name].is_peer else Path(sys.executable)
            try:
                worker = Worker(name, folder, python)
            except EngineError as error:
                failures[name] = str(error)
                continue
            stack.callback(worker.end)
            started.append(worker)
        yield started


def measure(
    workload: Workload,
    names: Sequence[str],
    *,
    seconds: float,
    turns: int,
    peers_python: Path,
    data: Path | None = None,
) -> dict[str, Cost | str]:
    """Measure engines side by side; return each one's cost, or the reason why it could not be measured.

    Each engine runs for about `seconds` in `turns` blocks of rounds, one engine after another; each turn
    begins with another engine. A slow engine takes longer, since a block has at least one round.
    `peers_python` is the interpreter of the peers' environment.
    """
    failures: dict[str, str] = {}
    blocks: dict[str, list[tuple[float, float]]] = {}  # (wall, CPU) seconds per update, of each block
    costs: dict[str, Cost] = {}
    with prepared(workload, data) as folder, workers(names, folder, peers_python, failures) as running:
        rounds = {}
        for worker in running:
            with noting(failures, worker), worker.awake():
                rounds[worker.name] = _rounds_in(seconds / turns, worker)
        for turn in range(turns):
            for position in range(len(running)):
                worker = running[(turn + position) % len(running)]
                if worker.name in failures:
                    continue
                with noting(failures, worker), worker.awake():
                    count = rounds[worker.name]
                    before = processes.cpu_seconds(worker.pid)
                    wall = worker.run(count)
                    cpu = processes.cpu_seconds(worker.pid) - before
                    updates = count * workload.clients_per_round
                    blocks.setdefault(worker.name, []).append((wall / updates, cpu / updates))
        for worker in running:
            if worker.name not in failures:
                wall, cpu = (statistics.median(column) for column in zip(*blocks[worker.name], strict=True))
                peak = processes.peak_megabytes(worker.pid)
                costs[worker.name] = Cost(1 / wall, 1000 * cpu, worker.start_seconds, peak)
    return {name: costs[name] if name in costs else failures[name] for name in names}


@contextlib.contextmanager
def noting(failures: dict[str, str], worker: Worker) -> Iterator[None]:
    """Catch an `EngineError`, and record its message in ``failures``."""
    try:
        yield
    except EngineError as error:
        failures[worker.name] = str(error)


def _rounds_in(seconds: float, worker: Worker) -> int:
    """Warm up an engine, and return about how many rounds it runs in `seconds` afterwards, at least 1."""
    rounds, took, total = 1, 0.0, 0.0
    while total < WARM_UP:
        took = worker.run(rounds)
        total += took
        rounds *= 2
    return max(1, round(seconds * (rounds // 2) / took))
