"""The page beside a run: it comes, it ends with the run, and the run does not depend on it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from deploy.page.process import PageProcess
from deploy.page.secret_link import address
from deploy.processes.groups import wait_until

from .test_http_interface import write
from .test_run_sources import lines_of

PATIENCE = 60.0


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "run" / "md", lines_of([{0: (1, True)}]))
    return tmp_path / "run"


def round_shown(where):
    try:
        trials = httpx.get(f"{where}data/state", timeout=10).json()["trials"]
    except httpx.TransportError:
        return None
    return int(trials["md"]["round"]) if "md" in trials else -1


def test_a_page_is_there_while_the_run_goes_on_and_its_secret_in_no_command_line(folder):
    said = []
    with PageProcess(folder, "secret", 0, said.append) as page:
        where = address(page.port, "secret")
        (line,) = said
        assert line.startswith(f"live page: http://127.0.0.1:{page.port}/SECRET/ with the SECRET in ")
        assert Path(line.split()[-1]).read_text() == "secret"
        assert page._process is not None
        command = Path(f"/proc/{page._process.pid}/cmdline").read_bytes()
        assert b"deploy.page" in command
        assert b"secret" not in command
        assert round_shown(where) == 1
        write(folder / "md", lines_of([{0: (1, True)}] * 3))
        assert round_shown(where) == 3
    assert round_shown(where) is None
    assert not Path(line.split()[-1]).exists()


def test_a_page_that_ends_comes_again_at_the_same_address(folder, monkeypatch):
    monkeypatch.setattr("deploy.page.process.PAUSE", 0.1)
    with PageProcess(folder, "secret", 0, print) as page:
        where = address(page.port, "secret")
        assert page._process is not None
        page._process.kill()

        def is_back():
            page.check()
            return round_shown(where) == 1

        assert wait_until(is_back, PATIENCE)


def test_a_taken_port_stops_no_run(folder):
    said = []
    other = socket.create_server(("127.0.0.1", 0))
    with other, PageProcess(folder, "secret", other.getsockname()[1], said.append) as page:
        page.check()
    assert len(said) == 1
    assert said[0].startswith("there is no live page: port = ")
    assert said[0].endswith("the run goes on")


def test_the_page_ends_when_the_run_is_killed(folder, tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from deploy.page.process import PageProcess\n"
        f"with PageProcess(Path({str(folder)!r}), 'secret', 0, lambda line: print(line, flush=True)):\n"
        "    time.sleep(600)\n"
    )
    here = {**os.environ, "TMPDIR": str(tmp_path)}  # a killed run leaves the file with the secret
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=here
    ) as parent:
        assert parent.stdout is not None
        where = parent.stdout.readline().split()[2].replace("SECRET", "secret")
        assert round_shown(where) == 1
        parent.send_signal(signal.SIGKILL)
    assert wait_until(lambda: round_shown(where) is None, PATIENCE)
