"""Trains trials on an engine: follows each run to its end, and resumes a trial if its ServerApp dies."""

import time
from collections.abc import Callable, Sequence

from deploy.engines.engine import Engine
from deploy.flower.config import ConfigValue
from deploy.runs.trials import STOPPED, Trial
from server.history import Line
from server.settings import CHECKPOINTS
from strategies.checkpoint import CheckpointFolder

WATCH_INTERVAL = 0.2  # seconds between two reads of the histories
# Seconds from the ``end`` or ``error`` line of a history until the run counts as over, even if the engine
# reports that the run still goes on. An engine reports the end only when it has the whole log, which on
# a busy machine gets its last lines 10 s and more after the history.
END_TIMEOUT = 60.0
# Seconds without a new line in a trial's history after which `Watcher.waits` is called. It is called again
# after each further `PATIENCE` seconds.
PATIENCE = 30.0
TRIES = 3  # after this many restarts in a row without a new round, a trial is given up


class Watcher:
    """Receives the progress of the training. By default, it passes on messages and ignores the rest."""

    def __init__(self, event: Callable[[str], None]) -> None:
        self.event = event
        """Receives a message that is not in a history."""

    def lines(self, trial: Trial, lines: Sequence[Line]) -> None:
        """Receive the lines that were added to a trial's history since the last call."""

    def waits(self, trial: Trial, seconds: float) -> None:
        """Receive the seconds since a trial's history last had a new line; see `PATIENCE` for when."""

    def refresh(self) -> None:
        """Redraw, if the watcher draws. Called each time all histories have been read."""


def train(engine: Engine, trials: Sequence[Trial], watcher: Watcher, *, at_once: bool) -> None:
    """Train the trials on the engine until every trial has finished or failed (see `Trial.problem`).

    Trials that are done are not trained again, and a trial that has a history is resumed. If the ServerApp of
    a trial dies, the trial is submitted again immediately.

    `trials`: the trials, in the order in which they are submitted. `at_once`: whether the trials train at the
    same time and share the clients, or one after another.
    """
    waiting = [trial for trial in trials if not trial.done]
    running: list[_Follower] = []
    while waiting or running:
        for client in engine.check():
            watcher.event(f"{client} died and is started again (log: {engine.logs / client}.log)")
        # A trial is submitted only after the previous trial has begun its history. All ServerApps share the
        # SuperLink's Flower home, where the first ServerApp unpacks the app. If several started together,
        # some would import half-written files. Also, `read_run` sorts histories by their starting times,
        # which are thus in the order of the trials.
        if waiting and (not running or (at_once and running[-1].begun)):
            running.append(_Follower(engine, waiting.pop(0)))
        for each in list(running):
            trial = each.trial
            # Checked before the history is read, so that the last lines of a run that has ended are read too
            over = each.over
            try:
                lines = trial.history.read()
                watcher.lines(trial, lines)
                if (waited := each.wait(bool(lines))) is not None:
                    watcher.waits(trial, waited)
            except Exception as error:  # a line that cannot be shown must not end the training
                watcher.event(f"{trial.name}: cannot be shown: {error!r}")
            if over:
                running.remove(each)
                if each.should_restart():
                    watcher.event(f"{trial.name}: its ServerApp died; it is started again")
                    each.restart()
                    running.append(each)
                elif trial.problem:
                    failed = "" if trial.problem == STOPPED else "failed: "
                    watcher.event(f"{trial.name} {failed}{trial.problem}")
        watcher.refresh()
        time.sleep(WATCH_INTERVAL)


class _Follower:
    """One trial from its first submission to its end."""

    def __init__(self, engine: Engine, trial: Trial) -> None:
        self.trial = trial
        self._engine = engine
        self._checkpoints = CheckpointFolder(trial.folder / CHECKPOINTS)
        self._submissions = 0
        self._reached = -1  # the highest round of the earlier submissions; -1 if there is none
        self._tries = 0  # restarts since the last new round
        self._news = time.monotonic()  # when the history last had new lines (time.monotonic(), s)
        self._told = 0  # how many times `PATIENCE` had passed when `wait` last returned a number
        self._submit()

    def _submit(self) -> None:
        trial = self.trial
        trial.history.read(skip_damaged=True)
        trial.history.end = None
        self._starts = trial.history.starts
        self._claim = self._checkpoints.last_claim()
        self._ended_at: float | None = None  # when the end or error line was first seen (time.monotonic(), s)
        self._submissions += 1
        name = trial.name if self._submissions == 1 else f"{trial.name}-{self._submissions}"
        resume: dict[str, ConfigValue] = {"resume": True} if trial.history.path.exists() else {}
        self._run = self._engine.submit(trial.run_config | resume, name)
        if self._checkpoints.is_claimed():
            self._claim = None  # its ServerApp works already: it has died if it abandons this claim

    def wait(self, news: bool) -> float | None:
        """Return the seconds since the last new line, once in each `PATIENCE` seconds; in other calls None.

        `news` says whether the history has new lines.
        """
        now = time.monotonic()
        if news:
            self._news, self._told = now, 0
        passed = int((now - self._news) / PATIENCE)
        if passed <= self._told:
            return None
        self._told = passed
        return now - self._news

    @property
    def begun(self) -> bool:
        """Whether the ServerApp of the last submission has begun to write its history."""
        return self.trial.history.starts > self._starts

    @property
    def over(self) -> bool:
        """Whether the run is over: it finished or failed, or its ServerApp was killed."""
        # The lock on the checkpoints shows immediately that a ServerApp was killed. The SuperLink may take
        # two minutes to notice.
        if self._checkpoints.last_claim() != self._claim and self._checkpoints.is_abandoned():
            return True
        # A SuperLink that was restarted may report a run as over although its ServerApp is still working
        if self._run.over:
            return not self._checkpoints.is_claimed()
        if self.trial.history.end is not None and self._ended_at is None:
            self._ended_at = time.monotonic()
        return self._ended_at is not None and time.monotonic() - self._ended_at > END_TIMEOUT

    def should_restart(self) -> bool:
        """Tell whether the ServerApp died and should be started again. Called once after each run.

        A ServerApp that finishes or fails writes a last line into the history. If this line is missing, the
        ServerApp died. The trial is then resumed, unless somebody stopped its run, the last `TRIES` restarts
        completed no new round, or the trial has no history yet.
        """
        history = self.trial.history
        self.trial.last_words = self._run.last_words
        if history.end is not None or not history.settings:
            return False
        if self._run.stopped:
            self.trial.last_words = self._run.last_words
            self.trial.stopped = True
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
