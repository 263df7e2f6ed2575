"""The batched simulator (`simulation.simulator`) as an engine.

`python -m deploy.engines.batched RUN-CONFIG WORKERS` executes one run. RUN-CONFIG is a JSON object with the
settings of the run, and WORKERS is a number of processes (see `run`). The process writes the same files as a
ServerApp: history, checkpoints and models.
"""

import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from logging import WARNING
from pathlib import Path
from typing import Any

from deploy.engines.engine import Planned, ProcessEngine, ProcessRun
from deploy.engines.simulated_availability import availability_of, response_times_of
from deploy.flower.app_folder import CODE, app_folder
from deploy.flower.config import ConfigValue, default_config
from deploy.processes.groups import Process, end_with_parent
from deploy.processes.signals import raise_on_signals
from strategies import Eligibility, extensions
from strategies.clients.printable import counted

REPORTERS = "reporters/"  # the prefix of the reporters' arrays in a checkpoint
SAVE_INTERVAL = 2.0  # the shortest time between two checkpoints during a run, s


class BatchedSimulation(ProcessEngine):
    """Executes each run in a process of its own, which trains the selected clients of a round as one batch.

    `folder`: the engine's folder. `folder/logs` holds the output of the processes. `workers`: the number of
    processes that train the clients of a round, at least 1. Each process uses one thread, unless the
    environment variables of OpenMP, OpenBLAS or MKL set another number.
    """

    def __init__(self, folder: Path, num_clients: int, workers: int = 1) -> None:
        if workers < 1:
            raise ValueError(f"workers = {workers}: must be at least 1")
        super().__init__(folder, num_clients)
        self._workers = workers

    @property
    def started(self) -> str:
        """The message for the user when the engine has started."""
        clients = counted(self.num_clients, "client")
        return f"simulating {clients}; the selected clients of a round train as one batch"

    def submit(self, run_config: Mapping[str, ConfigValue], name: str) -> ProcessRun:
        """Start a run in a process of its own."""
        one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        module = (sys.executable, "-P", "-m", "deploy.engines.batched")
        command = (*module, json.dumps(dict(run_config)), str(self._workers))
        environment = {**one_thread, **os.environ, "PYTHONPATH": str(CODE)}
        process = Process(command, self.logs / f"{name}.log", environment)
        self._runs.append(process)
        return ProcessRun(name, process, self)


_OTHERS = "use `cohort up` or `cohort simulate --engine ray`"


def check_batched(trials: Sequence[Planned]) -> None:
    """Refuse trials that the batched simulator cannot run."""
    from strategies.selectors import selector_type

    for trial in trials:
        timed = any(trial.run_config.get(key) for key in ("response-times", "device-speeds"))
        name, over = trial.run_config["selector"], trial.run_config.get("over-selection", 1)
        if selector_type(str(name)).part_names:
            raise ValueError(
                f"selector = {name!r}: its clients keep models of their own, which a batched simulation "
                f"cannot; {_OTHERS}"
            )
        if selector_type(str(name)).clients_decide:
            raise ValueError(
                f"selector = {name!r}: its clients decide themselves whether they train, which a batched "
                f"simulation cannot; {_OTHERS}"
            )
        if trial.run_config.get("mode") == "buffered" and not timed:
            raise ValueError(
                "mode = 'buffered': needs response-times or device-speeds in a batched simulation, where "
                f"all clients otherwise answer at once; or {_OTHERS}"
            )
        if (wire := trial.run_config.get("wire", "float32")) != "float32":
            raise ValueError(
                f"wire = {wire!r}: must be 'float32' in a batched simulation, which has no messages; or "
                f"{_OTHERS}"
            )
        eligible = str(trial.run_config.get("eligible", ""))
        conditions = Eligibility.parse(eligible) if eligible else Eligibility()
        if conditions.tags or conditions.properties.keys() - {"group"}:
            raise ValueError(
                f"eligible = {eligible!r}: a batched simulation knows names and groups only; {_OTHERS}"
            )
        if over != 1 and not timed:
            raise ValueError(
                f"over-selection = {over}: needs response-times or device-speeds in a batched simulation, "
                f"where all clients otherwise answer at once; or {_OTHERS}"
            )


def run(config: Mapping[str, Any], workers: int = 1) -> None:
    """Execute the run that a run config describes, or resume it from its newest checkpoint.

    `config`: the settings that differ from the defaults in pyproject.toml. The run is resumed if `resume` is
    set and there is a checkpoint. Deadlines have an effect only with ``response-times`` or ``device-speeds``:
    otherwise simulated clients reply immediately. `workers`: the number of processes that train, including
    this one; at least 1. More processes change the results at most by rounding.
    """
    import numpy as np
    from flwr.common import log

    import tasks
    from client.local_data import client_name
    from server.recording import KnownClients, Recording, UnchangedModelError
    from server.settings import RunSettings, errors_in_names_of_the_run
    from simulation.kernels import Parallel, kernel_of
    from simulation.simulator import Simulator
    from strategies.checkpoint import Checkpoint, CheckpointFolder
    from strategies.clients.overrides import declared_values
    from strategies.options import GROUPS, Overrides
    from strategies.reporters import Reporters, RunInfo
    from strategies.rounds.guard.claimed_sizes import ClaimLog
    from strategies.rounds.skipped_rounds import SkippedRounds
    from strategies.selectors import selector_type

    settings = RunSettings.from_run_config({**default_config(app_folder()), **config})
    if settings.priorities:
        raise ValueError(
            f'priorities = {settings.priorities!r}: must be "" in a batched simulation; use another engine'
        )
    with ExitStack() as stack:
        recording = stack.enter_context(Recording(settings))
        stack.enter_context(errors_in_names_of_the_run())
        task = tasks.create(settings.task, partition=settings.partition, data_dir=settings.data_dir)
        data = task.federated_data(settings.num_clients, settings.seed)
        kernel = kernel_of(task)
        if workers > 1:
            kernel = stack.enter_context(Parallel(kernel, workers))
        names = [client_name(m, settings.num_clients) for m in range(settings.num_clients)]
        options = settings.strategy_options
        overrides: Overrides = options.pop("overrides")
        declared = np.array([overrides.sizes.get(name, math.nan) for name in names])
        options["selector_settings"] |= declared_values(overrides, selector_type(settings.selector), names)
        if groups := overrides.settings.get(GROUPS):
            others = data.groups if data.groups is not None else [None] * len(names)
            options["selector_settings"][GROUPS] = [
                groups.get(name, other) for name, other in zip(names, others, strict=True)
            ]
        groups = options["selector_settings"].get(GROUPS, data.groups)
        group_names = [None] * len(names) if groups is None else [str(group) for group in groups]
        numbers = None if data.groups is None else np.asarray(data.groups, dtype=np.int64)
        times = response_times_of(
            config,
            settings.num_clients,
            settings.seed,
            numbers,
            samples=settings.local_steps * settings.batch_size,
            megabytes=2e-6 * sum(a.nbytes for a in kernel.initial_arrays(settings.seed).values()),
        )
        simulator = Simulator(
            data,
            kernel,
            settings.selector,
            clients_per_round=settings.clients_per_round,
            num_rounds=settings.num_rounds,
            learning_rate=settings.learning_rates.at,
            batch_size=settings.batch_size,
            local_steps=settings.local_steps,
            client_sizes=declared,
            client_names=names,
            availability=availability_of(config, settings.num_clients, settings.seed),
            proximal_mu=settings.proximal_mu,
            response_times=times,
            round_deadline=settings.round_deadline if times else math.inf,
            shortest_deadline=settings.shortest_deadline if times else math.inf,
            **options,
        )
        fingerprint = {"engine": "batched", "seed": settings.seed, "selector": settings.selector}
        folder = CheckpointFolder(recording.checkpoints) if recording.checkpoints else None
        found = folder.newest(fingerprint) if folder and settings.resume else None
        test_data, saved = task.test_data(), time.monotonic()
        metrics, skipped = simulator.evaluate(test_data), SkippedRounds()
        if found is not None:
            simulator.load_state_dict(found.arrays)
            # Checkpoints of 2026-11-28 and before do not say whether a round has changed the model.
            skipped.load(found.meta.get("skipped", {"changed": True, "count": 0, "reasons": []}))
            metrics = simulator.evaluate(test_data)
        else:
            recording.round(0, simulator.arrays, metrics)
        reporters = stack.enter_context(Reporters(settings.reporters()).failing(lambda: simulator.round))
        reporters.load_state_dict(_reporters_state(found.arrays if found else {}))
        if settings.resume:
            reporters.resume(RunInfo(settings.num_rounds), simulator.round)
        else:
            reporters.begin(RunInfo(settings.num_rounds))
        if found is None:
            reporters.round(0, metrics=metrics._asdict())

        def known_clients() -> KnownClients:
            sizes = simulator.data_sizes
            known = sizes.used.size
            return KnownClients.of(names[:known], sizes, group_names[:known])

        def checkpoint() -> Checkpoint:
            drawn = {f"{REPORTERS}{name}": array for name, array in reporters.state_dict().items()}
            meta = {"skipped": skipped.state()}
            return Checkpoint(simulator.round, {**simulator.state_dict(), **drawn}, meta, fingerprint)

        claim_log = ClaimLog()
        while simulator.round < settings.num_rounds and not (
            simulator.round and settings.ends_early(metrics.accuracy)
        ):
            began = time.monotonic()
            record = simulator.step()
            if times is None:
                # All clients answer at once. So the seconds of a round are those of its computation.
                record = replace(record, seconds=time.monotonic() - began)
            evaluated = settings.evaluates(simulator.round)
            if evaluated:
                metrics = simulator.evaluate(test_data)
            for line in claim_log.of_sizes(simulator.data_sizes, names.__getitem__):
                log(WARNING, line)
            by_group = simulator.evaluate_groups(group_names, settings.evaluate_share)
            measured = {name: quality._asdict() for name, quality in by_group.items()}
            recording.round(
                simulator.round,
                simulator.arrays,
                metrics if evaluated else None,
                record,
                known_clients(),
                group_metrics=measured,
            )
            skipped.count(record)
            reporters.count(record, settings.num_clients)
            # Not after every round: if a round takes milliseconds, saving would take most of the time.
            if folder is not None and time.monotonic() > saved + SAVE_INTERVAL:
                folder.save(checkpoint())
                saved = time.monotonic()
            reporters.round(
                simulator.round,
                record=record,
                name_of=names.__getitem__,
                metrics=metrics._asdict() if evaluated else None,
                group_metrics=measured,
            )
        if folder is not None:
            folder.save(checkpoint())
        if skipped.reason:
            raise UnchangedModelError(skipped.reason)
        # The reporters end before the history gets its last line: after that line, this process may be ended.
        reporters.end(simulator.round, "finished early" if simulator.round < settings.num_rounds else "")
        recording.end(simulator.round, simulator.arrays)


def _reporters_state(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name.removeprefix(REPORTERS): array for name, array in arrays.items() if name.startswith(REPORTERS)
    }


if __name__ == "__main__":
    end_with_parent()
    extensions.load()
    # Ctrl-C makes the engine send SIGTERM. Trackers are then told that the run was stopped.
    try:
        with raise_on_signals(lambda _: KeyboardInterrupt()):
            run(json.loads(sys.argv[1]), int(sys.argv[2]))
    except KeyboardInterrupt:
        sys.exit(130)
