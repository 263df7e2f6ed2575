"""All processes of an owner are ended, and no others, even if the owner was killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.processes.groups import POLL_INTERVAL, Process, processes_with, stop, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
MARK = "COHORT_TEST"


@pytest.fixture
def mark(tmp_path):
    yield {**os.environ, MARK: str(tmp_path)}
    for pid in processes_with(MARK, str(tmp_path)):
        os.kill(pid, signal.SIGKILL)


def ended(process):
    return process.returncode is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can read the environment of other users")
def test_a_process_of_another_user_is_not_found(tmp_path, mark):
    """It may have any environment; a server of root would believe that it is running already."""
    command = ["/bin/sleep", "60"]
    own, other = (subprocess.Popen(command, env=mark, **user) for user in ({}, {"user": 65534}))
    assert wait_until(lambda: own.pid in processes_with(MARK, str(tmp_path)), 10)
    assert Path(f"/proc/{other.pid}/environ").read_bytes()
    assert other.pid not in processes_with(MARK, str(tmp_path))
    for each in (own, other):
        each.kill()
        each.wait()


def test_a_group_whose_process_ended_long_ago_is_not_signalled(tmp_path, mark, monkeypatch):
    gone = Process(["true"], tmp_path / "log", mark)
    runs = Process(["sleep", "60"], tmp_path / "log", mark)
    assert wait_until(lambda: ended(gone), 10)
    signalled = []
    killpg = os.killpg
    monkeypatch.setattr(os, "killpg", lambda group, number: (signalled.append(group), killpg(group, number)))
    stop([gone, runs], 5, lambda: processes_with(MARK, str(tmp_path)))
    assert set(signalled) == {runs.pid}
    assert ended(runs)


def test_the_children_that_outlived_their_parent_are_ended_by_their_mark(tmp_path, mark):
    parent = Process(["sh", "-c", "sleep 60 & exit"], tmp_path / "log", mark)
    assert wait_until(lambda: ended(parent), 10)
    assert len(processes_with(MARK, str(tmp_path))) == 1
    stop(
        [parent], 5, lambda: [*processes_with(MARK, str(tmp_path)), 2**22 + 1]
    )  # the last one does not exist
    assert wait_until(lambda: not processes_with(MARK, str(tmp_path)), 5)


def test_the_watchdog_cleans_up_once_its_owner_is_killed(tmp_path, mark):
    state = tmp_path / "state"
    state.mkdir()
    (state / "key").write_text("secret")
    script = (
        "import os, time; from pathlib import Path; from deploy.processes.groups import *\n"
        "from deploy.processes.watchdog import watchdog_command\n"
        f"Process(watchdog_command({MARK!r}, {str(tmp_path)!r}, Path({str(state)!r})),"
        f" Path({str(tmp_path / 'log')!r}), os.environ)\n"
        f"Process(['sleep', '60'], Path({str(tmp_path / 'log')!r}), os.environ)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], env=mark) as owner:
        try:
            assert wait_until(lambda: len(processes_with(MARK, str(tmp_path))) == 3, 20)
            assert not wait_until(lambda: not state.exists(), 20 * POLL_INTERVAL)  # it only waits
        finally:
            owner.kill()
    assert wait_until(lambda: not state.exists(), 20)
    assert wait_until(lambda: not processes_with(MARK, str(tmp_path)), 5), (tmp_path / "log").read_text()
