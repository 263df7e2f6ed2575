"""Submits the trainings that the environment asks for, follows them to their end, and says what came of it.

The SuperLink may be restarted in the meantime: Flower's log stream breaks off then, and is taken up again. A
ServerApp that is killed is started again and goes on from its checkpoint. So does what this container left
unfinished when it was ended, unless the settings are others now.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

from deploy.container import RESULTS
from deploy.container.settings import planned
from deploy.container.superlink import CONNECTION, UNAVAILABLE, flwr, write_connection
from deploy.container.supervisor import say
from deploy.flower.app_folder import app_folder
from deploy.flower.submission import toml
from deploy.processes.groups import wait_until
from deploy.runs.display import report
from deploy.runs.figure import draw
from deploy.runs.trials import PLAN, read_plan, write_plan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from deploy.runs.history import ArmHistory
    from deploy.runs.trials import Trial

FIGURE = "cohort.png"
LOOK = 0.25  # seconds between two looks at the log and the history
RETRY = 3.0  # seconds until the SuperLink is asked again
UNKNOWN = "Run ID not found"  # what Flower says of a run that it has not
LAST_WORDS = 10.0  # seconds that the log may lag behind the history, or the history behind Flower


def main() -> int:
    """Train with each selector in turn; return 0 if all came to their planned end."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        folder, trials = _last_or_new(RESULTS)
        write_connection()
        for trial in trials:
            _train(trial)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    _conclude(folder, [trial.history for trial in trials])
    return 0 if all(trial.history.finished for trial in trials) else 1


def _last_or_new(results: Path) -> tuple[Path, list[Trial]]:
    """Return the last training that was left unfinished, if the settings are still its own, or a new one.

    Raises
    ------
    ValueError
        If a setting is wrong.
    """
    for file in sorted(results.glob(f"*/{PLAN}"))[-1:]:
        folder = file.parent
        earlier, now = read_plan(folder), planned(folder)
        if [(a.name, a.run_config) for a in earlier] == [(a.name, a.run_config) for a in now]:
            if not all(trial.done for trial in earlier):
                say(f"goes on with {folder}; remove it to begin again")
                return folder, earlier
        elif not all(trial.done for trial in earlier):
            say(f"{folder} is unfinished, but its settings were others: this is a new training")
    folder = results / datetime.now(UTC).strftime("%Y-%m-%d_%H-%M-%S")
    trials = planned(folder)
    folder.mkdir()
    write_plan(folder, trials)
    return folder, trials


def _train(trial: Trial) -> None:
    while not trial.done:
        run_id = _under_way(trial) or _submit(trial)
        _run_id(trial).write_text(run_id)
        say(f"{trial.name} is run {run_id}")
        try:
            status = _follow(run_id, trial.history)
        except SystemExit:  # this container is being stopped: the clients shall not go on for nobody
            flwr("stop", run_id, CONNECTION)
            raise
        if trial.history.finished:
            break
        if not trial.died():
            say(f"{trial.name} failed: {trial.problem if trial.history.end else status}")
            break
        say(f"{trial.name}: its ServerApp ended without a word; it is started again")


def _run_id(trial: Trial) -> Path:
    folder = trial.history.path.parent
    return folder.with_name(f"{folder.name}.run-id")


def _under_way(trial: Trial) -> str | None:
    """Return the id of the trial's run if this container was killed and the run is not over yet."""
    if not _run_id(trial).exists():
        return None
    run_id = _run_id(trial).read_text()
    return run_id if _how_it_ended(run_id) is None else None


def _how_it_ended(run_id: str) -> str | None:
    """Put into words how a run ended, None if it has not, as soon as the SuperLink says so."""
    while True:
        told = flwr("list", CONNECTION, "--run-id", run_id)
        for run in told.get("runs", ()):
            status = str(run["status"])
            return f"{status}: {run.get('status-details', '')}" if status.startswith("finished") else None
        if told.get("success") or UNKNOWN in str(told.get("error-message")):
            return "the SuperLink does not know it"
        time.sleep(RETRY)  # it is away, or its database is busy


def _submit(trial: Trial) -> str:
    """Submit a training as soon as the SuperLink answers; return Flower's id of the run.

    Raises
    ------
    ValueError
        If Flower refuses it.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as config:
        for key, value in trial.start().items():
            config.write(f"{key} = {toml(value)}\n")
        config.flush()
        while True:
            told = flwr("run", str(app_folder()), CONNECTION, "--run-config", config.name)
            if told.get("success"):
                return str(told["run-id"])
            message = str(told.get("error-message", "no answer"))
            if UNAVAILABLE not in message:
                raise ValueError(f"{trial.name}: Flower refused the run: {message}")
            time.sleep(RETRY)


def _follow(run_id: str, history: ArmHistory) -> str:
    """Print the run's log until the run is over; return how Flower says that it ended."""
    printed = 0
    while True:
        printed += _stream(run_id, history, printed)
        history.read()
        if history.end is not None:
            return "finished"
        if ended := _how_it_ended(run_id):
            wait_until(lambda: bool(history.read()) and history.end is not None, LAST_WORDS)
            return ended
        time.sleep(RETRY)


def _stream(run_id: str, history: ArmHistory, printed: int) -> int:
    """Print the run's log but for the first `printed` lines, which a former stream brought.

    Returns
    -------
    int
        How many lines were printed, once the stream has ended or the history has.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            command = ("flwr", "log", run_id, CONNECTION, "--stream")
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        seen = 0  # complete lines
        ended: float | None = None
        try:
            while True:
                over = process.poll() is not None  # looked at first: the last lines come before it
                lines = log.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
                for line in lines[max(seen, printed) :]:
                    print(line, flush=True)
                seen = len(lines)
                history.read()
                if history.end is not None:
                    ended = ended or time.monotonic()
                if over or (ended and time.monotonic() - ended > LAST_WORDS):
                    return max(0, seen - printed)
                time.sleep(LOOK)
        finally:
            process.kill()
            process.wait()


def _conclude(folder: Path, histories: Sequence[ArmHistory]) -> None:
    """Print the comparison, draw the figure, and say where everything lies."""
    trained = [history for history in histories if history.trained]
    if trained:
        Console(highlight=False, markup=False, width=100).print(report(trained))
        draw(trained, folder / FIGURE)
    say(f"the results are in {folder}; copy them out with: docker compose cp run:{RESULTS} .")


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
