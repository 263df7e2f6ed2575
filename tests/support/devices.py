"""A server and devices as their users run them, each in a process of its own."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from deploy.processes.ports import free_ports

COHORT = Path(sys.executable).parent / "cohort"


def wait_for(condition: Callable[[], object], timeout: float, what: Callable[[], str]) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.05)


def cohort(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [COHORT, *arguments, "--dir", str(folder)],
        cwd=folder.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


class Running:
    """A running `cohort client join` or `cohort server up`, and its output."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        with log.open("a") as output:
            self.process = subprocess.Popen(
                [COHORT, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str, timeout: float = 120, times: int = 1) -> None:
        wait_for(lambda: self.said.count(text) >= times, timeout, lambda: f"{text!r} not in:\n{self.said}")

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        finally:
            self.process.kill()


@contextlib.contextmanager
def server_up(folder: Path) -> Iterator[Path]:
    """Run a server for devices on this machine."""
    port, control = free_ports(2)
    up = Running(
        folder.parent / "server.log",
        *("server", "up", "--host", "localhost", "--listen", "127.0.0.1", "--dir", str(folder)),
        *("--port", str(port), "--control-port", str(control)),
    )
    try:
        up.wait_for("up at localhost:")
        yield folder
    finally:
        up.end()
