"""Follows the runs of a server: by the command that submitted a run, and after its end by a front end.

A run has one follower, which resumes it if its ServerApp dies. If several front ends share a database, the
followers are listed there (`deploy.fleet.storage.followers`). A run whose follower has ended, or has lost its
front end, is carried on by a front end that sees the run's folder: there `LeftRuns` starts this module as a
program, ``python -m deploy.hosting.following FOLDER RUN NAME``, which follows or resumes the run.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from deploy.engines.engine import EngineError
from deploy.engines.superlink import RETRY, STOPPED, RunningSuperLink, SubmittedRun
from deploy.fleet.storage.followers import BEAT, Followers
from deploy.fleet.storage.postgres import DatabaseError
from deploy.flower import commands
from deploy.flower.app_folder import app_folder
from deploy.flower.config import ConfigValue
from deploy.hosting.listing import RUN_ID
from deploy.hosting.programs import LOG_BYTES, MARK
from deploy.hosting.server import CONNECTION, Server, ServerError
from deploy.option_types import LINES
from deploy.runs.follow_and_resume import Watcher, train
from deploy.runs.trials import Trial
from server.history import FILE_NAME, RunHistory
from server.settings import CHECKPOINTS, RunSettings, check_same_run
from strategies.checkpoint import CheckpointFolder, replacing
from strategies.clients.printable import printable

LOG = "followed.log"  # the log, in the server's folder `logs`, of the runs that its front end carries on


class FollowedSuperLink(RunningSuperLink):
    """The SuperLink of a server, and this process as the follower of one run inside a `with` block.

    It writes Flower's id of the run into the run's folder, for `cohort server stop`.

    `folder`: the run's. With a database that front ends share, other processes are kept from following the
    run. Raises ServerError on entry if another process follows the run, or the database cannot be used.
    `name`: the name under which this process, and no other, follows the run. (default: a new one)
    """

    def __init__(self, server: Server, folder: Path, name: str = "") -> None:
        super().__init__(CONNECTION, app_folder(), server.folder, server.environment())
        self._run, self._home, self._name = folder.name, server.home, name or uuid4().hex
        self._note = folder / RUN_ID
        self._claimed = CheckpointFolder(folder / CHECKPOINTS).is_claimed
        shared = server.database and folder.parent == server.folder / "runs"
        self._followers = Followers(server.database, server.place) if shared else None
        self._told = 0.0  # when this process last said that it lives (time.monotonic(), s)

    def __enter__(self) -> Self:
        if self._followers is not None:
            try:
                other = self._followers.claim(self._run, self._name, self._home)
            except DatabaseError as error:
                raise ServerError(str(error)) from error
            if other:
                raise ServerError(
                    f"run = {self._run}: the front end {other} follows it already; to watch it: "
                    f"cohort page {self._note.parent}"
                )
        return super().__enter__()

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        if self._followers is not None:
            goes_on = raised[0] is KeyboardInterrupt and bool(self.runs)
            with contextlib.suppress(DatabaseError):
                (self._followers.leave if goes_on else self._followers.end)(self._run, self._name)

    def submit(self, run_config: Mapping[str, ConfigValue], name: str) -> SubmittedRun:
        """Submit a run. If its ServerApp works already, on any front end, follow it instead."""
        earlier = self._note.read_text() if self._followers is not None and self._note.exists() else ""
        if earlier and not self.ended(earlier):
            if self._claimed():
                return self.follow(earlier)
            self.flwr("stop", earlier, self.connection)  # of a front end that has died
        submitted = super().submit(run_config, name)
        with contextlib.suppress(OSError), replacing(self._note) as file:
            file.write(submitted.run_id.encode())
        return submitted

    def ended(self, run_id: str) -> str:
        """Return how a Flower run has ended, "" if it goes on. Wait until the SuperLink can say."""
        while (result := self.result(run_id)) is None:
            time.sleep(RETRY)
        return result

    def check(self) -> list[str]:
        self._live()
        return super().check()

    def flwr(self, *arguments: str) -> dict[str, Any]:
        self._live()
        return super().flwr(*arguments)

    def _live(self) -> None:
        """Say that this process follows the run. Raises EngineError if another one does."""
        if self._followers is None or time.monotonic() - self._told < BEAT:
            return
        self._told = time.monotonic()
        with contextlib.suppress(DatabaseError):  # as for all others
            if not self._followers.lives(self._run, self._name):
                raise EngineError(f"{self._run}: another front end follows it now; it goes on")


def resumed(folder: Path, given: Mapping[str, ConfigValue]) -> dict[str, ConfigValue]:
    """Return the run config with which an earlier run resumes. `given` are the settings that may change."""
    history = RunHistory(folder / FILE_NAME)
    history.read(skip_damaged=True)
    if not history.settings:
        raise ServerError(
            f"resume = {folder}: holds no {FILE_NAME} with the settings of a run; there is nothing to resume"
        )
    changes = {key.replace("-", "_"): value for key, value in given.items()}
    check_same_run(history.settings, history.settings | changes)
    known = history.settings.keys() & RunSettings.model_fields.keys()
    before = {key.replace("_", "-"): history.settings[key] for key in known}
    return {**before, **given, "output-dir": str(folder)}


class LeftRuns:
    """Carries on the runs of a server whose follower has ended, if front ends share a database.

    `say`: receives a message for the operator.
    """

    def __init__(self, server: Server, say: Callable[[str], None]) -> None:
        self._server, self._say = server, say
        self._followers = Followers(server.database, server.place) if server.database else None
        self._next = 0.0  # the next look at the database (time.monotonic(), s)
        self._left: set[str] = set()  # at the last look
        self._processes: list[subprocess.Popen[bytes]] = []

    def check(self) -> None:
        """Look for such runs, at most every `BEAT` seconds."""
        now = time.monotonic()
        if self._followers is None or now < self._next:
            return
        self._next = now + BEAT
        self._processes = [each for each in self._processes if each.poll() is None]
        before, self._left = self._left, set()
        # If the database is away, followers cannot say either that they live.
        with contextlib.suppress(DatabaseError, OSError):  # such as a full disk: it is tried again
            self._left = self._followers.left()
            for run in sorted(self._left & before):
                name = uuid4().hex
                if not (self._server.folder / "runs" / run / FILE_NAME).exists():
                    continue  # it has not begun, or this is another folder
                if not self._followers.claim(run, name, self._server.home):
                    self._processes.append(self._start(run, name))

    def _start(self, run: str, name: str) -> subprocess.Popen[bytes]:
        log = self._server.folder / "logs" / LOG
        large = log.exists() and log.stat().st_size > LOG_BYTES
        command = commands.python("-m", "deploy.hosting.following", str(self._server.folder), run, name)
        with log.open("wb" if large else "ab") as output:
            self._say(f"{printable(run)}: its follower has ended; it is carried on here (log: {log})")
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # With the mark it ends when the server ends.
                env={**os.environ, MARK: str(self._server.folder)},
                start_new_session=True,
            )


def main() -> int:
    """Follow a run whose follower has ended, and resume it if that is needed. Return 0 if it has finished."""
    folder, run, name = Path(sys.argv[1]), *sys.argv[2:]
    out = folder / "runs" / run
    try:
        server = Server.load(folder)
        with FollowedSuperLink(server, out, name) as superlink:
            config = resumed(out, {"removed-clients": str(server.revoked_file)})
            trial = Trial(run, config, RunHistory(out / FILE_NAME))
            trial.history.read(skip_damaged=True)
            flower_run = (out / RUN_ID).read_text() if (out / RUN_ID).exists() else ""
            stopped = bool(flower_run) and superlink.ended(flower_run).startswith(STOPPED)
            if trial.history.end is None and not stopped:
                train(superlink, [trial], Watcher(_say), at_once=False)
    except (EngineError, ServerError, ValueError, OSError) as error:
        _say(f"{run}: {error}")
        return 2
    return 0 if trial.history.finished else 1


def _say(text: str) -> None:
    print(f"{datetime.now():%F %T} {printable(text, None, keep=LINES)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
