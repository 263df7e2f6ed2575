"""A SuperLink that already runs, as an engine: runs are submitted and watched with `flwr` commands.

The SuperLink may restart during a run. Flower's log stream then breaks off; it is opened again until the
SuperLink says that the run has ended.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from deploy.engines.engine import EngineError
from deploy.flower.config import write_config
from deploy.flower.flwr_cli import UNAVAILABLE, flwr
from deploy.flower.submission import copy_app

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from deploy.flower.config import ConfigValue

RETRY = 3.0  # seconds until the SuperLink is asked again
UNKNOWN = "Run ID not found"  # Flower's message for a run that the SuperLink does not have


class SuperLink:
    """Submits runs to a SuperLink and prints the logs of their ServerApps.

    Parameters
    ----------
    connection : str
        The SuperLink's name in Flower's config.toml.
    app : Path
        The folder of the app.
    folder : Path
        Not part of the app, should it lie inside `app`.
    environment : Mapping[str, str]
        For `flwr`.
    """

    def __init__(self, connection: str, app: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.connection = connection
        self.logs = folder / "logs"
        self.runs: list[SubmittedRun] = []
        self._app = app
        self._folder = folder
        self._environment = environment

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for run in self.runs:
            run.close()

    def submit(self, run_config: Mapping[str, ConfigValue], name: str) -> SubmittedRun:
        """Submit a run as soon as the SuperLink answers.

        Raises
        ------
        EngineError
            If Flower refuses the run.
        """
        with tempfile.TemporaryDirectory() as temporary:
            app, config = Path(temporary, "app"), Path(temporary, "config.toml")
            copy_app(self._app, app, self._folder)
            write_config(config, run_config)
            while True:
                answer = self.flwr("run", str(app), self.connection, "--run-config", str(config))
                if answer["success"]:
                    return self.follow(str(answer["run-id"]))
                message = str(answer["error-message"]).strip()
                if UNAVAILABLE not in message:
                    raise EngineError(f"{name}: Flower refused the run: {message}")
                time.sleep(RETRY)

    def follow(self, run_id: str) -> SubmittedRun:
        """Follow a run that was submitted earlier."""
        run = SubmittedRun(self, run_id)
        self.runs.append(run)
        return run

    def check(self) -> list[str]:
        """Return nothing: the clients are not processes of this engine."""
        return []

    def result(self, run_id: str) -> str | None:
        """Say how a run ended: "" while the run goes on, None if the SuperLink does not answer."""
        answer = self.flwr("list", self.connection, "--run-id", run_id)
        for run in answer.get("runs", ()):
            status = str(run["status"])
            return f"{status}: {run.get('status-details', '')}" if status.startswith("finished") else ""
        if answer["success"] or UNKNOWN in str(answer["error-message"]):
            return "the SuperLink does not know the run"
        return None  # it is away, or its database is busy

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Run a `flwr` command (see `deploy.flower.flwr_cli.flwr`)."""
        return flwr(*arguments, environment=self._environment)

    def open_log(self, run_id: str) -> _LogStream:
        """Stream the log of a run's ServerApp, from its first line on."""
        return _LogStream(("flwr", "log", run_id, self.connection, "--stream"), self._environment)


class SubmittedRun:
    """A run on a SuperLink. Reading `over` prints what is new in its log."""

    def __init__(self, superlink: SuperLink, run_id: str) -> None:
        self.run_id = run_id
        self.last_words = "the SuperLink has not said how the run ended"
        self._superlink = superlink
        self._over = False
        self._printed = 0  # lines of the log
        self._stream = superlink.open_log(run_id)
        self._next_question = time.monotonic() + RETRY

    @property
    def over(self) -> bool:
        """Whether the SuperLink says that the run has ended."""
        if self._over:
            return True
        streaming = self._stream.is_open  # checked first: until the stream ends, lines may come
        for number, line in self._stream.new_lines():
            if number > self._printed:  # else an earlier stream brought it
                print(line, flush=True)
                self._printed = number
        if streaming or time.monotonic() < self._next_question:
            return False
        self._next_question = time.monotonic() + RETRY
        result = self._superlink.result(self.run_id)
        if result:
            self._over, self.last_words = True, result
        elif result == "":
            self._stream.close()
            self._stream = self._superlink.open_log(self.run_id)
        return self._over

    def abort(self) -> None:
        """Stop the run."""
        if not self._over:
            self._superlink.flwr("stop", self.run_id, self._superlink.connection)

    def close(self) -> None:
        """Follow the log no longer."""
        self._stream.close()


class _LogStream:
    """A process that prints the log of a run; the log is kept in a temporary file."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._offset = 0
        self._incomplete = b""  # the last line, while its end is missing
        self._lines = 0
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
        )

    @property
    def is_open(self) -> bool:
        return self._process.poll() is None

    def new_lines(self) -> Iterator[tuple[int, str]]:
        """Yield the complete lines since the last call, with their numbers from 1."""
        # Not `read`, which would move the offset at which the process writes.
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
