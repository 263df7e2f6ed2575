"""Trains the trials of a sweep on the cores of this machine, or on a Ray cluster."""

from __future__ import annotations

import logging
import os
import socket
from concurrent.futures import BrokenExecutor, as_completed
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.processes.ray_token import ray_token
from deploy.sweeps.trial_worker import Job, Outcome, begin, execute, execute_elsewhere, ship
from strategies.checkpoint import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
ADDRESS = "RAY_ADDRESS"  # the environment variable with the address of a Ray cluster
AHEAD = 4  # jobs that are submitted to Ray for each of its CPUs


def on_this_machine(jobs: Sequence[Job], workers: int) -> Iterator[Outcome]:
    """Train trials in processes of this machine, and yield each outcome as soon as there is one.

    Each process uses one thread, unless an environment variable sets another number. If the calling
    process ends, these processes end too, on Linux even if the calling process is killed by SIGKILL.

    Parameters
    ----------
    jobs : Sequence[Job]
        The trials.
    workers : int
        The number of processes, at least 1.

    Raises
    ------
    ModuleNotFoundError
        If joblib is not installed.
    RuntimeError
        If a process was killed, for example because the memory was full.
    """
    try:
        from joblib.externals.loky import ProcessPoolExecutor
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("a sweep needs joblib: pip install 'cohort-app[demo]'") from error
    threads = {name: os.environ.get(name, one) for name, one in THREADS.items()}
    executor = ProcessPoolExecutor(max_workers=workers, env=threads, initializer=begin)
    finished = False
    try:
        for future in as_completed([executor.submit(execute, job) for job in jobs]):
            try:
                yield future.result()
            except BrokenExecutor as error:
                raise RuntimeError(
                    "a process of the sweep was killed, perhaps because the memory was full; the same "
                    "command continues the sweep, and --jobs with a smaller number needs less memory"
                ) from error
        finished = True
    finally:
        # The processes are killed even after the last outcome: they have written everything, and would take a
        # second to exit.
        executor.shutdown(wait=finished, kill_workers=True)


def on_ray(jobs: Sequence[Job]) -> Iterator[Outcome]:
    """Train trials on a Ray cluster, and yield each outcome as soon as there is one.

    The environment variable `RAY_ADDRESS` holds the address of the cluster. Without it, Ray starts on this
    machine, and serves this command only. A trial occupies one CPU of the cluster. The machines of the
    cluster need the same installation of Cohort, but not the sweep's folder: a trial's files come back with
    its outcome.

    Raises
    ------
    ModuleNotFoundError
        If Ray is not installed.
    ConnectionError
        If there is no cluster at the address.
    """
    if not os.environ.get(ADDRESS):
        os.environ.update(ray_token())  # before Ray reads its settings
    try:
        ray: Any = import_module("ray")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("--on ray needs Ray: pip install 'cohort-app[simulation]'") from error
    _check_address(os.environ.get(ADDRESS, ""))
    ray.init(
        address=os.environ.get(ADDRESS) or "local",
        include_dashboard=None if os.environ.get(ADDRESS) else False,
        log_to_driver=False,
        logging_level=logging.WARNING,
        configure_logging=False,
    )
    try:
        # A job is repeated if the machine that trains it is lost.
        remote = ray.remote(num_cpus=1, max_retries=3)(execute_elsewhere)
        shipped, waiting, running = ray.put(ship()), list(reversed(jobs)), dict[Any, Job]()
        while waiting or running:
            most = max(1, int(AHEAD * ray.cluster_resources().get("CPU", 1)))
            while waiting and len(running) < most:
                job = waiting.pop()
                running[remote.remote(job, shipped)] = job
            for done in ray.wait(list(running), num_returns=1)[0]:
                job = running.pop(done)
                try:
                    outcome: Outcome = ray.get(done)
                except ray.exceptions.RayError as error:
                    yield Outcome(job.key, None, f"{type(error).__name__}: {error}".splitlines()[0])
                    continue
                _write(Path(job.config["output-dir"]), outcome)
                yield outcome
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raise an error if nothing listens at the address of a cluster. Ray itself would end this process."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and port.isdigit()):  # "auto" and "local" are no addresses
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(f"{ADDRESS} = {address!r}: there is no Ray cluster: {error}") from error


def _write(folder: Path, outcome: Outcome) -> None:
    """Write the files of a trial that another machine trained.

    The file with the result is written last, since it marks the trial as finished.
    """
    for name in sorted(outcome.files, key=lambda name: name == "result.json"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(outcome.files[name])
