"""The batched simulator (`simulation.simulator`) as an engine.

`python -m deploy.engines.batched RUN-CONFIG WORKERS` is the process of one run. It writes the same files as
the ServerApp: history, checkpoints, models.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from deploy.engines.engine import ProcessEngine, ProcessRun
from deploy.flower.app_folder import CODE, app_folder
from deploy.flower.config import default_config
from deploy.processes.groups import Process, end_with_parent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from deploy.flower.config import ConfigValue

SAVE_INTERVAL = 2.0  # seconds between two checkpoints


class BatchedSimulation(ProcessEngine):
    """Runs each selector in one process, which trains the selected clients of a round as one batch.

    Parameters
    ----------
    folder : Path
        `folder/logs` has what the processes print.
    num_clients : int
        The number of clients.
    workers : int (default: 1)
        The number of processes that train the clients of a round, each on one thread.

    Raises
    ------
    ValueError
        If `workers` is below 1.
    """

    def __init__(self, folder: Path, num_clients: int, workers: int = 1) -> None:
        if workers < 1:
            raise ValueError(f"workers = {workers}: must be at least 1")
        super().__init__(folder, num_clients)
        self._workers = workers

    @property
    def started(self) -> str:
        """The message for the user when a run can begin."""
        return f"simulating {self.num_clients} clients, those selected in a round as one batch"

    def submit(self, run_config: Mapping[str, ConfigValue], name: str) -> ProcessRun:
        """Begin a run: one process on one thread."""
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        module = (sys.executable, "-m", "deploy.engines.batched")
        command = (*module, json.dumps(dict(run_config)), str(self._workers))
        environment = {**one_thread, **os.environ, "PYTHONPATH": str(CODE)}
        process = Process(command, self.logs / f"{name}.log", environment)
        self._runs.append(process)
        return ProcessRun(name, process, self)


def run(config: Mapping[str, Any], workers: int = 1) -> None:
    """Run or resume the federation that a run config describes.

    Parameters
    ----------
    config : mapping
        What differs from the defaults in pyproject.toml. Deadlines have no effect: clients reply at once.
    workers : int (default: 1)
        The number of processes that train, this one included. It changes the results by rounding only.

    Raises
    ------
    ValueError
        If a setting is wrong, or not supported by the batched simulator.
    """
    import numpy as np

    import tasks
    from client.local import client_name
    from server.recording import Recording
    from server.settings import RunSettings, parse_selector_settings, read_client_sizes
    from simulation.kernels import Parallel, kernel_of
    from simulation.simulator import Simulator
    from strategies.checkpoint import Checkpoint, CheckpointFolder

    settings = RunSettings.from_run_config({**default_config(app_folder()), **config})
    if settings.over_selection != 1:
        raise ValueError(
            f"over-selection = {settings.over_selection}: must be 1 in a batched simulation, where all "
            "clients answer at once"
        )
    with ExitStack() as stack:
        recording = stack.enter_context(Recording(settings))
        task = tasks.create(settings.task, partition=settings.partition, data_dir=settings.data_dir)
        data = task.federated_data(settings.num_clients, settings.seed)
        kernel = kernel_of(task)
        if workers > 1:
            kernel = stack.enter_context(Parallel(kernel, workers))
        names = [client_name(m, settings.num_clients) for m in range(settings.num_clients)]
        overrides = read_client_sizes(settings.client_sizes)
        sizes = np.array([overrides.get(name, held) for name, held in zip(names, data.sizes(), strict=True)])
        simulator = Simulator(
            data,
            kernel,
            settings.selector,
            clients_per_round=settings.clients_per_round,
            num_rounds=settings.num_rounds,
            learning_rate=settings.learning_rate,
            batch_size=settings.batch_size,
            local_steps=settings.local_steps,
            seed=settings.seed,
            selector_settings=parse_selector_settings(settings.selector_settings),
            client_sizes=sizes,
            faults=settings.faults,
        )
        fingerprint = {"engine": "batched", "seed": settings.seed, "selector": settings.selector}
        folder = CheckpointFolder(recording.checkpoints) if recording.checkpoints else None
        found = folder.newest(fingerprint) if folder and settings.resume else None
        test_data, saved = task.test_data(), time.monotonic()
        metrics = simulator.evaluate(test_data)
        if found is not None:
            simulator.load_state_dict(found.arrays)
            metrics = simulator.evaluate(test_data)
        else:
            recording.round(0, simulator.arrays, metrics)
        while simulator.round < settings.num_rounds and not (
            simulator.round and recording.is_good_enough(metrics.accuracy)
        ):
            record = simulator.step()
            metrics = simulator.evaluate(test_data)
            recording.round(simulator.round, simulator.arrays, metrics, record, names, sizes)
            # Not each round: where rounds take milliseconds, the disk would take most of the time.
            if folder is not None and time.monotonic() > saved + SAVE_INTERVAL:
                folder.save(Checkpoint(simulator.round, simulator.state_dict(), {}, fingerprint))
                saved = time.monotonic()
        if folder is not None:
            folder.save(Checkpoint(simulator.round, simulator.state_dict(), {}, fingerprint))
        recording.end(simulator.round, simulator.arrays)


if __name__ == "__main__":
    end_with_parent()
    run(json.loads(sys.argv[1]), int(sys.argv[2]))
