"""The role `run`: submits the trials that the environment describes, follows them, and prints the results.

If the ServerApp of a trial dies, the trial is resumed from its checkpoint. If this container is restarted, it
resumes the unfinished trials, unless their settings have changed.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console

from deploy.container import RESULTS
from deploy.container.settings import trials_from_environment
from deploy.container.superlink import CONNECTION, connect
from deploy.container.supervisor import say
from deploy.engines.engine import EngineError
from deploy.engines.superlink import RETRY, RunningSuperLink, SubmittedRun
from deploy.flower.app_folder import app_folder
from deploy.flower.config import ConfigValue
from deploy.runs.display import report
from deploy.runs.figure import FIGURE, draw
from deploy.runs.follow_and_resume import Watcher, train
from deploy.runs.trials import PLAN, Trial, new_run_folder, read_plan, write_plan
from server.history import RunHistory


def main() -> int:
    """Train with one selector after another.

    Return 0 if all trials reached their planned end, 1 if a trial did not, and 2 if a setting is wrong or the
    engine failed.
    """
    signal.signal(signal.SIGTERM, _leave)
    try:
        folder, trials = _last_or_new(RESULTS)
        connect()
        with _Cluster() as cluster:
            train(cluster, trials, Watcher(say), at_once=False)
    except (EngineError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    _conclude(folder, [trial.history for trial in trials])
    return 0 if all(trial.history.finished for trial in trials) else 1


def _last_or_new(results: Path) -> tuple[Path, list[Trial]]:
    """Return the folder and the trials of the comparison to run.

    The newest comparison is resumed if it is unfinished and the settings have not changed. Otherwise a new
    comparison is planned.
    """
    for file in sorted(results.glob(f"*/{PLAN}"))[-1:]:
        folder = file.parent
        earlier, now = read_plan(folder), trials_from_environment(folder)
        if [(a.name, a.run_config) for a in earlier] == [(a.name, a.run_config) for a in now]:
            if not all(trial.done for trial in earlier):
                say(f"resumes {folder}; remove this folder to start again")
                return folder, earlier
        elif not all(trial.done for trial in earlier):
            say(f"{folder} is unfinished, but the settings have changed: this is a new run")
    with new_run_folder(results) as folder:
        trials = trials_from_environment(folder)
        write_plan(folder, trials)
    return folder, trials


class _Cluster(RunningSuperLink):
    """The cluster's SuperLink. A Flower run that survives a restart of this container is followed again."""

    def __init__(self) -> None:
        super().__init__(CONNECTION, app_folder(), RESULTS, os.environ)

    def __exit__(self, *raised: object) -> None:
        # If Docker stops this container, end the runs, so that the clients stop training.
        if isinstance(raised[1], SystemExit):
            for run in self.runs:
                run.abort()
        super().__exit__(*raised)

    def submit(self, run_config: Mapping[str, ConfigValue], name: str) -> SubmittedRun:
        """Submit a trial as a Flower run, or follow the trial's last Flower run if that has not ended."""
        folder = Path(str(run_config["output-dir"]))
        note = folder.with_name(f"{folder.name}.run-id")
        if note.exists() and not self._wait_for_result(note.read_text()):
            run = self.follow(note.read_text())
        else:
            run = super().submit(run_config, name)
        note.write_text(run.run_id)
        say(f"{name} is run {run.run_id}")
        return run

    def _wait_for_result(self, run_id: str) -> str:
        """Wait until the SuperLink answers, then return how the run ended, or "" if the run goes on."""
        while (result := self.result(run_id)) is None:
            time.sleep(RETRY)
        return result


def _conclude(folder: Path, histories: Sequence[RunHistory]) -> None:
    trained = [history for history in histories if history.trained]
    if trained:
        Console(highlight=False, markup=False, width=100).print(report(trained))
        draw(trained, folder / FIGURE)
    say(f"the results are in {folder}; to copy them:  docker compose cp run:{RESULTS} .")


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
