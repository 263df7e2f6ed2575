"""Runs the page in a process of its own beside a run. Once started, it can neither slow nor stop the run."""

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from deploy.page.secret_link import TOKEN, shown_address

START_TIMEOUT = 30.0  # s that the page may take to start
GRACE = 3.0  # s that the page may take to end
PAUSE = 5.0  # s before a page that has ended is started again


class PageProcess:
    """The page's process, inside a `with` block. If it does not start, the run goes on without a page.

    `folder`: what the page shows, see `deploy.page.run_sources.RunSources`. `port`: the port of the page on
    this machine; 0 stands for a free port. `say`: receives the page's address (see `shown_address`), or why
    there is no page.
    """

    def __init__(
        self, folder: Path, token: str, port: int, say: Callable[[str], None], kept: Path | None = None
    ) -> None:
        self.folder, self.token, self.port = folder, token, port
        self._say, self._kept = say, kept
        self._resources = contextlib.ExitStack()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._again = 0.0  # when the page is started again (time.monotonic(), s); 0: no start is due

    def __enter__(self) -> Self:
        self._start()
        if self._process is not None:
            shown = self._resources.enter_context(shown_address(self.port, self.token, self._kept))
            self._say(f"live page: {shown}")
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()
        self._end()

    def check(self) -> None:
        """If the page has ended, start it again, `PAUSE` seconds or more after the call that noticed this."""
        if self._process is None or self._process.poll() is None:
            return
        if not self._again:
            self._again = time.monotonic() + PAUSE
        elif time.monotonic() > self._again:
            self._again = 0.0
            self._end()
            self._start()

    def _start(self) -> None:
        command = [sys.executable, "-P", "-m", "deploy.page", str(self.folder), str(self.port)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.fileno(),
            env={**os.environ, TOKEN: self.token},
            start_new_session=True,  # Ctrl-C ends the run first, and then the page
        )
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_TIMEOUT)
        line = self._process.stdout.readline() if ready else b""
        if line.strip().isdigit():
            self.port = int(line)
            return
        self._process.kill()
        self._process.communicate()
        self._log.seek(0)
        last = self._log.read().decode(errors="replace").strip().splitlines()[-1:] or ["no answer"]
        self._say(f"there is no live page: {last[0]}; the run goes on")
        self._process = None

    def _end(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            self._process.terminate()
        try:
            self._process.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._process = None
