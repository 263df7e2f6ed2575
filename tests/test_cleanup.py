"""A killed test session leaves no process behind."""

import os
import subprocess
import sys

import pytest

from deploy.processes.groups import processes_with, wait_until

from .conftest import MARK

TEST = """
import subprocess, time
def test():
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the watchdog works on Linux")
def test_processes_end_when_pytest_is_killed(tmp_path):
    (tmp_path / "test_it.py").write_text(TEST)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        str(tmp_path),
    ]
    alone = {name: value for name, value in os.environ.items() if name != MARK}
    with subprocess.Popen(command, env=alone, stdout=subprocess.DEVNULL) as session:
        try:  # the watchdog and the sleep; pytest itself had no mark when it started
            assert wait_until(lambda: len(processes_with(MARK, str(session.pid))) == 2, 30)
        finally:
            session.kill()
    assert wait_until(lambda: not processes_with(MARK, str(session.pid)), 10)
