"""Trains the trials of a sweep on a Ray cluster."""

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from deploy.processes.ray_token import ray_token
from deploy.sweeps.jobs import Ended
from deploy.sweeps.trial_worker import RESULT, Job, execute_elsewhere, ship
from strategies.checkpoint import replacing

ADDRESS = "RAY_ADDRESS"  # the environment variable with the address of a Ray cluster
AHEAD = 4  # jobs that are submitted to Ray for each of its CPUs


def on_ray(jobs: Sequence[Job]) -> Iterator[Ended]:
    """Train trials on a Ray cluster, and yield the end of each as soon as it is there.

    The environment variable `RAY_ADDRESS` holds the address of the cluster. Without it, Ray starts on this
    machine, and serves this command only. A trial occupies one CPU of the cluster. The machines of the
    cluster need the same installation of Cohort, but not the sweep's folder: a trial's files come back.
    Raises ModuleNotFoundError without Ray, and ConnectionError if there is no cluster at the address.
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
                    end: Ended = ray.get(done)
                except ray.exceptions.RayError as error:
                    yield Ended(job.key, None, f"{type(error).__name__}: {error}".splitlines()[0])
                    continue
                _write(job.file.parent, end)
                yield end
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


def _write(folder: Path, end: Ended) -> None:
    """Write the files of a trial from another machine; last the result, which marks it as finished."""
    for name in sorted(end.files, key=lambda name: name == RESULT):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(end.files[name])
