"""A forked command behaves like the stock command: arguments, environment, folder, output and exit."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from deploy.fleet import server as fleet_server
from deploy.flower import fork_server
from deploy.flower.commands import LAUNCHER, guarded
from deploy.flower.fork_client import ForkServer, Gone, fork_server_command
from deploy.flower.fork_server import SOCKET
from deploy.flower.launch import ALL
from deploy.processes.groups import Process, processes_with, wait_until

from ...support.devices import mode

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")
MARK = "COHORT_TEST"


@pytest.fixture
def environment(tmp_path):
    yield {**os.environ, MARK: str(tmp_path)}
    kill_marked(tmp_path)


def kill_marked(folder):
    for pid in processes_with(MARK, str(folder)):
        os.kill(pid, signal.SIGKILL)


@dataclass
class Server:
    """A fork server of Flower's programs."""

    process: Process
    folder: Path
    """Where it listens."""

    def tail(self):
        return self.process.tail()


def start_server(folder, names=ALL):
    listens = folder / "a folder whose name is too long for that of a socket".ljust(120, "_")
    listens.mkdir()
    command = fork_server_command(LAUNCHER, listens, names)
    process = Process(command, folder / "fork-server.log", {**os.environ, MARK: str(folder)})
    assert wait_until((listens / SOCKET).exists, 60), process.tail()
    return Server(process, listens)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    yield start_server(folder)
    kill_marked(folder)


@pytest.fixture
def connection(server):
    connection = ForkServer.connect(server.folder)
    yield connection
    connection.close()


@pytest.mark.parametrize("name", ["flower-supernode", "flower-superlink", "flwr-clientapp", "flwr-serverapp"])
def test_a_forked_command_has_its_own_arguments_output_environment_and_code(
    server, connection, tmp_path, name
):
    output = tmp_path / "output"
    (tmp_path / "secret").write_text("00")
    env = {**os.environ, **guarded(tmp_path / "secret"), "COLUMNS": "200", "FLWR_HOME": str(tmp_path)}
    needed = [fleet_server.ADDRESS, "localhost:9"] if name == "flower-superlink" else []
    process = connection.start([name, "--no-such-option", *needed], output, env)
    assert wait_until(lambda: process.returncode is not None, 30), server.tail()
    assert process.returncode == 2  # argparse's
    assert f"usage: {name}" in output.read_text()
    assert "usage" not in server.tail()
    assert server.process.returncode is None


def test_a_forked_process_leads_a_group_that_can_be_ended(connection, tmp_path):
    # It waits for a SuperLink that does not exist.
    command = ["flower-supernode", "--insecure", "--superlink", "127.0.0.1:9", "--port", "9"]
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    process = connection.start(command, tmp_path / "output", environment)
    assert os.getpgid(process.pid) == process.pid
    assert process.returncode is None
    process.signal_group(signal.SIGKILL)
    assert wait_until(lambda: process.returncode == -signal.SIGKILL, 10)


def test_a_request_that_breaks_off_does_not_end_the_server(server, tmp_path, monkeypatch):
    monkeypatch.chdir(server.folder)
    for torn in (b"", b'{"command": ["flower', b"\xff\n"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(SOCKET)
            if torn:
                socket.send_fds(connection, [torn], [0, 0])
    with output_of(server, tmp_path, "flower-superexec", "--version") as text:
        assert text == f"Flower version: {version('flwr')}\n", server.tail()
    assert server.process.returncode is None
    descriptors = Path(f"/proc/{server.process.pid}/fd")
    if descriptors.exists():  # Linux: the standard ones, epoll, the listener, and two pairs of sockets
        assert wait_until(lambda: len(list(descriptors.iterdir())) <= 9, 5)


class output_of:  # noqa: N801
    """Run a forked command to its end, and return its output."""

    def __init__(self, server, tmp_path, *command):
        self._connection = ForkServer.connect(server.folder)
        self._output = tmp_path / "output"
        self._process = self._connection.start(command, self._output, dict(os.environ))

    def __enter__(self):
        assert wait_until(lambda: self._process.returncode is not None, 30)
        return self._output.read_text()

    def __exit__(self, *_):
        self._connection.close()


def test_the_answer_to_an_interrupted_request_is_not_taken_for_the_next_one(
    connection, tmp_path, monkeypatch
):
    def interrupted(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ForkServer, "_next_answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            connection.run(["flower-superexec", "--version"])
    assert connection.returncode(os.getpid()) is None  # alive, and not a child of the server
    command = ["flower-superexec", "--no-such-option"]
    process = connection.start(command, tmp_path / "output", dict(os.environ))
    assert wait_until(lambda: process.returncode is not None, 30)
    assert process.returncode == 2


def test_a_dead_server_is_reported_and_the_processes_that_it_forked_go_on(tmp_path, environment):
    server = start_server(tmp_path, ["flower-supernode", "flower-superexec"])
    connection = ForkServer.connect(server.folder)
    command = ["flower-supernode", "--insecure", "--superlink", "127.0.0.1:9", "--port", "9"]
    process = connection.start(command, tmp_path / "output", environment)
    server.process.signal_group(signal.SIGKILL)
    assert wait_until(lambda: server.process.returncode is not None, 10)
    with pytest.raises(Gone):
        connection.run(["flower-superexec", "--version"])
    assert process.returncode is None
    process.signal_group(signal.SIGKILL)
    with pytest.raises(OSError, match="refused"):
        ForkServer.connect(server.folder)


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults in /proc")
def test_the_end_of_a_child_does_not_copy_the_shared_memory(server, tmp_path):
    def copied():
        faults_of_children = (
            Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()[8]
        )
        return int(faults_of_children) * os.sysconf("SC_PAGE_SIZE")

    status = Path(f"/proc/{server.process.pid}/status").read_text()
    shared = int(status.partition("RssAnon:")[2].split()[0]) * 1024
    copies = []
    for _ in range(3):  # children of other tests may end at the same time
        before = copied()
        with output_of(server, tmp_path, "flower-superexec", "--version"):
            copies.append(copied() - before)
    assert 0 < min(copies) < shared / 3


# --- a server of the test's own, with programs of the test's own --------------------------------------------

OWN_SERVER = """
import os, sys, time
from deploy.flower import fork_server, fork_client

def draw():
    import numpy.random
    print(numpy.random.random(), flush=True)

def modules():
    import {library}
    print(sorted(each for each in sys.modules if each.partition(".")[0] == "deploy"), flush=True)

def preloaded():
    print("{library}" in sys.modules, flush=True)

def channel():
    os.write(int(os.environ[variable]), b"hello")

variable = fork_server.CHANNEL
programs = dict(draw=draw, modules=modules, preloaded=preloaded, channel=channel)
connection = fork_client.fork_server(programs)
if sys.argv[1] == "channel":
    import socket
    ours, its = socket.socketpair()
    connection.run(["channel"], channel=its.fileno())
    its.close()
    print(ours.recv(5), ours.recv(5), flush=True)
for name in sys.argv[1:]:
    if name != "channel":
        pid = connection.run([name])
        while connection.returncode(pid) is None:  # by then the server has learned from it
            time.sleep(0.01)
if "--stay" in os.environ.get("ARGUMENTS", ""):
    print("stays", flush=True)
    time.sleep(60)
"""


def run_own_server(environment, *names):
    """Fork a server, let it run these programs one after another, and return their output."""
    script = OWN_SERVER.replace("{library}", "safetensors")
    root = Path(fork_server.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, *names],
        env={**environment, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_forked_children_do_not_draw_the_same_numbers(environment):
    one, two = map(float, run_own_server(environment, "draw", "draw").split())
    assert one != two


def test_the_server_learns_a_library_of_an_app_and_children_import_nothing_of_this_project(environment):
    printed = run_own_server(environment, "preloaded", "modules", "preloaded")
    assert printed.splitlines() == ["False", "[]", "True"]


def test_a_child_inherits_its_end_of_a_channel_which_closes_when_the_child_ends(environment):
    assert run_own_server(environment, "channel") == "b'hello' b''\n"


APP = """
import atexit, os, sys, threading, time

class Left:
    def __del__(self):
        os.write(1, b"deleted\\n")

def late():
    time.sleep(0.3)
    print("thread")

left = Left()
file = open(os.environ["LEFT_OPEN"], "w")
file.write("all of it")
atexit.register(print, "atexit")
threading.Thread(target=late).start()
print("app")
"""
ENDING = """
import sys, time
from deploy.flower import fork_client

def app():
    import app_of_the_test
    sys.exit(259)

def message():
    sys.exit("a message")

def error():
    raise ValueError("an error")

def interrupted():
    raise KeyboardInterrupt

programs = dict(app=app, nothing=lambda: None, true=lambda: sys.exit(True), message=message, error=error,
                interrupted=interrupted)
connection = fork_client.fork_server(programs)
for name in programs:
    pid = connection.run([name])
    while (code := connection.returncode(pid)) is None:
        time.sleep(0.01)
    print(name, code, flush=True)
"""


def test_a_child_ends_as_any_python_process_does(tmp_path, environment):
    (tmp_path / "app_of_the_test.py").write_text(APP)
    path = os.pathsep.join([str(Path(fork_server.__file__).parents[2]), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-c", ENDING],
        env={**environment, "PYTHONPATH": path, "LEFT_OPEN": str(tmp_path / "left open")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = done.stdout.splitlines()
    # Its last output stays in the buffer until the end.
    assert sorted(lines[:4]) == ["app", "atexit", "deleted", "thread"]
    assert lines[4:] == [
        "app 3",
        "nothing 0",
        "true 1",
        "message 1",
        "error 1",
        f"interrupted {-signal.SIGINT}",
    ]
    assert lines.index("thread") < lines.index("atexit")
    assert (tmp_path / "left open").read_text() == "all of it"
    assert "a message\n" in done.stderr
    assert "ValueError: an error" in done.stderr


@pytest.mark.parametrize(("told", "code"), [([3], 3), ([], -signal.SIGKILL)], ids=["told late", "no server"])
def test_a_process_does_not_count_as_killed_while_the_server_is_about_to_report_its_exit(told, code):
    gone = subprocess.Popen(["true"])
    gone.wait()
    ours, its = socket.socketpair()

    def tell():
        for each in told:
            its.sendall(b'{"pid": 1, "code": 0}\n' + f'{{"pid": {gone.pid}, "code": {each}}}\n'.encode())
        its.close()

    late = threading.Timer(0.2, tell)
    late.start()
    connection = ForkServer(ours)
    assert connection.returncode(gone.pid) == code
    late.join()
    assert connection.returncode(gone.pid) == code
    connection.close()


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_forked_server_ends_with_the_process_that_it_was_forked_from(tmp_path, environment):
    script = OWN_SERVER.replace("{library}", "safetensors")
    root = Path(fork_server.__file__).parents[2]
    environment |= {"PYTHONPATH": str(root), "ARGUMENTS": "--stay"}
    owner = Process([sys.executable, "-c", script, "preloaded"], tmp_path / "log", environment)
    assert wait_until(lambda: "stays" in owner.tail(), 30), owner.tail()
    assert len(processes_with(MARK, str(tmp_path))) == 2
    os.kill(owner.pid, signal.SIGKILL)
    assert wait_until(lambda: owner.returncode is not None, 5)
    assert wait_until(lambda: not processes_with(MARK, str(tmp_path)), 5)


def test_all_preloaded_modules_can_be_imported():
    for name in fork_server.PRELOADED:
        import_module(name)


def test_bad_requests_end_neither_the_server_nor_its_children(server, connection, tmp_path):
    for request in (b"garbage\n", b"3\n", b"{}\n", b"[" * 200_000 + b"\n", b"x" * (2 << 20)):
        with socket.socket(socket.AF_UNIX) as attacker:
            attacker.connect(f"/proc/{server.process.pid}/cwd/{SOCKET}")
            attacker.settimeout(10)
            with contextlib.suppress(ConnectionError):  # the server does not read the rest of a long request
                attacker.sendall(request)
                attacker.recv(4096)  # nothing, or the exit code of a child
    command = ["flower-supernode", "--version"]
    process = connection.start(command, tmp_path / "output", dict(os.environ))
    assert wait_until(lambda: process.returncode is not None, 30), server.tail()
    assert process.returncode == 0


def test_only_its_own_user_can_connect(tmp_path):
    before = os.umask(0)
    try:
        server = start_server(tmp_path, ["flower-supernode"])
    finally:
        os.umask(before)
        kill_marked(tmp_path)
    assert mode(server.folder / SOCKET) == 0o600
