"""Jobs with results in files: trials of sweeps, and seeds of experiments. A finished job is not repeated.

A result is used again only if its key is the job's. The key is a digest of everything that decides the
result, so an interrupted command goes on where it stopped, and an edit repeats what it changed.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from deploy.json_text import parse_json
from deploy.processes.groups import end_with_parent
from strategies import extensions
from strategies.checkpoint import replacing

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Job(Protocol):
    """What the jobs of a command have in common: the key, and the file of the result."""

    @property
    def key(self) -> str: ...

    @property
    def file(self) -> Path: ...


J = TypeVar("J", bound=Job)


class Ended(NamedTuple):
    """The end of a job."""

    key: str
    result: dict[str, Any] | None  # None if the job failed
    problem: str = ""  # why it failed
    files: dict[str, bytes] = {}  # noqa: RUF012 (never changed) # by path: of a job on another machine


def finished(job: Job) -> dict[str, Any] | None:
    """Return a job's result from its file; None if it is missing, damaged or of another key."""
    try:
        found = parse_json(job.file.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("digest") == job.key else None


def finish(job: Job, result: dict[str, Any]) -> Ended:
    """Write the result of a job to its file, which becomes visible only when it is complete."""
    job.file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(job.file) as file:
        file.write(json.dumps({**result, "digest": job.key}, allow_nan=False).encode())
    return Ended(job.key, result)


def begin() -> None:
    """Prepare a process of this machine for jobs."""
    end_with_parent()
    prepare()


def prepare() -> None:
    """Import the user's modules, and let torch use one thread."""
    # Warnings about a run are in its history, too. Here they would break the display of the progress.
    logging.getLogger("flwr").setLevel(logging.ERROR)
    extensions.load()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def on_this_machine(jobs: Sequence[J], workers: int, execute: Callable[[J], Ended]) -> Iterator[Ended]:
    """Execute jobs in processes of this machine, and yield the end of each as soon as it is there.

    There are at most `workers` processes, each with one thread. If the calling process ends, they end too, on
    Linux even if it is killed by SIGKILL. `execute` runs in a process; an error must be part of what it
    returns. Raises ModuleNotFoundError without joblib, and RuntimeError if a process was killed, for example
    because the memory was full.
    """
    try:
        from joblib.externals.loky import ProcessPoolExecutor
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("this command needs joblib: pip install 'cohort-app[demo]'") from error
    executor = ProcessPoolExecutor(max_workers=workers, env=THREADS, initializer=begin)
    done = False
    try:
        for future in as_completed([executor.submit(execute, job) for job in jobs]):
            try:
                yield future.result()
            except BrokenExecutor as error:
                raise RuntimeError(
                    "a process was killed, perhaps because the memory was full; the same command goes on "
                    "after the finished jobs, and --jobs with a smaller number needs less memory"
                ) from error
        done = True
    finally:
        # The processes are killed even after the last job: they have written everything, and would take a
        # second to exit.
        executor.shutdown(wait=done, kill_workers=True)


def shown(
    console: Console, ends: Iterable[Ended], total: int, ended: int, told: Callable[[Ended], str]
) -> Iterator[Ended]:
    """Yield the ends of jobs, and show them: as a bar on a terminal, elsewhere as a line for each job.

    There are `total` jobs, of which `ended` had ended before. `told` returns the text of an end, one line.
    """
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total, completed=ended)
        for end in ends:
            ended += 1
            bar.update(task, completed=ended, description=told(end))
            if not console.is_terminal:
                console.print(f"{ended}/{total}  {told(end)}", soft_wrap=True, markup=False)
            yield end
