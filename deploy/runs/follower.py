"""Training trials on an engine: every run is followed to its end, and started again if its ServerApp dies."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from server.settings import CHECKPOINTS
from strategies.checkpoint import CheckpointFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deploy.engines.engine import Engine
    from deploy.flower.config import ConfigValue
    from deploy.runs.trials import Trial
    from server.history import Line

WATCH_INTERVAL = 0.2  # seconds between two reads of the histories
# Seconds after the last line of a history: then its run counts as over, whatever the engine says
END_TIMEOUT = 10.0
TRIES = 3  # submissions in a row without a new round before a trial is given up


class Watcher(Protocol):
    """Receives the progress of the training."""

    def lines(self, trial: Trial, lines: Sequence[Line]) -> None:
        """Take the lines that a trial's history gained since the last call."""

    def event(self, text: str) -> None:
        """Take a message that is not in a history."""

    def refresh(self) -> None:
        """Take note that all histories have been read once more."""


@dataclass(frozen=True)
class Events:
    """A watcher that passes on only the messages."""

    event: Callable[[str], None]

    def lines(self, trial: Trial, lines: Sequence[Line]) -> None:
        """Ignore them."""

    def refresh(self) -> None:
        """Do nothing."""


def train(engine: Engine, trials: Sequence[Trial], watcher: Watcher, *, at_once: bool) -> None:
    """Run the trials on the engine until all are over, however each ends (see `Trial.problem`).

    Trials that are done stay as they are; a trial that has a history is resumed. A trial whose ServerApp
    dies is submitted again at once.

    Parameters
    ----------
    at_once : bool
        Train all trials at the same time, sharing the clients, instead of one after another.

    Raises
    ------
    EngineError
        If the engine dies, or refuses a run.
    """
    waiting = [trial for trial in trials if not trial.done]
    running: list[_Follower] = []
    while waiting or running:
        for client in engine.check():
            watcher.event(f"{client} died; the rounds go on without it (log: {engine.logs / client}.log)")
        # A trial is submitted only after the one before has begun its history. All ServerApps share the
        # SuperLink's home, where the first unpacks the app: started together, the others would import
        # half-written files. It also lets the histories begin in the order of the trials, by which
        # `read_run` sorts them.
        if waiting and (not running or (at_once and running[-1].begun)):
            running.append(_Follower(engine, waiting.pop(0)))
        for each in list(running):
            trial = each.trial
            # Checked first, so that the read below sees the last lines of a run that has ended
            over = each.over
            try:
                watcher.lines(trial, trial.history.read())
            except Exception as error:  # a line that cannot be shown must not end the training
                watcher.event(f"{trial.name}: cannot be shown: {error!r}")
            if over:
                running.remove(each)
                if each.should_restart():
                    watcher.event(f"{trial.name}: its ServerApp died; it is started again")
                    each.restart()
                    running.append(each)
                elif trial.problem:
                    watcher.event(f"{trial.name} failed: {trial.problem}")
        watcher.refresh()
        time.sleep(WATCH_INTERVAL)


class _Follower:
    """One trial from its first submission to its end."""

    def __init__(self, engine: Engine, trial: Trial) -> None:
        self.trial = trial
        self._engine = engine
        self._checkpoints = CheckpointFolder(trial.folder / CHECKPOINTS)
        self._submissions = 0
        self._reached = -1  # the highest round reached so far
        self._tries = 0  # submissions since the last new round
        self._submit()

    def _submit(self) -> None:
        trial = self.trial
        trial.history.read()
        trial.history.end = None
        self._starts = trial.history.starts
        self._ended_at: float | None = None  # when the history's last line was first seen
        self._submissions += 1
        name = trial.name if self._submissions == 1 else f"{trial.name}-{self._submissions}"
        resume: dict[str, ConfigValue] = {"resume": True} if trial.history.path.exists() else {}
        self._run = self._engine.submit(trial.run_config | resume, name)

    @property
    def begun(self) -> bool:
        """Whether the ServerApp has begun since the last submission."""
        return self.trial.history.starts > self._starts

    @property
    def over(self) -> bool:
        """Whether the run has ended: it finished or failed, or its ServerApp was killed."""
        # The lock on the checkpoints shows at once that a ServerApp was killed; Flower takes a minute.
        if self.begun and self._checkpoints.is_abandoned():
            return True
        # A SuperLink that was restarted may report a run as over while its ServerApp still works
        if self._run.over:
            return not self._checkpoints.is_claimed()
        if self.trial.history.end is not None and self._ended_at is None:
            self._ended_at = time.monotonic()
        return self._ended_at is not None and time.monotonic() - self._ended_at > END_TIMEOUT

    def should_restart(self) -> bool:
        """Tell whether the ServerApp died and should be started again; called once after each run.

        A ServerApp that fails says so in the history. One that just stops is resumed from its checkpoint,
        unless the last `TRIES` submissions completed no new round.
        """
        history = self.trial.history
        self.trial.last_words = self._run.last_words
        if history.end is not None or not history.settings:
            return False
        last = history.rounds[-1]["round"] if history.rounds else -1
        self._tries = 1 if last > self._reached else self._tries + 1
        self._reached = max(last, self._reached)
        return self._tries <= TRIES

    def restart(self) -> None:
        """Submit the trial again."""
        if not self._run.over:
            self._run.abort()
        self._submit()
