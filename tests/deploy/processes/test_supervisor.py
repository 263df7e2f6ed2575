"""A supervisor restarts its program until it is stopped, and leaves nothing of it behind."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from deploy.processes import supervisor
from deploy.processes.groups import processes_with, wait_until
from deploy.processes.supervisor import Supervisor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
ROOT = Path(__file__).parents[3]
MARK = "COHORT_TEST"


class Supervised(Supervisor):
    """Supervises a shell script, in a thread."""

    grace = 5.0
    look = 0.02

    def __init__(self, folder, script):
        super().__init__()
        self.folder = folder
        self.script = script
        self.lines = []
        self.codes = []
        self.go_on = True
        self.may = True
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def command(self):
        return ["sh", "-c", self.script]

    def environment(self):
        return {**os.environ, MARK: str(self.folder)}

    def may_start(self):
        return self.may

    def line(self, line):
        self.lines.append(line)

    def check(self):
        go_on, self.go_on = self.go_on, True
        return go_on

    def ended(self, code):
        self.codes.append(code)
        return 0.01 if code is None or len(self.codes) < 3 else 60.0

    def left(self):
        return processes_with(MARK, str(self.folder))


@pytest.fixture
def supervise(tmp_path):
    started = []

    def start(script):
        started.append(Supervised(tmp_path, script))
        return started[-1]

    yield start
    for each in started:
        each.stop()
        each.thread.join(10)
        assert not each.thread.is_alive()
        assert wait_until(lambda each=each: not each.left(), 5)


def test_a_program_that_prints_without_a_pause_is_checked_too(supervise):
    supervised = supervise("while true; do echo .; done")
    assert wait_until(lambda: bool(supervised.lines), 10)
    supervised.go_on = False  # the next check ends the program
    assert wait_until(lambda: bool(supervised.codes), 10)


def test_a_program_is_started_again_until_the_supervisor_is_stopped(supervise):
    supervised = supervise("echo one; printf two; exit 7")
    assert wait_until(lambda: len(supervised.codes) == 3, 10)
    assert supervised.codes == [7, 7, 7]
    assert supervised.lines == [b"one", b"two"] * 3
    began = time.monotonic()
    supervised.stop()  # it pauses for a minute
    supervised.thread.join(10)
    assert time.monotonic() - began < 5


def test_children_that_hold_the_output_open_are_ended_with_the_program(supervise):
    supervised = supervise("sleep 60 & echo started; exit 1")
    assert wait_until(lambda: len(supervised.codes) == 3, 10)
    assert wait_until(lambda: not supervised.left(), 5)


def test_a_program_that_ignores_sigterm_is_killed(supervise):
    supervised = supervise("trap '' TERM; echo ready; while true; do sleep 0.1; done")
    supervised.grace = 0.2
    assert wait_until(lambda: b"ready" in supervised.lines, 10)
    supervised.stop()
    supervised.thread.join(10)
    assert wait_until(lambda: not supervised.left(), 5)
    assert supervised.codes == []  # the end was asked for


@pytest.mark.parametrize("way", ["restart", "check"])
def test_a_program_is_started_anew_when_its_supervisor_wants_it(supervise, way):
    supervised = supervise("echo up; sleep 60")
    assert wait_until(lambda: b"up" in supervised.lines, 10)
    if way == "restart":
        supervised.restart()
    else:
        supervised.go_on = False
    assert wait_until(lambda: supervised.lines.count(b"up") == 2, 10)
    assert supervised.codes == [-signal.SIGTERM]


def test_a_full_disk_does_not_end_a_supervisor(supervise, monkeypatch):
    errors = iter([errno.ENOSPC, errno.EAGAIN])

    def fails_twice(this, code):
        this.codes.append(code)
        if (number := next(errors, None)) is not None:
            raise OSError(number, os.strerror(number))
        return 60.0

    monkeypatch.setattr(supervisor, "AFTER_ERROR", 0.01)
    monkeypatch.setattr(Supervised, "ended", fails_twice)
    supervised = supervise("exit 3")
    assert wait_until(lambda: supervised.codes == [3, 3, 3], 10)


def test_a_program_that_must_not_start_is_tried_again_later(supervise):
    supervised = supervise("echo up; sleep 60")
    assert wait_until(lambda: b"up" in supervised.lines, 10)
    supervised.may = False
    supervised.restart()
    assert wait_until(lambda: supervised.codes.count(None) > 1, 10)
    supervised.may = True
    assert wait_until(lambda: supervised.lines.count(b"up") == 2, 10)


@pytest.mark.parametrize(
    "module", ["deploy.processes.supervisor", "deploy.device.reconnect", "deploy.container.supervisor"]
)
def test_supervisors_import_the_standard_library_only(module):
    """They stay in the memory of small devices."""
    script = (
        f"import sys; before = set(sys.modules); import {module}; "
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new - sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "['deploy']\n"
