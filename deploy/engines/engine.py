"""What all engines share: an engine runs the app, on a cluster or simulated."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from deploy.processes.groups import Process, stop, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from deploy.flower.config import ConfigValue

STOP_GRACE = 5.0  # seconds that a process has to end by itself


class EngineError(RuntimeError):
    """An engine did not start, died or refused a run; the message has the end of its log."""


class Run(Protocol):
    """A submitted run of the app."""

    @property
    def over(self) -> bool:
        """Whether the engine says that the run has ended, however it ended."""

    @property
    def last_words(self) -> str:
        """What the engine knows about the end of the run; never empty once it is over."""

    def abort(self) -> None:
        """End a run whose ServerApp is dead, which Flower would notice only after a minute."""


class Engine(Protocol):
    """Runs the app: a local cluster, a simulation, or a SuperLink that runs already."""

    logs: Path

    def submit(self, run_config: Mapping[str, ConfigValue], name: str) -> Run:
        """Submit a run; `run_config` holds what differs from the defaults in the app's pyproject.toml."""

    def check(self) -> list[str]:
        """Return the clients that died since the last call; raise EngineError if nothing can go on."""


class ProcessEngine(ABC):
    """An engine of processes on this machine, which run from `__enter__` to `__exit__` at most.

    Parameters
    ----------
    folder : Path
        Where it writes: `folder/logs` has what its processes print, and stays.
    num_clients : int
        The number of clients.
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
        except BaseException:  # Ctrl-C too: no process must stay
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> None:  # noqa: B027 - not every engine has something to start
        """Start what serves all runs."""

    def close(self) -> None:
        """End all processes. A second call does nothing."""
        stop(self._runs, STOP_GRACE)

    @property
    @abstractmethod
    def started(self) -> str:
        """The message for the user when the engine has started."""

    @abstractmethod
    def submit(self, run_config: Mapping[str, ConfigValue], name: str) -> ProcessRun:
        """Begin a run.

        Parameters
        ----------
        run_config : Mapping[str, ConfigValue]
            What differs from the defaults in the app's pyproject.toml.
        name : str
            The run's log is `logs/<name>.log`.
        """

    def abort(self, run: ProcessRun) -> None:  # noqa: B027 - only a cluster outlives its runs
        """End a run whose ServerApp was killed."""

    def check(self) -> list[str]:
        """Return the clients that died since the last call; raise EngineError if the engine itself died."""
        return []


@dataclass(frozen=True)
class ProcessRun:
    """A run that is a process here, `flwr run --stream` for Flower's engines; both end together."""

    name: str
    process: Process
    engine: ProcessEngine

    @property
    def log(self) -> Path:
        """The ServerApp's output."""
        return self.process.log

    @property
    def run_id(self) -> str | None:
        """Flower's id of the run, once it has one."""
        found = re.search(r"Successfully started run (\d+)", self.log.read_text(errors="replace"))
        return found and found[1]

    @property
    def over(self) -> bool:
        """Whether the run is over; only its history tells whether it succeeded (`flwr run` exits with 0)."""
        return self.process.returncode is not None

    @property
    def last_words(self) -> str:
        """The end of the log."""
        return f"the end of {self.log}:\n{self.process.tail()}"

    def abort(self) -> None:
        """End the run (see `ProcessEngine.abort`)."""
        self.engine.abort(self)

    def wait(self, timeout: float) -> None:
        """Wait until the run is over.

        Raises
        ------
        TimeoutError
            If it is not over after `timeout` seconds.
        EngineError
            If the engine dies, or Flower refuses the run.
        """

        def over() -> bool:
            self.engine.check()
            return self.over

        if not wait_until(over, timeout):
            raise TimeoutError(f"run {self.name}: not over after {timeout:g} s; its log: {self.log}")
        if self.process.returncode:
            raise EngineError(f"run {self.name}: Flower refused it:\n{self.process.tail()}")
