"""The interface of all engines, and the base class of engines whose processes run on this machine."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from deploy.flower.config import ConfigValue
from deploy.processes.groups import Process, stop, wait_until

STOP_GRACE = 5.0  # seconds between asking a process to end and killing it


class EngineError(RuntimeError):
    """An engine did not start, died, or refused a run. The message may contain the end of a log."""


class Planned(Protocol):
    """A run that is to be submitted."""

    run_config: dict[str, ConfigValue]
    """The settings that differ from the app's defaults."""


class Run(Protocol):
    """A submitted run of the app."""

    @property
    def over(self) -> bool:
        """Whether the run has ended, with or without success, as far as the engine knows."""

    @property
    def last_words(self) -> str:
        """The engine's description of how the run ended. Not empty once the run is over."""

    @property
    def stopped(self) -> bool:
        """Whether somebody stopped the run, so that it must not be started again."""

    def abort(self) -> None:
        """End the run at once.

        Flower itself takes a minute or two to end a run whose ServerApp has died.
        """


class Engine(Protocol):
    """Runs the app: on a local cluster, in a simulation, or on a running SuperLink."""

    logs: Path
    """The folder of the log files."""

    def submit(self, run_config: Mapping[str, ConfigValue], name: str) -> Run:
        """Submit a run.

        Raises EngineError if the engine refuses the run.
        """

    def check(self) -> list[str]:
        """Return the names of the clients that died since the last call.

        Raises EngineError if the engine itself died, so that no run can go on.
        """


class ProcessEngine(ABC):
    """An engine whose processes run on this machine. All of them end with the `with` block.

    `folder`: the engine writes into this folder. `folder/logs` holds the output of its processes, and is
    kept.
    """

    def __init__(self, folder: Path, num_clients: int) -> None:
        self.folder = folder.resolve()
        self.logs = self.folder / "logs"
        self.num_clients = num_clients
        self._runs: list[Process] = []

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        try:
            self._start()
        except BaseException:  # also on Ctrl-C, no process may be left behind
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:  # noqa: B027 - not every engine has something to start
        """Start the processes that all runs share."""

    def close(self) -> None:
        """End all processes. A second call does nothing."""
        stop(self._runs, STOP_GRACE)

    @property
    @abstractmethod
    def started(self) -> str:
        """The message for the user when the engine has started."""

    @abstractmethod
    def submit(self, run_config: Mapping[str, ConfigValue], name: str) -> ProcessRun:
        """Start a run.

        `run_config`: the settings that differ from the defaults in the app's pyproject.toml. `name`: a name
        that no other run of this engine has. The run's log is `logs/<name>.log`.
        """

    def abort(self, run: ProcessRun) -> None:  # noqa: B027 - only a cluster outlives its runs
        """End a run whose ServerApp was killed. By default, do nothing."""

    def check(self) -> list[str]:
        """Return the names of the clients that died since the last call.

        Raises EngineError if the engine itself died.
        """
        return []


@dataclass(frozen=True)
class ProcessRun:
    """A run that lasts as long as one process on this machine, for example `flwr run --stream`."""

    name: str
    process: Process
    engine: ProcessEngine

    @property
    def log(self) -> Path:
        """The log of the process, which contains the ServerApp's output."""
        return self.process.log

    @property
    def run_id(self) -> str | None:
        """Flower's id of the run; None before Flower has printed it."""
        found = re.search(r"Successfully started run (\d+)", self.log.read_text(errors="replace"))
        return found and found[1]

    @property
    def over(self) -> bool:
        """Whether the run has ended. Only the history shows whether it failed: `flwr run` exits with 0."""
        return self.process.returncode is not None

    @property
    def last_words(self) -> str:
        """The path of the log, and its last lines."""
        return f"the end of {self.log}:\n{self.process.tail()}"

    @property
    def stopped(self) -> bool:
        """Always False: such a run is stopped only together with its engine."""
        return False

    def abort(self) -> None:
        """End the run (see `ProcessEngine.abort`)."""
        self.engine.abort(self)

    def wait(self, timeout: float) -> None:
        """Wait until the run is over, at most `timeout` seconds.

        Raises TimeoutError if the run is not over in time. Raises EngineError if the engine dies, or if the
        process fails, for example because Flower refuses the run.
        """

        def over() -> bool:
            self.engine.check()
            return self.over

        if not wait_until(over, timeout):
            raise TimeoutError(f"run {self.name}: not over after {timeout:g} s; its log: {self.log}")
        if self.process.returncode:
            raise EngineError(
                f"run {self.name}: its process ended with code {self.process.returncode}:\n"
                f"{self.process.tail()}"
            )
