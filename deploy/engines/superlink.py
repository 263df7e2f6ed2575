"""An engine for a SuperLink that is already running. It submits and follows runs with `flwr` commands.

The SuperLink may restart during a run. Then Flower's log stream breaks off, and the engine opens a new
stream, until the SuperLink reports that the run has ended.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from deploy.engines.engine import EngineError
from deploy.flower.config import ConfigValue, write_config
from deploy.flower.flwr_cli import UNAVAILABLE, Flwr
from deploy.flower.submission import copy_app
from strategies.clients.printable import printable

RETRY = 1.0  # seconds between two requests to the SuperLink
PATIENCE = 120.0  # seconds of errors in the SuperLink, after which a run is not submitted again
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # the escape sequences with which Flower's logger sets colours
FAILS = "Internal server error"  # Flower's message if an error has occurred in the SuperLink
STOPPED = "finished:stopped"  # Flower's status of a run that was stopped with `flwr stop`
UNKNOWN = "Run ID not found"  # Flower's message for a run that the SuperLink does not have


class RunningSuperLink:
    """Submits runs to a SuperLink and prints the logs of their ServerApps.

    `folder`: the folder of the results. It is not submitted with the app, even if it lies inside `app`.
    `forked`: whether `flwr` commands inside a `with` block are forked from a process that has already
    imported Flower, which saves a second of CPU time per command.
    """

    def __init__(
        self,
        connection: str,
        app: Path,
        folder: Path,
        environment: Mapping[str, str],
        *,
        forked: bool = True,
    ) -> None:
        self.connection = connection
        self.logs = folder / "logs"
        self.runs: list[SubmittedRun] = []
        self._app = app
        self._folder = folder
        self._flwr = Flwr(environment)
        self._forked = forked

    def __enter__(self) -> Self:
        if self._forked:
            self._flwr.fork()
        return self

    def __exit__(self, *_: object) -> None:
        for run in self.runs:
            run.close()
        self._flwr.close()

    def submit(self, run_config: Mapping[str, ConfigValue], name: str) -> SubmittedRun:
        """Submit a run. As long as the SuperLink does not answer, try again every `RETRY` seconds."""
        failing_since: float | None = None  # time.monotonic() of the first of the errors in a row, s
        with tempfile.TemporaryDirectory() as temporary:
            app, config = Path(temporary, "app"), Path(temporary, "config.toml")
            copy_app(self._app, app, self._folder)
            write_config(config, run_config)
            while True:
                answer = self.flwr("run", str(app), self.connection, "--run-config", str(config))
                if answer["success"]:
                    return self.follow(str(answer["run-id"]))
                message = str(answer["error-message"]).strip()
                if UNAVAILABLE in message:
                    failing_since = None
                else:
                    failing_since = failing_since or time.monotonic()
                    if FAILS not in message or time.monotonic() - failing_since >= PATIENCE:
                        raise EngineError(f"{name}: Flower refused the run: {message}")
                time.sleep(RETRY)

    def follow(self, run_id: str) -> SubmittedRun:
        """Return a run that was submitted earlier, and stream its log."""
        run = SubmittedRun(self, run_id)
        self.runs.append(run)
        return run

    def check(self) -> list[str]:
        """Return the clients that died: always none, because they are not processes of this engine."""
        return []

    def result(self, run_id: str) -> str | None:
        """Return how a run ended, "" while the run goes on, or None if the SuperLink cannot say."""
        answer = self.flwr("list", self.connection, "--run-id", run_id)
        for run in answer.get("runs", ()):
            status = str(run["status"])
            return f"{status}: {run.get('status-details', '')}" if status.startswith("finished") else ""
        if answer["success"] or UNKNOWN in str(answer["error-message"]):
            return "the SuperLink does not know the run"
        return None  # the SuperLink is away, or its database is busy

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Run a `flwr` command (see `deploy.flower.flwr_cli.Flwr.ask`)."""
        return self._flwr.ask(*arguments)

    def open_log(self, run_id: str) -> _LogStream:
        """Stream the log of a run's ServerApp, from its first line on."""
        return _LogStream(self._flwr, ("log", run_id, self.connection, "--stream"))


class SubmittedRun:
    """A run on a SuperLink. Each read of `over` prints the new lines of the run's log."""

    def __init__(self, superlink: RunningSuperLink, run_id: str) -> None:
        self.run_id = run_id
        self.last_words = "the SuperLink has not reported how the run ended"
        self._superlink = superlink
        self._over = False
        self._has_ended = False  # whether the current stream was opened after the end of the run
        self._printed = 0  # the number of log lines that have been printed
        self._stream = superlink.open_log(run_id)
        self._next_question = time.monotonic() + RETRY

    @property
    def over(self) -> bool:
        """Whether the SuperLink has reported that the run has ended, and its whole log has been printed.

        If a read of `stopped` reported the end first, the rest of the log is not printed.
        """
        if self._over:
            return True
        # Checked before the lines are read: a stream that is closed now brings no more lines afterwards.
        streaming = self._stream.is_open
        for number, line in self._stream.new_lines():
            if number > self._printed:  # otherwise an earlier stream brought this line
                print(printable(_COLOUR.sub("", line), None, keep="\t"), flush=True)
                self._printed = number
        if streaming:
            return False
        if self._has_ended:
            self._over = True
            return True
        if time.monotonic() < self._next_question:
            return False
        self._next_question = time.monotonic() + RETRY
        result = self._superlink.result(self.run_id)
        if result is not None:
            # Open one more stream, since lines may be missing: a restart of the SuperLink breaks a stream
            # off, and at the end of a run the SuperLink may close the stream before the last lines.
            self._has_ended, self.last_words = bool(result), result or self.last_words
            self._stream.close()
            self._stream = self._superlink.open_log(self.run_id)
        return False

    @property
    def stopped(self) -> bool:
        """Whether the SuperLink says that the run was stopped. Each read asks the SuperLink."""
        result = self._superlink.result(self.run_id)
        if result:
            self._over, self.last_words = True, result
        return self.last_words.startswith(STOPPED)

    def abort(self) -> None:
        """Stop the run."""
        if not self._over:
            self._superlink.flwr("stop", self.run_id, self._superlink.connection)

    def close(self) -> None:
        """Stop following the log."""
        self._stream.close()


class _LogStream:
    """A `flwr log` process, which prints the log of a run into a temporary file."""

    def __init__(self, flwr: Flwr, arguments: Sequence[str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._offset = 0
        self._incomplete = b""  # the last line, as long as its end has not been printed
        self._lines = 0
        with Path(os.devnull).open("wb") as nowhere:
            self._process = flwr.start(*arguments, output=self._output.fileno(), errors=nowhere.fileno())

    @property
    def is_open(self) -> bool:
        return self._process.poll() is None

    def new_lines(self) -> Iterator[tuple[int, str]]:
        """Yield each line that was completed since the last call, with its number in the log, from 1."""
        # The process shares the file's offset. `read` would change the offset at which the process writes.
        new = os.pread(self._output.fileno(), 1 << 30, self._offset)
        self._offset += len(new)
        *lines, self._incomplete = (self._incomplete + new).split(b"\n")
        for line in lines:
            self._lines += 1
            yield self._lines, line.decode(errors="replace")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()
